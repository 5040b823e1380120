"""Reports from saved measurements: the numbers that went in come out, in a page that needs no network.

In a browser, where Chromium is installed (`apt install chromium`), it renders, fits a screen of 1366 pixels, and is
dark where that is asked for.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import seeddelta
from report_samples import evaluation, without_quality
from report_samples import model as sample
from seeddelta.cli.main import main
from seeddelta.errors import EvaluationError
from seeddelta.evaluate.measurements import family, read_measurements, short_labels, speeds_of
from seeddelta.gguf.reader import open_seeddelta
from seeddelta.inspection.summary import summarize
from seeddelta.report.curves import frontier, quality_figure, target_figure, target_of
from seeddelta.report.values import provenance_of
from tiny_models import TARGET_NAMES, write_model

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


WIDTH = 1366
PROBE = "<p id=probe></p><script>document.getElementById('probe').textContent = document.body.scrollWidth</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def small(folder: Path) -> Path:
    """A SeedΔ file, where the measurements say that one of their models is."""
    path = folder / "smol-4bit.seeddelta.gguf"
    dense = write_model(folder / "smol-f16.gguf")
    seeddelta.build(seeddelta.Recipe(input=dense, output=path, bits=3, tensor_type="ffn_up=4"), progress=False)
    return path


@pytest.fixture(scope="module")
def saved(folder: Path, small: Path) -> Path:
    path = folder / "eval.json"
    path.write_text(json.dumps(evaluation(str(small))), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def report(folder: Path, saved: Path) -> Path:
    assert main(["report", "--from", str(saved), "-o", str(folder / "out"), "--title", "A <title>", "-q"]) == 0
    return folder / "out"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


class Tags(HTMLParser):
    """Tags with their attributes, and the text of cells."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.text.append(data.strip())


def parsed(report: Path) -> Tags:
    tags = Tags()
    tags.feed((report / "index.html").read_text(encoding="utf-8"))
    return tags


def test_files(report: Path) -> None:
    names = {path.name for path in report.iterdir()}
    assert names == {
        "index.html", "data.json", "models.csv", "tensors.csv", "quality.png", "speed.png", "memory.png",
        "tensors-4bit.png",
    }  # fmt: skip
    for path in report.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_numbers_of_the_models(report: Path, small: Path) -> None:
    found = rows(report / "models.csv")
    assert [row["name"] for row in found] == ["f16", "4bit", "3bit", "Q4_K_M", "IQ1_S"]
    assert float(found[1]["saved_mb"]) == pytest.approx(270 - 112)
    assert float(found[1]["change_percent"]) == pytest.approx(3.7)
    assert float(found[1]["kl_nats"]) == pytest.approx(0.04)
    assert float(found[1]["generation_tokens_per_s"]) == pytest.approx(200 * 16 / 4.05)  # at the most threads
    assert found[0]["kl_nats"] == ""
    cells = parsed(report).text
    for text in ("+3.70 ± 0.20 %", "0.0400 ± 0.0020", "158.0", "+9.4e+07 %", "2 chunks of 512, 512 tokens scored;"):
        assert any(text in cell for cell in cells), text


def test_numbers_of_the_tensors(report: Path) -> None:
    found = rows(report / "tensors.csv")
    assert {row["name"] for row in found} == {*TARGET_NAMES, "token_embd.weight"}
    by_name = {row["name"]: row for row in found}
    assert by_name["blk.0.ffn_up.weight"]["rate"] == "4.0"
    assert by_name["blk.1.attn_q.weight"]["rate"] == "3.0"
    assert by_name["blk.1.attn_q.weight"]["base"] == "lanes code 6"
    cells = parsed(report).text
    assert "Not at hand, hence without a map: 3bit." in cells
    assert "ffn_up" in cells


def test_page_needs_nothing_from_outside(report: Path) -> None:
    text = (report / "index.html").read_text(encoding="utf-8")
    tags = parsed(report).tags
    assert not {tag for tag, _ in tags} & {"script", "link", "iframe", "object", "embed", "img", "base"}
    for tag, attributes in tags:
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href", "action", "data"):
                assert (value or "").startswith(("#", "data:image/png;base64,")), (tag, value)
    style = " ".join(re.findall(r"<style.*?</style>", text, re.DOTALL)) + " ".join(re.findall(r'style="[^"]*"', text))
    assert not re.search(r"url\((?!['\"]?#)|@import", style)


def test_figures_are_inside_and_have_names(report: Path) -> None:
    figures = [attributes for tag, attributes in parsed(report).tags if tag == "svg"]
    assert len(figures) == 4
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in figures)
    text = (report / "index.html").read_text(encoding="utf-8")
    assert "#1b1f24" not in text.partition("</style>")[2]  # ink is the page's, so that it is light on dark
    assert "currentColor" in text


def test_what_a_model_says_is_text(report: Path) -> None:
    text = (report / "index.html").read_text(encoding="utf-8")
    assert "Paris &lt;b&gt;&amp; so on&lt;/b&gt;" in text
    assert "<title>A &lt;title&gt;</title>" in text


