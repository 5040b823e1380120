"""Tensors of experts: importance of each from the imatrix, encoding one by one, capture, and what they cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from description_tables import Arrays, Keys, Table, changed, table_of
from seeddelta import Recipe
from seeddelta.convert.encode import encode_tensor
from seeddelta.errors import FormatError, ImatrixError, RecipeError
from seeddelta.gguf import names
from seeddelta.gguf.imatrix import Imatrix, ImatrixEntry, write_imatrix
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.reader import open_seeddelta
from seeddelta.gguf.source import open_source
from tiny_models import tiny_weights, write_model

N_EXPERT, N_OUT, N_IN = 3, 40, 64
NAME = "blk.0.ffn_up_exps.weight"


@pytest.fixture
def weights() -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).normal(0, 0.1, (N_EXPERT, N_OUT, N_IN)).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path, weights: np.ndarray[Any, Any]) -> Path:
    return write_model(tmp_path / "model.gguf", tiny_weights() | {NAME: weights})


@pytest.fixture
def imatrix(tmp_path: Path) -> Path:
    """Columns that matter differently for each expert; no token chose the last one."""
    sums = np.random.default_rng(2).uniform(0, 1, (N_EXPERT, N_IN)).astype(np.float32) ** 4
    sums[-1] = 0
    counts = np.array([10, 30, 0], np.float32)
    path = tmp_path / "imatrix.gguf"
    write_imatrix(path, Imatrix({NAME: ImatrixEntry(sums * counts[:, None], counts)}))
    return path


def test_importance_of_each_expert(imatrix: Path) -> None:
    read = seeddelta.gguf.imatrix.read_imatrix(imatrix)
    importance = read.importance(NAME, N_IN, experts=N_EXPERT)
    assert importance.shape == (N_EXPERT, N_IN)
    np.testing.assert_allclose(importance.mean(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(importance[-1], 1)
    alone = Imatrix({NAME: ImatrixEntry(read.entries[NAME].sums[1:2], read.entries[NAME].counts[1:2])})
    np.testing.assert_array_equal(importance[1], alone.importance(NAME, N_IN))
    # one entry for all, as in old files
    np.testing.assert_array_equal(alone.importance(NAME, N_IN, experts=2), np.stack([importance[1]] * 2))
    with pytest.raises(ImatrixError, match="192 values for 64 columns of 4 experts"):
        read.importance(NAME, N_IN, experts=4)


@pytest.mark.parametrize(
    "options", [{}, {"column_power": 0.2}, {"scheme": "coo", "K": 5}, {"scheme": "block", "vals": "int8"}]
)
def test_each_expert_is_encoded_by_itself(
    model: Path, imatrix: Path, weights: np.ndarray[Any, Any], tmp_path: Path, options: dict[str, Any]
) -> None:
    recipe = Recipe(
        input=model, output=tmp_path / "out.gguf", imatrix=imatrix, targets="ffn_up_exps", rotation_block=32, **options
    )
    report = seeddelta.build(recipe, progress=False)
    importance = seeddelta.gguf.imatrix.read_imatrix(imatrix).importance(NAME, N_IN, experts=N_EXPERT, eps=1e-3)
    rounded = weights.astype(np.float16).astype(np.float32)
    alone = [encode_tensor("x", w, "F16", recipe, i) for w, i in zip(rounded, importance, strict=True)]
    with open_seeddelta(recipe.output) as file:
        tensor = file.tensors[NAME]
        assert tensor.description.tensor_shape == weights.shape
        assert (tensor.description.experts, tensor.description.shape) == (N_EXPERT, (N_OUT, N_IN))
        weight = tensor.to_weight()
        assert (weight.n_experts, weight.n_out) == (N_EXPERT, N_OUT)
        dense = weight.dequantize().reshape(weights.shape)
        for expert, encoded in enumerate(alone):
            arguments = seeddelta.gguf.reader.weight_arguments(encoded.description, encoded.arrays)
            own = seeddelta._core.Weight("x", N_OUT, N_IN, **arguments)
            np.testing.assert_array_equal(own.dequantize(), dense[expert])
    (row,) = report.tensors
    assert row.shape == weights.shape
    assert row.method == "weighted"
    assert row.bits_per_weight == pytest.approx(8 * row.bytes_after / weights.size)
    assert report.weights_converted == weights.size
    error, size = (float(np.linalg.norm(m.astype(np.float64))) for m in (rounded - dense, rounded))
    assert row.metrics is not None
    assert row.metrics.rel_l2 == pytest.approx(error / size, rel=1e-5)
    cosine = float((rounded.astype(np.float64) * dense).sum()) / size / float(np.linalg.norm(dense))
    assert row.metrics.cos == pytest.approx(cosine, rel=1e-5)
    weighted = np.sqrt(((rounded - dense) ** 2 * importance[:, None]).sum() / (rounded**2 * importance[:, None]).sum())
    assert row.metrics.rel_l2_w == pytest.approx(float(weighted), rel=1e-4)


def test_bytes_do_not_depend_on_threads(model: Path, tmp_path: Path) -> None:
    outputs = []
    for threads in (1, 3):
        recipe = Recipe(input=model, output=tmp_path / f"{threads}.gguf", targets="ffn", threads=threads)
        seeddelta.build(recipe, progress=False)
        outputs.append(recipe.output.read_bytes())
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("options", [{"base_kind": "prng_block"}, {"base_kind": "fht_struct"}, {
    "base_kind": "none", "scheme": "codebook_resid", "codebook_size": 8, "K": 1}])  # fmt: skip
def test_what_experts_cannot_be(model: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=rf"{NAME}.*3 experts.*--targets"):
        seeddelta.build(Recipe(input=model, output=tmp_path / "out.gguf", **options), progress=False)


def test_experts_without_a_base(model: Path, weights: np.ndarray[Any, Any], tmp_path: Path) -> None:
    recipe = Recipe(input=model, output=tmp_path / "out.gguf", targets="ffn_up_exps", base_kind="none", K=N_IN)
    seeddelta.build(recipe, progress=False)
    with open_seeddelta(recipe.output) as file:
        dense = file.tensors[NAME].to_weight().dequantize()
    np.testing.assert_allclose(dense, weights.reshape(-1, N_IN), rtol=2e-3, atol=1e-5)


def test_description(model: Path, tmp_path: Path) -> None:
    """Experts have their number, all others 0, and no base that they cannot have."""
    recipe = Recipe(input=model, output=tmp_path / "out.gguf")
    seeddelta.build(recipe, progress=False)
    table = table_of(read_header(recipe.output))
    assert dict(zip(table["name"], table["experts"], strict=True)) == dict.fromkeys(table["name"], 0) | {NAME: N_EXPERT}

    def change(keys: Keys, arrays: Arrays, table: Table) -> None:
        for column, value in {"base": 0, "base_block": 64, "rotation_block": 0, "code": 0}.items():
            table.put(NAME, column, value)

    with pytest.raises(FormatError, match=f"'{NAME}': experts have the base lanes"):
        open_seeddelta(changed(recipe.output, tmp_path / "bad.gguf", change))


def test_experts_that_are_one_matrix_stay(tmp_path: Path) -> None:
    tensors = tiny_weights() | {NAME: np.zeros((N_OUT, N_IN), np.float32)}
    model = write_model(tmp_path / "flat.gguf", tensors)
    report = seeddelta.build(Recipe(input=model, output=tmp_path / "out.gguf"), progress=False)
    assert NAME not in {tensor.name for tensor in report.tensors}
    assert report.converted_share < 0.97


def test_capture(smollm2_quantized: Path, tmp_path: Path) -> None:
    """A shared expert reads what the chosen experts read: their sums are its own, once for each choice."""
    pytest.importorskip("llama_cpp")
    from seeddelta.calibrate import capture, open_covariance, write_covariance
    from tiny_llama import N_EMBD, N_FF_EXPERT, N_USED, write_experts
    from tiny_llama import N_EXPERT as N_ALL

    model = write_experts(tmp_path / "moe.gguf", smollm2_quantized, "qwen2moe")
    tokens = np.random.default_rng(0).integers(260, 500, 192)
    options: dict[str, Any] = dict(ctx=64, threads=2, progress=False, targets="full")
    captured = capture(model, tokens, **options)
    gate, down, shared = (f"blk.1.ffn_{name}.weight" for name in ("gate_exps", "down_exps", "gate_shexp"))
    same = captured.representatives
    assert same["blk.1.ffn_up_exps.weight"] == same[gate]
    assert same[down] == down
    assert names.EMBEDDING not in same  # it has an output matrix of its own
    assert same[names.HEAD] == names.HEAD
    hook = captured.hook
    assert captured.tokens == hook.tokens(same[gate]) == 192
    assert hook.counts(same[gate]).shape == (N_ALL,)
    assert hook.counts(same[gate]).sum() == 192 * N_USED
    np.testing.assert_array_equal(hook.counts(down), hook.counts(same[gate]))
    assert hook.square(same[gate]).shape == (N_ALL, N_EMBD)
    assert hook.square(down).shape == (N_ALL, N_FF_EXPERT)
    for sums in (hook.square, hook.norm_square):
        np.testing.assert_allclose(sums(same[gate]).sum(axis=0), N_USED * sums(same[shared])[0], rtol=1e-9)
    np.testing.assert_allclose(hook.norm_square(down).sum(axis=1), N_FF_EXPERT * hook.counts(down), rtol=1e-5)
    assert len({row.tobytes() for row in hook.square(down)}) == N_ALL

    imatrix, covariance = tmp_path / "imatrix.gguf", tmp_path / "cov.gguf"
    write_imatrix(imatrix, captured.imatrix())
    write_covariance(covariance, captured)
    np.testing.assert_allclose(hook.covariance(same[gate]), hook.covariance(same[shared]), rtol=1e-5, atol=1e-4)
    diagonal = np.diagonal(hook.covariance(down))
    np.testing.assert_allclose(diagonal, hook.norm_square(down).sum(axis=0), rtol=1e-4, atol=1e-4)

    errors = {}
    source, known = open_source(model), open_covariance(covariance)
    for hessian in (None, covariance):
        recipe = Recipe(
            input=model, output=tmp_path / "out.gguf", imatrix=imatrix, hessian=hessian, targets="full", effort="fast"
        )
        rows = {row.name: row for row in seeddelta.build(recipe, progress=False).tensors}
        methods = {name: rows[name].method for name in (gate, down, shared, names.EMBEDDING, names.HEAD)}
        used = "weighted" if hessian is None else "feedback"
        assert methods == {gate: used, down: used, shared: used, names.EMBEDDING: "plain", names.HEAD: used}
        with open_seeddelta(recipe.output) as file:
            for name in (gate, down):
                error = file.tensors[name].to_weight().dequantize()
                error = error - source.matrix(name).reshape(error.shape)
                errors[name, hessian] = np.einsum("oi,ij,oj->", error, known.matrix(name), error, optimize=True)
    for name in (gate, down):
        assert errors[name, covariance] < 0.95 * errors[name, None]


def test_tied_embedding(smollm2_quantized: Path, tmp_path: Path) -> None:
    """Encoded for the product, whose input is measured, one step above the blocks and without scales of the columns."""
    pytest.importorskip("llama_cpp")
    from seeddelta.calibrate import capture, open_covariance, write_covariance
    from tiny_llama import write_llama

    model, covariance = write_llama(tmp_path / "tied.gguf", smollm2_quantized), tmp_path / "cov.gguf"
    tokens = np.random.default_rng(0).integers(260, 500, 256)
    options: dict[str, Any] = dict(ctx=64, threads=2, progress=False)
    captured = capture(model, tokens, targets="embd", **options)
    assert captured.representatives == {names.EMBEDDING: names.EMBEDDING}
    assert captured.tokens == 256  # every token, not the last of each chunk alone
    everything = capture(model, tokens, targets="full", **options)
    np.testing.assert_array_equal(everything.hook.square(names.EMBEDDING), captured.hook.square(names.EMBEDDING))
    write_covariance(covariance, everything)
    errors = {}
    for hessian in (None, covariance):
        recipe = Recipe(
            input=model, output=tmp_path / "out.gguf", hessian=hessian, targets="full", bits=4, effort="fast"
        )
        report = seeddelta.build(recipe, progress=False)
        with open_seeddelta(recipe.output) as file:
            bases = {name: tensor.description.base for name, tensor in file.tensors.items()}
            difference = file.tensors[names.EMBEDDING].to_weight().dequantize() - seeddelta.gguf.source.open_source(
                model
            ).matrix(names.EMBEDDING)
        assert {name: base.bits for name, base in bases.items() if base.bits != 4} == {names.EMBEDDING: 5}
        scaled = {name for name, base in bases.items() if base.column_scale}
        assert scaled == (set() if hessian is None else set(bases) - {names.EMBEDDING})
        row = next(row for row in report.tensors if row.name == names.EMBEDDING)
        assert row.method == ("plain" if hessian is None else "feedback")
        h = open_covariance(covariance).matrix(names.EMBEDDING)
        errors[row.method] = float(np.einsum("oi,ij,oj->", difference, h, difference))
    assert errors["feedback"] < errors["plain"]
    with pytest.raises(ImatrixError, match="no matrix matches the targets embd"):
        capture(write_llama(tmp_path / "untied.gguf", smollm2_quantized, tied=False), tokens, targets="embd", **options)
