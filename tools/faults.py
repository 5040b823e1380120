"""Deliberate faults, one line each, and whether the quick tests notice them.

`python tools/faults.py` works in a copy of the files that git tracks: it puts one fault of faults.yaml in, builds the
extension where the fault is in C++, runs the test files that must notice it, takes it out again, and runs the test that
failed once more, which has to pass now. It ends with 1 when a fault was not noticed. A test that is made quicker or
taken out must leave all of them noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tools" / "faults.yaml"
_LIMIT = 1800  # seconds of a run of tests: what hangs is noticed, too
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """`before`, which occurs once in `file`, becomes `after`; one of `tests`, files of tests/, must fail."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    @property
    def in_core(self) -> bool:
        return self.file.startswith("cpp/")


@dataclass(frozen=True)
class Outcome:
    """What happened to a fault: `test` failed with it and passes without; `problem` is why there is none."""

    name: str
    test: str | None
    problem: str | None
    seconds: float


def faults() -> list[Fault]:
    rows = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return [Fault(**row | {"tests": tuple(row["tests"])}) for row in rows]


class Copy:
    """The tracked files in another folder, with an extension of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.build = self.folder / "build" / "faults"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
        tracked = [name for name in os.fsdecode(listed).split("\0") if name and (ROOT / name).is_file()]
        for path in [path for path in self.folder.rglob("*") if path.is_file() and path.suffix != ".so"]:
            name = path.relative_to(self.folder).as_posix()
            if not name.startswith("build/") and name not in tracked:
                path.unlink()
        for name in tracked:
            source, target = ROOT / name, self.folder / name
            if not target.exists() or target.read_bytes() != source.read_bytes():  # others keep their time of change
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)

    @contextmanager
    def with_fault(self, fault: Fault) -> Iterator[None]:
        path = self.folder / fault.file
        whole = path.read_text(encoding="utf-8")
        if whole.count(fault.before) != 1:
            raise SystemExit(f"{fault.name}: its line is not in {fault.file} once; see tools/faults.yaml")
        path.write_text(whole.replace(fault.before, fault.after), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(whole, encoding="utf-8")

    def make_extension(self) -> bool:
        """Build what has changed. Returns whether it compiles."""
        if not (self.build / "build.ninja").exists():
            pybind11 = subprocess.run(
                [sys.executable, "-m", "pybind11", "--cmakedir"], check=True, capture_output=True, text=True
            )
            options = ["-G", "Ninja", "-B", str(self.build), f"-Dpybind11_DIR={pybind11.stdout.strip()}"]
            options += [f"-DPython_EXECUTABLE={sys.executable}"]
            options += ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
            subprocess.run(["cmake", *options, str(self.folder)], check=True, stdout=subprocess.DEVNULL)
        done = subprocess.run(["cmake", "--build", str(self.build)], capture_output=True, text=True)
        if done.returncode != 0:
            print(done.stdout[-4000:], file=sys.stderr)
            return False
        for path in self.build.glob("_core*.so"):
            target = self.folder / "python" / "seeddelta" / "_core" / path.name
            target.unlink(missing_ok=True)  # not written over: what has it mapped would end
            shutil.copy(path, target)
        return True

    def test(self, what: list[str]) -> tuple[int, str | None]:
        """pytest's exit status and the first test that failed; None when it cannot tell."""
        # A file that is changed twice within a second looks like its bytecode: there is none.
        environment = os.environ | {"PYTHONPATH": str(self.folder / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", *what]
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=_LIMIT
            )
        except subprocess.TimeoutExpired:
            return 1, None
        found = _FAILED.search(done.stdout)
        return done.returncode, found[1] if found else None


def tried(copy: Copy, fault: Fault, everything: bool) -> Outcome:
    """Put a fault in, and take it out again."""
    begin = time.monotonic()
    files = [] if everything else [f"tests/{name}" for name in fault.tests]
    with copy.with_fault(fault):
        builds = not fault.in_core or copy.make_extension()
        status, test = copy.test(files) if builds else (0, None)
    if fault.in_core and not copy.make_extension():
        raise SystemExit("the extension does not build without a fault")
    problem = None
    if not builds:
        problem = "does not compile, and so tests nothing"
    elif status in (0, 5):
        problem = "not noticed"
    elif status > 2:
        problem = f"pytest ended with {status}"
    elif test is not None and copy.test([test])[0] != 0:
        problem = f"{test} fails without the fault, too"
    if problem is None and test is None:
        test = f"the end of the process ({status})" if status < 0 else "a test that does not end"
    return Outcome(fault.name, None if problem else test, problem, time.monotonic() - begin)


def _arguments(known: list[Fault]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults to try; without one all")
    parser.add_argument("--list", action="store_true", help="show the faults only")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="keep the copy and its build there")
    parser.add_argument("--all", action="store_true", help="run all quick tests for each fault")
    parser.add_argument("--json", action="store_true", help="print JSON at the end instead of lines")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {fault.name for fault in known}
    if unknown:
        parser.error(f"no fault has the name {sorted(unknown)[0]}; --list shows them")
    return arguments


def main() -> int:
    known = faults()
    arguments = _arguments(known)
    chosen = [fault for fault in known if not arguments.names or fault.name in arguments.names]
    if arguments.list:
        for fault in chosen:
            print(f"{fault.name:36} {fault.file}: {' '.join(fault.tests)}")
        return 0
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="seeddelta-faults-") as temporary:
        folder = arguments.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        copy = Copy(folder)
        if not copy.make_extension():
            raise SystemExit("the extension does not build without a fault")
        for fault in sorted(chosen, key=lambda fault: fault.in_core):
            outcomes.append(tried(copy, fault, arguments.all))
            if not arguments.json:
                one = outcomes[-1]
                print(f"{one.name:36} {one.test or one.problem}  {one.seconds:.0f} s", flush=True)
    missed = [one.name for one in outcomes if one.problem]
    if arguments.json:
        print(json.dumps([asdict(one) for one in outcomes], indent=2))
    else:
        print(f"{len(outcomes) - len(missed)} of {len(outcomes)} faults noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
