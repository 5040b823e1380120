"""Factors, inverses and errors that several threads share, and that do not depend on how many."""

from __future__ import annotations

import numpy as np
import pytest
from seeddelta.convert import factor
from seeddelta.convert.feedback import covariance_loss, inverse_factor, make_feedback, refitted_row_scale, upper_factor
from seeddelta.convert.lane_groups import decision_order
from seeddelta.convert.rates import lane_code
from seeddelta.errors import ImatrixError
from seeddelta.numeric import one_blas_thread


def covariance(n: int) -> np.ndarray:
    x = np.random.default_rng(n).standard_normal((2 * n, n))
    return x.T @ x / (2 * n)


@pytest.mark.parametrize("n", [1, 30, 512, 513, 1300])
def test_factor_and_inverse(n: int) -> None:
    h = covariance(n)
    lower = h.copy()
    assert factor.cholesky(lower)
    np.testing.assert_array_equal(lower, np.tril(lower))
    np.testing.assert_allclose(lower @ lower.T, h, atol=1e-12)
    inverse = lower.copy()
    factor.invert_lower(inverse)
    np.testing.assert_array_equal(inverse, np.tril(inverse))
    np.testing.assert_allclose(inverse @ lower, np.eye(n), atol=1e-9)


def test_any_number_of_threads() -> None:
    h = covariance(1300).astype(np.float32)
    rows = np.random.default_rng(1).standard_normal((1100, 1300)).astype(np.float32)
    decoded = rows + np.random.default_rng(2).standard_normal(rows.shape).astype(np.float32) / 10
    order = np.random.default_rng(3).permutation(1300)
    found = []
    with one_blas_thread():
        for threads in (1, 2, 3):
            found.append([
                inverse_factor("w", h, order, 0.01, threads), refitted_row_scale(rows, decoded, h, threads),
                np.array(covariance_loss(rows, decoded, h, threads)),
            ])  # fmt: skip
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, same)


def test_what_they_mean() -> None:
    h = covariance(700).astype(np.float32)
    order = np.random.default_rng(3).permutation(700)
    damped = (h.astype(np.float64) + 0.01 * np.trace(h) / 700 * np.eye(700))[order][:, order]
    upper = upper_factor("w", h, order, 0.01)
    np.testing.assert_array_equal(upper, np.triu(upper))
    np.testing.assert_allclose(upper @ upper.T, damped, atol=1e-6)
    inverse = inverse_factor("w", h, order, 0.01)
    np.testing.assert_allclose(inverse.T @ inverse @ damped, np.eye(700), atol=1e-6)

    rows = np.random.default_rng(1).standard_normal((600, 700))
    decoded = rows + np.random.default_rng(2).standard_normal(rows.shape) / 10
    error = rows - decoded
    expected = np.sum(error @ h * error), np.sum(rows @ h * rows)
    found = covariance_loss(rows.astype(np.float32), decoded.astype(np.float32), h)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    scale = np.sum(decoded @ h * rows, axis=1) / np.sum(decoded @ h * decoded, axis=1)
    fitted = refitted_row_scale(rows.astype(np.float32), decoded.astype(np.float32), h)
    np.testing.assert_allclose(fitted, scale, rtol=1e-4)


def test_feedback_of_a_block_is_what_the_columns_left_can_make_up_for() -> None:
    """What its documentation says, by plain inverses: of a block and those after it, once those before are fixed."""
    n, damp = 192, 0.02
    h = covariance(n).astype(np.float32)
    code = lane_code(4)
    feedback = make_feedback("w", h, code=code, rotation_block=0, seed=0, damp=damp)
    order, ends = decision_order(code, n)
    assert len(ends) > 2
    assert (np.diff(order) < 0).any()
    damped = h + damp * np.diagonal(h).mean() * np.eye(n)
    begin = 0
    for end in ends:
        left, width = order[begin:], end - begin
        inverse = np.linalg.inv(damped[np.ix_(left, left)])
        own = np.linalg.inv(inverse[:width, :width])
        triangle = feedback.matrix[begin:end, begin:end]
        np.testing.assert_array_equal(triangle, np.triu(triangle))
        np.testing.assert_allclose(triangle @ triangle.T, own, atol=1e-5)
        np.testing.assert_allclose(feedback.matrix[begin:end, end:], own @ inverse[:width, width:], atol=1e-5)
        np.testing.assert_allclose(feedback.importance[order[begin:end]], np.diagonal(own), rtol=1e-5)
        begin = end


def test_not_positive() -> None:
    h = covariance(600)
    h[550, 550] = -1
    assert not factor.cholesky(h)
    with pytest.raises(ImatrixError, match="not positive"):
        inverse_factor("w", -np.eye(40, dtype=np.float32), np.arange(40), 0.01)
