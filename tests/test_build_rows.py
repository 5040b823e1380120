"""Feedback between the rows of a matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from seeddelta.calibrate import capture, write_covariance
from seeddelta.calibrate.gradient_file import open_gradient, write_gradient
from seeddelta.calibrate.text import Windows
from seeddelta.convert.encode import encode_tensor
from seeddelta.convert.feedback import make_feedback
from seeddelta.convert.rates import lane_code
from seeddelta.convert.row_feedback import make_row_feedback
from seeddelta.convert.stored import Stored
from seeddelta.errors import ImatrixError, RecipeError
from seeddelta.inspection import verify
from tiny_llama import write_llama

RANDOM = np.random.default_rng(0)
N_OUT, N_IN = 72, 128  # the last tile is not whole


def second_moment(n: int, power: float = 3.0) -> np.ndarray[Any, Any]:
    """Of random vectors, some directions of which are larger than others; the mean of the diagonal is 1."""
    turn = np.linalg.qr(RANDOM.standard_normal((n, n)))[0]
    x = RANDOM.standard_normal((4 * n, n)) * np.exp(-power * np.arange(n) / n) @ turn
    return (x.T @ x * n / np.square(x).sum()).astype(np.float32)


WEIGHTS = RANDOM.standard_normal((N_OUT, N_IN)).astype(np.float32)
INPUTS, GRADIENTS = second_moment(N_IN), second_moment(N_OUT)


def encoded(gradients: Any = None, **options: Any) -> Any:
    recipe = seeddelta.Recipe(input="a", output="b", hessian="h", **({"bits": 3, "threads": 1} | options))
    feedback = make_feedback("t", INPUTS, rotation_block=64, seed=1, column_power=0.2, code=lane_code(recipe.bits))
    rows = None if gradients is None else make_row_feedback("t", gradients, damp=0.1)
    return encode_tensor("t", WEIGHTS, "F16", recipe, None, feedback, rows)


def cost(tensor: Any) -> float:
    """tr(G E H Eᵀ) of what is stored."""
    decoded = Stored(tensor.description, tensor.arrays).weight(tensor.arrays["row_scale"]).dequantize()
    error = (WEIGHTS - decoded).astype(np.float64)
    return float(np.trace(GRADIENTS @ error @ INPUTS @ error.T))


def test_the_cost_falls() -> None:
    plain, fed = encoded(), encoded(GRADIENTS)
    assert (plain.method, fed.method) == ("feedback", "row feedback")
    assert cost(fed) < 0.55 * cost(plain)
    whole = np.trace(GRADIENTS.astype(np.float64) @ WEIGHTS @ INPUTS @ WEIGHTS.T)
    assert fed.metrics.rel_grad == pytest.approx(np.sqrt(cost(fed) / whole), rel=1e-3)
    assert fed.metrics.rel_out > plain.metrics.rel_out  # which is what it costs
    assert fed.description.base == plain.description.base


def test_rows_that_have_nothing_to_do_with_each_other_are_encoded_as_before() -> None:
    """Their order is one of the encoder only: every row's codes are at the row's place in the tiles."""
    diagonal = np.diag(RANDOM.permutation(N_OUT) + 1.0).astype(np.float32)
    plain, fed = encoded(), encoded(diagonal)
    for suffix, array in plain.arrays.items():
        np.testing.assert_array_equal(fed.arrays[suffix], array)


def test_same_codes_for_any_threads() -> None:
    one = encoded(GRADIENTS)
    for threads in (2, 3, 0):
        other = encoded(GRADIENTS, threads=threads)
        assert all((other.arrays[suffix] == one.arrays[suffix]).all() for suffix in one.arrays)


def test_scales_in_full_precision_are_those_that_errors_are_measured_with() -> None:
    assert cost(encoded(GRADIENTS, row_scale="f32")) < 0.6 * cost(encoded())


def test_gradients_that_are_no_covariance() -> None:
    with pytest.raises(ImatrixError, match="'t'"):
        make_row_feedback("t", np.zeros((32, 32), np.float32), damp=0.1)


@pytest.fixture(scope="module")
def tiny(smollm2_quantized: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    write_llama(folder / "tiny.gguf", smollm2_quantized)
    captured = capture(folder / "tiny.gguf", np.arange(300, 428), ctx=64, targets="all", threads=1, progress=False)
    write_covariance(folder / "cov.gguf", captured)
    gradients = {f"blk.{layer}.attn_q.weight": second_moment(64) for layer in (0, 1)}
    windows = Windows(np.zeros((1, 64), np.int32), "text", "")
    rows = {name: len(matrix) for name, matrix in gradients.items()}
    write_gradient(
        folder / "grad.gguf", rows, gradients.__getitem__, None, (), model_name="tiny", windows=windows, seed=1
    )
    return folder


def test_build(tiny: Path, tmp_path: Path) -> None:
    options = {"input": tiny / "tiny.gguf", "targets": "all", "hessian": tiny / "cov.gguf"}
    for threads in (1, 2):
        output = tmp_path / f"{threads}.gguf"
        recipe = seeddelta.Recipe(output=output, gradient=tiny / "grad.gguf", threads=threads, **options)
        report = seeddelta.build(recipe, progress=False)
    methods = {row.name: row.method for row in report.tensors}
    assert methods["blk.0.attn_q.weight"] == methods["blk.1.attn_q.weight"] == "row feedback"
    assert methods["blk.0.attn_k.weight"] == "feedback"
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "2.gguf").read_bytes()
    with seeddelta.open_seeddelta(tmp_path / "1.gguf") as file:
        assert file.metadata["seeddelta.gradient.file"] == "grad.gguf"
        assert file.metadata["seeddelta.gradient.sha256"] == open_gradient(tiny / "grad.gguf").sha256
    assert verify(tmp_path / "1.gguf", source=tiny / "tiny.gguf").ok


def test_options_that_do_not_go_together(tiny: Path, tmp_path: Path) -> None:
    options = {"input": tiny / "tiny.gguf", "output": tmp_path / "o.gguf", "targets": "all"}
    with pytest.raises(RecipeError, match="--hessian"):
        seeddelta.build(seeddelta.Recipe(gradient=tiny / "grad.gguf", **options), progress=False)
    with pytest.raises(RecipeError, match="--scheme"):
        seeddelta.Recipe(gradient=tiny / "grad.gguf", hessian=tiny / "cov.gguf", scheme="coo", **options)
    recipe = seeddelta.Recipe(gradient=tiny / "cov.gguf", hessian=tiny / "cov.gguf", **options)
    with pytest.raises(ImatrixError, match="not a gradient file"):
        seeddelta.build(recipe, progress=False)