def test_the_command_and_the_provenance_are_there(report: Path, saved: Path, folder: Path) -> None:
    cells = parsed(report).text
    with seeddelta.open_seeddelta(folder / "smol-4bit.seeddelta.gguf") as file:
        assert file.metadata["seeddelta.source.sha256"] in cells
    assert any("seeddelta report --from" in cell and str(saved) in cell for cell in cells)
    assert any("tensor_type=ffn_up=4" in cell for cell in cells)


def test_what_is_saved_can_be_read_again(report: Path, saved: Path) -> None:
    assert read_measurements(report / "data.json") == read_measurements(saved)


def test_tensors_of_a_file_that_was_measured_elsewhere(small: Path, tmp_path: Path) -> None:
    saved = tmp_path / "eval.json"
    saved.write_text(json.dumps(without_quality(evaluation(f"/elsewhere/{small.name}"))))
    assert main(["report", "--from", str(saved), "-m", str(small), "-o", str(tmp_path / "out"), "-q"]) == 0
    assert {row["model"] for row in rows(tmp_path / "out" / "tensors.csv")} == {"4bit"}
    # nothing to draw curves of
    names = {path.name for path in (tmp_path / "out").glob("*.png")}
    assert names == {"speed.png", "memory.png", "tensors-4bit.png"}
    assert "KL, nats" not in parsed(tmp_path / "out").text
    assert quality_figure(read_measurements(saved)[0]) is None


def test_a_missing_package_is_named(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["report", "--from", str(saved), "-o", str(tmp_path / "out")]) == 1
    assert "jinja2 is not installed; run: pip install 'seeddelta[report]'" in capsys.readouterr().err


def test_results_of_benchmarks(tmp_path: Path) -> None:
    data = evaluation()
    named = dict(zip(("F16", "four", "three", "K", "I"), data["models"], strict=True))
    machine = {"cpu": "Zilog Z80"}
    result = {"machine": machine, "texts": {"a": {"settings": data["settings"], "models": named}}}
    (tmp_path / "r.json").write_text(json.dumps(result))
    (series,) = read_measurements(tmp_path / "r.json")
    assert [model["name"] for model in series.models] == ["F16", "four", "three", "K", "I"]
    assert (series.title, series.machine) == ("wiki.txt", machine)
    blocks = {block["title"]: dict(block["rows"]) for block in provenance_of([series], {})}
    assert blocks["Machine"] == machine
    assert blocks["Settings: wiki.txt"]["threads"] == "1, 2"


def test_curvas_mem_vs_ppl(folder: Path, tmp_path: Path) -> None:
    """`Curvas "mem vs ppl" por modelo / target layer-range`: a line for each role and band of layers."""
    dense = write_model(folder / "bands-f16.gguf")
    chosen = {"up-4": ("ffn_up", "0", 4), "up-3": ("ffn_up", "0", 3), "ffn-4": ("ffn", "0-1", 4)}
    paths = {name: tmp_path / f"{name}.seeddelta.gguf" for name in chosen}
    for name, (target, layers, bits) in chosen.items():
        options: dict[str, Any] = {"targets": target, "layers": layers, "bits": bits, "threads": 1}
        seeddelta.build(seeddelta.Recipe(input=dense, output=paths[name], **options), progress=False)
    models = [sample("m/smol-f16.gguf", "F16", 270, 16, None, None)]
    models += [sample(str(path), "SeedΔ", 200 - 20 * at, 4.0, 1.0 + at, 0.04) for at, path in enumerate(paths.values())]
    path = tmp_path / "eval.json"
    path.write_text(json.dumps(evaluation() | {"models": models}), encoding="utf-8")
    assert main(["report", "--from", str(path), "-o", str(tmp_path / "out"), "-q"]) == 0
    assert (tmp_path / "out" / "targets.png").read_bytes().startswith(b"\x89PNG")
    [series] = read_measurements(path)
    targets = {}
    for name, file in zip([str(one["name"]) for one in series.models[1:]], paths.values(), strict=True):
        with open_seeddelta(file) as opened:
            targets[name] = target_of(summarize(opened))
    assert set(targets.values()) == {"ffn_up, layers 0", "ffn, layers 0-1"}
    figure = target_figure(series, targets)
    lines = {box.get_label(): box[0].get_xydata().tolist() for box in figure.axes[0].containers}
    assert lines == {"ffn_up, layers 0": [[70, 1.0], [90, 2.0]], "ffn, layers 0-1": [[110, 3.0]]}
    assert target_figure(series, dict.fromkeys(targets, "all")) is None


