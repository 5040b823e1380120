"""Every instruction set gives the scalar's bits, and the scalar gives the NumPy oracle's."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from seeddelta import _core
from seeddelta.convert.columns import column_factor
from weights import weight_of

LANES = 2
CODES = _core.lane_codes()
NUMBERS = [code.number for code in CODES]
FOUR_BITS = 8


@pytest.fixture(autouse=True)
def _restore_isa():
    active = _core.isa_active()
    yield
    _core.isa_select(active)


def code_of(number):
    return next(code for code in CODES if code.number == number)


def lanes_weight(rng, n_out, n_in, number, *, rotation=0, seed=9, residual=None, wide=False, column_scale=None):
    """A weight of random codes, and the arguments for the oracle."""
    code = code_of(number)
    codes = rng.integers(0, 256, (-(-n_out // 16), code.lines(n_in), 64), dtype=np.uint8)
    row_scale = rng.uniform(0.01, 2, n_out).astype(np.float32 if wide else np.float16)
    arrays, coo = {"codes": codes, "row_scale": row_scale}, None
    if residual:
        k = min(7, n_in) if n_in < 40 else 33
        index = np.sort(np.argsort(rng.random((n_out, n_in)), axis=1)[:, :k], axis=1)
        arrays["d_idx"] = index.astype(np.uint32 if wide else np.uint16)
        if residual == "fp16":
            value = rng.standard_normal((n_out, k)).astype(np.float16)
            coo = (index, value.astype(np.float32))
        else:
            value = rng.integers(-127, 128, (n_out, k)).astype(np.int8)
            scale = rng.uniform(0.001, 0.1, n_out).astype(np.float16)
            arrays["d_scale"] = scale
            coo = (index, scale.astype(np.float32)[:, None] * value.astype(np.float32))
        arrays["d_val"] = value
    if column_scale is not None:
        arrays["column_scale"] = column_scale
    weight = _core.Weight(
        "w", n_out, n_in, base_kind=LANES, base_seed=seed, base_scale=0.05, lane_code=number, rotation_block=rotation,
        arrays=arrays,
    )  # fmt: skip
    values = reference.lanes_values(codes, n_out, n_in, code.emits, code.tables, code.added, code.values_with_bits)
    return weight, dict(
        values=values, base_scale=0.05, row_scale=row_scale, rotation_block=rotation, seed=seed, coo=coo,
        column_scale=column_scale, group=reference.LANE_GROUP,
    )  # fmt: skip


def dense_of(oracle):
    return reference.dequantize(**{name: value for name, value in oracle.items() if name != "group"})


def check_all(weight, oracle, x, exact=True):
    expected = reference.matmul(x=x, **oracle)
    for isa in _core.isa_available():
        _core.isa_select(isa)
        whole = weight.matmul(x)
        if exact:
            np.testing.assert_array_equal(whole, expected, err_msg=isa)
        for batch in (1, 2, 3, 5, 8):
            parts = np.concatenate([weight.matmul(x[i : i + batch]) for i in range(0, len(x), batch)])
            np.testing.assert_array_equal(parts, whole, err_msg=f"{isa}: {batch} tokens at a time")
        np.testing.assert_array_equal(weight.matmul(x, threads=3), whole, err_msg=f"{isa}: threads")


def test_machine_has_simd():
    assert _core.isa_available()[0] == "scalar"
    assert _core.isa_active() == _core.isa_available()[-1]
    with pytest.raises(ValueError, match="not available"):
        _core.isa_select("vliw")


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    ("n_out", "n_in"), [(16, 64), (40, 576), (17, 203), (33, 1000), (5, 30), (1, 1), (7, 8), (50, 130)]
)
def test_lanes_product(number, n_out, n_in):
    rng = np.random.default_rng(n_in)
    weight, oracle = lanes_weight(rng, n_out, n_in, number)
    for tokens in (11, 40):  # matrix registers (AMX) take sixteen
        check_all(weight, oracle, rng.standard_normal((tokens, n_in)).astype(np.float32))
    np.testing.assert_array_equal(weight.dequantize(), dense_of(oracle))


@pytest.mark.parametrize(("coarse", "fine"), [(7, 12), (8, 9), (6, 10)])
@pytest.mark.parametrize(("n_out", "n_in"), [(16 * 23, 576), (16 * 11 + 5, 130)])
def test_tiles_of_two_codes(coarse, fine, n_out, n_in):
    """Rows have the bits of a matrix of those rows alone, whatever lies between them."""
    rng = np.random.default_rng(n_in)
    tiles = -(-n_out // 16)
    mask = rng.random(tiles) < 0.4
    mask[:2] = False, True
    scale = rng.uniform(0.01, 2, n_out).astype(np.float16)
    codes = {number: code_of(number) for number in (coarse, fine)}
    lines = {
        number: rng.integers(0, 256, (np.sum(mask == (number == fine)), code.lines(n_in), 64), dtype=np.uint8)
        for number, code in codes.items()
    }
    arrays = {
        "codes": lines[coarse], "fine_codes": lines[fine], "fine_map": np.packbits(mask, bitorder="little"),
        "row_scale": scale,
    }  # fmt: skip
    form = {"base_kind": LANES, "base_seed": 3, "rotation_block": 2}
    both = _core.Weight("w", n_out, n_in, **form, base_scale=0.05, lane_code=coarse, fine_code=fine, arrays=arrays)
    ratio = np.float32(codes[coarse].deviation) / np.float32(codes[fine].deviation)
    base_scale = {coarse: 0.05, fine: float(np.float32(0.05) * ratio)}
    rows = np.repeat(mask, 16)[:n_out]
    x = rng.standard_normal((40, n_in)).astype(np.float32)
    for number in codes:
        chosen = rows == (number == fine)
        alone = _core.Weight(
            "w", int(chosen.sum()), n_in, **form, base_scale=base_scale[number], lane_code=number,
            arrays={"codes": lines[number], "row_scale": scale[chosen]},
        )  # fmt: skip
        np.testing.assert_array_equal(both.dequantize()[chosen], alone.dequantize())
        for isa in _core.isa_available():
            _core.isa_select(isa)
            for batch in (1, 2, 3, 5, 8, 11, 40):
                whole = both.matmul(x[:batch])
                np.testing.assert_array_equal(whole[:, chosen], alone.matmul(x[:batch]), err_msg=isa)
                np.testing.assert_array_equal(both.matmul(x[:batch], threads=3), whole, err_msg=f"{isa}: threads")
    for begin, end in ((0, n_out), (5, 6), (30, 61), (n_out - 3, n_out)):
        np.testing.assert_array_equal(both.dequantize(begin, end), both.dequantize()[begin:end])
    for wrong in ({"fine_map": arrays["fine_map"] ^ 1}, {"fine_map": arrays["fine_map"][1:]},
                  {"fine_codes": lines[fine][1:]}, {"codes": lines[coarse][:, 1:]}):  # fmt: skip
        with pytest.raises(ValueError, match=r"tensor 'w'|codes|fine_map"):
            _core.Weight(
                "w", n_out, n_in, **form, base_scale=1, lane_code=coarse, fine_code=fine, arrays=arrays | wrong
            )


@pytest.mark.parametrize("block", [2, 4, 8, 16, 32, 64, 512])
def test_rotation(block):
    rng = np.random.default_rng(block)
    x = rng.standard_normal((3, 1536)).astype(np.float32)
    expected = reference.rotate(x, block, seed=99)
    for isa in _core.isa_available():
        _core.isa_select(isa)
        np.testing.assert_array_equal(_core.rotate(x, block, 99), expected, err_msg=isa)
    np.testing.assert_allclose(_core.rotate(expected, block, 99, inverse=True), x, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), np.linalg.norm(x, axis=1), rtol=1e-5)


@pytest.mark.parametrize("residual", ["fp16", "int8"])
@pytest.mark.parametrize("wide", [False, True])
def test_coo_on_rotated_lanes(residual, wide):
    rng = np.random.default_rng(5)
    weight, oracle = lanes_weight(rng, 50, 576, 6, rotation=64, seed=7, residual=residual, wide=wide)
    check_all(weight, oracle, rng.standard_normal((5, 576)).astype(np.float32))
    np.testing.assert_allclose(weight.dequantize(), dense_of(oracle), atol=2e-5)


@pytest.mark.parametrize("rotation", [0, 64])
def test_column_scales(rotation):
    rng = np.random.default_rng(6)
    scale = rng.integers(-40, 40, 576).astype(np.int8)
    weight, oracle = lanes_weight(rng, 37, 576, FOUR_BITS, rotation=rotation, seed=3, column_scale=scale)
    x = (rng.standard_normal((5, 576)) * np.exp2(-scale / 8)).astype(np.float32)
    check_all(weight, oracle, x)
    np.testing.assert_allclose(weight.dequantize(), dense_of(oracle), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(weight.matmul(x), x @ weight.dequantize().T, rtol=0.05, atol=0.5)
    every = np.arange(-128, 128, dtype=np.int8)
    np.testing.assert_allclose(reference.base.column_factor(every), np.exp2(every / 8), rtol=1e-7)
    np.testing.assert_array_equal(reference.base.column_factor(every), column_factor(every))


@pytest.mark.parametrize("block", [32, 64])
def test_prng_block(block):
    rng = np.random.default_rng(1)
    n_out, n_in, seed = 19, 200, 0xDEADBEEF12345678
    values = _core.prng_block_values(seed, 0, n_out, n_in, block)
    np.testing.assert_array_equal(values, reference.prng_block_values(seed, 0, n_out, n_in, block))
    row_scale = rng.uniform(0.1, 1, n_out).astype(np.float16)
    weight = _core.Weight(
        "w", n_out, n_in, base_kind=0, base_seed=seed, base_scale=0.5, base_block=block, arrays={"row_scale": row_scale}
    )
    oracle = dict(values=values, base_scale=0.5, row_scale=row_scale)
    check_all(weight, oracle, rng.standard_normal((4, n_in)).astype(np.float32))


def test_prng_words_are_splitmix64():
    # First outputs of SplitMix64 started at 1234567, as published with the reference implementation.
    golden = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [reference.splitmix64_at(1234567, i) for i in range(5)] == golden


def test_residual_without_base():
    rng = np.random.default_rng(2)
    _, oracle = lanes_weight(rng, 16, 64, FOUR_BITS, residual="fp16")
    index, value = oracle["coo"]
    row_scale = oracle["row_scale"]
    arrays = {"row_scale": row_scale, "d_idx": index.astype(np.uint16), "d_val": value.astype(np.float16)}
    weight = _core.Weight("w", 16, 64, base_kind=255, arrays=arrays)
    x = rng.standard_normal((3, 64)).astype(np.float32)
    check_all(
        weight, dict(values=np.zeros((16, 64), np.int8), base_scale=0.0, row_scale=row_scale, coo=(index, value)), x
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 70), st.integers(1, 300), st.sampled_from(NUMBERS), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_any_shape(n_out, n_in, number, n_tokens, seed):
    rng = np.random.default_rng(seed)
    weight, oracle = lanes_weight(rng, n_out, n_in, number, residual="int8" if seed % 2 else None)
    scale = np.float32(10.0) ** rng.integers(-30, 30)
    check_all(weight, oracle, (scale * rng.standard_normal((n_tokens, n_in))).astype(np.float32))


def test_extreme_activations_do_not_overflow():
    """All values at their largest against all activations at theirs: the 16-bit intermediate sums must not saturate."""
    rng = np.random.default_rng(3)
    weight, oracle = lanes_weight(rng, 64, 512, FOUR_BITS)
    for sign in (1.0, -1.0):
        check_all(weight, oracle, np.full((2, 512), sign, np.float32))


def test_weight_rejects_wrong_arrays():
    codes = np.zeros((1, 8, 64), np.uint8)
    good = dict(base_kind=LANES, base_scale=1.0, lane_code=FOUR_BITS, codes=codes, row_scale=np.ones(16, np.float16))
    weight_of(16, 64, **good)
    for change, message in [
        (dict(codes=codes[:, :-1]), "shape"),
        (dict(codes=codes.astype(np.uint16)), "dtype"),
        (dict(codes=codes[:, ::-1]), "contiguous"),
        (dict(lane_code=99), "no code of byte lanes with the number 99"),
        (dict(codes=None), "tensor 't': base lanes needs codes"),
        (dict(row_scale=None), "tensor 't': needs row_scale"),
        (dict(d_val=np.ones((16, 2), np.float16)), "tensor 't': lacks d_idx"),
        (dict(code=codes), "tensor 't': there is no array of the name 'code'"),
        (dict(rotation_block=48), "rotation_block"),
        (dict(base_kind=9), "base kind"),
        (dict(base_scale=np.nan), "base_scale"),
        (dict(row_scale=np.full(16, np.inf, np.float16)), "row_scale"),
        (dict(d_idx=np.full((16, 2), 64, np.uint16), d_val=np.ones((16, 2), np.float16)), "beyond n_in"),
    ]:
        with pytest.raises(ValueError, match=message):
            weight_of(16, 64, **good | change)
