"""`seeddelta autotune`: the rate of every group of matrices, from what it costs in the model's own predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from ..errors import RecipeError
from ._options import AsJson, Quiet

if TYPE_CHECKING:
    from ..tune.plan import TunePlan
    from ..tune.report import TuneReport

COMMAND_OPTIONS: dict[str, Any] = {"no_args_is_help": True}


def command(
    model: Annotated[Path, typer.Option("--model", "-m", help="Dense GGUF model (F16 or BF16 is best).")],
    text: Annotated[
        Path, typer.Option("--text", "-f", help="Calibration text, used from its end. Never the text you evaluate on.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Recipe to write (YAML).")],
    budget: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--budget", metavar="SIZE", hidden=True, help="--size in powers of 1024."),
    ] = None,
    size: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--size", metavar="SIZE", help="Size of the whole file: bytes, or with K, M, G (powers of 1000)."),
    ] = None,
    bpw: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--bpw", metavar="BITS", help="Bits a weight of the converted matrices, all bytes counted."),
    ] = None,
    max_dppl: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--max-dppl",
            metavar="PERCENT",
            help="In place of a budget: the largest change of the perplexity on the held-out text, with a margin of "
            "1.64 standard errors. Several models are built to find the smallest.",
        ),
    ] = None,
    build: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--build", metavar="OUT.GGUF", help="Also keep the model that the recipe makes."),
    ] = None,
    hessian: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--hessian", help="Covariance of the inputs (seeddelta imatrix --hessian)."),
    ] = None,
    imatrix: Annotated[Optional[Path], typer.Option("--imatrix", help="Importance matrix.")] = None,  # noqa: UP045
    config: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--config", help="YAML file of more options of a build; those given here win."),
    ] = None,
    targets: Annotated[Optional[str], typer.Option("--targets", help="Matrices, as for build.")] = None,  # noqa: UP045
    layers: Annotated[Optional[str], typer.Option("--layers", help="Layers A-B, as for build.")] = None,  # noqa: UP045
    tensor_type: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--tensor-type", metavar="REGEX=RATE", help="Tensors whose rate is given; they are not measured."),
    ] = None,
    state_bits: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--state-bits", metavar="12|14|16", help="Bits of the trellis state of what is built."),
    ] = None,
    gap: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--seeddelta-gap", help="Largest relative error of a matrix: its group gets a higher rate, or stays dense."
        ),
    ] = None,
    verify_text: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--verify-text", help="Held-out text that the result is compared on. Default: the end of --text."),
    ] = None,
    context: Annotated[int, typer.Option("--ctx", "-c", help="Tokens of a chunk; the second half is scored.")] = 512,
    chunks: Annotated[int, typer.Option("--chunks", help="Chunks that every group is measured on.")] = 4,
    verify_chunks: Annotated[
        int, typer.Option("--verify-chunks", help="Chunks of the held-out text; 0: the result is not compared.")
    ] = 16,
    bands: Annotated[
        int, typer.Option("--bands", help="Bands of layers; the first and the last layer are their own.")
    ] = 4,
    detail: Annotated[
        bool, typer.Option("--detail", help="Measure every layer by itself: several times as long.")
    ] = False,
    reference: Annotated[float, typer.Option("--reference", help="Bits at which the groups are measured.")] = 3,
    threads: Annotated[int, typer.Option("--threads", "-t", help="Threads; 0: all cores.")] = 0,
    checkpoint: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--checkpoint", metavar="DIR", help="Folder of what is measured. Default: OUTPUT.autotune."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep that folder: another budget of the model then takes a build, no more.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be measured, and about how long it takes.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Choose the bits of every group of matrices for a budget, by what each group costs.

    A group is a role in a band of layers, such as attn_v of 8-14. Each is replaced by its encoded form while the others
    stay dense, and the divergence of the model's predictions is measured. Rates are then allocated under the one
    budget, the model is built and compared with one of uniform rates and the same bytes on held-out text; if it is
    not better the recipe is that one. What is measured is kept, so that a killed run goes on where it was.

    Example: seeddelta autotune -m dense.gguf --bpw 4.0 -f valid.txt --hessian cov.gguf -o recipe.yaml --build out.gguf

    Example: seeddelta autotune -m dense.gguf --max-dppl 2% -f valid.txt --hessian cov.gguf -o recipe.yaml

    Then: seeddelta build --recipe recipe.yaml
    """
    from ..convert.recipe import Recipe, read_yaml
    from ..tune import TuneOptions, autotune, plan

    given = {
        "input": model,
        "output": build or output.with_suffix(".seeddelta.gguf"),
        "target_size": budget,
        "size": size,
        "target_bpw": bpw,
        "hessian": hessian,
        "imatrix": imatrix,
        "targets": targets,
        "layers": layers,
        "tensor_type": tuple(tensor_type) if tensor_type else None,
        "state_bits": state_bits,
        "seeddelta_gap": gap,
        "threads": threads or None,
    }
    more = {} if config is None else read_yaml(config)
    more |= {name: value for name, value in given.items() if value is not None}
    if max_dppl is not None or budget is not None or size is not None:  # a preset may have a target, too
        more["target_bpw"] = bpw
    options = TuneOptions(
        recipe=Recipe(**more), output=output, build=build is not None, max_dppl=_percent(max_dppl), text=text,
        verify_text=verify_text, ctx=context, chunks=chunks, verify_chunks=verify_chunks, bands=bands, detail=detail,
        reference=reference, checkpoint=checkpoint, keep=keep,
    )  # fmt: skip
    if dry_run:
        planned = plan(options)
        typer.echo(json.dumps(planned.to_dict(), indent=2) if as_json else _planned_text(planned))
        return
    report = autotune(options, progress=not quiet)
    if as_json:
        typer.echo(report.to_json(), nl=False)
    elif not quiet:
        _print(report)


def _percent(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text.strip().removesuffix("%"))
    except ValueError:
        raise RecipeError(f"--max-dppl {text} is no percentage; write for example 2%") from None


def _planned_text(planned: TunePlan) -> str:
    groups = ", ".join(group.name for group in planned.groups)
    return (
        f"{len(planned.groups)} groups: {groups}\n"
        f"{planned.evaluations} evaluations of {planned.chunks} chunks, about {planned.measure_seconds / 60:.1f} min\n"
        f"{planned.encoded_weights / 1e6:.0f} M weights to encode before, about {planned.encode_seconds / 60:.1f} min\n"
        f"{planned.builds} models built and compared, about {planned.verify_seconds / 60:.1f} min\n"
        "from one chunk and one matrix, on this machine as busy as it is now"
    )


def _print(report: TuneReport) -> None:
    from ..report.tables import make_console

    console = make_console()
    console.print(report.to_table())
    if report.candidates:
        console.print(report.candidates_table())
    console.print(
        f"all groups encoded cost {report.additivity:.2f} times the sum of theirs; at other rates the predictions are "
        f"off by {100 * report.accuracy:.0f}% ({len(report.checks)} checks)"
    )
    console.print(f"{report.decision}: {report.message}")
    console.print(
        f"{report.recipe}: {report.bits_per_weight:.3f} bits a weight; seeddelta build --recipe {report.recipe}"
    )
    if report.model is not None:
        console.print(f"{report.model}: built")
