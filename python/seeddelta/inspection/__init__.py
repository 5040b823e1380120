"""What is in model files: a summary, and a check against what they say of themselves."""

from __future__ import annotations

from .summary import summarize
from .verify import Check, Verification, verify

__all__ = ["Check", "Verification", "summarize", "verify"]
