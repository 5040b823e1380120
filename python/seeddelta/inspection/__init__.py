"""What is in model files: a summary, a check against what they say of themselves, and differences between two."""

from __future__ import annotations

from .diff import Difference, TensorDifference, diff
from .summary import summarize
from .verify import Check, Verification, verify

__all__ = ["Check", "Difference", "TensorDifference", "Verification", "diff", "summarize", "verify"]
