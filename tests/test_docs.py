"""Links of the documentation lead somewhere, every page is in the site, and the site builds without a warning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import seeddelta
import yaml
from seeddelta import errors

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "research").rglob("*.md"))
GENERATED = {ROOT / "docs" / "reference" / "cli.md"}


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as Python-Markdown's toc makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading.encode("ascii", "ignore").decode()).strip().lower() for heading in found)
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists() or path in GENERATED, target
        assert not anchor or anchor in anchors(path), target


def test_tables_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import markdown_tables

    pages = markdown_tables.marked_pages()
    assert ROOT / "README.md" in pages
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert markdown_tables.updated(text) == text, f"{page}: python benchmarks/markdown_tables.py"


def pages_of(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    assert not isinstance(entries, (str, bytes))
    return [page for entry in entries for page in pages_of(entry)]  # type: ignore[attr-defined]


def test_every_page_is_in_the_site() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    there = {str(page.relative_to(ROOT / "docs")) for page in PAGES if (ROOT / "docs") in page.parents}
    assert set(pages_of(nav)) == there | {"reference/cli.md"}


def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed; run: pip install 'seeddelta[docs]'")
    pytest.importorskip("mkdocstrings")
    paths = [str(Path(seeddelta.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    commands = (tmp_path / "site" / "reference" / "cli" / "index.html").read_text(encoding="utf-8")
    assert "--bpw" in commands
    assert "seeddelta verify" in commands
    python = (tmp_path / "site" / "reference" / "python" / "index.html").read_text(encoding="utf-8")
    assert "llama_kwargs" in python


def test_every_error_has_its_section() -> None:
    headings = re.findall(
        r"^## (.+)$", (ROOT / "docs/guide/troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    named = {name for heading in headings for name in re.findall(r"\w+", heading)}
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and issubclass(value, (errors.SeedDeltaError, UserWarning))
        and "SeedDelta" not in name
    }
    assert classes <= named, classes - named
