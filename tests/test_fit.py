"""`seeddelta.fit`: row scales and norms move towards the original model's predictions, and nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from block_models import write_case
from llama_helpers import TEXT, load_small, logits_of, tokens_of
from seeddelta.cli.main import main
from seeddelta.convert import fit as fit_module
from seeddelta.convert.fit_scales import Fit
from seeddelta.errors import NotAvailableError, OutputError, RecipeError, SourceModelError
from seeddelta.gguf import names
from seeddelta.gguf.source import SourceModel
from seeddelta.inspection.verify import verify
from tiny_llama import write_gpt_oss, write_llama, write_qwen

pytest.importorskip("llama_cpp")
OPTIONS: dict[str, Any] = {"ctx": 32, "chunks": 16, "threads": 1, "progress": False}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT * 40, encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=("llama", "qwen2", "gemma2", "starcoder2", "granite", "qwen2moe"))
def dense(request: pytest.FixtureRequest, smollm2_quantized: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param in ("llama", "qwen2"):
        path = tmp_path_factory.mktemp("fit") / "dense.gguf"
        if request.param == "llama":
            return write_llama(path, smollm2_quantized)
        return write_qwen(path, smollm2_quantized, request.param)
    return write_case(request.param, tmp_path_factory.mktemp("fit"), smollm2_quantized)


@pytest.fixture(scope="module")
def encoded(dense: Path) -> Path:
    path = dense.with_name("encoded.gguf")
    seeddelta.build(seeddelta.Recipe(input=dense, output=path, bits=2, effort="fast", targets="full"), progress=False)
    return path


def _divergence(dense: Path, other: Path) -> float:
    models = load_small(dense), load_small(other)
    try:
        tokens = tokens_of(models[0], 60)
        logs = [x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (logits_of(m, tokens) for m in models)]
    finally:
        for model in models:
            model.close()
    return float((np.exp(logs[0]) * (logs[0] - logs[1])).sum(-1).mean())


def test_the_predictions_come_nearer(dense: Path, encoded: Path, text: Path, tmp_path: Path) -> None:
    output = tmp_path / "fitted.gguf"
    report = seeddelta.fit(encoded, dense, output, text=text, **(OPTIONS | {"chunks": 64}))
    assert report.after < 0.97 * report.before
    assert (report.chunks, report.held_out) == (64, 8)
    assert _divergence(dense, output) < _divergence(dense, encoded)
    assert [path.name for path in tmp_path.iterdir()] == ["fitted.gguf"]
    before, after = seeddelta.open_seeddelta(encoded), seeddelta.open_seeddelta(output)
    own = [SourceModel(file.header) for file in (before, after)]
    fitted = 0
    assert list(before.header.tensors) == list(after.header.tensors)
    assert abs(encoded.stat().st_size - output.stat().st_size) < 2000  # the descriptions' numbers, and the text's name
    for name, info in before.header.tensors.items():
        assert (info.shape, info.type) == (after.header.tensors[name].shape, after.header.tensors[name].type)
        layers = name.startswith("blk.") or name == "output_norm.weight"
        changes = layers and (name.endswith(".row_scale") or names.is_norm(name)) and "_exps" not in name
        fitted += changes
        assert np.array_equal(own[0].raw(name), own[1].raw(name)) != changes, name
    assert report.tensors == fitted
    assert verify(output, source=dense).ok
    assert after.metadata["seeddelta.fit.chunks"] == 64


def test_threads_and_a_stop_change_nothing(
    dense: Path, encoded: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = tmp_path / "whole.gguf", tmp_path / "stopped.gguf"
    seeddelta.fit(encoded, dense, whole, text=text, **OPTIONS)
    original, calls = Fit.gradient, []

    def stops(self: Fit, chunks: list[int]) -> Any:
        calls.append(chunks)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(self, chunks)

    monkeypatch.setattr(Fit, "gradient", stops)
    with pytest.raises(KeyboardInterrupt):
        seeddelta.fit(encoded, dense, stopped, text=text, **OPTIONS)
    assert not stopped.exists()
    report = seeddelta.fit(encoded, dense, stopped, text=text, **(OPTIONS | {"threads": 2}))
    assert len(calls) == 4 + 4  # of seven steps three were done
    assert stopped.read_bytes() == whole.read_bytes()
    assert report.after < report.before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stopped.gguf", "whole.gguf"]


def test_command(dense: Path, encoded: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "fitted.gguf"
    files = [str(encoded), "-d", str(dense), "-o", str(output), "-f", str(text)]
    numbers = ["--ctx", "32", "--chunks", "32", "-t", "1"]
    assert main(["fit", *files, *numbers, "--json", "-q"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["after"] < report["before"]
    assert main(["fit", *files, *numbers]) == 0
    assert "held out" in capsys.readouterr().out
    assert main(["fit", *files, "--chunks", "4"]) != 0


def test_what_cannot_be_fitted(
    dense: Path, encoded: Path, text: Path, smollm2_quantized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.gguf"
    output.write_bytes(b"mine")
    other = write_llama(tmp_path / "wide.gguf", smollm2_quantized, width=320)
    with pytest.raises(SourceModelError, match=r"wide\.gguf: tensor '.*; give the original model that"):
        seeddelta.fit(encoded, other, output, text=text, **OPTIONS)
    other = write_gpt_oss(tmp_path / "oss.gguf", smollm2_quantized)
    with pytest.raises(NotAvailableError, match="not for gpt-oss"):
        seeddelta.fit(encoded, other, output, text=text, **OPTIONS)
    with pytest.raises(RecipeError, match="too few"):
        seeddelta.fit(encoded, dense, output, text=text, **(OPTIONS | {"chunks": 7}))
    with pytest.raises(OutputError, match=r"no/out\.gguf"):
        seeddelta.fit(encoded, dense, tmp_path / "no" / "out.gguf", text=text, **OPTIONS)
    monkeypatch.setattr(fit_module.Fit, "divergence", lambda self: 0.5)
    with pytest.raises(RecipeError, match=r"nothing was gained.*--text"):
        seeddelta.fit(encoded, dense, output, text=text, **OPTIONS)
    assert output.read_bytes() == b"mine"
