"""Importance and covariance of the inputs of a model's matrices, measured on real text."""

from __future__ import annotations

from .capture import Capture, capture
from .covariance import Covariance, open_covariance, write_covariance

imatrix = capture  # `seeddelta.imatrix`, by the name of the command

__all__ = ["Capture", "Covariance", "capture", "imatrix", "open_covariance", "write_covariance"]
