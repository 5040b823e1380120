"""One matrix: what is stored is near W, optimal where it should be, and measured as it is stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from seeddelta import Recipe, _core
from seeddelta.convert.columns import column_factor
from seeddelta.convert.describe import compute_estimate
from seeddelta.convert.encode import EncodedTensor, encode_tensor
from seeddelta.gguf import payload, schema
from seeddelta.gguf.reader import weight_arguments

RNG = np.random.default_rng(5)
WEIGHTS = (RNG.normal(0, 1, (70, 192)) * RNG.gamma(4, 0.01, (70, 1))).astype(np.float32)
IMPORTANCE = RNG.lognormal(0, 1, 192).astype(np.float32)
IMPORTANCE /= IMPORTANCE.mean()


def encode(weights: np.ndarray[Any, Any] = WEIGHTS, importance: Any = None, **options: Any) -> EncodedTensor:
    recipe = Recipe(**({"input": "a", "output": "b"} | options))
    return encode_tensor("blk.0.ffn_up.weight", weights, "F32", recipe, importance)


def decode(encoded: EncodedTensor) -> np.ndarray[Any, Any]:
    arguments = weight_arguments(encoded.description, encoded.arrays)
    return np.asarray(_core.Weight("t", *encoded.description.shape, **arguments).dequantize())


OPTIONS: list[dict[str, Any]] = [
    {},
    {"bits": 2, "row_scale": "f32"},
    {"bits": 2.5, "effort": "fast"},
    {"bits": 3, "scheme": "coo", "K": 4},
    {"bits": 2, "scheme": "coo", "K": 6, "vals": "int8", "rotation_block": 0},
    {"base_kind": "prng_block", "K": 40, "vals": "int8", "seed_search": 3},
    {"base_kind": "prng_block", "K": 40, "base_scale": 0.01, "block": 32, "row_scale": "f32"},
    {"base_kind": "none", "K": 40},
    {"bits": 2, "scheme": "block", "block": 32, "K": 2},
    {"base_kind": "none", "scheme": "block", "block": 64, "K": 2, "vals": "int8", "row_scale": "f32"},
    {"base_kind": "fht_struct", "scheme": "block", "block": 32, "K": 3, "seed_search": 3},
    {"base_kind": "fht_struct", "K": 40},
    {"bits": 2, "scheme": "codebook", "K": 3, "codebook_size": 20},
    {"base_kind": "none", "scheme": "codebook", "K": 6, "codebook_size": 30},
    {"base_kind": "prng_block", "scheme": "codebook", "K": 2, "codebook_size": 40},
    {"bits": 3, "seed_search": 2},
    {"base_kind": "prng_block", "scheme": "none", "seed_per": "row", "seed_search": 50},
    {"base_kind": "prng_block", "scheme": "none", "seed_per": "block", "seed_search": 50, "block": 8},
    {"base_kind": "prng_block", "K": 5, "seed_per": "block", "seed_search": 50, "block": 16, "row_scale": "f32"},
]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_metrics_are_those_of_the_stored_weights(options: dict[str, Any], weighted: bool) -> None:
    encoded = encode(importance=IMPORTANCE if weighted else None, **options)
    assert list(encoded.arrays) == list(payload.payload_layout(encoded.description))
    for suffix, (shape, dtype) in payload.payload_layout(encoded.description).items():
        assert (encoded.arrays[suffix].shape, encoded.arrays[suffix].dtype) == (shape, dtype)
    w, w_hat = WEIGHTS.astype(np.float64), decode(encoded).astype(np.float64)
    root = np.sqrt(IMPORTANCE.astype(np.float64)) if weighted else np.ones(192)
    metrics, norms = encoded.metrics, encoded.description.norms
    for tail, a, b in (("", w, w_hat), ("_w", w * root, w_hat * root)):
        norm_a, norm_b, error = np.linalg.norm(a), np.linalg.norm(b), np.linalg.norm(a - b)
        expected = {
            "rel_l2": error / norm_a,
            "cos": (a * b).sum() / (norm_a * norm_b),
            "norm_ratio": norm_b / norm_a,
        }
        for name, value in expected.items():
            assert getattr(metrics, name + tail) == pytest.approx(value, rel=1e-5)
        for name, value in {"w": norm_a, "w_hat": norm_b, "err": error}.items():
            assert getattr(norms, name + tail) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("n_in", [1, 16, 17, 33, 48, 72, 96])
@pytest.mark.parametrize("bits", [1.5, 2, 2.5])
def test_the_layout_has_the_lines_of_the_encoder(bits: float, n_in: int) -> None:
    encoded = encode(WEIGHTS[:20, :n_in], bits=bits)
    shape, _ = payload.payload_layout(encoded.description)["codes"]
    assert encoded.arrays["codes"].shape == shape
    assert decode(encoded).shape == (20, n_in)


@pytest.mark.parametrize(("bits", "limit"), [(4, 0.085), (3, 0.16), (2.5, 0.23), (2, 0.30), (1.5, 0.41), (1, 0.57)])
def test_error_by_rate(bits: float, limit: float) -> None:
    encoded = encode(bits=bits)
    assert encoded.metrics.rel_l2 < limit


@pytest.mark.parametrize("options", [o for o in OPTIONS if o.get("scheme", "coo") == "coo" and "K" in o], ids=str)
def test_residual_holds_the_largest_entries(options: dict[str, Any]) -> None:
    with_residual, without = encode(**options), encode(**(options | {"K": 1}))
    assert with_residual.metrics.rel_l2 < without.metrics.rel_l2
    if options.get("base_kind") == "none":  # then it is pruning: the K largest of each row
        kept = decode(with_residual) != 0
        smallest_kept = np.where(kept, np.abs(WEIGHTS), np.inf).min(axis=1)
        largest_lost = np.where(kept, 0, np.abs(WEIGHTS)).max(axis=1)
        assert (smallest_kept >= largest_lost).all()
        assert (kept.sum(axis=1) == 40).all()
        np.testing.assert_allclose(decode(with_residual)[kept], WEIGHTS[kept], rtol=2e-3)


def test_importance_moves_the_error() -> None:
    for options in OPTIONS:
        plain, weighted = encode(**options), encode(importance=IMPORTANCE, column_power=0.2, **options)
        root = np.sqrt(IMPORTANCE)
        plain_w = np.linalg.norm((WEIGHTS - decode(plain)) * root) / np.linalg.norm(WEIGHTS * root)
        assert weighted.metrics.rel_l2_w < plain_w
        assert weighted.metrics.rel_l2 >= plain.metrics.rel_l2 * 0.999


def test_columns_are_scaled_by_importance() -> None:
    scaled, unscaled = encode(importance=IMPORTANCE, column_power=0.2), encode(importance=IMPORTANCE)
    assert scaled.metrics.rel_l2_w < 0.95 * unscaled.metrics.rel_l2_w
    assert schema.COLUMN_SCALE not in unscaled.arrays
    scale = scaled.arrays[schema.COLUMN_SCALE]
    assert np.corrcoef(scale, np.log2(IMPORTANCE))[0, 1] < -0.99
    expected = np.exp2(scale / 8.0)
    np.testing.assert_allclose(column_factor(scale), expected, rtol=1e-7)
    assert (
        schema.COLUMN_SCALE not in encode(importance=np.ones_like(IMPORTANCE), column_power=0.2).arrays
    )  # nothing to gain


def test_row_scale_is_least_squares() -> None:
    for importance in (None, IMPORTANCE):
        encoded = encode(bits=2, scheme="coo", K=4, row_scale="f32", importance=importance)
        w_hat = decode(encoded).astype(np.float64)
        weight = np.ones(192) if importance is None else importance.astype(np.float64)
        best = (WEIGHTS * w_hat * weight).sum(axis=1) / (w_hat**2 * weight).sum(axis=1)
        np.testing.assert_allclose(best, 1, atol=1e-5)


def test_seed_search_takes_the_best_of_its_trials() -> None:
    def error(seed: int, trials: int) -> tuple[int, float]:
        encoded = encode(base_kind="prng_block", K=1, seed=seed, seed_search=trials, eval_cols=0)
        return int(encoded.arrays[schema.BASE_SEED][0]), encoded.metrics.rel_l2

    chosen, best = error(10, 8)
    single = {seed: error(seed, 0)[1] for seed in range(10, 18)}
    assert chosen in single
    assert best == pytest.approx(single[chosen])
    assert best <= min(single.values()) + 1e-3  # one entry a row is not part of the search
    assert error(10, 8) == (chosen, best)


def test_seed_wraps_and_is_stored_whole() -> None:
    encoded = encode(base_kind="prng_block", K=1, seed=(1 << 64) - 1, seed_search=2)
    assert int(encoded.arrays[schema.BASE_SEED].view(np.uint64)[0]) in ((1 << 64) - 1, 0)
    seed = (1 << 63) + 12345
    assert int(encode(seed=seed).arrays[schema.BASE_SEED].view(np.uint64)[0]) == seed


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_zero_rows_and_zero_matrices(options: dict[str, Any]) -> None:
    weights = WEIGHTS.copy()
    weights[[0, 33]] = 0
    encoded = encode(weights, **options)
    assert np.isfinite(decode(encoded)).all()
    assert not decode(encoded)[[0, 33]].any()
    nothing = encode(np.zeros_like(WEIGHTS), **options)
    assert nothing.metrics.rel_l2 == 0
    assert nothing.metrics.cos == 1


def test_compute_estimate() -> None:
    description = encode(bits=4, scheme="coo", K=4).description
    estimate = compute_estimate(description, 70 * 192 * 2)
    assert estimate.integer_macs == 70 * 192
    assert estimate.float_macs == 70 * 4
    assert estimate.rotation_ops == 192 * (2 + 6)
    assert estimate.bytes_read == payload.payload_bytes(description)
    assert estimate.dense_bytes_read == 70 * 192 * 2


def test_wide_matrix_has_32_bit_indices() -> None:
    weights = np.zeros((2, 65537), np.float32)
    weights[:, 65536], weights[:, 1] = 3, -2
    encoded = encode(weights, base_kind="none", K=2)
    assert encoded.arrays["d_idx"].dtype == np.int32
    assert encoded.arrays["d_idx"].tolist() == [[1, 65536]] * 2
    np.testing.assert_allclose(decode(encoded), weights, rtol=1e-3)
