"""Residuals block and codebook_resid and base fht_struct: every instruction set gives the bits of the NumPy oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import reference
from kind_definitions import block_dense, block_dot, codebook_dense, fht_struct_product, fht_struct_values
from seeddelta import _core
from weights import weight_of

NONE, FHT, LANES = 255, 1, 2
SHAPES = [(16, 64), (40, 576), (17, 203), (5, 30), (33, 1000)]


@pytest.fixture(autouse=True)
def _restore_isa() -> Iterator[None]:
    active = _core.isa_active()
    yield
    _core.isa_select(active)


def check_all(weight: _core.Weight, x: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    """The same bits on every instruction set, for any number of threads and any batch."""
    for isa in _core.isa_available():
        _core.isa_select(isa)
        np.testing.assert_array_equal(weight.matmul(x), expected, err_msg=isa)
        np.testing.assert_array_equal(weight.matmul(x, threads=3), expected, err_msg=f"{isa}: threads")
        one_by_one = np.concatenate([weight.matmul(row[None]) for row in x])
        np.testing.assert_array_equal(one_by_one, expected, err_msg=f"{isa}: batch shape")


def block_arrays(rng: np.random.Generator, n_out: int, n_in: int, block: int, vals: str) -> dict[str, Any]:
    blocks = -(-n_in // block)
    kept = max(1, blocks // 2)
    chosen = np.sort(np.argsort(rng.random((n_out, blocks)), axis=1)[:, :kept], axis=1).astype(np.uint16)
    if vals == "fp16":
        return {"b_map": chosen, "b_val": rng.standard_normal((n_out, kept, block)).astype(np.float16)}
    value = rng.integers(-127, 128, (n_out, kept, block)).astype(np.int8)
    return {"b_map": chosen, "b_val": value, "b_scale": rng.uniform(0.001, 0.1, (n_out, kept)).astype(np.float16)}


def codebook_arrays(rng: np.random.Generator, n_out: int, n_in: int, atoms: int, k: int) -> dict[str, Any]:
    return {
        "r_dict": rng.standard_normal((atoms, n_in)).astype(np.float16),
        "r_codes": rng.integers(0, atoms, (n_out, k)).astype(np.uint16),
        "r_vals": rng.standard_normal((n_out, k)).astype(np.float16),
    }


def inputs(rng: np.random.Generator, n_out: int, n_in: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return rng.uniform(0.1, 2, n_out).astype(np.float16), rng.standard_normal((11, n_in)).astype(np.float32)


@pytest.mark.parametrize("vals", ["fp16", "int8"])
@pytest.mark.parametrize("block", [32, 64])
@pytest.mark.parametrize(("n_out", "n_in"), SHAPES)
def test_block(n_out: int, n_in: int, block: int, vals: str) -> None:
    rng = np.random.default_rng(n_in + block)
    arrays = block_arrays(rng, n_out, n_in, block, vals)
    row_scale, x = inputs(rng, n_out, n_in)
    weight = _core.Weight("w", n_out, n_in, base_kind=NONE, arrays=arrays | {"row_scale": row_scale})
    stored = (arrays["b_map"], arrays["b_val"], arrays.get("b_scale"))
    share = block_dot(*stored, x)
    check_all(weight, x, row_scale.astype(np.float32) * share)
    dense = block_dense(*stored, n_in) * row_scale.astype(np.float32)[:, None]
    np.testing.assert_array_equal(weight.dequantize(), dense)
    np.testing.assert_allclose(row_scale * share, x @ dense.T, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("atoms", "k"), [(1, 1), (37, 5), (300, 40)])
@pytest.mark.parametrize(("n_out", "n_in"), SHAPES)
def test_codebook(n_out: int, n_in: int, atoms: int, k: int) -> None:
    rng = np.random.default_rng(n_in + atoms)
    arrays = codebook_arrays(rng, n_out, n_in, atoms, k)
    row_scale, x = inputs(rng, n_out, n_in)
    weight = _core.Weight("w", n_out, n_in, base_kind=NONE, arrays=arrays | {"row_scale": row_scale})
    p = reference.dictionary_dot(arrays["r_dict"], x)
    share = reference.coo_dot(arrays["r_codes"], arrays["r_vals"].astype(np.float32), p)
    check_all(weight, x, row_scale.astype(np.float32) * share)
    dense = codebook_dense(**dict(zip(("dictionary", "codes", "value"), arrays.values(), strict=True)))
    np.testing.assert_allclose(weight.dequantize(), dense * row_scale.astype(np.float32)[:, None], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("n_out", "n_in"), [*SHAPES, (1100, 1000), (130, 64)])
def test_fht_struct(n_out: int, n_in: int) -> None:
    rng = np.random.default_rng(n_out)
    row_scale, x = inputs(rng, n_out, n_in)
    arrays = {"row_scale": row_scale}
    weight = _core.Weight("w", n_out, n_in, base_kind=FHT, base_seed=99, base_scale=0.25, arrays=arrays)
    share = fht_struct_product(99, n_out, x)
    check_all(weight, x, row_scale.astype(np.float32) * (share * np.float32(0.25)))
    values = fht_struct_values(99, 0, n_out, n_in)
    np.testing.assert_array_equal(_core.base_values(FHT, 99, 0, n_out, n_in), values)
    np.testing.assert_array_equal(_core.base_values(FHT, 99, n_out - 3, n_out, n_in), values[-3:])
    dense = values * np.float32(0.25) * row_scale.astype(np.float32)[:, None]
    np.testing.assert_array_equal(weight.dequantize(), dense)
    np.testing.assert_allclose(share, x @ values.T, rtol=1e-4, atol=1e-4 * np.abs(share).max())


def test_fht_struct_values_look_random() -> None:
    values = _core.base_values(FHT, 7, 0, 2048, 576) / (19.862 * np.sqrt(1024))
    assert abs(values.mean()) < 0.01
    assert values.std() == pytest.approx(1, rel=0.05)
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    overlap = np.abs(unit @ unit.T - np.eye(2048))
    assert overlap.max() < 8 / np.sqrt(576)
    assert _core.base_values(FHT, 8, 0, 4, 576).tolist() != _core.base_values(FHT, 7, 0, 4, 576).tolist()


@pytest.mark.parametrize("residual", ["block", "codebook"])
def test_on_rotated_lanes(residual: str) -> None:
    rng = np.random.default_rng(4)
    n_out, n_in = 50, 576
    arrays = block_arrays(rng, n_out, n_in, 32, "int8") if residual == "block" else codebook_arrays(rng, 50, 576, 40, 6)
    row_scale, x = inputs(rng, n_out, n_in)
    code = next(code for code in _core.lane_codes() if code.bits == 3)
    codes = rng.integers(0, 256, (4, code.lines(n_in), 64), dtype=np.uint8)
    weight = _core.Weight(
        "w", n_out, n_in, base_kind=LANES, base_seed=7, base_scale=0.05, lane_code=code.number,
        rotation_block=64, arrays=arrays | {"codes": codes, "row_scale": row_scale},
    )  # fmt: skip
    if residual == "block":
        share = block_dot(arrays["b_map"], arrays["b_val"], arrays["b_scale"], x)
    else:
        p = reference.dictionary_dot(arrays["r_dict"], x)
        share = reference.coo_dot(arrays["r_codes"], arrays["r_vals"].astype(np.float32), p)
    values = reference.lanes_values(codes, n_out, n_in, code.emits, code.tables, code.added, code.values_with_bits)
    expected = reference.matmul(
        values, 0.05, row_scale, x, rotation_block=64, seed=7, residual_share=share, group=reference.LANE_GROUP
    )
    check_all(weight, x, expected)


def test_weight_rejects_wrong_residuals() -> None:
    good = dict(base_kind=NONE, row_scale=np.ones(4, np.float16))
    blocks = dict(b_map=np.array([[0, 1]] * 4, np.uint16), b_val=np.ones((4, 2, 32), np.float16))
    book = dict(r_dict=np.ones((3, 70), np.float16), r_codes=np.zeros((4, 2), np.int16), r_vals=np.ones((4, 2), "f2"))
    weight_of(4, 70, **good, **blocks)
    weight_of(4, 70, **good, **book)
    for change, message in [
        (blocks | {"b_map": np.array([[0, 3]] * 4, np.uint16)}, "does not ascend below 3"),
        (blocks | {"b_map": np.array([[1, 1]] * 4, np.uint16)}, "does not ascend"),
        (blocks | {"b_val": np.ones((4, 2, 16), np.float16)}, "32 or 64"),
        (blocks | {"b_val": np.ones((4, 2, 32), np.int8)}, "needs b_scale"),
        (blocks | {"b_val": None}, "without b_val"),
        (blocks | {"b_scale": np.ones((4, 2), np.float16)}, "has no b_scale"),
        (book | {"r_codes": np.full((4, 2), 3, np.int16)}, "atom 3 of 3"),
        (book | {"r_dict": np.ones((3, 69), np.float16)}, "shape"),
        (book | {"r_vals": None}, "without"),
        (blocks | {"b_map": None}, "lacks b_map"),
        (book | {"r_dict": None}, "lacks r_dict"),
        (book | blocks, "more than one"),
    ]:
        with pytest.raises(ValueError, match=message):
            weight_of(4, 70, **good | change)
    with pytest.raises(ValueError, match="no rotation"):
        weight_of(4, 64, base_kind=FHT, rotation_block=32, row_scale=np.ones(4, np.float16))
