"""`seeddelta sparsify`: measure how much of each input of a model can be skipped."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ..errors import ConfigError
from ._options import Quiet, Threads, parse_threads

COMMAND_OPTIONS: dict[str, Any] = {"no_args_is_help": True}


def command(
    model: Annotated[
        Path, typer.Option("--model", "-m", help="Ordinary GGUF model, or a SeedΔ file in column layout.")
    ],
    text: Annotated[
        Path, typer.Option("--text", "-f", metavar="FILE", help="Calibration text, never the one evaluated on.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="File for --kwta-file: .yaml, or .json.")
    ],
    max_dppl: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--max-dppl", metavar="PERCENT", help="Largest rise of the perplexity on the text. Default: 2%."),
    ] = None,
    keep: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--keep", help="Share of the weights that a token shall read, instead; not evaluated."),
    ] = None,
    score: Annotated[str, typer.Option("--kwta-score", metavar="magnitude|wina", help="Score of an input.")] = "wina",
    target: Annotated[str, typer.Option("--kwta-target", metavar="mlp|attn|both", help="Matrices.")] = "both",
    chunks: Annotated[int, typer.Option("--chunks", min=1, help="Chunks that perplexities are measured on.")] = 8,
    probe_chunks: Annotated[
        int, typer.Option("--probe-chunks", min=1, help="Chunks for the profile, and for every kind and layer.")
    ] = 2,
    context: Annotated[int, typer.Option("--ctx", "-c", help="Tokens of a chunk.")] = 512,
    per_layer: Annotated[
        bool, typer.Option("--per-layer/--no-per-layer", help="Probe every layer; without, layers count alike.")
    ] = True,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Measure which inputs matter, and write fractions and thresholds for --kwta-file.

    The inputs of every matrix are profiled; then half of those of each kind, and of each layer, is skipped to see what
    it costs. A budget of weights is divided so that the expected cost is least, and the smallest budget within the
    limit is looked for. Takes some minutes for a small model.

    Example: seeddelta sparsify -m model-f16.gguf --text wiki.valid.txt -o skip.yaml --max-dppl 2%

    Example: seeddelta run -m model-f16.gguf -p "Hello" --columns i8 --kwta-file skip.yaml

    Example: seeddelta sparsify -m model.seeddelta.gguf --text wiki.valid.txt -o skip.yaml (built with --layout column)
    """
    from ..gguf.writer import atomic_output
    from ..sparsify import sparsify

    counts = parse_threads(threads)
    found = sparsify(
        model,
        text,
        keep=keep,
        max_percent=None if max_dppl is None else _percent(max_dppl),
        score=score,  # type: ignore[arg-type]
        target=target,  # type: ignore[arg-type]
        chunks=chunks,
        probe_chunks=probe_chunks,
        n_ctx=context,
        threads=None if counts is None else counts[-1],
        per_layer=per_layer,
        say=lambda line: None if quiet else print(line, file=sys.stderr),
    )
    data = found.file.model_dump(mode="json")
    with atomic_output(output) as temporary:
        temporary.write_text(_dump(data, output.suffix), encoding="utf-8")
    change = "" if found.percent is None else f", perplexity {found.percent:+.2f}% on {text.name}"
    print(f"{output}: {found.share:.1%} of the weights are read for a token{change}")


def _dump(data: dict[str, Any], suffix: str) -> str:
    if suffix == ".json":
        return json.dumps(data, indent=1) + "\n"
    import yaml

    return str(yaml.safe_dump(data, sort_keys=False))


def _percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1000:
        raise ConfigError(f"--max-dppl {text}: write a percentage, for example 2%")
    return value
