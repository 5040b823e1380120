"""A model's page for the hub, and the plan of an upload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import seeddelta
from seeddelta.cli.main import main
from tiny_models import write_model

hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    source = write_model(tmp_path / "tiny.gguf")
    path = tmp_path / "tiny.seeddelta.gguf"
    seeddelta.build(seeddelta.Recipe(input=source, output=path, bits=4), progress=False)
    return path


def evaluation(path: Path, model: Path) -> Path:
    base = {"path": "tiny.gguf", "kind": "F16", "bits_per_weight": 16.0, "file_bytes": 2e6, "difference": None}
    base |= {"perplexity": {"ppl": 10.0, "stderr": 0.1}}
    ours = base | {"path": str(model), "divergence": {"mean": 0.0123, "stderr": 0.001, "same_top_percent": 95.5}}
    ours["difference"] = {"percent": 1.5, "percent_stderr": 0.2}
    path.write_text(json.dumps({"settings": {}, "models": [base, ours]}))
    return path


def test_card(model: Path, tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    arguments = ["card", str(model), "--eval", str(evaluation(tmp_path / "eval.json", model)), "-o", str(page)]
    assert main([*arguments, "--base-model", "owner/tiny", "--license", "mit"]) == 0
    card = hub.ModelCard.load(page)
    assert card.data.base_model == "owner/tiny"
    assert card.data.to_dict()["base_model_relation"] == "quantized"
    assert card.data.license == "mit"
    text = card.text
    keys = seeddelta.open_seeddelta(model).metadata
    assert keys["seeddelta.source.sha256"] in text
    assert "seeddelta serve tiny.seeddelta.gguf" in text
    assert "| 0.0123 ± 0.0010 | 95.5 % |" in text
    assert "+1.50 ± 0.20 %" in text
    assert "| ffn_up | 2 |" in text


def test_what_is_no_card(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["card", str(tmp_path / "tiny.gguf")]) == 1
    assert "not a SeedΔ file" in capsys.readouterr().err
    other = evaluation(tmp_path / "other.json", tmp_path / "other.gguf")
    assert main(["card", str(model), "--eval", str(other)]) == 1
    assert "has no model tiny.seeddelta.gguf" in capsys.readouterr().err
