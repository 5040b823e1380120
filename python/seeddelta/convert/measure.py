"""Norms and errors of a matrix as it is stored."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seeddelta import _core

from ..gguf.schema import Norms
from ..numeric import row_ranges
from .report import Metrics

F32 = npt.NDArray[np.float32]


def measure(
    weights: F32, stored: _core.Weight, importance: F32 | None, rel_out: float | None = None
) -> tuple[Norms, Metrics]:
    """Norms and metrics of float32[n_out, n_in] as they are stored, in double precision, with the relative error of the
    outputs where it is known."""
    sums = np.zeros((2, 3))  # plain, weighted: ‖W‖², ‖Ŵ‖², ⟨W, Ŵ⟩
    errors = np.zeros(2)
    n_out, n_in = weights.shape
    for begin, end in row_ranges(n_out, n_in):
        w = weights[begin:end]
        w_hat = stored.dequantize(begin, end)
        error = w - w_hat
        for kind, weight in enumerate((None, importance)):
            if weight is None and kind:
                continue
            for at, (a, b) in enumerate(((w, w), (w_hat, w_hat), (w, w_hat))):
                sums[kind, at] += _inner(a, b, weight)
            errors[kind] += _inner(error, error, weight)
    if importance is None:
        sums[1], errors[1] = sums[0], errors[0]
    (w, w_hat), err = np.sqrt(sums[:, :2]).T, np.sqrt(errors)
    norms = Norms(w=w[0], w_hat=w_hat[0], err=err[0], w_w=w[1], w_hat_w=w_hat[1], err_w=err[1], rel_out=rel_out)
    return norms, metrics_of(norms, float(sums[0, 2]), float(sums[1, 2]))


def metrics_of(norms: Norms, cross: float, cross_w: float) -> Metrics:
    """Metrics from the norms and ⟨W, Ŵ⟩, plain and weighted."""
    w, w_hat, err = (np.array(pair) for pair in (
        (norms.w, norms.w_w), (norms.w_hat, norms.w_hat_w), (norms.err, norms.err_w),
    ))  # fmt: skip
    ratio = np.divide(w_hat, w, out=np.ones(2), where=w > 0)
    relative = np.divide(err, w, out=np.where(err > 0, 1.0, 0.0), where=w > 0)
    cosine = np.divide([cross, cross_w], w * w_hat, out=np.where(err > 0, 0.0, 1.0), where=w * w_hat > 0)
    return Metrics(
        rel_l2=relative[0],
        cos=cosine[0],
        norm_ratio=ratio[0],
        rel_l2_w=relative[1],
        cos_w=cosine[1],
        norm_ratio_w=ratio[1],
        rel_out=norms.rel_out,
    )


def _inner(a: F32, b: F32, weight: F32 | None) -> float:
    columns = np.einsum("oi,oi->i", a, b, dtype=np.float64)
    return float(columns.sum() if weight is None else (columns * weight).sum())
