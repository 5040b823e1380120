"""Measure models: perplexity, speed and memory, one process a model. Needs the extra `llama`."""

from __future__ import annotations

from ..callable_packages import make_callable
from .compare import Comparison, ModelReport, bench, evaluate
from .kl import DivergenceResult, Estimate
from .perplexity import PairedDifference, PerplexityResult, paired_difference, perplexity

__all__ = [
    "Comparison",
    "DivergenceResult",
    "Estimate",
    "ModelReport",
    "PairedDifference",
    "PerplexityResult",
    "bench",
    "evaluate",
    "paired_difference",
    "perplexity",
]

make_callable(__name__)
