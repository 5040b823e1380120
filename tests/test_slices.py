"""Large matrices and experts are encoded some rows at a time: the same codes, and little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
import tiny_llama
from seeddelta import Recipe
from seeddelta.convert import jobs, slices
from seeddelta.convert.describe import describe
from seeddelta.convert.encode import encode_tensor
from seeddelta.convert.feedback import make_feedback
from seeddelta.convert.slices import can_be_sliced, join_rows, slices_of
from seeddelta.gguf.schema import lane_code
from tiny_models import TARGET_NAMES, write_model

NAME, SHAPE = "blk.0.ffn_up.weight", (150, 192)
RNG = np.random.default_rng(5)
WEIGHTS = (RNG.normal(0, 1, SHAPE) * RNG.gamma(4, 0.01, (SHAPE[0], 1))).astype(np.float32)
INPUTS = RNG.normal(0, 1, (1000, SHAPE[1])) @ RNG.normal(0, 0.2, (SHAPE[1], SHAPE[1]))


@pytest.mark.parametrize("bits", [2, 2.5, 4])
@pytest.mark.parametrize("fed", [False, True])
def test_rows_do_not_depend_on_each_other(monkeypatch: pytest.MonkeyPatch, bits: float, fed: bool) -> None:
    monkeypatch.setattr(slices, "SLICE", 50 * SHAPE[1])
    recipe = Recipe(input="a", output="b", bits=bits, hessian="c" if fed else None)
    description = describe(recipe, NAME, SHAPE, "F32")
    assert can_be_sliced(description, recipe)
    assert slices_of(description) == [(0, 48), (48, 96), (96, 144), (144, 150)]
    importance = feedback = None
    if fed:
        covariance = (INPUTS.T @ INPUTS / len(INPUTS)).astype(np.float32)
        code = lane_code(description.base.code)
        block = description.base.rotation_block
        feedback = make_feedback(NAME, covariance, rotation_block=block, seed=0, column_power=0.5, code=code)
        importance = (np.diagonal(covariance) / np.diagonal(covariance).mean()).astype(np.float32)

    def encode(weights: Any) -> Any:
        return encode_tensor(NAME, weights, "F32", recipe, importance, feedback)

    whole = encode(WEIGHTS)
    joined = join_rows([encode(WEIGHTS[begin:end]) for begin, end in slices_of(description)])
    assert list(joined.arrays) == list(whole.arrays)
    for suffix, array in whole.arrays.items():
        if suffix == "row_scale":
            np.testing.assert_allclose(joined.arrays[suffix].astype(np.float32), array.astype(np.float32), rtol=1e-3)
        else:
            np.testing.assert_array_equal(joined.arrays[suffix], array)
    same = {"norms": whole.description.norms}
    assert joined.description.model_copy(update=same) == whole.description
    for one, other in ((joined.description.norms, whole.description.norms), (joined.metrics, whole.metrics)):
        found, expected = one.model_dump(exclude_none=True), other.model_dump(exclude_none=True)
        assert found == pytest.approx(expected, rel=1e-4)
    assert (joined.metrics.rel_out is not None) == fed


@pytest.mark.parametrize(
    "options",
    [{"column_tensor": ["ffn_up"]}, {"seed_search": 3}, {"scheme": "coo", "K": 2}, {"gradient": "g", "hessian": "c"}],
    ids=str,
)
def test_what_looks_at_all_rows_is_not_sliced(options: dict[str, Any]) -> None:
    recipe = Recipe(input="a", output="b", bits=4, **options)
    assert not can_be_sliced(describe(recipe, NAME, (128, 64), "F32"), recipe)


def test_a_build_is_sliced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of a model are decoded in the same slices whatever the threads."""
    dense = write_model(tmp_path / "dense.gguf")
    shapes, real = [], jobs.encode_tensor

    def encode(name: str, weights: Any, *rest: Any) -> Any:
        shapes.append(weights.shape)
        return real(name, weights, *rest)

    monkeypatch.setattr(jobs, "encode_tensor", encode)
    files = []
    for slice_, threads in ((1 << 24, 1), (32 * 64, 1), (32 * 64, 2)):
        monkeypatch.setattr(slices, "SLICE", slice_)
        path = tmp_path / "out.gguf"
        seeddelta.build(Recipe(input=dense, output=path, bits=4, targets="all", threads=threads), progress=False)
        files.append(seeddelta.open_seeddelta(path))
        for tensor in files[0].tensors.values():
            for suffix, array in tensor.arrays.items():
                if suffix != "row_scale":
                    np.testing.assert_array_equal(files[-1].tensors[tensor.name].arrays[suffix], array)
        assert len(files[-1].tensors) == len(TARGET_NAMES)
    assert max(shapes)[0] == 96
    assert shapes.count((32, 64)) > 20


@pytest.mark.slow
def test_memory_does_not_grow_with_the_vocabulary(
    smollm2_quantized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An embedding that is 25 MB in float32, and takes five times as much to be encoded at once."""
    pytest.importorskip("llama_cpp")
    for name, value in (("N_VOCAB", 49152), ("N_EMBD", 128), ("HEAD", 32)):
        monkeypatch.setattr(tiny_llama, name, value)
    model = tiny_llama.write_llama(tmp_path / "dense.gguf", smollm2_quantized)
    text = tmp_path / "text.txt"
    text.write_text("The history of the city begins with a harbour, a wall and a market. " * 200, encoding="utf-8")
    taken = {}
    for slice_ in (1 << 24, 1 << 18):
        options = json.dumps({"slice": slice_, "ctx": 64, "chunks": 2, "bits": 4, "threads": 2})
        command = [sys.executable, str(Path(__file__).with_name("memory_child.py"))]
        done = subprocess.run(
            [*command, str(model), str(tmp_path / f"{slice_}.gguf"), str(text), options],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        before, highest = json.loads(done.stdout)
        taken[slice_] = highest - before
    assert taken[1 << 24] > 100e6
    assert taken[1 << 18] < 60e6
