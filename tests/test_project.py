"""What a release adds to pyproject.toml, and where the results come from."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
# Shares, errors, divergences and perplexities: no time is in them, and they are the same on a busy machine.
UNTIMED = re.compile(
    r"attention-(choice|error|events-quality|heads|needles|quality|windows)"
    r"|context-perplexity|costs|prices|models-.*|outliers|proc-sparse-13-16|quality-.*|sparsity-methods"
)
IDLE = 0.5  # load average of a minute, before


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_release_has_the_addresses_of_its_repository() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = tomllib.loads(tool("project_urls").with_urls(project, "https://example.org/owner/name/"))
    assert found["project"].pop("urls") == {
        "Homepage": "https://example.org/owner/name",
        "Documentation": "https://example.org/owner/name/tree/main/docs",
        "Issues": "https://example.org/owner/name/issues",
        "Changelog": "https://example.org/owner/name/blob/main/CHANGELOG.md",
    }
    assert found == tomllib.loads(project)


@pytest.mark.parametrize("address", ["owner/name", 'https://example.org/"', "https://example.org/\n[project]"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        tool("project_urls").with_urls("[project.optional-dependencies]", address)


def test_addresses_are_written_once() -> None:
    with_urls = tool("project_urls").with_urls
    once = with_urls("[project.optional-dependencies]", "https://example.org/owner/name")
    with pytest.raises(ValueError, match="has addresses"):
        with_urls(once, "https://example.org/owner/name")


def machines(result: Any) -> Iterator[dict[str, Any]]:
    if isinstance(result, dict):
        if "machine" in result:
            yield result["machine"]
        for value in result.values():
            yield from machines(value)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_are_of_clean_commits_on_an_idle_machine(path: Path) -> None:
    found = list(machines(json.loads(path.read_text(encoding="utf-8"))))
    assert found
    for machine in found:
        assert re.fullmatch(r"[0-9a-f]{7,40}", machine["commit"] or ""), machine["commit"]
        assert UNTIMED.fullmatch(path.stem) or machine["load_average"] < IDLE


def test_results_are_of_commits_in_the_history() -> None:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    if (
        Path(git("rev-parse", "--show-toplevel") or "/") != ROOT
        or git("rev-parse", "--is-shallow-repository") == "true"
    ):
        pytest.skip("no history here")
    history = git("rev-list", "HEAD").split()
    for path in RESULTS:
        for machine in machines(json.loads(path.read_text(encoding="utf-8"))):
            assert any(commit.startswith(machine["commit"]) for commit in history), f"{path.name}: {machine['commit']}"
