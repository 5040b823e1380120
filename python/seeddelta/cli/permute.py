"""`seeddelta permute`: reorder the neurons of a model for skipping in blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

COMMAND_OPTIONS: dict[str, Any] = {"no_args_is_help": True}


def command(
    model: Annotated[
        Path, typer.Option("--model", "-m", help="Ordinary GGUF model whose ffn_down is F16, BF16 or F32.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="GGUF model to write.")],
    hessian: Annotated[
        Path,
        typer.Option("--hessian", metavar="FILE", help="Covariance of its inputs, from seeddelta imatrix --hessian."),
    ],
    block: Annotated[int, typer.Option("--block", metavar="N", help="Neurons that shall be skipped together.")] = 16,
) -> None:
    """Reorder the neurons of the feed-forward layers so that those that matter for the same tokens are neighbours.

    The model stays the same (rows of gate and up, columns of down), but for the order of sums. It makes blocks
    (--kwta-block) better, not good: see docs/guide/skipping.md. Statistics and SeedΔ files are made of the new model.

    Example: seeddelta permute -m model-f16.gguf -o model-16.gguf --hessian model.cov.gguf --block 16
    """
    from ..sparsify import permute

    orders = permute(model, output, hessian, block=block)
    print(f"{output}: neurons of {len(orders)} layers in blocks of {block}")