def test_axes_of_quality(saved: Path) -> None:
    figure = quality_figure(read_measurements(saved)[0])
    assert figure is not None
    above, below = figure.axes[0], figure.axes[2]
    assert above.get_yscale() == below.get_yscale() == "log"
    names = {child.get_text() for child in above.texts}
    assert names == {"4bit", "3bit", "Q4_K_M", "IQ1_S"}
    lines = {line.get_color(): list(line.get_xdata()) for line in above.lines if line.get_linestyle() == "-"}
    assert lines["#2f7ed8"] == pytest.approx([171, 158])  # megabytes saved by the SeedΔ files
    assert list(below.lines[0].get_xdata()) == pytest.approx([3.05, 4.05])


def test_names_of_points_do_not_cover_each_other(saved: Path, tmp_path: Path) -> None:
    data = json.loads(saved.read_text())
    for turn, model in enumerate(data["models"][1:]):  # all at one place, nearly
        model |= {"file_bytes": 100_000_000 + turn, "difference": {"percent": 5 + turn / 100, "percent_stderr": 0.1}}
    (tmp_path / "r.json").write_text(json.dumps(data))
    figure = quality_figure(read_measurements(tmp_path / "r.json")[0])
    assert figure is not None
    boxes = [child.get_window_extent() for child in figure.axes[0].texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


def test_frontier() -> None:
    points = [("a", "", 1.0, 9.0, 0.0), ("b", "", 2.0, 5.0, 0.0), ("c", "", 3.0, 7.0, 0.0), ("d", "", 4.0, 1.0, 0.0)]
    assert [point[0] for point in frontier(points, more_is_better=False)] == ["a", "b", "d"]
    assert [point[0] for point in frontier(points, more_is_better=True)] == ["d"]


def test_labels_and_families() -> None:
    assert short_labels(["a/smol-x-f16.gguf", "b/smol-x-4bit.seeddelta.gguf"]) == ["f16", "4bit"]
    assert short_labels(["m.gguf", "m-Q4_0.gguf", "m-4.seeddelta.gguf"]) == ["m", "Q4_0", "4"]
    assert short_labels(["a/m.gguf", "b/m.gguf"]) == ["a/m.gguf", "b/m.gguf"]
    assert short_labels(["a/m-f16.gguf"]) == ["m-f16"]
    models = evaluation()["models"]
    assert [family(model) for model in models] == ["dense", "SeedΔ", "SeedΔ", "llama.cpp", "llama.cpp"]
    assert speeds_of(models[0])[1].generation == (200.0, 202.0, 198.0)


@pytest.mark.parametrize(
    "text", ["no json", "[]", "{}", '{"models": []}', '{"models": [{"path": "x"}], "settings": {}}']
)
def test_what_are_no_measurements(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(EvaluationError, match=r"r\.json.*seeddelta eval --json"):
        read_measurements(tmp_path / "r.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to report"),
        (["--from", "none.json"], "none.json: cannot be read"),
        (["--from", "SAVED", "--text", "x"], "leave --text"),
        (["--from", "SAVED", "-m", "none.gguf"], "none.gguf: no such file"),
        (["-m", "DENSE", "--quants", "Q9_Z"], "Q9_Z is no type"),
        (["-m", "SMALL", "--quants", "Q4_0"], "SeedΔ file already"),
    ],
)
def test_errors(
    arguments: list[str], message: str, saved: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"SAVED": str(saved), "SMALL": str(small), "DENSE": str(small.with_name("smol-f16.gguf"))}
    given: list[Any] = [places.get(argument, argument) for argument in arguments]
    assert main(["report", *given, "-o", str(tmp_path / "out")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "index.html").exists()


@pytest.fixture(scope="module")
def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("Chromium is not installed; run: apt install chromium")


def browse(chromium: str, page: Path, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}",
        f"--window-size={WIDTH},3600", *options, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)


@pytest.mark.parametrize("dark", [False, True])
def test_it_renders(chromium: str, report: Path, tmp_path: Path, dark: bool) -> None:
    shot = tmp_path / "shot.png"
    scheme = "--blink-settings=preferredColorScheme=" + ("0" if dark else "1")
    browse(chromium, report / "index.html", tmp_path, f"--screenshot={shot}", scheme)
    image = pytest.importorskip("PIL.Image").open(shot).convert("RGB")
    assert image.width == WIDTH
    colors = {color: count for count, color in image.getcolors(1 << 24)}
    background = image.getpixel((2, 2))
    assert background == ((20, 23, 27) if dark else (255, 255, 255))
    ink = (230, 233, 237) if dark else (27, 31, 36)
    assert colors.get(ink, 0) > 1000  # the text and the axes
    for color in ((47, 126, 216), (217, 119, 31)):  # points, lines and bars of both families
        assert colors.get(color, 0) > 200
    assert colors[background] < 0.95 * image.width * image.height


def test_it_fits_the_screen(chromium: str, report: Path, tmp_path: Path) -> None:
    probed = tmp_path / "probe.html"
    text = (report / "index.html").read_text(encoding="utf-8")
    probed.write_text(text.replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    dom = browse(chromium, probed, tmp_path, "--dump-dom").stdout
    width = int(dom.partition('<p id="probe">')[2].partition("<")[0])
    assert 1000 < width <= WIDTH
    assert dom.count("<svg") == 4
