"""Weights of the core for tests that change one argument of a good one, be it a number or an array."""

from __future__ import annotations

from typing import Any

import numpy as np
from seeddelta import _core


def weight_of(n_out: int, n_in: int, **given: Any) -> _core.Weight:
    """A weight named t; arrays stand among its other arguments, and None is an array that is not given."""
    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    others = {name: value for name, value in given.items() if name not in arrays and value is not None}
    return _core.Weight("t", n_out, n_in, **others, arrays=arrays)
