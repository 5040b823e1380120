"""The notebooks run from top to bottom, on the bundled model, and are kept without outputs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
SECONDS = 120  # of one cell


def test_there_are_some() -> None:
    assert len(NOTEBOOKS) >= 4


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_kept_without_outputs(path: Path) -> None:
    """Outputs depend on the machine and the time, and make every change unreadable: whoever runs them has them."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path: Path, smollm2_f16: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("llama_cpp")
    found = os.environ.get("PYTHONPATH")  # the notebooks find tests/reference beside their folder
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *([found] if found else [])]))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "smollm2-f16.gguf").symlink_to(smollm2_f16)  # or each would make it again
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=place).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output for output in outputs if output["output_type"] in ("display_data", "execute_result")]
    assert shown
    errors = [output["text"] for output in outputs if output.get("name") == "stderr"]
    errors = [text for text in errors if "TqdmWarning" not in text]  # bars are text where ipywidgets is not installed
    assert not [text for text in errors if "Error" in text or "Warning" in text], errors
