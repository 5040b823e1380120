"""The text of a package of manual pages, in a language that the calibration text hardly has.

    apt-get download manpages-zh && dpkg-deb -x manpages-zh_*.deb zh
    python benchmarks/manual_pages.py zh/usr/share/man/zh_CN zh.txt

Lines of sections 1, 2 and 7 without most of their markup, those that take more than 1.5 bytes per character in UTF-8.
"""

from __future__ import annotations

import argparse
import gzip
import re
from pathlib import Path

PAGES, CHARACTERS = 400, 300_000


def page(path: Path) -> str:
    """A page without comments, names of macros and the commonest escapes."""
    text = gzip.decompress(path.read_bytes()).decode("utf-8")
    text = "\n".join(line for line in text.split("\n") if not line.startswith(("'", '.\\"')))
    text = re.sub(r"^\.[A-Za-z]+ ?", "", text, flags=re.MULTILINE)
    return re.sub(r"\\f[A-Z]|\\-|\\&|\\\(..", "", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with man1, man2 and man7")
    parser.add_argument("output", type=Path, help="text file to write")
    options = parser.parse_args()
    paths = sorted(options.folder.glob("man[127]/*.gz"), key=str)[:PAGES]
    lines = [line for path in paths for line in page(path).split("\n")]
    lines = [line for line in lines if len(line.encode()) > len(line) * 1.5 and len(line) > 12]
    options.output.write_text("\n".join(lines)[:CHARACTERS], encoding="utf-8")


if __name__ == "__main__":
    main()
