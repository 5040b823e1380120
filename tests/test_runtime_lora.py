"""LoRA adapters change SeedΔ weights as they change dense ones."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import seeddelta
from llama_helpers import divergence, load, load_small, logits_of, tokens_of
from seeddelta.cli.main import main
from seeddelta.errors import ConfigError, FormatError, MissingFileError
from seeddelta.gguf.model_file import read_header
from seeddelta.runtime import RuntimeConfig
from tiny_llama import write_llama
from tiny_models import finish

pytest.importorskip("llama_cpp")

RANK = 4


def write_adapter(path: Path, model: Path, *, scale: float = 1.0, columns: int | None = None) -> Path:
    """Random A and B for the MLP's up and the attention's query of every layer."""
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(RANK))
    for name, tensor in read_header(model).tensors.items():
        if name.split(".")[-2] in ("ffn_up", "attn_q"):
            rows, inputs = tensor.shape
            inputs = columns or inputs
            writer.add_tensor(f"{name}.lora_a", rng.normal(0, inputs**-0.5, (RANK, inputs)).astype(np.float32))
            writer.add_tensor(f"{name}.lora_b", (scale * rng.normal(0, 0.1, (rows, RANK))).astype(np.float32))
    finish(writer)
    return path


@pytest.fixture(scope="module")
def ours(smollm2_quantized: Path, model_dir: Path) -> Path:
    source = write_llama(model_dir / "tiny-lora-source.gguf", smollm2_quantized)
    path = model_dir / "tiny-lora.seeddelta.gguf"
    seeddelta.build(seeddelta.Recipe(input=source, output=path, bits=4, targets="full"), progress=False)
    return path


@pytest.fixture(scope="module")
def dense(ours: Path, model_dir: Path) -> Path:
    """The same weights in F16: what differs is the rounding of activations."""
    return seeddelta.dequantize(ours, model_dir / "tiny-lora-f16.gguf", progress=False)


@pytest.fixture(scope="module")
def adapter(dense: Path, model_dir: Path) -> Path:
    return write_adapter(model_dir / "adapter.gguf", dense)


def logits(path: Path, **options: object) -> np.ndarray:
    llm = load_small(path, **options)
    found = logits_of(llm, tokens_of(llm, 48))
    llm.close()
    return found


def test_the_change_is_that_of_the_dense_model(ours: Path, dense: Path, adapter: Path) -> None:
    plain, adapted = logits(ours), logits(ours, lora=adapter)
    rounding = divergence(logits(dense), plain)
    assert divergence(plain, adapted) > 50 * rounding  # the adapter does something
    assert divergence(logits(dense, lora=adapter), adapted) < 5 * rounding


@pytest.mark.slow
def test_smollm2(smollm2_f16: Path, tmp_path: Path) -> None:
    """With an adapter ours is as near to the original model as it is without."""
    ours = tmp_path / "smollm2-6.seeddelta.gguf"
    seeddelta.build(
        seeddelta.Recipe(input=smollm2_f16, output=ours, bits=6, effort="fast", targets="all"), progress=False
    )
    adapter = write_adapter(tmp_path / "smollm2-adapter.gguf", smollm2_f16, scale=4.0)
    plain, adapted = {}, {}
    for path in (smollm2_f16, ours):
        for found, options in ((plain, {}), (adapted, {"lora": adapter})):
            llm = load(path, **options)
            found[path] = logits_of(llm, tokens_of(llm, 256))
            llm.close()
    base = divergence(plain[smollm2_f16], plain[ours])
    assert base <= 0.05
    assert divergence(plain[smollm2_f16], adapted[smollm2_f16]) > max(0.1, 4 * base)  # the adapter does something
    assert divergence(adapted[smollm2_f16], adapted[ours]) <= 0.05


def test_scales_and_several(ours: Path, dense: Path, adapter: Path, tmp_path: Path) -> None:
    none = logits(ours)
    np.testing.assert_array_equal(logits(ours, lora=f"{adapter}:0"), none)
    twice = write_adapter(tmp_path / "twice.gguf", dense, scale=2.0)
    doubled = logits(ours, config=RuntimeConfig(lora=(f"{adapter}:2",)))
    np.testing.assert_allclose(doubled, logits(ours, lora=twice), atol=1e-3)
    both = logits(ours, lora=[adapter, f"{adapter}:1.0"])
    np.testing.assert_allclose(both, doubled, atol=0.05)


def test_adapters_that_do_not_fit(ours: Path, dense: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no such file"):
        seeddelta.load(ours, lora="/nowhere.gguf", verbose=False)
    with pytest.raises(ConfigError, match="no scale"):
        seeddelta.load(ours, lora="/nowhere.gguf:much", verbose=False)
    wrong = write_adapter(tmp_path / "wrong.gguf", dense, columns=32)
    for model in (ours, dense):
        with pytest.raises(FormatError, match="cannot use"):
            seeddelta.load(model, lora=wrong, verbose=False)


def test_the_flag(ours: Path, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def text(*flags: str) -> str:
        ask = ["-p", "The capital of France is", "-n", "8", "-t", "2", "--json", str(tmp_path / "m.json")]
        assert main(["run", "-m", str(ours), *ask, *flags]) == 0
        return capsys.readouterr().out

    assert text() != text("--lora", f"{adapter}:3")
    assert json.loads((tmp_path / "m.json").read_text())["seeddelta.calls"] > 0
