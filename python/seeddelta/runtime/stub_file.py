"""The stub file: a GGUF file in memory that llama.cpp loads in place of a SeedΔ file.

It has the metadata and the kept tensors of the SeedΔ file and, for every converted tensor, an entry of the right shape
whose data is a placeholder. The file lives in a memfd (or an unlinked temporary file), so the kept tensors are in
memory once.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import platform
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from ..errors import OutOfMemoryError, OutputError
from ..gguf import schema
from ..gguf.header import Header
from .hyperparameters import check_hyperparameters, check_vector
from .library import type_matches, unsupported

_CHUNK = 1 << 20
_NAN = b"\xff"  # all bits set: every float, and the scale of every block of the types below, is NaN
_LEAST_NAN, _NAN_MAPPINGS = 1 << 16, 1024  # bytes that are NaN, at least; mappings of them, at most
_MAP_FIXED = 0x10  # sys/mman.h
_PUNCH = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE (linux/falloc.h)

# Types of placeholders: (ggml type, values a block, bytes a block), smallest first. The CPU backend of x86 repacks
# none of them: a repacked type would be copied into memory of its own. Q1_0 is repacked on ARM, Q4_1 with AMX.
_Q1_0, _Q2_0, _Q4_1, _F16 = (41, 128, 18), (42, 64, 18), (3, 32, 20), (1, 1, 2)


@dataclass(frozen=True)
class StubTensor:
    """A tensor of the stub file.

    `source` is where its data comes from, (file, offset) or bytes; None makes a placeholder.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    nbytes: int
    source: tuple[Path, int] | memoryview | None


