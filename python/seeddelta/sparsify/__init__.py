"""How much of each input of a model can be skipped, measured on a text, and neurons reordered for it. Needs the extra
`llama`."""

from __future__ import annotations

from .._callable import make_callable
from .calibrate import Calibration, sparsify, zero_shares
from .permute import permute

__all__ = ["Calibration", "permute", "sparsify", "zero_shares"]

make_callable(__name__)
