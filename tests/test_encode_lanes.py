"""The encoder of base kind lanes: equal bits everywhere, error bounds, feedback."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import reference
from seeddelta import _core
from seeddelta.convert.encode import encode_tensor
from seeddelta.convert.feedback import Feedback, covariance_error, make_feedback
from seeddelta.convert.lanes import LOOKAHEAD, lane_groups
from seeddelta.convert.recipe import Recipe
from seeddelta.gguf.schema import lane_code
from seeddelta.settings.recipe import HESSIAN_DAMP
from test_core_kernels import _restore_isa  # noqa: F401

F32 = npt.NDArray[np.float32]
# relative error on Gaussian rows of 576 columns, without feedback, by the number of the code
ERROR = {
    2: 0.5370,
    3: 0.3910,
    4: 0.2760,
    5: 0.2010,
    6: 0.1400,
    7: 0.1035,
    8: 0.0712,
    9: 0.0516,
    10: 0.0372,
    12: 0.0205,
    22: 0.1425,
}
CODES = _core.lane_codes()
FOUR_BITS, FIVE_BITS = lane_code(8), lane_code(10)


def encode(rows: F32, code: _core.LaneCode, **options: Any) -> tuple[Any, Any]:
    groups = options.pop("groups", lane_groups(code, rows.shape[1], feedback="feedback" in options))
    return _core.lanes_encode(rows, code=code, groups=groups, lookahead=LOOKAHEAD, **options)


def encode_fed(rows: F32, code: _core.LaneCode, feedback: Feedback, **options: Any) -> tuple[Any, Any]:
    return encode(rows, code, importance=feedback.importance, feedback=feedback.matrix, **options)


def decode(codes: Any, scale: Any, code: _core.LaneCode, shape: tuple[int, int]) -> F32:
    values = reference.lanes_values(codes, *shape, code.emits, code.tables, code.added, code.values_with_bits)
    return np.asarray(values / np.float32(code.deviation) * np.asarray(scale, np.float32)[:, None], np.float32)


def gaussian(rows: int, columns: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


@pytest.mark.parametrize("code", CODES, ids=lambda code: f"{code.bits:g}")
def test_error_on_gaussians(code: _core.LaneCode) -> None:
    rows = gaussian(256, 576)
    decoded = decode(*encode(rows, code), code, rows.shape)
    assert np.linalg.norm(rows - decoded) / np.linalg.norm(rows) < ERROR[code.number]


@pytest.mark.parametrize("code", CODES, ids=lambda code: f"{code.bits:g}")
@pytest.mark.parametrize(("n_out", "n_in"), [(3, 8), (17, 100), (34, 192)])
def test_core_decodes_as_numpy(code: _core.LaneCode, n_out: int, n_in: int) -> None:
    rows = gaussian(n_out, n_in)
    rows[1] = 0
    codes, scale = encode(rows, code)
    assert scale[1] == 0
    weight = _core.Weight(
        "w",
        n_out,
        n_in,
        base_kind=2,
        base_scale=1 / code.deviation,
        lane_code=code.number,
        arrays={"codes": codes, "row_scale": scale},
    )
    decoded = decode(codes, scale, code, rows.shape)
    np.testing.assert_allclose(weight.dequantize(), decoded, rtol=1e-6, atol=1e-7)
    assert np.linalg.norm(rows - decoded) < 1.3 * ERROR[code.number] * np.linalg.norm(rows)


@pytest.mark.parametrize("code", CODES, ids=lambda code: f"{code.bits:g}")
def test_equal_bits_on_every_instruction_set(code: _core.LaneCode) -> None:
    n = 136 if code.bits > 1 else 264  # the scalar search of a loop shorter than 16 steps takes minutes
    rows = gaussian(33, n)
    rows[1] *= 50 * (np.arange(n) % 7 == 0)  # far beyond the levels
    importance = np.exp(gaussian(1, n)[0])
    feedback = make_feedback("w", correlated(n), rotation_block=0, seed=0, code=code)

    def bits(isa: str, some: F32) -> bytes:
        _core.isa_select(isa)
        plain = encode(some, code, importance=importance, rotation_block=8, seed=3)
        scales = encode(some, code, importance=importance, beam_width=2)
        fed, among = (encode_fed(some, code, feedback, beam_width=beam_width) for beam_width in (1, 4))
        return b"".join(np.asarray(a).tobytes() for a in (*plain, *scales, *fed, *among))

    scalar, *others = _core.isa_available()
    assert scalar == "scalar"  # it takes a hundred times as long as the others: two rows
    assert {bits(isa, rows[:2]) for isa in others} <= {bits(scalar, rows[:2])}
    assert len({bits(isa, rows) for isa in others}) <= 1


def test_threads_do_not_matter() -> None:
    rows, code = gaussian(130, 96), FOUR_BITS
    feedback = make_feedback("w", correlated(96), rotation_block=0, seed=0, code=code)
    for encoder in (encode, lambda *a, **k: encode_fed(*a, feedback, beam_width=8, **k)):
        one, many = (encoder(rows, code, threads=threads) for threads in (1, 5))
        assert all((np.asarray(a) == np.asarray(b)).all() for a, b in zip(one, many, strict=True))


def correlated(n: int) -> F32:
    x = gaussian(4 * n, n, 7) @ (np.eye(n) + 0.3 * gaussian(n, n, 8) / 3)
    return np.asarray(x.T @ x / len(x), np.float32)


def steps_like(code: _core.LaneCode, n: int) -> int:
    """Columns that have some blocks of steps one behind the other, at low rates too: so many at 2 bits and more."""
    return n if code.bits >= 2 else 4 * n


@pytest.mark.parametrize("code", CODES, ids=lambda code: f"{code.bits:g}")
def test_feedback_lowers_the_error_of_the_outputs(code: _core.LaneCode) -> None:
    n = steps_like(code, 192)
    rows, covariance = gaussian(64, n), correlated(n)
    feedback = make_feedback("w", covariance, rotation_block=0, seed=0, code=code)
    alone = decode(*encode(rows, code, importance=np.ascontiguousarray(np.diagonal(covariance))), code, rows.shape)
    fed = decode(*encode_fed(rows, code, feedback), code, rows.shape)
    assert covariance_error(rows, fed, covariance) < 0.9 * covariance_error(rows, alone, covariance)


def low_rank(n: int) -> F32:
    """What activations are like: most of them in few directions."""
    x = gaussian(4 * n, n // 8, 7) @ gaussian(n // 8, n, 8) + 0.7 * gaussian(4 * n, n, 9)
    return np.asarray(x.T @ x / len(x), np.float32)


@pytest.mark.parametrize("code", CODES, ids=lambda code: f"{code.bits:g}")
def test_survivors_lower_the_error_of_the_outputs(code: _core.LaneCode) -> None:
    n = steps_like(code, 384)
    rows, covariance = gaussian(48, n), low_rank(n)
    rows[5] = 0
    damped = covariance + HESSIAN_DAMP * np.diagonal(covariance).mean() * np.eye(n, dtype=np.float32)
    feedback = make_feedback("w", covariance, rotation_block=0, seed=0, code=code)
    errors = []
    for beam_width in (1, 4, 32):
        codes, scale = encode_fed(rows, code, feedback, beam_width=beam_width)
        assert scale[5] == 0
        errors.append(covariance_error(rows, decode(codes, scale, code, rows.shape), damped))
    assert errors[1] < errors[0]
    assert errors[2] < (0.98 if code.bits >= 2 else 0.995) * errors[1]


def test_efforts_are_survivors() -> None:
    n, code = 384, FOUR_BITS
    rows, covariance = gaussian(48, n), low_rank(n)
    feedback = make_feedback("w", covariance, rotation_block=64, seed=1, code=code)
    outputs = {}
    for effort in ("fast", "normal", "high"):
        recipe = Recipe(input="in.gguf", output="out.gguf", base_kind="lanes", bits=4, effort=effort, seed=1)
        encoded = encode_tensor("w", rows, "F32", recipe, feedback=feedback)
        assert encoded.outputs is not None
        outputs[effort] = encoded.outputs[0]
    assert outputs["high"] < outputs["normal"] < outputs["fast"]


def test_efforts_lower_the_error_without_a_covariance() -> None:
    rows = gaussian(48, 576)
    errors = []
    for effort in ("fast", "normal", "high"):
        recipe = Recipe(input="in.gguf", output="out.gguf", base_kind="lanes", bits=4, effort=effort, seed=1)
        errors.append(encode_tensor("w", rows, "F32", recipe).metrics.rel_l2)
    assert errors[2] < errors[1] < errors[0]


@pytest.mark.parametrize("beam_width", [0, 3, 64])
def test_survivors_are_powers_of_two(beam_width: int) -> None:
    feedback = make_feedback("w", correlated(64), rotation_block=0, seed=0, code=FOUR_BITS)
    with pytest.raises(ValueError, match="beam_width must be 1, 2, 4"):
        encode_fed(gaussian(4, 64), FOUR_BITS, feedback, beam_width=beam_width)


@pytest.mark.parametrize("factor", [1e18, 1e38])
@pytest.mark.parametrize("code", [FOUR_BITS, FIVE_BITS], ids=lambda code: f"{code.bits:g}")
def test_feedback_that_overflows_is_survived(code: _core.LaneCode, factor: float) -> None:
    feedback = make_feedback("w", low_rank(384), rotation_block=0, seed=0, code=code)
    with np.errstate(over="ignore"):
        huge = np.nan_to_num(feedback.matrix * np.float32(factor), posinf=3e38, neginf=-3e38)
    _, scale = encode_fed(gaussian(20, 384), code, replace(feedback, matrix=huge), beam_width=8)
    assert np.isfinite(scale).all()


@pytest.mark.parametrize("code", CODES, ids=lambda code: f"{code.bits:g}")
def test_survivors_without_feedback_are_scales_and_beginnings(code: _core.LaneCode) -> None:
    rows = gaussian(48, steps_like(code, 576))
    rows[5] = 0
    errors = []
    for beam_width in (1, 4, 16):
        codes, scale = encode(rows, code, beam_width=beam_width)
        assert scale[5] == 0
        errors.append(float(np.linalg.norm(rows - decode(codes, scale, code, rows.shape))))
    assert errors[2] < errors[1] < 0.999 * errors[0]


def test_importance_moves_the_error() -> None:
    rows, code = gaussian(64, 256), FOUR_BITS
    importance = np.where(np.arange(256) % 8 < 4, 9.0, 1.0).astype(np.float32)
    error = (rows - decode(*encode(rows, code, importance=importance), code, rows.shape)) ** 2
    assert error[:, importance > 1].mean() < 0.75 * error[:, importance == 1].mean()


def test_groups_must_fit() -> None:
    rows, code = gaussian(16, 576), FOUR_BITS
    with pytest.raises(ValueError, match="add up to 144"):
        encode(rows, code, groups=[32, 32])
    with pytest.raises(ValueError, match="the first 32"):
        encode(rows, code, groups=[16, 128])
    order, ends = _core.lane_blocks(code, 576, lane_groups(code, 576, feedback=True))
    assert sorted(order) == list(range(576))
    assert ends[-1] == 576
