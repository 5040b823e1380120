"""Column layout: closed streams of byte lanes; kernels against the NumPy oracle and among instruction
sets, active sets, damage."""

from __future__ import annotations

import mmap
import signal
import subprocess
import sys

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from seeddelta import _core
from seeddelta.gguf.schema import column_strips
from weights import weight_of

LANES = 2
CODES = _core.lane_codes()
FOUR_BITS = next(code for code in CODES if code.bits == 4)


@pytest.fixture(autouse=True)
def _restore_isa():
    active = _core.isa_active()
    yield
    _core.isa_select(active)


def code_of(number):
    return next(code for code in CODES if code.number == number)


def rotation_for(n_out):
    return min(n_out & -n_out, 64)


def column_weight(rng, n_out, n_in, code):
    codes = rng.integers(0, 256, (n_in, sum(column_strips(n_out)), code.column_lines), dtype=np.uint8)
    rotation, scale = rotation_for(n_out), rng.uniform(0.1, 1, n_in).astype(np.float16)
    weight = _core.Weight(
        "w", n_out, n_in, base_kind=LANES, base_seed=5, base_scale=0.05, lane_code=code.number, rotation_block=rotation,
        layout="column", arrays={"codes": codes, "row_scale": scale},
    )  # fmt: skip
    values = reference.column_lanes_values(codes, n_out, code.emits, code.tables, code.added, code.values_with_bits)
    return weight, dict(values=values, input_scale=scale.astype(np.float32) * np.float32(0.05), rotation_block=rotation)


def check_all(weight, oracle, x, rng):
    expected = reference.column_matmul(x=x, seed=5, **oracle)
    shares = (0.1, 0.35, rng.uniform(0.4, 1.0))  # of byte lanes a list is followed up to 0.4
    lists = [np.flatnonzero(rng.uniform(size=weight.n_in) < share).astype(np.int32) for share in shares]
    for isa in _core.isa_available():
        _core.isa_select(isa)
        whole = weight.matmul(x)
        np.testing.assert_array_equal(whole, expected, err_msg=isa)
        one_by_one = np.concatenate([weight.matmul(row[None]) for row in x])
        np.testing.assert_array_equal(one_by_one, whole, err_msg=f"{isa}: batch shape")
        np.testing.assert_array_equal(weight.matmul(x, threads=3), whole, err_msg=f"{isa}: threads")
        np.testing.assert_array_equal(weight.matmul(x[:1], threads=2), whole[:1], err_msg=f"{isa}: threads")
        for active in lists:
            masked = np.zeros_like(x[:1])
            masked[0, active] = x[0, active]
            some = weight.multiply_active(x[0], active)
            np.testing.assert_array_equal(some, weight.matmul(masked)[0], err_msg=f"{isa}: active set")
        every = weight.multiply_active(x[0], np.arange(weight.n_in, dtype=np.int32))
        np.testing.assert_array_equal(every, whole[0], err_msg=f"{isa}: all active")


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.number)
@pytest.mark.parametrize(("n_out", "n_in"), [(64, 64), (576, 90), (1024, 16), (1, 3), (333, 70), (192, 200)])
def test_product(code, n_out, n_in):
    rng = np.random.default_rng(n_out * 10 + code.number)
    weight, oracle = column_weight(rng, n_out, n_in, code)
    check_all(weight, oracle, rng.standard_normal((10, n_in)).astype(np.float32), rng)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 600),
    st.integers(1, 200),
    st.sampled_from(CODES),
    st.integers(1, 9),
    st.integers(0, 2**32 - 1),
)
def test_any_shape(n_out, n_in, code, n_tokens, seed):
    rng = np.random.default_rng(seed)
    weight, oracle = column_weight(rng, n_out, n_in, code)
    scale = np.float32(10.0) ** rng.integers(-30, 30)
    check_all(weight, oracle, (scale * rng.standard_normal((n_tokens, n_in))).astype(np.float32), rng)


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.number)
def test_extreme_activations_do_not_overflow(code):
    rng = np.random.default_rng(3)
    weight, oracle = column_weight(rng, 320, 128, code)
    for sign in (1.0, -1.0):
        check_all(weight, oracle, np.full((2, 128), sign, np.float32) / oracle["input_scale"], rng)


def test_nothing_active_is_zero():
    weight, _ = column_weight(np.random.default_rng(4), 128, 64, FOUR_BITS)
    assert not weight.multiply_active(np.ones(64, np.float32), np.zeros(0, np.int32)).any()


SKIPPING = """
import ctypes, mmap, sys
import numpy as np
from seeddelta import _core
forbidden = int(sys.argv[1])
n_out, page_units = 256, mmap.PAGESIZE // 128  # 4 bits
n_in = 8 * page_units
memory = mmap.mmap(-1, 8 * mmap.PAGESIZE)
codes = np.frombuffer(memory, np.uint8)
codes[:] = np.random.default_rng(0).integers(0, 256, codes.shape)
weight = _core.Weight(
    "w", n_out, n_in, base_kind=2, lane_code=8, base_scale=1.0, layout="column",
    arrays={"codes": codes.reshape(n_in, 16, 8), "row_scale": np.ones(n_in, np.float32)},
)
address = codes.ctypes.data + forbidden * mmap.PAGESIZE
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
pages = np.array([0, 3, 6])[:, None] * page_units
for isa in _core.isa_available():
    _core.isa_select(isa)
    active = (pages + np.arange(page_units)).reshape(-1).astype(np.int32)
    assert weight.multiply_active(np.ones(n_in, np.float32), active).any()
"""


