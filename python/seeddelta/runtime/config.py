"""What the run time can be told."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class RuntimeConfig:
    """Options of a SeedΔ model at run time.

    Attributes:
        fallback: dense GGUF model of the same shapes (any type that llama.cpp knows), mapped, not loaded. A weight
            whose product is not finite is computed from it from then on.
        gap: largest relative error ‖W − Ŵ‖ / ‖W‖ of a tensor; one above it is dense from the start (needs `fallback`).
            None: whatever the file has is used.
        statecells: the model must have weights that are a codebook alone. They are served in any case; this tells a
            model that has none from one that has (docs/statecells.md).
        proc_sparse: False takes proc-sparse weights (docs/proc-sparse.md) from the fallback (needs `fallback`).
        dense: names of tensors (shell patterns, `blk.0.*`) that are dense from the start (needs `fallback`).
    """

    fallback: str | os.PathLike[str] | None = None
    gap: float | None = None
    dense: tuple[str, ...] = ()
    statecells: bool = False
    proc_sparse: bool = True
