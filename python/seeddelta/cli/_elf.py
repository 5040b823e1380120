"""What an ELF program is linked to, from its own tables: nothing is run, as ldd does."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3  # types of segments
_NEEDED, _STRINGS, _STRINGS_SIZE, _RPATH, _SYMBOLIC, _RUNPATH, _FLAGS = 1, 5, 10, 15, 16, 29, 30  # of the dynamic table
_FLAG_SYMBOLIC = 2
_PROGRAM_HEADER, _DYNAMIC_ENTRY = struct.Struct("<IIQQQQQQ"), struct.Struct("<qQ")
_DEFAULT = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib")


@dataclass(frozen=True)
class Object:
    """A program or library. `strings` has the names of all symbols that it exports or asks for.

    `interpreter` is its loader, empty for a library or a static program; `symbolic` says that it calls its own
    functions whoever else has some of that name.
    """

    path: Path
    interpreter: str
    needed: tuple[str, ...]
    folders: tuple[str, ...]
    strings: bytes
    symbolic: bool

    def has(self, name: str) -> bool:
        """True when a symbol of that name is exported or asked for."""
        return b"\0" + name.encode() + b"\0" in self.strings


def read_object(path: Path) -> Object:
    """Raises ValueError for what is no ELF file of 64 bits."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("is no ELF program of 64 bits")
    try:
        return _parse(path, data)
    except (struct.error, IndexError) as error:
        raise ValueError("is a damaged ELF file") from error


def _parse(path: Path, data: bytes) -> Object:
    (at,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    segments = [_PROGRAM_HEADER.unpack_from(data, at + size * i) for i in range(count)]
    loads = [(one[3], one[2], one[5]) for one in segments if one[0] == _LOAD]  # address, offset, bytes

    def offset(address: int) -> int:
        return next((address - begin + place for begin, place, length in loads if 0 <= address - begin < length), 0)

    interpreter, entries = "", []
    for kind, _, place, _, _, length, *_ in segments:
        if kind == _INTERPRETER:
            interpreter = data[place : place + length].rstrip(b"\0").decode(errors="replace")
        elif kind == _DYNAMIC:
            entries = [_DYNAMIC_ENTRY.unpack_from(data, place + i) for i in range(0, length, _DYNAMIC_ENTRY.size)]
    entries = entries[: next((i for i, (tag, _) in enumerate(entries) if tag == 0), len(entries))]
    values = dict(entries)
    begin = offset(values.get(_STRINGS, 0))
    strings = data[begin : begin + values.get(_STRINGS_SIZE, 0)] if _STRINGS in values else b""

    def text(where: int) -> str:
        return strings[where : strings.index(b"\0", where)].decode(errors="replace")

    folders = [text(values[tag]) for tag in (_RPATH, _RUNPATH) if tag in values]
    return Object(
        path=path,
        interpreter=interpreter,
        needed=tuple(text(value) for tag, value in entries if tag == _NEEDED),
        folders=tuple(folder for one in folders for folder in one.split(":") if folder),
        strings=strings,
        symbolic=_SYMBOLIC in values or bool(values.get(_FLAGS, 0) & _FLAG_SYMBOLIC),
    )


def linked(program: Object) -> Iterator[Object]:
    """The libraries that a program is linked to, and those that these are; what is not found is left out."""
    found: set[str] = set()
    queue, inherited = [program], list(program.folders)
    while queue:
        one = queue.pop(0)
        for name in one.needed:
            path = None if name in found else _find(name, one, inherited, program.path)
            found.add(name)
            if path is not None:
                library = read_object(path)
                queue.append(library)
                yield library


def _find(name: str, of: Object, inherited: list[str], program: Path) -> Path | None:
    own = [folder.replace("${ORIGIN}", "$ORIGIN") for folder in of.folders]
    folders = [folder.replace("$ORIGIN", str(of.path.resolve().parent)) for folder in own]
    origin = str(program.resolve().parent)
    folders += [folder.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", origin) for folder in inherited]
    folders = [*(f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f), *folders, *_system_folders()]
    return next((path for folder in folders if (path := Path(folder, name)).is_file()), None)


def _system_folders() -> Iterator[str]:
    for file in sorted(Path("/etc/ld.so.conf.d").glob("*.conf")):
        for line in file.read_text(errors="replace").splitlines():
            if line.startswith("/"):
                yield line.strip()
    yield from _DEFAULT
