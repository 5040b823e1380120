"""What notebooks show of our objects: the numbers, as text that cannot break the page."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
import seeddelta
from seeddelta import html
from seeddelta.evaluate.compare import Comparison, ModelReport
from seeddelta.evaluate.files import file_size
from seeddelta.evaluate.memory import Memory
from seeddelta.runtime.handle import RuntimeHandle
from tiny_models import TARGET_NAMES, write_model


class Balanced(HTMLParser):
    """Cells of tables; every tag that opens must close."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("html")


@pytest.fixture(scope="module")
def recipe(folder: Path) -> seeddelta.Recipe:
    dense = write_model(folder / "a<b>.gguf")
    return seeddelta.Recipe(input=dense, output=folder / "small.gguf", bits=3, layers="0-1")


@pytest.fixture(scope="module")
def report(recipe: seeddelta.Recipe) -> seeddelta.BuildReport:
    return seeddelta.build(recipe, progress=False)


def test_recipe(recipe: seeddelta.Recipe) -> None:
    text = Balanced(recipe._repr_html_()).text
    assert text[text.index("bits") + 1] == "3"
    assert text[text.index("layers") + 1] == "0-1"
    assert "hessian" not in text  # as it is by default
    assert any("a<b>.gguf" in cell for cell in text)


def test_build_report(report: seeddelta.BuildReport) -> None:
    text = Balanced(report._repr_html_()).text
    assert f"{report.bits_per_weight:.3f} bits per converted weight" in text[0]
    assert set(TARGET_NAMES) <= set(text)
    metrics = report.tensors[0].metrics
    assert metrics is not None
    assert f"{100 * metrics.rel_l2:.2f}" in text
    assert repr(report) == f"BuildReport({report})"
    assert str(report).startswith(f"{report.files[0]}: {report.file_bytes / 1e6:.1f} MB, ")


def test_file(report: seeddelta.BuildReport, recipe: seeddelta.Recipe) -> None:
    with seeddelta.open_seeddelta(recipe.output) as file:
        text = Balanced(file._repr_html_()).text
        assert text[0].startswith(f"small.gguf: {len(TARGET_NAMES)} SeedΔ tensors")
        assert file.metadata["seeddelta.source.sha256"] in text
        assert "attn_output" in text
        assert f"{len(TARGET_NAMES)} converted matrices" in repr(file)
    assert repr(file) == f"SeedDeltaFile({str(recipe.output)!r}, closed)"


def test_comparison(report: seeddelta.BuildReport, recipe: seeddelta.Recipe) -> None:
    memory = Memory(anon=5_000_000, file=1_000_000, shmem=0, peak=7_000_000)
    models = [
        ModelReport(
            path=path, size=file_size(path), memory_before=memory, memory_loaded=memory, memory=memory, speed=(),
            perplexity=None, difference=None, divergence=None, embedding=None, metrics={}, sample=None,
        )
        for path in (recipe.input, recipe.output)
    ]  # fmt: skip
    comparison = Comparison(tuple(models), {"text": None})
    told, headings, *rows = str(comparison).splitlines()
    assert (told, headings.split()[0]) == ("compared with a<b>", "model")
    assert [row.split()[0] for row in rows] == ["a<b>", "small"]
    text = Balanced(comparison._repr_html_()).text
    assert text[0] == "compared with a<b>"
    assert text[text.index("small") + 1] == "SeedΔ 3 bits"
    assert f"{recipe.output.stat().st_size / 1e6:.1f}" in text
    assert "6" in text  # megabytes in memory
    assert "perplexity" not in text


def test_handle_of_an_ordinary_model() -> None:
    assert Balanced(RuntimeHandle()._repr_html_()).text == ["an ordinary GGUF model, without SeedΔ weights"]


def test_loaded_model(smollm2_quantized: Path, folder: Path) -> None:
    pytest.importorskip("llama_cpp")
    from tiny_llama import write_llama

    dense, small = write_llama(folder / "tiny.gguf", smollm2_quantized), folder / "tiny-4.gguf"
    seeddelta.build(seeddelta.Recipe(input=dense, output=small, bits=4, targets="all"), progress=False)
    llm = seeddelta.load(small, n_ctx=64, n_threads=1, verbose=False)
    llm.eval(llm.tokenize(b"hello there"))
    for shown in (llm._repr_html_(), llm.seeddelta._repr_html_()):
        text = Balanced(shown).text
        assert "14 SeedΔ weights served, 0 dense" in text[0]
        assert int(text[text.index("seeddelta.calls") + 1]) == 14
    assert llm._repr_html_().startswith("<p>tiny-4.gguf: ")
    llm.close()


def test_text_is_escaped() -> None:
    assert Balanced(html.table(("<a>",), [("<b>&",)])).text == ["<a>", "<b>&"]
