"""Writes the calibration text that comes with the package, from texts that may be redistributed.

    mkdir work && cd work
    pip download --no-deps chatterbot-corpus==1.3.3 django==5.2.19 scikit-learn==1.9.1
    pip download --no-deps --no-binary gensim gensim==4.4.0
    apt-get download r-cran-janeaustenr=1.0.0-1
    python tools/calibration_text.py work       # needs dpkg-deb, mwparserfromhell, PyYAML

Kinds, each whole and one after the other (a calibration takes chunks from all over the text): articles of an
encyclopedia, novels, source code, technical prose, dialogue in English, dialogue in twenty other languages. None of
them is reported on in docs/.
"""

from __future__ import annotations

import ast
import bz2
import contextlib
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import mwparserfromhell
import yaml

TARGET = Path(__file__).parents[1] / "python" / "seeddelta" / "calibrate" / "data" / "calibration.txt"
# Characters; ARTICLE of each article, LANGUAGE of each language: they take up to three times as many tokens as English.
ARTICLE, NOVELS, CODE, TECHNICAL, DIALOGUE, LANGUAGE = 2_300, 60_000, 90_000, 80_000, 60_000, 2_000
WIKIPEDIA = "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
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


def articles(package: Path) -> Iterator[tuple[str, str]]:
    """Titles and the first paragraphs of the articles in a dump of Wikipedia."""
    with tarfile.open(package) as archive:
        (member,) = (name for name in archive.getnames() if name.endswith(WIKIPEDIA))
        file = archive.extractfile(member)
        assert file is not None
        dump = bz2.decompress(file.read())
    for page in ElementTree.fromstring(dump).iterfind("{*}page"):
        source = page.findtext("{*}revision/{*}text") or ""
        if len(source) > 10 * ARTICLE:  # neither a redirect nor a list of meanings
            title = page.findtext("{*}title") or ""
            paragraphs = [line for line in _plain(source).splitlines() if len(line) > 200]
            yield title, f"{title}\n\n" + first(iter(paragraphs), ARTICLE, end=". ")


def _plain(source: str) -> str:
    """The sentences of an article: no references, tables, images and formulas."""
    page = mwparserfromhell.parse(source)
    for tag in page.filter_tags(matches=lambda node: node.tag in ("ref", "table", "math", "sup", "sub")):
        with contextlib.suppress(ValueError):  # within one that is gone already
            page.remove(tag)
    for link in page.filter_wikilinks(matches=lambda node: ":" in node.title):
        with contextlib.suppress(ValueError):
            page.remove(link)
    plain = re.sub(r"\(\s*[;,\s]*\)|(?<=\()[;,\s]+|^[*:#;]+.*$", "", page.strip_code(), flags=re.MULTILINE)
    return re.sub(r" +([,.;)])", r"\1", re.sub(r"[ \t]+", " ", plain))


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


def first(texts: Iterator[str], size: int, end: str = "\n") -> str:
    """Texts of `size` characters in all; the last one is cut behind an `end`."""
    kept, length = [], 0
    for text in texts:
        if length + len(text) > size:
            begun, found, _ = text[: size - length].rpartition(end)
            return "\n\n".join([*kept, begun + end.strip()] if found else kept)
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
    share = NOVELS // len(books)
    (wikipedia,) = work.glob("gensim-*.tar.gz")
    titles, encyclopedia = zip(*articles(wikipedia), strict=True)
    prose = "\n\n".join(first(iter([book[len(book) // 3 :]]), share) for book in books)
    code = "\n\n".join(first(iter([read("django", name)]), CODE // len(CODE_FILES)) for name in CODE_FILES)
    technical = first((text for name in TECHNICAL_FILES for text in docstrings(read("scikit_learn", name))), TECHNICAL)
    parts = ["\n\n".join(encyclopedia), prose, code, technical, first(dialogues(chat, "english"), DIALOGUE)]
    parts += [first(dialogues(chat, language), LANGUAGE) for language in LANGUAGES]
    text = "\n\n".join(part for part in parts if part) + "\n"
    TARGET.write_text(text, encoding="utf-8")
    print(f"{TARGET}: {len(books)} novels, {len(text)} characters, {len(text.encode())} bytes")
    print("articles:", ", ".join(titles))
    return 0


if __name__ == "__main__":
    sys.exit(main())
