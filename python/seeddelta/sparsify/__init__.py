"""How much of each input of a model can be skipped, measured on a text. Needs the extra `llama`."""

from __future__ import annotations

from ..callable_packages import make_callable
from .calibrate import Calibration, sparsify

__all__ = ["Calibration", "sparsify"]

make_callable(__name__)
