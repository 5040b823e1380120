"""Encoders: error at each rate, equal bits on every instruction set and thread count, importance, top-K."""

from __future__ import annotations

import numpy as np
import pytest
from seeddelta import _core


@pytest.fixture(autouse=True)
def _restore_isa():
    active = _core.isa_active()
    yield
    _core.isa_select(active)


def decode(w_shape, encoded, rate, rotation=0, seed=0):
    codes, row_scale, base_scale, multipliers = encoded
    return _core.Weight(
        "w", *w_shape, base_kind=2, base_seed=seed, base_scale=base_scale, step_bits=rate[0], values_per_step=rate[1],
        multipliers=multipliers, rotation_block=rotation, codes=codes, row_scale=row_scale,
    ).dequantize()  # fmt: skip


def relative_error(w, w_hat, h=1.0):
    return float(np.sqrt((h * (w - w_hat) ** 2).sum() / (h * w**2).sum()))


# Largest error allowed on Gaussian rows: the rate-distortion bound is 2^-rate.
@pytest.mark.parametrize(
    ("rate", "limit"),
    [((1, 1), 0.54), ((3, 2), 0.38), ((2, 1), 0.275), ((5, 2), 0.205), ((3, 1), 0.14), ((4, 1), 0.073), ((5, 1), 0.039),
     ((6, 1), 0.024)],
)  # fmt: skip
def test_error_of_each_rate(rate, limit):
    w = np.random.default_rng(0).standard_normal((48, 576)).astype(np.float32)
    encoded = _core.trellis_encode(w, step_bits=rate[0], values_per_step=rate[1], rotation_block=64, seed=3)
    bits = 8 * (encoded[0].nbytes + encoded[1].nbytes) / w.size
    assert bits < rate[0] / rate[1] + 0.06
    assert 2.0**-bits < relative_error(w, decode(w.shape, encoded, rate, 64, 3)) < limit


def test_longer_states_are_better():
    w = np.random.default_rng(1).standard_normal((32, 512)).astype(np.float32)
    errors = [
        relative_error(w, decode(w.shape, _core.trellis_encode(w, step_bits=2, state_bits=bits), (2, 1)))
        for bits in (12, 14, 16)
    ]
    assert errors[0] > errors[1] > errors[2]


@pytest.mark.parametrize("rate", [(1, 1), (2, 1), (4, 1), (6, 1), (5, 2)])
def test_same_codes_everywhere(rate):
    rng = np.random.default_rng(2)
    w = rng.standard_normal((20, 192)).astype(np.float32)
    h = rng.lognormal(0, 1, 192).astype(np.float32)
    options = dict(step_bits=rate[0], values_per_step=rate[1], rotation_block=64, seed=1, importance=h)
    expected = None
    for isa in _core.isa_available():
        _core.isa_select(isa)
        for threads in (1, 2, 5):
            codes, row_scale, _, _ = _core.trellis_encode(w, threads=threads, **options)
            if expected is None:
                expected = codes, row_scale
            np.testing.assert_array_equal(codes, expected[0], err_msg=isa)
            np.testing.assert_array_equal(row_scale, expected[1], err_msg=isa)


def test_importance_lowers_the_weighted_error():
    rng = np.random.default_rng(4)
    w = rng.standard_normal((32, 512)).astype(np.float32)
    h = rng.lognormal(0, 1, 512).astype(np.float32)
    plain = decode(w.shape, _core.trellis_encode(w, step_bits=2), (2, 1))
    weighted = decode(w.shape, _core.trellis_encode(w, step_bits=2, importance=h), (2, 1))
    assert relative_error(w, weighted, h) < 0.95 * relative_error(w, plain, h)


def test_zero_rows_and_outliers():
    rng = np.random.default_rng(5)
    w = rng.standard_normal((18, 64)).astype(np.float32)
    w[3] = 0
    w[4, 10] = 30.0
    w_hat = decode(w.shape, _core.trellis_encode(w, step_bits=4), (4, 1))
    assert not w_hat[3].any()
    assert np.argmax(np.abs(w_hat[4])) == 10


def test_bad_input():
    w = np.ones((16, 64), np.float32)
    w[2, 5] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        _core.trellis_encode(w)
    good = np.ones((16, 64), np.float32)
    with pytest.raises(ValueError, match="not positive"):
        _core.trellis_encode(good, importance=np.zeros(64, np.float32))
    with pytest.raises(ValueError, match="rate"):
        _core.trellis_encode(good, step_bits=9)
    with pytest.raises(ValueError, match="rotation_block"):
        _core.trellis_encode(good, rotation_block=3)
    with pytest.raises(ValueError, match="k must be"):
        _core.coo_select(good, 65)


def test_coo_select_is_top_k():
    rng = np.random.default_rng(6)
    delta = rng.standard_normal((9, 100)).astype(np.float32)
    h = rng.lognormal(0, 1, 100).astype(np.float32)
    index, value = _core.coo_select(delta, 10, h)
    expected = np.sort(np.argsort(-np.sqrt(h) * np.abs(delta), axis=1)[:, :10], axis=1)
    np.testing.assert_array_equal(index, expected)
    np.testing.assert_array_equal(value, np.take_along_axis(delta, expected, 1))
