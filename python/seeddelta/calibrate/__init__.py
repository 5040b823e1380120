"""Importance and covariance of the inputs of a model's matrices, measured on real text."""

from __future__ import annotations

from .capture import Capture, capture
from .covariance import Covariance, open_covariance, write_covariance
from .gradient import capture_gradient

imatrix = capture  # `seeddelta.imatrix`, by the name of the command

__all__ = ["Capture", "Covariance", "capture", "capture_gradient", "imatrix", "open_covariance", "write_covariance"]
