"""Writes the project's addresses into pyproject.toml before a release: they follow from where the repository lies.

python tools/project_urls.py https://github.com/OWNER/NAME
"""

from __future__ import annotations

import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
BEFORE = "[project.optional-dependencies]"
PAGES = {
    "Homepage": "",
    "Documentation": "/tree/main/docs",
    "Issues": "/issues",
    "Changelog": "/blob/main/CHANGELOG.md",
}


def with_urls(project: str, repository: str) -> str:
    """The text of a pyproject.toml with a table of addresses.

    Raises:
        ValueError: it has one, has no table of optional dependencies to stand before, or the address is no https one.
    """
    if not repository.startswith("https://") or any(one in repository for one in '"\\\n'):
        raise ValueError(f"no address of a repository: {repository!r}")
    if "[project.urls]" in project or project.count(BEFORE) != 1:
        raise ValueError(f"pyproject.toml has addresses, or not one {BEFORE}")
    lines = [f'{name} = "{repository.rstrip("/")}{page}"' for name, page in PAGES.items()]
    return project.replace(BEFORE, "\n".join(["[project.urls]", *lines, "", BEFORE]))


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    PROJECT.write_text(with_urls(PROJECT.read_text(encoding="utf-8"), sys.argv[1]), encoding="utf-8")


if __name__ == "__main__":
    main()
