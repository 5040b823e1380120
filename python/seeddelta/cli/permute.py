"""`seeddelta permute`: reorder the neurons of a model for skipping in blocks."""

from __future__ import annotations

from ..settings.files import PermuteSettings
from ._command import from_settings


@from_settings(PermuteSettings)
def command(settings: PermuteSettings) -> None:
    """Reorder the neurons of the feed-forward layers so that those that matter for the same tokens are neighbours.

    The model stays the same (rows of gate and up, columns of down), but for the order of sums. It makes blocks
    (--kwta-block) better, not good: see docs/guide/skipping.md. Statistics and SeedΔ files are made of the new model.

    Example: seeddelta permute -m model-f16.gguf -o model-16.gguf --hessian model.cov.gguf --block 16
    """
    from ..sparsify import permute

    orders = permute(settings.model, settings.output, settings.hessian, block=settings.block)
    print(f"{settings.output}: neurons of {len(orders)} layers in blocks of {settings.block}")
