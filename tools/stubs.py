"""Writes the type stub of the compiled core from its docstrings, or checks that it is up to date.

    python tools/stubs.py           # write python/seeddelta/_core/_core.pyi
    python tools/stubs.py --check   # exit 1 when it differs

Needs the package installed with its `dev` extra. Works on the installed extension, so build first.
"""

from __future__ import annotations

import difflib
import subprocess
import sys
import tempfile
from pathlib import Path

STUB = Path(__file__).parents[1] / "python" / "seeddelta" / "_core" / "_core.pyi"


def generate() -> str:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pybind11_stubgen", "seeddelta._core._core", "-o", folder]
        subprocess.run(
            [*command, "--numpy-array-use-type-var", "--exit-code"], check=True, capture_output=True, text=True
        )
        text = (Path(folder) / "seeddelta" / "_core" / "_core.pyi").read_text(encoding="utf-8")
    lines = text.replace("os.PathLike |", "os.PathLike[str] |").splitlines()
    lines = [f"{line}".rstrip() for line in lines if not line.startswith("__version__: str =")]
    return "\n".join([*lines, "__version__: str", ""])


def main() -> int:
    fresh = generate()
    if "--check" not in sys.argv[1:]:
        STUB.write_text(fresh, encoding="utf-8")
        return 0
    stored = STUB.read_text(encoding="utf-8") if STUB.exists() else ""
    difference = list(difflib.unified_diff(stored.splitlines(), fresh.splitlines(), "stored", "generated", lineterm=""))
    print("\n".join(difference) or "the stub is up to date")
    return 1 if difference else 0


if __name__ == "__main__":
    raise SystemExit(main())
