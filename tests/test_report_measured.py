"""A report that measures, with models of llama.cpp made on the way, on a model of random weights."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import seeddelta
from llama_helpers import TEXT
from seeddelta.cli.main import main
from seeddelta.errors import RecipeError, SourceModelError
from seeddelta.evaluate.files import file_size
from seeddelta.evaluate.quantize import parse_types, quantize, quantized_model
from tiny_llama import write_llama

pytest.importorskip("llama_cpp")
pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def dense(smollm2_quantized: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("measured") / "tiny.gguf", smollm2_quantized)


@pytest.mark.slow
def test_models_are_measured_and_shown(dense: Path, tmp_path: Path) -> None:
    small, text, out = tmp_path / "tiny-4.seeddelta.gguf", tmp_path / "text.txt", tmp_path / "out"
    seeddelta.build(seeddelta.Recipe(input=dense, output=small, bits=4), progress=False)
    text.write_text(TEXT)
    arguments = ["-m", str(dense), "-m", str(small), "--quants", "q4_0,Q8_0", "--text", str(text), "--ctx", "64"]
    arguments += ["--chunks", "2", "--no-speed", "-t", "1", "-o", str(out), "-q"]
    assert main(["report", *arguments]) == 0
    with (out / "models.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["tiny", "4", "Q4_0", "Q8_0"]
    assert [row["kind"] for row in rows] == ["F16", "SeedΔ 4 bits", "Q4_0", "Q8_0"]
    assert all(float(row["kl_nats"]) > 0 for row in rows[1:])
    assert float(rows[3]["kl_nats"]) < float(rows[2]["kl_nats"])
    for name in ("Q4_0", "Q8_0"):  # kept, for the next report
        assert (out / "models" / f"tiny-{name}.gguf").is_file()
    data = json.loads((out / "data.json").read_text(encoding="utf-8"))
    assert data["series"][0]["settings"]["chunks"] == 2
    assert data["series"][0]["machine"]["isa"] == seeddelta._core.isa_active()
    assert data["command"].startswith("seeddelta report ")
    assert (out / "quality.png").is_file()


def test_a_model_is_quantized_again_when_the_dense_one_is_newer(dense: Path, tmp_path: Path) -> None:
    told: list[str] = []
    path = quantized_model(dense, tmp_path, "q8_0", announce=told.append)
    assert file_size(path).kind == "Q8_0"
    assert quantized_model(dense, tmp_path, "q8_0", announce=told.append) == path
    assert told == ["quantize tiny-Q8_0.gguf"]
    dense.touch()
    quantized_model(dense, tmp_path, "q8_0", announce=told.append)
    assert len(told) == 2


def test_what_cannot_be_quantized(dense: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="Q7_X is no type"):
        parse_types("Q4_0,Q7_X")
    with pytest.raises(RecipeError, match="nothing is no type"):
        parse_types(",")
    (tmp_path / "broken.gguf").write_bytes(dense.read_bytes()[:5000])
    with pytest.raises(SourceModelError, match=r"llama\.cpp cannot quantize it"):
        quantize(tmp_path / "broken.gguf", tmp_path / "out.gguf", 7)
    assert not (tmp_path / "out.gguf").exists()


def test_kind_of_a_file_with_several_rates(dense: Path, tmp_path: Path) -> None:
    out = tmp_path / "mixed.gguf"
    recipe = seeddelta.Recipe(input=dense, output=out, bits=4, targets="all", tensor_type=("attn_v=3",))
    seeddelta.build(recipe, progress=False)
    assert file_size(out).kind == "SeedΔ 3 to 4 bits"
    recipe = recipe.model_copy(update={"scheme": "coo", "K": 8})
    seeddelta.build(recipe, progress=False)
    assert file_size(out).kind == "SeedΔ 3 to 4 bits + coo"
