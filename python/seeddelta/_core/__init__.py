"""The compiled core: encoders, kernels and the graph hook. Shapes and dtypes are in the functions' docstrings."""

from __future__ import annotations

from ._core import *  # noqa: F403
from ._core import __version__ as __version__
