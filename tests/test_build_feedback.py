"""Error feedback and rates of single tensors, in whole builds of two layers of the real model."""

from __future__ import annotations

import json

import numpy as np
import pytest
import seeddelta
from seeddelta import _core
from seeddelta.calibrate import capture, write_covariance
from seeddelta.convert.encode import encode_tensor
from seeddelta.convert.feedback import make_feedback
from seeddelta.convert.rates import lane_code, rate_of
from seeddelta.errors import ImatrixError, RecipeError, RecipeWarning
from seeddelta.gguf import schema
from seeddelta.gguf.reader import weight_arguments

pytest.importorskip("llama_cpp")


@pytest.fixture(scope="module")
def covariance_file(short_f16, tmp_path_factory):
    folder = tmp_path_factory.mktemp("covariance")
    text = folder / "text.txt"
    text.write_text("A river runs past the mill, the bridge and the old town hall. " * 200, encoding="utf-8")
    captured = capture(short_f16, text, ctx=256, chunks=4, layers="0-1", progress=False)
    write_covariance(folder / "cov.gguf", captured)
    return folder / "cov.gguf"


def build(source, output, **options):
    return seeddelta.build(seeddelta.Recipe(input=source, output=output, layers="0-1", **options), progress=False)


def test_feedback_lowers_the_error_of_the_outputs(short_f16, covariance_file, tmp_path):
    from seeddelta.calibrate import open_covariance
    from seeddelta.convert.encode import encode_tensor
    from seeddelta.convert.feedback import covariance_error, rotated_covariance
    from seeddelta.gguf.source import open_source

    report = build(short_f16, tmp_path / "a.gguf", bits=4, hessian=covariance_file)
    assert {row.method for row in report.tensors} == {"feedback"}
    covariance, source = open_covariance(covariance_file), open_source(short_f16)
    recipe = seeddelta.Recipe(input=short_f16, output=tmp_path / "b.gguf", bits=4)
    for row in report.tensors[:7]:
        weights = source.matrix(row.name)
        plain = encode_tensor(row.name, weights, "F16", recipe)
        with seeddelta.open_seeddelta(tmp_path / "a.gguf") as file:
            decoded = file.tensors[row.name].to_weight().dequantize()
        h = rotated_covariance(covariance.matrix(row.name), 0, 0)
        error = covariance_error(weights, decoded, h)
        assert error == pytest.approx(row.metrics.rel_out, rel=0.01)
        assert error < row.metrics.rel_l2  # the outputs are nearer than the weights
        assert row.metrics.rel_l2 > plain.metrics.rel_l2  # and that is what the weights paid for it


def test_the_gap_is_that_of_the_outputs(short_f16, covariance_file, tmp_path):
    """Feedback may move the error of a matrix to inputs that hardly occur, where it is larger than the weights."""
    report = build(short_f16, tmp_path / "a.gguf", bits=1, targets="attn_q", hessian=covariance_file)
    first = next(row for row in report.tensors if row.name == "blk.0.attn_q.weight")
    assert first.metrics.rel_l2 > 1 > first.metrics.rel_out
    assert not report.kept_dense


@pytest.mark.slow
def test_same_bytes_for_any_threads(short_f16, covariance_file, tmp_path):
    for threads in (1, 2):
        build(short_f16, tmp_path / f"{threads}.gguf", hessian=covariance_file, threads=threads, targets="attn")
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "2.gguf").read_bytes()
    with seeddelta.open_seeddelta(tmp_path / "1.gguf") as file:
        assert file.metadata["seeddelta.hessian.file"] == "cov.gguf"


def test_a_covariance_of_other_layers(short_f16, covariance_file, tmp_path):
    recipe = seeddelta.Recipe(
        input=short_f16, output=tmp_path / "a.gguf", hessian=covariance_file, layers="1-2", targets="attn_v"
    )
    methods = {row.name: row.method for row in seeddelta.build(recipe, progress=False).tensors}
    assert methods == {"blk.1.attn_v.weight": "feedback", "blk.2.attn_v.weight": "plain"}
    with pytest.raises(ImatrixError, match="for any of the tensors"):
        seeddelta.build(recipe.model_copy(update={"layers": "4-5"}), progress=False)


