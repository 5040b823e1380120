"""Targets under changed inputs: the formula, what is held out, and that nothing gets worse."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from seeddelta.calibrate.alignment import HELD_OUT, Moments
from seeddelta.errors import OutputError

TOKENS, N_IN, N_OUT = 256, 24, 16


def streams(noise: float, chunks: int = 12, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Inputs of a dense and of an encoded model that scales and mixes them, float32 [tokens, n_in]; and a matrix."""
    random = np.random.default_rng(seed)
    mix = np.eye(N_IN) + 0.1 * random.normal(size=(N_IN, N_IN))
    dense = [random.normal(size=(TOKENS, N_IN)).astype(np.float32) for _ in range(chunks)]
    encoded = [(x @ mix + noise * random.normal(size=x.shape)).astype(np.float32) for x in dense]
    return dense, encoded, random.normal(size=(N_OUT, N_IN)).astype(np.float32)


def moments_of(dense: list[np.ndarray], encoded: list[np.ndarray], threads: int = 1) -> Moments:
    moments = Moments(N_IN, 0, threads)
    for chunk, (d, q) in enumerate(zip(dense, encoded, strict=True)):
        moments.add(chunk, d, q)
    return moments


def held_error(w: np.ndarray, target: np.ndarray, dense: list[np.ndarray], encoded: list[np.ndarray]) -> float:
    chunks = range(HELD_OUT - 1, len(dense), HELD_OUT)
    return float(sum(((encoded[c] @ target.T - dense[c] @ w.T) ** 2).sum() for c in chunks))


def test_a_target_makes_up_for_changed_inputs() -> None:
    dense, encoded, w = streams(0.05)
    target = moments_of(dense, encoded).targets({"w": w})["w"]
    assert target.damping is not None
    assert target.after < target.before
    assert held_error(w, target.weights, dense, encoded) < 0.1 * held_error(w, w, dense, encoded)


def test_the_target_is_that_of_the_formula() -> None:
    dense, encoded, w = streams(0.05)
    target = moments_of(dense, encoded).targets({"w": w})["w"]
    kept = [c for c in range(len(dense)) if c % HELD_OUT != HELD_OUT - 1]
    d, q = (np.concatenate([x[c] for c in kept]).astype(np.float64) for x in (dense, encoded))
    weight = N_IN / (d**2).sum(axis=1, keepdims=True)
    qq, dq = (weight * q).T @ q, (weight * d).T @ q
    ridge = target.damping * np.trace(qq) / N_IN * np.eye(N_IN)
    expected = w @ (dq + ridge) @ np.linalg.inv(qq + ridge)
    np.testing.assert_allclose(target.weights, expected, rtol=1e-3, atol=1e-4)


def test_nothing_gets_worse() -> None:
    """Inputs that have nothing to do with each other in the chunks held out: the matrix stays."""
    dense, encoded, w = streams(0.0)
    for chunk in range(HELD_OUT - 1, len(dense), HELD_OUT):
        encoded[chunk] = dense[chunk].copy()
    target = moments_of(dense, encoded).targets({"w": w})["w"]
    assert target.damping is None
    np.testing.assert_array_equal(target.weights, w)


def test_too_few_chunks_leave_the_matrix() -> None:
    dense, encoded, w = streams(0.05, chunks=HELD_OUT - 1)
    np.testing.assert_array_equal(moments_of(dense, encoded).targets({"w": w})["w"].weights, w)


def test_a_writer_makes_up_for_the_stream() -> None:
    """The stream has drifted by a linear map of the input: half or all of that is taken back."""
    dense, encoded, w = streams(0.05)
    random = np.random.default_rng(1)
    drift_of = 0.2 * random.normal(size=(N_OUT, N_IN)).astype(np.float32)
    moments = Moments(N_IN, N_OUT, 1)
    for chunk, (d, q) in enumerate(zip(dense, encoded, strict=True)):
        moments.add(chunk, d, q, d @ w.T, q @ drift_of.T)
    target = moments.targets({"w": w})["w"]
    assert target.correction > 0
    assert target.after < target.before


def test_sums_in_files(tmp_path: Path) -> None:
    dense, encoded, w = streams(0.05)
    drift = 0.2 * np.random.default_rng(1).normal(size=(N_OUT, N_IN)).astype(np.float32)
    found = []
    for folder in (None, tmp_path):
        with closing(Moments(N_IN, N_OUT, 2, folder)) as moments:
            for chunk, (d, q) in enumerate(zip(dense, encoded, strict=True)):
                moments.add(chunk, d, q, d @ w.T, q @ drift.T)
            found.append([moments.covariance, moments.diagonal, moments.targets({"w": w})["w"].weights])
            np.testing.assert_array_equal(moments.covariance_rows(3, 20), moments.covariance[3:20])
            np.testing.assert_array_equal(np.diagonal(moments.covariance), moments.diagonal)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not list(tmp_path.iterdir())  # nothing is left, and nothing has a name
    with pytest.raises(OutputError, match="nowhere"):
        Moments(N_IN, N_OUT, 1, tmp_path / "nowhere")


@pytest.mark.parametrize("threads", [2, 3])
def test_sums_do_not_depend_on_threads(threads: int) -> None:
    dense, encoded, _ = streams(0.05)
    one, more = moments_of(dense, encoded), moments_of(dense, encoded, threads)
    np.testing.assert_array_equal(one.covariance, more.covariance)


def test_tokens_that_are_not_finite_are_left_out() -> None:
    dense, encoded, _ = streams(0.05)
    encoded[0][3, 2] = np.nan
    moments = moments_of(dense, encoded)
    assert moments.tokens == len(dense) * TOKENS - 1
    assert np.isfinite(moments.covariance).all()
