"""The house: which folder may include which and that units of instruction sets share nothing."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "cpp" / "src"
# Each folder includes from those before it (and from cpp/include) only.
FOLDERS = (
    "format", "kinds", "simd", "gating", "linear", "attention", "encode", "gguf", "ggml_host", "runtime", "preload",
    "bindings",
)  # fmt: skip


def test_folders_are_known() -> None:
    assert {path.name for path in SOURCE.iterdir() if path.is_dir()} == set(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_includes_point_down(folder: str) -> None:
    above = set(FOLDERS[FOLDERS.index(folder) + 1 :])
    found = [
        f"{path.relative_to(SOURCE)} includes {target}"
        for path in sorted((SOURCE / folder).rglob("*.[ch]pp"))
        for target in re.findall(r'#include "([^"]+)"', path.read_text(encoding="utf-8"))
        if target.split("/")[0] in above
    ]
    assert not found


def test_core_has_no_weak_symbols_of_instruction_sets() -> None:
    """A function that two units share would run with the instructions of either. (Constants may be shared.)"""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed (apt install binutils)")
    presets = {preset["name"] for preset in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}
    found = sorted((ROOT / "build").glob("*/**/isa_*.cpp.o"))  # sanitizers and the like are no builds to ship
    objects = [path for path in found if path.relative_to(ROOT / "build").parts[0] not in presets]
    if not objects:
        pytest.skip("no object files below build/: cmake -B build/dev . && cmake --build build/dev")
    shared = []
    for path in objects:
        done = subprocess.run(
            [nm, "--demangle", "--defined-only", str(path)], capture_output=True, text=True, check=True
        )
        lines = (line.split(maxsplit=2) for line in done.stdout.splitlines())
        shared += [f"{path.name}: {name}" for _, kind, name in lines if kind == "W"]
    assert not shared, shared[:10]


PACKAGE = ROOT / "python" / "seeddelta"
# Each package imports from those before it, and from the modules beside them (errors, …), which import none.
PACKAGES = (
    "_core", "storage", "kinds", "gguf", "settings", "runtime", "session", "calibrate", "convert", "evaluate",
    "serve", "sparsify", "inspection", "report", "cli",
)  # fmt: skip


def imports_of(path: Path) -> Iterator[tuple[int, list[str], list[str]]]:
    """Imports from seeddelta in a file of it, also inside of functions; not for types.

    Each is the line, the module's path below the package, and the names.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    inside = path.relative_to(PACKAGE).parts[:-1]
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node in for_types:
            continue
        module = (node.module or "").split(".") if node.module else []
        if node.level:
            module = [*inside[: len(inside) - node.level + 1], *module]
        elif module[:1] == ["seeddelta"]:
            module = module[1:]
        else:
            continue
        yield node.lineno, module, [alias.name for alias in node.names]


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Lines and packages (or modules) of seeddelta that a file imports."""
    for line, module, names in imports_of(path):
        yield from ((line, target) for target in (module[:1] or names))


def test_an_ablation_is_one_file() -> None:
    """Nothing imports a kind but the list of them; the hash of prng_block is the base of proc-sparse weights, too."""
    shared = {"kind", "fitting", "prng_block"}
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name != "kinds":
            found |= set(re.findall(r"kinds\.(\w+) import", path.read_text(encoding="utf-8")))
    assert found == shared
    names = [path.name for path in PACKAGE.rglob("*.py") if "fht_struct" in path.read_text(encoding="utf-8")]
    assert sorted(names) == ["__init__.py", "fht_struct.py", "kinds.py"]


def test_packages_are_known() -> None:
    found = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert found == set(PACKAGES)


def test_imports_point_down() -> None:
    above = {package: set(PACKAGES[at + 1 :]) for at, package in enumerate(PACKAGES)}
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        own = path.relative_to(PACKAGE).parts[0]
        if own in ("__init__.py", "__main__.py"):  # the public names, loaded when they are used
            continue
        forbidden = above.get(own, set(PACKAGES))  # a module beside the packages imports none of them
        wrong += [
            f"{path.relative_to(PACKAGE)}:{line} imports {target}"
            for line, target in imported(path)
            if target in forbidden
        ]
    assert not wrong


def modules_imported(path: Path) -> set[Path]:
    """Files of the package that a file imports."""
    found = set()
    for _, module, names in imports_of(path):
        base = PACKAGE.joinpath(*module)
        for name in names:
            candidates = [base / f"{name}.py", base / name / "__init__.py", base.with_suffix(".py")]
            found |= {next((one for one in candidates if one.is_file()), base / "__init__.py")}
    return found - {path}


def test_no_imports_go_in_a_circle() -> None:
    """Each file can be read after those that it imports; `__init__` of the package loads the public names when used."""
    left = {path: modules_imported(path) for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"}
    while free := [path for path, needs in left.items() if not needs & left.keys()]:
        for path in free:
            del left[path]
    assert not left, {
        str(path.relative_to(PACKAGE)): [str(one.relative_to(PACKAGE)) for one in needs & left.keys()]
        for path, needs in left.items()
    }


def test_no_includes_go_in_a_circle() -> None:
    headers = {path: path.read_text(encoding="utf-8") for path in (ROOT / "cpp").rglob("*.[ch]pp")}
    places = (SOURCE, ROOT / "cpp" / "include", ROOT / "cpp" / "tests")
    left = {
        path: {place / name for name in re.findall(r'#include "([^"]+)"', text) for place in (*places, path.parent)}
        for path, text in headers.items()
    }
    while free := [path for path, needs in left.items() if not needs & left.keys()]:
        for path in free:
            del left[path]
    assert not left, sorted(str(path.relative_to(ROOT)) for path in left)


def test_the_glossary_names_what_is_there() -> None:
    """Every name of the glossary stands in the file beside it."""
    page = (ROOT / "docs" / "internals" / "glossary.md").read_text(encoding="utf-8")
    places = (PACKAGE, SOURCE, ROOT / "cpp" / "include" / "seeddelta")
    checked = 0
    for name, file in re.findall(r"^\|.*\| `([\w:.*]+)` \| `([\w./]+)` \|$", page, re.MULTILINE):
        texts = [(place / file).read_text(encoding="utf-8") for place in places if (place / file).is_file()]
        if file != "simd":
            assert any(name.split("::")[-1].split(".")[-1] in text for text in texts), f"{name}: {file}"
            checked += 1
    assert checked > 40


def test_pages_that_code_names_are_there() -> None:
    missing = {}
    for folder in ("python", "cpp", "tests", "benchmarks", "tools", "research"):
        for path in sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".cpp", ".hpp")):
            for name in re.findall(r"\b(?:docs|research)/[\w./-]+\.md\b", path.read_text(encoding="utf-8")):
                if not (ROOT / name).is_file():
                    missing[str(path.relative_to(ROOT))] = name
    assert missing == {}


SOURCES = sorted(
    path
    for folder in ("benchmarks", "cpp", "python", "research", "tests", "tools")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".cpp", ".hpp")
)


def test_no_file_is_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {name: length for name, length in lengths.items() if length > 400} == {}


def test_no_function_is_long() -> None:
    """Lines of functions in Python without their documentation."""
    lengths = {}
    for path in SOURCES:
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    documentation = (ast.get_docstring(node, clean=False) or "").count("\n")
                    lengths[f"{path.relative_to(ROOT)}: {node.name}"] = (
                        (node.end_lineno or 0) - node.lineno + 1 - documentation
                    )
    assert {name: length for name, length in lengths.items() if length > 60} == {}
