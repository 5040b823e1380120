"""Every instruction set gives the scalar's bits, and the scalar gives the NumPy oracle's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seeddelta import _core, reference
from seeddelta.convert.columns import column_factor

RATES = [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (3, 2), (5, 2)]


@pytest.fixture(autouse=True)
def _restore_isa():
    active = _core.isa_active()
    yield
    _core.isa_select(active)


def trellis_weight(rng, n_out, n_in, rate, *, rotation=0, seed=0, residual=None, wide=False, column_scale=None):
    """A weight of random codes, and the arguments for the oracle."""
    step_bits, per_step = rate
    chunk = 16 * per_step
    steps = -(-n_in // chunk) * 16
    words = -(-(16 + step_bits * (steps - 1)) // 16)
    codes = rng.integers(0, 1 << 16, (-(-n_out // 16), words, 16), dtype=np.uint16)
    row_scale = rng.uniform(0.01, 2, n_out).astype(np.float32 if wide else np.float16)
    multipliers = [0xB5C7, 0x6A35][:per_step]
    arrays, coo = {}, None
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
        "w", n_out, n_in, base_kind=2, base_seed=seed, base_scale=0.05, step_bits=step_bits, values_per_step=per_step,
        multipliers=multipliers, rotation_block=rotation, codes=codes, row_scale=row_scale, **arrays,
    )  # fmt: skip
    values = reference.trellis_values(codes, n_out, n_in, step_bits, multipliers)
    return weight, dict(
        values=values, base_scale=0.05, row_scale=row_scale, rotation_block=rotation, seed=seed, coo=coo,
        column_scale=column_scale,
    )  # fmt: skip


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


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(("n_out", "n_in"), [(16, 64), (40, 576), (17, 208), (5, 30), (33, 1536)])
def test_trellis_product(rate, n_out, n_in):
    rng = np.random.default_rng(n_in * 10 + rate[0])
    weight, oracle = trellis_weight(rng, n_out, n_in, rate)
    check_all(weight, oracle, rng.standard_normal((11, n_in)).astype(np.float32))


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
def test_coo_on_rotated_trellis(residual, wide):
    rng = np.random.default_rng(5)
    weight, oracle = trellis_weight(rng, 50, 576, (3, 1), rotation=64, seed=7, residual=residual, wide=wide)
    check_all(weight, oracle, rng.standard_normal((5, 576)).astype(np.float32))
    np.testing.assert_allclose(weight.dequantize(), reference.dequantize(**oracle), atol=2e-5)


@pytest.mark.parametrize("rotation", [0, 64])
def test_column_scales(rotation):
    rng = np.random.default_rng(6)
    scale = rng.integers(-40, 40, 576).astype(np.int8)
    weight, oracle = trellis_weight(rng, 37, 576, (4, 1), rotation=rotation, seed=3, column_scale=scale)
    x = (rng.standard_normal((5, 576)) * np.exp2(-scale / 8)).astype(np.float32)
    check_all(weight, oracle, x)
    np.testing.assert_allclose(weight.dequantize(), reference.dequantize(**oracle), rtol=1e-4, atol=1e-5)
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
        "w", n_out, n_in, base_kind=0, base_seed=seed, base_scale=0.5, base_block=block, row_scale=row_scale
    )
    oracle = dict(values=values, base_scale=0.5, row_scale=row_scale)
    check_all(weight, oracle, rng.standard_normal((4, n_in)).astype(np.float32))


def test_prng_words_are_splitmix64():
    # First outputs of SplitMix64 started at 1234567, as published with the reference implementation.
    golden = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [reference.splitmix64_at(1234567, i) for i in range(5)] == golden


def test_residual_without_base():
    rng = np.random.default_rng(2)
    _, oracle = trellis_weight(rng, 16, 64, (4, 1), residual="fp16")
    index, value = oracle["coo"]
    row_scale = oracle["row_scale"]
    weight = _core.Weight(
        "w", 16, 64, base_kind=255, row_scale=row_scale, d_idx=index.astype(np.uint16), d_val=value.astype(np.float16)
    )
    x = rng.standard_normal((3, 64)).astype(np.float32)
    check_all(
        weight, dict(values=np.zeros((16, 64), np.int8), base_scale=0.0, row_scale=row_scale, coo=(index, value)), x
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 70), st.integers(1, 300), st.sampled_from(RATES), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_any_shape(n_out, n_in, rate, n_tokens, seed):
    rng = np.random.default_rng(seed)
    weight, oracle = trellis_weight(rng, n_out, n_in, rate, residual="int8" if seed % 2 else None)
    scale = np.float32(10.0) ** rng.integers(-30, 30)
    check_all(weight, oracle, (scale * rng.standard_normal((n_tokens, n_in))).astype(np.float32))


def test_extreme_activations_do_not_overflow():
    """All values at their largest against all activations at theirs: the 16-bit intermediate sums must not saturate."""
    rng = np.random.default_rng(3)
    weight, oracle = trellis_weight(rng, 64, 512, (4, 1))
    for sign in (1.0, -1.0):
        check_all(weight, oracle, np.full((2, 512), sign, np.float32))


def test_weight_rejects_wrong_arrays():
    good = dict(base_kind=2, base_scale=1.0, step_bits=4, multipliers=[1], row_scale=np.ones(16, np.float16))
    codes = np.zeros((1, 17, 16), np.uint16)
    _core.Weight("t", 16, 64, codes=codes, **good)
    for change, message in [
        (dict(codes=codes[:, :-1]), "shape"),
        (dict(codes=codes.astype(np.uint32)), "dtype"),
        (dict(codes=codes[:, ::-1]), "contiguous"),
        (dict(step_bits=7), "rate"),
        (dict(rotation_block=48), "rotation_block"),
        (dict(multipliers=[]), "multiplier"),
        (dict(base_kind=9), "base kind"),
        (dict(base_scale=np.nan), "base_scale"),
        (dict(row_scale=np.full(16, np.inf, np.float16)), "row_scale"),
        (dict(d_idx=np.full((16, 2), 64, np.uint16), d_val=np.ones((16, 2), np.float16)), "beyond n_in"),
    ]:
        with pytest.raises(ValueError, match=message):
            _core.Weight("t", 16, 64, **{**good, "codes": codes, **change})
