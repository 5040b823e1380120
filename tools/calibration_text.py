"""Writes the calibration text that comes with the package, from texts that may be redistributed.

    mkdir work && cd work
    pip download --no-deps chatterbot-corpus==1.3.3 django==5.2.19 scikit-learn==1.9.1
    apt-get download r-cran-janeaustenr=1.0.0-1
    python tools/calibration_text.py work       # needs dpkg-deb

Kinds, each whole and one after the other (a calibration takes chunks from all over the text): English prose, source
code, technical prose, dialogue in English, dialogue in twenty other languages. None of them is reported on in docs/.
"""

from __future__ import annotations

import ast
import re
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import yaml

TARGET = Path(__file__).parents[1] / "python" / "seeddelta" / "calibrate" / "data" / "calibration.txt"
PROSE, CODE, TECHNICAL, DIALOGUE, LANGUAGE = 150_000, 100_000, 80_000, 60_000, 6_000  # characters; LANGUAGE of each
LANGUAGES = (
    "spanish", "french", "german", "italian", "portuguese", "dutch", "swedish", "russian", "ukrainian", "turkish",
    "indonesian", "chinese", "traditionalchinese", "japanese", "korean", "hindi", "bengali", "persian", "hebrew",
    "thai",
)  # fmt: skip
CODE_FILES = (
    "django/utils/text.py", "django/db/models/query.py", "django/template/base.py", "django/core/paginator.py",
    "django/http/request.py", "django/contrib/admin/static/admin/js/core.js", "django/utils/dateparse.py",
    "django/core/management/base.py", "django/contrib/admin/static/admin/css/forms.css", "django/forms/fields.py",
)  # fmt: skip
TECHNICAL_FILES = (
    "sklearn/linear_model/_logistic.py", "sklearn/cluster/_kmeans.py", "sklearn/decomposition/_pca.py",
    "sklearn/ensemble/_forest.py", "sklearn/svm/_classes.py", "sklearn/model_selection/_split.py",
)  # fmt: skip


def novels(package: Path) -> Iterator[str]:
    """Character vectors of R's lazy data base: a length and a zlib stream an object, strings with flags and length."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
        (path,) = Path(folder).rglob("data/Rdata.rdb")
        data = path.read_bytes()
    at = 0
    while at < len(data):
        stream = zlib.decompressobj()
        plain = stream.decompress(data[at + 4 :])
        at = len(data) - len(stream.unused_data)
        lines, begin = [], 0
        while (begin := plain.find(b"\x00\x04\x00\x09", begin)) >= 0:
            (length,) = struct.unpack_from(">i", plain, begin + 4)
            if 0 <= length < 500:
                lines.append(plain[begin + 8 : begin + 8 + length].decode())
                begin += length
            begin += 8
        if len(lines) > 1000:
            yield "\n".join(lines)


def docstrings(source: str) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(ast.parse(source)):
        text = ast.get_docstring(node) if isinstance(node, kinds) else None
        if text and len(text) > 400:
            yield text


def dialogues(package: zipfile.ZipFile, language: str) -> Iterator[str]:
    for name in sorted(package.namelist()):
        if name.startswith(f"chatterbot_corpus/data/{language}/") and name.endswith(".yml"):
            for turns in yaml.safe_load(package.read(name)).get("conversations", []):
                speakers = ("User", "Assistant")
                lines = [f"{speakers[i % 2]}: {str(turn).strip()}" for i, turn in enumerate(turns)]
                if len(lines) > 1:
                    yield "\n".join(lines)


def first(texts: Iterator[str], size: int) -> str:
    """As many whole texts as begin within `size` characters; the last one is cut at the end of a line."""
    kept, length = [], 0
    for text in texts:
        if length >= size:
            break
        if length + len(text) > size:
            text = text[: size - length].rpartition("\n")[0]
        kept.append(text)
        length += len(text) + 2
    return "\n\n".join(kept)


def main() -> int:
    work = Path(sys.argv[1])
    (book_package,) = work.glob("r-cran-janeaustenr_*.deb")
    packages = {name: zipfile.ZipFile(next(work.glob(f"{name}-*.whl"))) for name in ("django", "scikit_learn")}
    chat = zipfile.ZipFile(next(work.glob("chatterbot_corpus-*.whl")))

    def read(package: str, name: str) -> str:
        return packages[package].read(name).decode()

    books = [re.sub(r"\n{3,}", "\n\n", book) for book in novels(book_package)]
    share = PROSE // len(books)
    prose = "\n\n".join(first(iter([book[len(book) // 3 :]]), share) for book in books)
    code = "\n\n".join(first(iter([read("django", name)]), CODE // len(CODE_FILES)) for name in CODE_FILES)
    technical = first((text for name in TECHNICAL_FILES for text in docstrings(read("scikit_learn", name))), TECHNICAL)
    parts = [prose, code, technical, first(dialogues(chat, "english"), DIALOGUE)]
    parts += [first(dialogues(chat, language), LANGUAGE) for language in LANGUAGES]
    text = "\n\n".join(part for part in parts if part) + "\n"
    TARGET.write_text(text, encoding="utf-8")
    print(f"{TARGET}: {len(books)} novels, {len(text)} characters, {len(text.encode())} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
