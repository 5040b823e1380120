"""Kept blocks on a hashed base: every instruction set gives the bits of the NumPy oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
import weights
from seeddelta import _core
from test_core_residuals import _restore_isa, check_all  # noqa: F401

NONE, PRNG = 255, 0
SEED = 77
SHAPES = [(40, 576, 32), (17, 203, 32), (33, 1000, 64), (5, 30, 32), (16, 64, 64), (18, 2240, 32)]


def kept_arrays(rng: np.random.Generator, n_out: int, n_in: int, block: int, kept: int | None = None) -> dict[str, Any]:
    blocks = -(-n_in // block)
    kept = kept or max(1, blocks * 2 // 3)
    chosen = np.argsort(rng.random((n_out, blocks)), axis=1) < kept
    return {
        "p_map": np.packbits(chosen, axis=1, bitorder="little"),
        "p_val": rng.integers(-127, 128, (n_out, kept, block)).astype(np.int8),
        "p_scale": rng.uniform(0.01, 0.1, n_out).astype(np.float16),
    }


def weight_of(n_out: int, n_in: int, block: int, scale: float, row_scale: Any, arrays: dict[str, Any]) -> _core.Weight:
    base = dict(base_kind=PRNG, base_block=block, base_seed=SEED, base_scale=scale) if scale else dict(base_kind=NONE)
    return _core.Weight("w", n_out, n_in, **base, arrays=arrays | {"row_scale": row_scale})


@pytest.mark.parametrize("scale", [0.02, 0.0])
@pytest.mark.parametrize(("n_out", "n_in", "block"), SHAPES)
def test_product_and_rows(n_out: int, n_in: int, block: int, scale: float) -> None:
    rng = np.random.default_rng(n_in)
    arrays = kept_arrays(rng, n_out, n_in, block)
    row_scale = rng.uniform(0.1, 2, n_out).astype(np.float16)
    x = rng.standard_normal((11, n_in)).astype(np.float32)
    weight = weight_of(n_out, n_in, block, scale, row_scale, arrays)

    value, wide = arrays["p_val"], row_scale.astype(np.float32)
    blocks = reference.proc_sparse_blocks(arrays["p_map"], value.shape[1])
    base = reference.proc_sparse_base(SEED, blocks, block) if scale else None
    q, scales = reference.quantize_activations(x)
    acc = np.float32(0) if base is None else reference.proc_sparse_dot(blocks, base, q, scales)
    share = reference.proc_sparse_dot(blocks, value, q, scales) * arrays["p_scale"].astype(np.float32)
    check_all(weight, x, wide * (acc * np.float32(scale) + share))

    dense = reference.proc_sparse_dense(blocks, value, arrays["p_scale"], n_in, base, scale) * wide[:, None]
    np.testing.assert_array_equal(weight.dequantize(), dense)
    np.testing.assert_array_equal(weight.dequantize(n_out - 1, n_out), dense[-1:])
    inside = np.repeat(np.unpackbits(arrays["p_map"], axis=1, bitorder="little"), block, axis=1)[:, :n_in] == 1
    assert not dense[~inside].any()
    assert np.abs(weight.matmul(x) - x @ dense.T).max() < 0.02 * np.abs(x @ dense.T).max()


def test_base_is_that_of_prng_block() -> None:
    """With all blocks kept and Δ = 0 it is the product of base prng_block alone, to rounding."""
    rng = np.random.default_rng(3)
    arrays = kept_arrays(rng, 20, 576, 32, kept=18) | {"p_scale": np.zeros(20, np.float16)}
    x = rng.standard_normal((2, 576)).astype(np.float32)
    ones = np.ones(20, np.float16)
    whole = weight_of(20, 576, 32, 0.02, ones, {})
    sparse = weight_of(20, 576, 32, 0.02, ones, arrays)
    np.testing.assert_array_equal(sparse.dequantize(), whole.dequantize())
    np.testing.assert_allclose(sparse.matmul(x), whole.matmul(x), rtol=1e-4, atol=1e-4)


def test_extreme_values_do_not_saturate() -> None:
    arrays = kept_arrays(np.random.default_rng(0), 16, 256, 64, kept=4)
    arrays |= {"p_val": np.full((16, 4, 64), -128, np.int8), "p_scale": np.ones(16, np.float16)}
    x = np.stack([np.ones(256), -np.ones(256)]).astype(np.float32)
    weight = weight_of(16, 256, 64, 0, np.ones(16, np.float16), arrays)
    expected = np.float32(-128 * 127) * (np.float32(1) / np.float32(127)) * 256
    for isa in _core.isa_available():
        _core.isa_select(isa)
        np.testing.assert_allclose(weight.matmul(x), np.repeat([[expected], [-expected]], 16, axis=1), rtol=1e-6)


def test_weight_rejects_what_does_not_fit() -> None:
    rng = np.random.default_rng(0)
    good = dict(row_scale=np.ones(4, np.float16), base_kind=NONE) | kept_arrays(rng, 4, 70, 32, kept=2)
    weights.weight_of(4, 70, **good)
    hashed = {"base_kind": PRNG, "base_block": 32}
    weights.weight_of(4, 70, **good | hashed)
    for change, message in [
        ({"p_map": np.full((4, 1), 0b001, np.uint8)}, "row 0 does not have 2 of 3"),
        ({"p_map": np.full((4, 1), 0b111, np.uint8)}, "row 0 does not have 2 of 3"),
        ({"p_map": np.full((4, 1), 0b1001, np.uint8)}, "row 0 does not have 2 of 3"),
        ({"p_map": np.full((4, 2), 0b11, np.uint8)}, "shape"),
        ({"p_val": np.ones((4, 2, 16), np.int8)}, "32 or 64"),
        ({"p_val": np.ones((4, 2, 32), np.float16)}, "p_val"),
        ({"p_val": np.ones((3, 2, 32), np.int8)}, "shape"),
        ({"p_val": None}, "without p_val"),
        ({"p_scale": None}, "without p_val and p_scale"),
        ({"p_scale": np.ones(4, np.float32)}, "p_scale"),
        ({"base_kind": PRNG, "base_block": 64}, "same block"),
        (hashed | {"seed_idx": np.zeros(4, np.uint16)}, "one seed"),
        ({"base_kind": 1}, "proc_sparse has the base"),
        ({"b_map": np.zeros((4, 1), np.uint16), "b_val": np.ones((4, 1, 32), np.float16)}, "more than one"),
    ]:
        with pytest.raises(ValueError, match=message):
            weights.weight_of(4, 70, **good | change)
    with pytest.raises(ValueError, match="no experts"):
        weights.weight_of(2, 70, **good, n_experts=2)


@pytest.mark.parametrize("scale", [0.02, 0.0])
@pytest.mark.parametrize("share", [2 / 3, 1.0])
@pytest.mark.parametrize(("n_out", "n_in", "block"), SHAPES)
def test_bloques_proc_interseccion_mascara_kwta(n_out: int, n_in: int, block: int, share: float, scale: float) -> None:
    """`bloques_proc ∩ máscara_kwta`: the bits of all blocks with those not chosen set to 0."""
    rng = np.random.default_rng(n_in)
    row_scale = rng.uniform(0.1, 2, n_out).astype(np.float16)
    kept = max(1, int(share * -(-n_in // block)))
    weight = weight_of(n_out, n_in, block, scale, row_scale, kept_arrays(rng, n_out, n_in, block, kept))
    x = rng.standard_normal((5, n_in)).astype(np.float32)
    for settings in ({"kwta.k": 0.4, "kwta.block": block}, {"kwta.k": 0.9, "kwta.block": block},
                     {"kwta.k": 0.02},
                     {"state_pack_mlp.eps": 2.5, "state_pack_mlp.rho": 1.0}):  # fmt: skip
        gate = _core.Gate(n_in, settings)
        masked = np.zeros_like(x)
        for token, index in enumerate(gate.select(x)):
            masked[token, index] = x[token, index]
        assert 0 < np.count_nonzero(masked) < masked.size or n_in <= block
        expected = weight.matmul(masked)
        for isa in _core.isa_available():
            _core.isa_select(isa)
            for threads in (1, 3):
                np.testing.assert_array_equal(weight.matmul(x, threads, gate=gate, batch=1), expected)
                np.testing.assert_array_equal(weight.matmul(x, threads, gate=gate), expected)


@pytest.mark.parametrize("scale", [0.02, 0.0])
@pytest.mark.parametrize(("n_in", "block"), [(576, 32), (203, 32), (1000, 64)])
def test_bloques_proc_interseccion_mascara_event(n_in: int, block: int, scale: float) -> None:
    """`bloques_proc ∩ máscara_event`: changes, in whole blocks, are added to the state; a check is the product."""
    rng = np.random.default_rng(n_in)
    weight = weight_of(40, n_in, block, scale, np.ones(40, np.float16), kept_arrays(rng, 40, n_in, block))
    x = np.repeat(rng.standard_normal((1, n_in)).astype(np.float32), 6, axis=0)
    changed = np.arange(n_in) // block == 1
    x[1:, changed] += rng.standard_normal((5, int(changed.sum()))).astype(np.float32)
    expected = weight.matmul(x[:1])
    for token in range(1, 6):
        change = weight.matmul(np.where(changed, x[token] - x[token - 1], 0)[None].astype(np.float32))
        expected = np.vstack([expected, expected[-1] + change])
    expected[4] = weight.matmul(x[4:5])
    expected[5] = expected[4] + weight.matmul(np.where(changed, x[5] - x[4], 0)[None].astype(np.float32))
    settings = {"event.delta_theta": 0.01, "event.block": block, "event.gap_every": 4, "event.gap_tol": 9.0}
    gate = _core.Gate(n_in, settings)
    for isa in _core.isa_available():
        _core.isa_select(isa)
        for threads in (1, 3):
            np.testing.assert_array_equal(weight.matmul(x, threads, gate=gate, batch=1), expected)
