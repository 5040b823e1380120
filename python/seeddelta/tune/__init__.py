"""Choose the rate of every group of matrices by what it costs the model. Needs the extras `cli` and `llama`."""

from __future__ import annotations

from .options import TuneOptions
from .plan import TunePlan, plan
from .report import TuneReport
from .tuning import autotune

__all__ = ["TuneOptions", "TunePlan", "TuneReport", "autotune", "plan"]