def placeholder(name: str, shape: tuple[int, ...]) -> StubTensor:
    """Entry of a converted tensor: the smallest type that fits its columns and that the loaded llama.cpp has."""
    candidates = [_Q1_0, _Q2_0, _Q4_1, _F16] if platform.machine() in ("x86_64", "AMD64") else [_Q2_0, _Q4_1, _F16]
    if "amx_int8" in _processor_flags():
        candidates.remove(_Q4_1)
    for number, block, size in candidates:
        if shape[-1] % block == 0 and type_matches(number, block, size):
            return StubTensor(name, shape, number, prod(shape) // block * size, None)
    raise AssertionError("F16 fits every shape")


@functools.cache
def _processor_flags() -> frozenset[str]:
    try:
        return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return frozenset()


class StubFile:
    """An open stub file. `path` can be given to llama.cpp while the stub file is open."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._placeholders = (0, 0)  # where they begin and end
        self.path = f"/proc/self/fd/{fd}"

    def seal(self) -> None:
        """Make the placeholders NaN where this process has the stub file mapped, and give back the pages of loading.

        A few pages of NaN are mapped over the placeholders again and again, so that they take no memory. Raises
        UnsupportedLlamaError when the stub file is not mapped, OutOfMemoryError when it cannot be mapped so.
        """
        begin, end = self._placeholders
        begin, end = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if begin >= end:
            return
        places = list(self._mappings())
        if not places:
            raise unsupported("it did not map the model into memory")
        libc = ctypes.CDLL(None, use_errno=True)
        libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
        libc.fallocate(self._fd, _PUNCH, begin, end - begin)  # where it is not supported they stay: only memory is lost
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        size = max(_LEAST_NAN, -(-(end - begin) // (_NAN_MAPPINGS * mmap.PAGESIZE)) * mmap.PAGESIZE)
        nan = _open_anonymous(Path("nan"))
        try:
            os.pwrite(nan, _NAN * size, 0)
            for address, offset, length in places:
                for at in range(max(begin, offset), min(end, offset + length), size):
                    count = min(size, end - at, offset + length - at)
                    where = address + at - offset
                    if libc.mmap(where, count, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, nan, 0) != where:
                        raise OutOfMemoryError(
                            f"the placeholders of the stub file cannot be mapped: {os.strerror(ctypes.get_errno())}"
                        )
        finally:
            os.close(nan)

    def kept(self) -> Iterator[tuple[int, int]]:
        """Address and bytes of what is no placeholder, where this process has the stub file mapped."""
        for address, offset, length in self._mappings():
            end = self._placeholders[0] or offset + length
            if offset < end:
                yield address, min(length, end - offset)

    def _mappings(self) -> Iterator[tuple[int, int, int]]:
        """Address, offset in the file and length of every mapping of the stub file in this process."""
        wanted = os.fstat(self._fd)
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                place, _, offset, device, inode, *_ = line.split(maxsplit=5)
                major, minor = (int(part, 16) for part in device.split(":"))
                if int(inode) == wanted.st_ino and os.makedev(major, minor) == wanted.st_dev:
                    first, last = (int(part, 16) for part in place.split("-"))
                    yield first, int(offset, 16), last - first

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def make_stub_file(
    header: Header, pieces: Iterable[StubTensor], changed: Mapping[str, bytes | None] | None = None
) -> StubFile:
    """Write the stub file of a file whose tensors are `pieces`; placeholders are put last, in one stretch.

    `changed` has metadata values that differ (type word first), None for keys that are left out.

    Raises OutputError when there is no memory or disk space for it, FormatError for what llama.cpp does not
    survive.
    """
    check_hyperparameters(header)
    ordered = sorted(pieces, key=lambda piece: piece.source is None)
    for piece in ordered:
        if len(piece.shape) == 1:
            check_vector(header, piece.name, piece.type)
    stub_file = StubFile(_open_anonymous(header.path))
    try:
        at = os.write(stub_file._fd, _header_bytes(header, ordered, changed or {}))
        at = _aligned(at, header.alignment)
        first_placeholder = None
        for piece in ordered:
            if piece.source is not None:
                _copy(piece.source, piece.nbytes, stub_file._fd, at)
            elif first_placeholder is None:
                first_placeholder = at
            at = _aligned(at + piece.nbytes, header.alignment)
        os.ftruncate(stub_file._fd, at)
        if first_placeholder is not None:
            stub_file._placeholders = (first_placeholder, at)
            # the pages at both ends stay the file's
            for begin, end in (
                (first_placeholder, min(-(-first_placeholder // mmap.PAGESIZE) * mmap.PAGESIZE, at)),
                (max(first_placeholder, at // mmap.PAGESIZE * mmap.PAGESIZE), at),
            ):
                os.pwrite(stub_file._fd, _NAN * (end - begin), begin)
    except OSError as error:
        stub_file.close()
        raise OutputError(
            f"{header.path}: no room for the kept tensors in memory or in {tempfile.gettempdir()} ({error.strerror}); "
            "free memory or point TMPDIR to a file system with space"
        ) from error
    return stub_file


def _open_anonymous(origin: Path) -> int:
    """A file without a name: in memory, or on disk where memfd is not to be had."""
    try:
        return os.memfd_create(f"seeddelta:{origin.name}"[:200])
    except (AttributeError, OSError):
        return _unnamed_file()


def _unnamed_file() -> int:
    fd, path = tempfile.mkstemp(prefix="seeddelta-")
    os.unlink(path)
    return fd


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _header_bytes(header: Header, pieces: list[StubTensor], changed: Mapping[str, bytes | None]) -> bytes:
    """GGUF version 3 header. Values are copied as bytes: decoding 49k tokens would take 100 MB."""
    keys = [key for key in header.metadata if not key.startswith(schema.PREFIX) and key not in changed]
    values = {key: header.metadata.raw(key) for key in keys}
    values |= {key: value for key, value in changed.items() if value is not None}
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(pieces), len(values))]
    for key, value in values.items():
        parts += [_string(key), value]
    offset = 0
    for piece in pieces:
        dims = tuple(reversed(piece.shape))
        parts.append(_string(piece.name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, piece.type, offset))
        offset = _aligned(offset + piece.nbytes, header.alignment)
    return b"".join(parts)


def _copy(source: tuple[Path, int] | memoryview, count: int, target: int, at: int) -> None:
    """Copy a stretch of a file without mapping it, so that its pages do not count as ours."""
    os.lseek(target, at, os.SEEK_SET)
    if isinstance(source, memoryview):
        while source:
            source = source[os.write(target, source) :]
        return
    path, offset = source
    fd = os.open(path, os.O_RDONLY)
    try:
        end = offset + count
        kernel_copies = hasattr(os, "sendfile")
        while offset < end:
            size = min(_CHUNK, end - offset)
            if kernel_copies:
                try:
                    done = os.sendfile(target, fd, offset, size)
                except OSError:
                    kernel_copies = False
                    continue
            else:
                done = os.write(target, os.pread(fd, size, offset))
            if done == 0:
                raise OSError(5, f"{path} ended while it was read")
            offset += done
    finally:
        os.close(fd)
