"""Models in several parts, read and written; matrices that cannot be converted, in a smaller type."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import seeddelta
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize
from seeddelta.errors import FormatError
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.reader import open_seeddelta
from seeddelta.gguf.source import open_source
from seeddelta.gguf.writer import PlannedTensor, copied_metadata, pack, part_path, write_split
from seeddelta.inspection import verify
from tiny_models import TARGET_NAMES, tiny_weights, write_model


def split(path: Path, limit: int) -> list[Path]:
    """The model in parts beside it, as llama-gguf-split would write them."""
    source = open_source(path)
    tensors = [PlannedTensor(name, info.shape, info.type) for name, info in source.tensors.items()]
    metadata = copied_metadata(source.header)
    return write_split(path, metadata, tensors, lambda tensor: [source.raw(tensor.name)], limit)[0]


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return write_model(tmp_path / "dense.gguf")


def payload(path: Path) -> dict[str, bytes]:
    with open_seeddelta(path) as file:
        stored = {f"{name}.{suffix}": a.tobytes() for name, t in file.tensors.items() for suffix, a in t.arrays.items()}
        return stored | {name: file.dense(name).tobytes() for name in file.dense_tensors}


def test_tensors_are_packed_in_order() -> None:
    tensors = [PlannedTensor(str(i), (n,), Kind.F32) for i, n in enumerate([10, 10, 30, 5, 5, 5])]
    assert [[t.name for t in part] for part in pack(tensors, 80)] == [["0", "1"], ["2"], ["3", "4", "5"]]


@pytest.mark.parametrize("given", [0, 2])
def test_parts_convert_as_one_file(dense: Path, tmp_path: Path, given: int) -> None:
    one = seeddelta.build(seeddelta.Recipe(input=dense, output=tmp_path / "one.gguf"), progress=False)
    parts = split(dense, 50_000)
    assert len(parts) == 3
    dense.unlink()
    many = seeddelta.build(seeddelta.Recipe(input=parts[given], output=tmp_path / "many.gguf"), progress=False)
    assert payload(tmp_path / "many.gguf") == payload(tmp_path / "one.gguf")
    assert many.source_sha256 != one.source_sha256  # of the three files in order
    metadata = read_header(tmp_path / "many.gguf").metadata
    assert not any(key.startswith("split.") for key in metadata)
    assert verify(tmp_path / "many.gguf", source=parts[1], progress=False).ok


def test_a_part_is_missing_or_of_another_model(dense: Path) -> None:
    first, second, third = split(dense, 50_000)
    data = second.read_bytes()
    second.unlink()
    with pytest.raises(FormatError, match=r"dense-00002-of-00003\.gguf of the same model is missing"):
        open_source(third)
    second.write_bytes(third.read_bytes())
    with pytest.raises(FormatError, match=r"dense-00002-of-00003\.gguf: is not part 2 of 3"):
        open_source(first)
    second.write_bytes(data)
    os.rename(first, first.with_name("model.gguf"))
    with pytest.raises(FormatError, match=r"is one of 3 parts .* not named NAME-00001-of-00003\.gguf"):
        open_source(first.with_name("model.gguf"))


def test_output_in_parts(dense: Path, tmp_path: Path) -> None:
    one, many = tmp_path / "one.gguf", tmp_path / "many.gguf"
    seeddelta.build(seeddelta.Recipe(input=dense, output=one), progress=False)
    report = seeddelta.build(seeddelta.Recipe(input=dense, output=many, split_max_size="12K"), progress=False)
    count = len(report.files)
    assert count > 2
    assert report.files == tuple(str(part_path(many, number, count)) for number in range(count))
    assert report.file_bytes == sum(Path(path).stat().st_size for path in report.files)
    assert not many.exists()
    for part in report.files[:2]:
        assert payload(Path(part)) == payload(one)
        assert verify(Path(part), source=dense, progress=False).ok
    assert seeddelta.dequantize(report.files[0], tmp_path / "a", progress=False).read_bytes() == (
        seeddelta.dequantize(one, tmp_path / "b", progress=False).read_bytes()
    )
    large = seeddelta.build(seeddelta.Recipe(input=dense, output=many, split_max_size="1G"), progress=False)
    assert large.files == (str(many),)


def test_failure_leaves_existing_parts(dense: Path, tmp_path: Path) -> None:
    recipe = seeddelta.Recipe(input=dense, output=tmp_path / "m.gguf", split_max_size="12K")
    parts = [Path(path) for path in seeddelta.build(recipe, progress=False).files]
    before = {path: path.read_bytes() for path in parts}
    parts[1].chmod(0o400)
    with pytest.raises(seeddelta.errors.OutputError, match=r"00002-of-.*read-only"):
        seeddelta.build(recipe.model_copy(update={"seed": 2}), progress=False)
    assert {path: path.read_bytes() for path in parts} == before


def test_split_models_run(smollm2_quantized: Path, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from llama_helpers import load_small, logits_of
    from tiny_llama import write_llama

    path = write_llama(tmp_path / "llama.gguf", smollm2_quantized)
    one, many = tmp_path / "one.sd.gguf", tmp_path / "many.sd.gguf"
    seeddelta.build(seeddelta.Recipe(input=path, output=one), progress=False)
    parts = split(path, 60_000)
    recipe = seeddelta.Recipe(input=parts[1], output=many, split_max_size="16K")
    files = seeddelta.build(recipe, progress=False).files
    assert len(files) > 2
    expected = logits_of(load_small(one), range(40, 60))
    np.testing.assert_array_equal(logits_of(load_small(Path(files[1])), range(40, 60)), expected)
    fallback = load_small(Path(files[0]), fallback=parts[2], config=seeddelta.RuntimeConfig(dense=("blk.*",)))
    plain = load_small(one, fallback=path, config=seeddelta.RuntimeConfig(dense=("blk.*",)))
    np.testing.assert_array_equal(logits_of(fallback, range(40, 60)), logits_of(plain, range(40, 60)))
    dense = load_small(parts[1])  # an ordinary model, of which llama.cpp wants the first part
    np.testing.assert_array_equal(logits_of(dense, range(40, 60)), logits_of(load_small(path), range(40, 60)))


@pytest.mark.parametrize("rest", ["q8_0", "f16", "keep"])
def test_rest(tmp_path: Path, rest: str) -> None:
    """What no graph uses, here a layer that predicts further tokens; what the user leaves out stays."""
    weights = tiny_weights()
    dense = write_model(tmp_path / "dense.gguf", weights, Kind.F32, keys={"llama.nextn_predict_layers": 1})
    idle = {name for name in TARGET_NAMES if name.startswith("blk.1.")}
    recipe = seeddelta.Recipe(input=dense, output=tmp_path / "out.gguf", rest=rest, targets="ffn")
    report = seeddelta.build(recipe, progress=False)
    assert set(report.idle) == idle
    with open_seeddelta(recipe.output) as file:
        kinds = {name: file.header.tensors[name].type for name in file.dense_tensors}
        changed = {name for name, kind in kinds.items() if kind != Kind.F32}
        assert changed == (set() if rest == "keep" else idle)
        for name in idle:
            kind = kinds[name]
            assert kind == (Kind.F32 if rest == "keep" else Kind[rest.upper()])
            values = file.dense(name)
            if kind == Kind.Q8_0:
                values = dequantize(values.reshape(weights[name].shape[0], -1), kind)
            np.testing.assert_allclose(values, weights[name], atol=0.002)
        sizes = sum(info.nbytes for info in file.header.tensors.values())
    assert report.model_bytes_after == sizes
    assert verify(recipe.output, source=dense, progress=False).ok
