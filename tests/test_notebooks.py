"""The notebooks run from top to bottom on the bundled model (one on its first layers), use public names, and are
stored with their outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
SECONDS = 600  # of one cell
MOST_BYTES = 300_000


def cells_of(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def test_the_page_lists_them() -> None:
    page = (NOTEBOOKS[0].parent / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((.*?\.ipynb)\)", page) == [path.name for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_with_outputs(path: Path) -> None:
    """Whoever reads them on a web page sees what they show, and nothing of the machine that they ran on."""
    code = cells_of(path, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    kinds = ("text/plain", "text/html")
    shown = [output.get("text", [output.get("data", {}).get(kind) for kind in kinds]) for output in outputs]
    assert not re.search(r"/(work|home|root|tmp|usr)/", json.dumps(shown))
    assert path.stat().st_size < MOST_BYTES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_public_names_alone(path: Path) -> None:
    """Nothing that starts with an underscore, and no module that the Python reference does not name."""
    reference = (path.parents[1] / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    public = set(re.findall(r"^::: ([\w.]+)", reference, re.MULTILINE))
    source = "\n".join("".join(cell["source"]) for cell in cells_of(path, "code"))
    for module in re.findall(r"(?:from|import) (seeddelta\.[\w.]+)", source):
        assert module in public, module
    assert not re.search(r"seeddelta[\w.]*\._", source)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_ends_with_a_model_of_the_reader(path: Path) -> None:
    assert "## Your own model here" in "".join(cells_of(path, "markdown")[-1]["source"])
    assert "MINE = None" in "".join(cells_of(path, "code")[-1]["source"])


_SHORT = "02_which_size"  # makes seven models: of a few layers here


@pytest.fixture(scope="module")
def folders(smollm2_f16: Path, short_f16: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """The folder that a notebook runs in. It is one for all, so that the next one finds what a notebook converted."""
    places = {}
    for model in (smollm2_f16, short_f16):
        places[model] = tmp_path_factory.mktemp("notebooks")
        (places[model] / "models").mkdir()
        (places[model] / "models" / "smollm2-f16.gguf").symlink_to(model)
    return lambda notebook: places[short_f16 if notebook.stem == _SHORT else smollm2_f16]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path: Path, folders: Callable[[Path], Path]) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("llama_cpp")
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(folders(path))}}
    nbclient.NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=place).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    errors = [output["text"] for output in outputs if output.get("name") == "stderr"]
    errors = [text for text in errors if "TqdmWarning" not in text]  # bars are text where ipywidgets is not installed
    assert not [text for text in errors if "Error" in text or "Warning" in text], errors