@pytest.mark.skipif(not hasattr(mmap, "PROT_READ"), reason="pages cannot be protected")
@pytest.mark.parametrize(("page", "ends"), [(1, True), (7, True), (3, False)])
def test_what_is_skipped_is_not_read(page: int, ends: bool) -> None:
    """A page of codes may not be read at all: only a product without its units ends."""
    done = subprocess.run([sys.executable, "-c", SKIPPING, str(page)], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == ends, done.stderr
    assert ends or done.returncode in (-signal.SIGSEGV, -signal.SIGBUS)


# Root mean square error allowed on Gaussian units of 576 outputs.
@pytest.mark.parametrize(
    ("number", "limit"),
    [(4, 0.290), (5, 0.207), (6, 0.147), (7, 0.1055), (8, 0.0745), (10, 0.0383), (12, 0.0206), (22, 0.147)],
)
@pytest.mark.parametrize("n_out", [576, 333])
def test_round_trip_of_each_lane_code(number, limit, n_out):
    units = np.random.default_rng(0).standard_normal((48, n_out)).astype(np.float32)
    code = code_of(number)
    codes, scale = _core.columns_lanes_encode(units, code=code)
    values = reference.column_lanes_values(codes, n_out, code.emits, code.tables, code.added, code.values_with_bits)
    decoded = values * (np.float32(1 / code.deviation) * scale.astype(np.float32)[:, None])
    assert np.linalg.norm(units - decoded) < limit * np.linalg.norm(units)
    weight = _core.Weight(
        "w", n_out, 48, base_kind=LANES, base_scale=1 / code.deviation, lane_code=number, layout="column",
        arrays={"codes": codes, "row_scale": scale},
    )  # fmt: skip
    np.testing.assert_allclose(weight.dequantize(), decoded.T, rtol=1e-6)


@pytest.mark.parametrize("number", [4, 6, 8, 10, 22])
def test_same_lanes_everywhere(number):
    rng = np.random.default_rng(2)
    units = rng.standard_normal((3, 330)).astype(np.float32)
    units[1] = 0
    feedback = np.tril(0.1 * rng.standard_normal((2, 2)), -1).astype(np.float32)
    code, expected = code_of(number), None
    for isa in _core.isa_available():
        _core.isa_select(isa)
        for threads in (3,) if isa == "scalar" else (1, 3):
            some = units[::2, :266]  # few, in a strip of each width: the scalar search takes seconds for each
            found = _core.columns_lanes_encode(some, code=code, feedback=feedback, threads=threads)
            expected = expected or found
            for mine, first in zip(found, expected, strict=True):
                np.testing.assert_array_equal(mine, first, err_msg=isa)
    codes, scale = _core.columns_lanes_encode(units, code=code)
    assert scale[1] == 0
    assert not codes.reshape(-1)[16 * code.column_lines : 2 * 16 * code.column_lines].any()  # of the first strip


def test_rotate_back():
    """The parts of the inverse that threads share are the whole inverse."""
    rng = np.random.default_rng(7)
    weight, oracle = column_weight(rng, 192, 40, FOUR_BITS)
    dense = weight.dequantize()
    rows = (oracle["values"] * oracle["input_scale"][:, None]).astype(np.float32)
    np.testing.assert_allclose(dense, _core.rotate(rows, 64, 5, inverse=True).T, rtol=1e-5, atol=1e-6)
    x = rng.standard_normal((4, 40)).astype(np.float32)
    np.testing.assert_allclose(weight.matmul(x), x @ dense.T, rtol=0.05, atol=0.5)


def test_bad_input():
    good = dict(base_kind=LANES, base_scale=1.0, lane_code=8, layout="column")
    good |= dict(codes=np.zeros((10, 4, 8), np.uint8), row_scale=np.ones(10, np.float16))
    weight = weight_of(64, 10, **good)
    assert weight.layout == "column"
    for change, message in [
        (dict(codes=np.zeros((10, 4, 7), np.uint8)), "shape"),
        (dict(row_scale=np.ones(64, np.float16)), "shape"),
        (dict(rotation_block=128), "rotation_block"),
        (dict(layout="diagonal"), "layout"),
        (dict(column_scale=np.zeros(10, np.int8)), "column layout"),
        (dict(base_kind=255), "column layout"),
        (dict(lane_code=99), "number"),
        (dict(n_experts=2), "column layout"),
        (dict(row_scale=np.full(10, np.nan, np.float16)), "row_scale"),
    ]:
        with pytest.raises(ValueError, match=message):
            weight_of(64, 10, **good | change)
    x = np.zeros(10, np.float32)
    for index in ([10], [-1], [3, 3], [4, 2]):
        with pytest.raises(ValueError, match="ascend"):
            weight.multiply_active(x, np.array(index, np.int32))
    with pytest.raises(ValueError, match="NaN"):
        _core.columns_lanes_encode(np.full((2, 64), np.nan, np.float32), code=FOUR_BITS)