def test_rates_of_tensors(short_f16, tmp_path):
    overrides = ("attn_q=2", r"blk\.1\..*=3", "ffn_up=dense")
    report = build(short_f16, tmp_path / "a.gguf", preset="balanced", tensor_type=overrides, dry_run=True)
    bits = {row.name: round(row.bits_per_weight) for row in report.tensors}
    assert bits["blk.0.attn_q.weight"] == 2
    assert bits["blk.0.ffn_down.weight"] > bits["blk.0.ffn_gate.weight"]  # what the first layer has costs more
    assert bits["blk.1.attn_q.weight"] == 3  # the last expression wins
    assert not [name for name in bits if "ffn_up" in name]
    assert not (tmp_path / "a.gguf").exists()
    with pytest.warns(RecipeWarning, match="--tensor-type ffn_upp=6: none of its tensors has such a name"):
        build(short_f16, tmp_path / "a.gguf", bits=2, tensor_type=("ffn_upp=6",), dry_run=True)
    report = build(short_f16, tmp_path / "a.gguf", bits=2, tensor_type=("ffn=dense", "attn_v=6"))
    with seeddelta.open_seeddelta(tmp_path / "a.gguf") as file:
        assert file.tensors["blk.0.attn_v.weight"].description.base.bits == 6
        assert json.loads(file.metadata["seeddelta.recipe"])["tensor_type"] == ["ffn=dense", "attn_v=6"]


def test_rate_rules():
    assert rate_of("blk.5.attn_k.weight", 4, overrides=()) == 4
    assert rate_of("token_embd.weight", 1.5, overrides=()) == 2.5  # one step more
    assert rate_of("token_embd.weight", 4, overrides=(), shape=(49152, 576)) == 5
    assert rate_of("token_embd.weight", 4, overrides=(), shape=(262144, 640)) == 4
    assert rate_of("blk.5.ffn_down.weight", 4, overrides=("ffn=2", "blk.5=3")) == 3
    for wrong in ("attn_q", "attn_q=7", "(=4", "=4"):
        with pytest.raises(RecipeError):
            seeddelta.Recipe(input="a", output="b", tensor_type=(wrong,))


def test_a_singular_covariance_is_damped_until_it_works():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 128)).astype(np.float32)
    feedback = make_feedback("t", x.T @ x, code=lane_code(3), rotation_block=64, seed=1, damp=1e-12)
    assert np.isfinite(feedback.matrix).all()
    assert (feedback.importance > 0).all()
    with pytest.raises(ImatrixError, match="'t'"):
        make_feedback("t", np.zeros((64, 64), np.float32), code=lane_code(3), rotation_block=0, seed=1)


def test_column_scales_cost_less_error():
    """Inputs of very unlike size: with scaled columns the error of the outputs is lower, in a file's own numbers."""
    rng = np.random.default_rng(3)
    size = np.exp(rng.normal(0, 1.2, 256)).astype(np.float32)
    mix = rng.standard_normal((256, 256)).astype(np.float32) / 16
    x = (rng.standard_normal((2000, 256)).astype(np.float32) @ (np.eye(256, dtype=np.float32) + mix)) * size
    covariance = (x.T @ x / len(x)).astype(np.float32)
    weights = rng.standard_normal((48, 256)).astype(np.float32)
    errors = {}
    for power in (0.0, 0.2):
        feedback = make_feedback("t", covariance, code=lane_code(3), rotation_block=64, seed=1, column_power=power)
        recipe = seeddelta.Recipe(input="a", output="b", bits=3, column_power=power)
        encoded = encode_tensor("t", weights, "F32", recipe, None, feedback)
        assert (schema.COLUMN_SCALE in encoded.arrays) == (power > 0)
        stored = _core.Weight("t", 48, 256, **weight_arguments(encoded.description, encoded.arrays)).dequantize()
        errors[power] = np.linalg.norm(x @ (weights - stored).T) / np.linalg.norm(x @ weights.T)
        assert encoded.metrics.rel_out == pytest.approx(errors[power], rel=0.02)
    assert errors[0.2] < 0.95 * errors[0.0]
