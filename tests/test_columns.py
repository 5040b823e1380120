"""Products over columns: every instruction set gives the scalar's bits, and skipping is a choice of inputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seeddelta import _core

# The last has four strips.
SHAPES = [(64, 64), (576, 1536), (1536, 576), (192, 576), (100, 130), (7, 33), (1100, 70), (4200, 20)]
TERNARY = {"state_pack_mlp.mode": "ternary", "state_pack_mlp.eps": 0.5, "state_pack_mlp.rho": 1.0}


@pytest.fixture(autouse=True)
def _restore_isa():
    active = _core.isa_active()
    yield
    _core.isa_select(active)


def weight_of(n_out, n_in, seed=0):
    """A random weight and the dense matrix [n_out, n_in] that it stands for."""
    half = np.random.default_rng(seed).standard_normal((n_in, n_out)).astype(np.float16)
    half[0, 0] = 1e-7  # a subnormal
    matrix = half.T.astype(np.float32)
    return _core.ColumnWeight("w", matrix), matrix


def inputs(tokens, n_in, seed=1):
    return np.random.default_rng(seed).standard_normal((tokens, n_in)).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_all_units_are_the_dense_product(shape):
    """The same bits of every instruction set, for one token and several, for 1 to 5 threads, with and without a gate
    that keeps everything."""
    weight, matrix = weight_of(*shape)
    x = inputs(9, shape[1])
    keep_all = _core.Gate(shape[1], {"kwta.k": 1.0})
    _core.isa_select("scalar")
    expected = weight.matmul(x)
    np.testing.assert_allclose(expected, x @ matrix.T, rtol=1e-3, atol=5e-3)
    for isa in _core.isa_available():
        _core.isa_select(isa)
        for threads in (1, 2, 3, 5):
            for batch in (0, 1, 4):
                for gate in (None, keep_all):
                    got = weight.matmul(x, gate, threads=threads, batch=batch)
                    np.testing.assert_array_equal(got, expected, err_msg=f"{isa} {threads} threads, batch {batch}")


@pytest.mark.parametrize(("shape", "options"), [
    ((576, 1536), {"settings": {"kwta.k": 0.4}}),
    ((576, 1536), {"settings": {"kwta.k": 0.5, "kwta.block": 16}}),
    ((192, 576), {"settings": {"kwta.k_abs": 1}}),
    ((1100, 130), {"settings": {"kwta": "on"}, "threshold": 0.9}),
    ((100, 130), {"settings": TERNARY}),
])  # fmt: skip
def test_skipping_is_masking(shape, options):
    """The bits of the dense product whose inputs that were not chosen are 0."""
    weight, _ = weight_of(*shape)
    x = inputs(7, shape[1])
    gate = _core.Gate(shape[1], **options)
    chosen = gate.select(x)
    masked = np.zeros_like(x)
    for row, index in enumerate(chosen):
        assert (np.diff(index) > 0).all()
        assert 0 < len(index) < shape[1]
        masked[row, index] = x[row, index]
    _core.isa_select("scalar")
    expected = weight.matmul(masked)
    for isa in _core.isa_available():
        _core.isa_select(isa)
        for threads in (1, 3):
            for batch in (0, 1, 3):
                got = weight.matmul(x, gate, threads=threads, batch=batch)
                np.testing.assert_array_equal(got, expected, err_msg=f"{isa} {threads} threads, batch {batch}")


def winners(score, k):
    """Indices of the k largest, ties by index: the definition."""
    return np.sort(np.lexsort((np.arange(len(score)), -score))[:k])


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(1, 300),
    share=st.floats(0.01, 1),
    ties=st.integers(1, 6),
    seed=st.integers(0, 1 << 30),
    wina=st.booleans(),
)
def test_top_k_is_exact(n, share, ties, seed, wina):
    """Against NumPy, with many equal values, zeros among them."""
    rng = np.random.default_rng(seed)
    x = (rng.integers(-ties, ties + 1, (3, n)) * np.float32(0.37)).astype(np.float32)
    x[1] = rng.standard_normal(n) * 1e-20
    norm = rng.integers(1, 3, n).astype(np.float32) if wina else None
    k = max(1, round(share * n))
    settings = {"kwta.k_abs": k, "kwta.score": "wina" if wina else "magnitude"}
    gate = _core.Gate(n, settings, norm=norm.tolist() if wina else [])
    for row, index in zip(x, gate.select(x), strict=True):
        score = np.abs(row) if norm is None else np.abs(row * norm)
        np.testing.assert_array_equal(index, winners(score, k))


@pytest.mark.parametrize("isa", _core.isa_available())
def test_top_k_of_every_instruction_set(isa):
    _core.isa_select(isa)
    x = inputs(40, 1536, seed=5) * np.exp(np.linspace(-4, 4, 40, dtype=np.float32))[:, None]
    for row, index in zip(x, _core.Gate(1536, {"kwta.k": 0.5}).select(x), strict=True):
        np.testing.assert_array_equal(index, winners(np.abs(row), 768))


@pytest.mark.parametrize("block", [16, 32, 64])
def test_blocks_are_ranked_by_energy(block):
    x = inputs(5, 8 * block + 3)
    gate = _core.Gate(x.shape[1], {"kwta.k_abs": 4, "kwta.block": block})
    for row, index in zip(x, gate.select(x), strict=True):
        energy = [np.square(row[i : i + block].astype(np.float64)).sum() for i in range(0, len(row), block)]
        assert sorted(set(index // block)) == sorted(np.argsort(energy)[-4:])
        assert len(index) in (4 * block, 3 * block + 3)


def test_duty_gates_every_nth_token():
    lengths = [len(index) for index in _core.Gate(64, {"kwta.k": 0.25, "kwta.duty": 3}).select(inputs(7, 64))]
    assert lengths == [16, 64, 64, 16, 64, 64, 16]


def test_threshold_keeps_as_many_as_there_are():
    x = inputs(3, 64)
    for row, index in zip(x, _core.Gate(64, {"kwta": "on"}, threshold=1.0).select(x), strict=True):
        np.testing.assert_array_equal(index, np.flatnonzero(np.abs(row) > 1))


def test_renormalization():
    """Divides by the share that is kept; with a temperature the share is that of the softmax, which is between that
    and 1."""
    weight, _ = weight_of(64, 64)
    x = inputs(1, 64)
    plain, counted, warm, cold = (
        weight.matmul(x, _core.Gate(64, {"kwta.k": 0.25} | options))
        for options in (
            {}, {"kwta.renormalize": "on"}, {"kwta.renormalize": "on", "kwta.temperature": 1e6},
            {"kwta.renormalize": "on", "kwta.temperature": 0.02},
        )
    )  # fmt: skip
    np.testing.assert_allclose(counted, 4 * plain, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(warm, counted, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(cold, plain, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("pack", ["binary", "ternary"])
def test_pack_turns_itself_off_and_on(pack):
    """Dense tokens make the bitmap inactive, sparse ones active again, and in between nothing changes."""
    rng = np.random.default_rng(0)

    def token(density):
        x = np.zeros(1000, np.float32)
        x[: int(1000 * density)] = rng.choice([-1.0, 1.0], int(1000 * density))
        return x

    densities = [0.2] * 3 + [0.9] * 10 + [0.2] * 30
    x = np.stack([token(density) for density in densities])
    settings = {"mode": pack, "eps": 0.1, "rho": 0.5, "hysteresis": 0.2}
    gate = _core.Gate(1000, {f"state_pack_mlp.{name}": value for name, value in settings.items()})
    used = [len(index) < 1000 for index in gate.select(x)]
    average, active, expected = densities[0], True, []
    for density in densities:
        average += 0.1 * (density - average)
        active = average <= 0.5 if active else average < 0.5 * (1 - 0.2)
        expected.append(active)
    assert used == expected
    assert used[0]
    assert not all(used)
    assert used[-1]


def test_pack_comes_before_kwta():
    """KWTA ranks what passes the bitmap only: with fewer than K left all of them win, and none that was dropped."""
    x = np.zeros((1, 64), np.float32)
    x[0, 5:15] = -2.0
    gate = _core.Gate(64, TERNARY | {"kwta.k": 0.5})
    np.testing.assert_array_equal(gate.select(x)[0], np.arange(5, 15))
    gate = _core.Gate(64, TERNARY | {"kwta.k_abs": 4, "state_pack_mlp.mode": "binary"})
    np.testing.assert_array_equal(gate.select(x)[0], np.arange(5, 9))


def test_pack_relative_to_gamma():
    """The threshold follows the mean magnitude of what passed."""
    x = np.repeat(np.float32([[0.2, 1.0, 5.0, 6.0]]), 3, axis=0)
    settings = {"state_pack_mlp.eps": 0.1, "state_pack_mlp.relative": 0.5, "state_pack_mlp.rho": 1.0}
    chosen = _core.Gate(4, settings).select(x)
    np.testing.assert_array_equal(chosen[0], [0, 1, 2, 3])  # no mean yet
    np.testing.assert_array_equal(chosen[1], [2, 3])


@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_signs(shape):
    """Aggressive StatePack: signs of the inputs that pass times ternary weights, on every instruction set."""
    n_out, n_in = shape
    rng = np.random.default_rng(4)
    matrix = rng.standard_normal((n_out, n_in)).astype(np.float32)
    mean = np.abs(matrix).mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    large = np.abs(matrix) > np.float32(0.7) * mean
    magnitude = np.array([np.abs(row[keep]).mean() for row, keep in zip(matrix, large, strict=True)])
    ternary = np.sign(matrix) * large
    weight = _core.ColumnWeight("w", matrix, signs=True)
    aggressive = TERNARY | {"state_pack_mlp.aggressive": "on"}
    gate, exact = _core.Gate(n_in, aggressive), _core.Gate(n_in, TERNARY)
    x = inputs(3, n_in)
    passed = np.abs(x) > 0.5
    gamma = [np.abs(row[keep]).mean() for row, keep in zip(x, passed, strict=True)]
    expected = np.array(gamma)[:, None] * magnitude * ((np.sign(x) * passed) @ ternary.T)
    results = []
    for isa in _core.isa_available():
        _core.isa_select(isa)
        results += [weight.matmul(x, gate, threads=threads, batch=1) for threads in (1, 3)]
        np.testing.assert_array_equal(results[-1], results[0])
    np.testing.assert_allclose(results[0], expected, rtol=1e-4, atol=1e-4)
    off = _core.Gate(n_in, aggressive | {"state_pack_mlp.rho": 0})  # the bitmap is not used
    np.testing.assert_array_equal(weight.matmul(x, off, batch=1), weight.matmul(x))
    masked = np.where(passed, x, np.float32(0))
    np.testing.assert_array_equal(weight.matmul(x, exact, batch=1), weight.matmul(masked))


@pytest.mark.parametrize(("options", "message"), [
    ({"settings": {"kwta.k": 0.0}}, "kwta.k=0.0: must be above 0"), ({"settings": {"kwtas": 1}}, "no setting kwtas"),
    ({"settings": TERNARY | {"event": "on"}}, "which inputs are new"), ({"settings": {}}, "skip no inputs"),
    ({"settings": {"kwta": "on"}, "norm": [1.0, 1.0]}, "norm must be"),
])  # fmt: skip
def test_gate_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        _core.Gate(64, **options)


def test_weights_are_rounded_to_nearest_even():
    """As NumPy rounds them: 1 plus half a unit of float16 and three halves of one, subnormals, and the largest."""
    unit = 2.0**-10
    row = np.float32([1 + unit / 2, 1 + 3 * unit / 2, -1 - unit / 2 - 2.0**-20, 3e-8, 2.9e-8, 65519, -6.1e-5, 0])
    matrix = np.stack([np.roll(row, i) for i in range(8)])
    got = _core.ColumnWeight("w", matrix).matmul(np.eye(8, dtype=np.float32))
    np.testing.assert_array_equal(got, matrix.T.astype(np.float16).astype(np.float32))


def test_weight_refuses():
    matrix = np.ones((4, 8), np.float32)
    for wrong in (matrix[0], matrix[None]):
        with pytest.raises(ValueError, match=r"'blk.0': the matrix is not \[n_out, n_in\]"):
            _core.ColumnWeight("blk.0", wrong)
    with pytest.raises(ValueError, match="shape out of range"):
        _core.ColumnWeight("blk.0", matrix[:0])
    for number in (np.inf, np.nan, 65520, -1e30):
        matrix[2, 3] = number
        with pytest.raises(ValueError, match=r"'blk.0' has weights beyond the range of float16"):
            _core.ColumnWeight("blk.0", matrix)
