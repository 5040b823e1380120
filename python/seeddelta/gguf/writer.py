"""Write a GGUF file: tensor after tensor, in pieces, into a temporary file that takes the name at the very end."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType

from ..errors import OutputError
from .header import DEFAULT_ALIGNMENT, NUMPY_TYPES, Header

TYPE_OF_DTYPE = {dtype: GGMLQuantizationType(kind) for kind, dtype in NUMPY_TYPES.items()}


@dataclass(frozen=True)
class Raw:
    """A metadata value as bytes (type word first), copied from another file."""

    data: bytes


@dataclass(frozen=True)
class Typed:
    """A metadata value to be packed; `item` is the type of an array's elements."""

    value: Any
    type: GGUFValueType
    item: GGUFValueType | None = None


Value = Raw | Typed


@dataclass(frozen=True)
class PlannedTensor:
    """Name, NumPy shape in elements, and type of a tensor that will be written."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType

    @property
    def nbytes(self) -> int:
        block, size = gguf.GGML_QUANT_SIZES[self.type]
        return int(prod(self.shape) // block * size)


class _Writer(gguf.GGUFWriter):  # type: ignore[misc]
    """gguf-py's writer that also takes values copied verbatim (it cannot write empty arrays by itself)."""

    def _pack_val(self, val: Any, *args: Any, **kwargs: Any) -> bytes:
        if isinstance(val, Raw):
            return val.data
        return bytes(super()._pack_val(val, *args, **kwargs))


def copied_metadata(header: Header, without: str | None = None) -> dict[str, Value]:
    """All values of a header, verbatim, except the keys that begin with `without`."""
    keys = (key for key in header.metadata if without is None or not key.startswith(without))
    return {key: Raw(header.metadata.raw(key)) for key in keys}


def crc32(chunks: Iterable[np.ndarray[Any, Any]]) -> int:
    """CRC-32 (that of zlib and PNG) of the bytes of consecutive arrays."""
    value = 0
    for chunk in chunks:
        value = zlib.crc32(_bytes_of(chunk), value)
    return value


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Value],
    tensors: Sequence[PlannedTensor],
    chunks: Callable[[PlannedTensor], Iterable[np.ndarray[Any, Any]]],
    *,
    alignment: int = DEFAULT_ALIGNMENT,
) -> int:
    """Write a GGUF file atomically and return its size in bytes.

    `chunks(tensor)` yields the tensor's data in order, as arrays of any shape that together have `tensor.nbytes` bytes.
    `alignment` must be that of `general.alignment` in `metadata`. An exception, whether from `chunks` or from the disk,
    leaves no file behind and an existing file as it was. Raises OutputError when the file cannot be written.
    """
    with atomic_output(path) as temporary:
        return write_into(temporary, metadata, tensors, chunks, alignment=alignment)


def write_into(
    path: Path,
    metadata: Mapping[str, Value],
    tensors: Sequence[PlannedTensor],
    chunks: Callable[[PlannedTensor], Iterable[np.ndarray[Any, Any]]],
    *,
    alignment: int,
) -> int:
    """The same without a temporary file."""
    writer = _Writer(path, "")
    writer.data_alignment = alignment
    try:
        for key, value in metadata.items():
            if isinstance(value, Raw):
                writer.add_key_value(key, value, GGUFValueType.STRING)
            else:
                writer.add_key_value(key, value.value, value.type, value.item)
        for tensor in tensors:
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.nbytes, tensor.type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        (file,) = writer.fout
        writer.write_padding(file, file.tell())
        for tensor in tensors:
            written = 0
            for chunk in chunks(tensor):
                file.write(_bytes_of(chunk))
                written += chunk.nbytes
            if written != tensor.nbytes:
                raise RuntimeError(f"tensor {tensor.name!r}: {written} bytes given, {tensor.nbytes} planned")
            writer.write_padding(file, written)
        file.flush()
        os.fsync(file.fileno())
        return int(file.tell())
    finally:
        with contextlib.suppress(OSError):  # a full disk: the first error is the one to tell
            writer.close()


@contextlib.contextmanager
def atomic_output(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path in the folder of `path` that is renamed to `path` when the block ends without an exception.

    OSErrors of the block become OutputError: reading errors of memory maps are signals, so what fails is writing.
    What a process left that was killed in this block is removed by the next one that writes the same path.
    """
    path = Path(path)
    check_writable(path)
    prefix, suffix = f".{path.name}.", ".part"
    with contextlib.suppress(OSError):  # a folder that may be written, not listed
        for left in path.parent.iterdir():
            if left.name.startswith(prefix) and left.name.endswith(suffix) and is_abandoned(left):
                left.unlink(missing_ok=True)
    try:
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=suffix, dir=path.parent)
    except OSError as error:
        raise output_error(path, error) from error
    temporary = Path(name)
    try:
        hold(handle)
        yield temporary
        os.chmod(temporary, _mode_of_new_file(path))
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise output_error(path, error) from error
    finally:
        os.close(handle)
        temporary.unlink(missing_ok=True)


def hold(handle: int) -> bool:
    """Lock an open file for as long as it is open; False when another process has the lock.

    True also where there are no locks (not POSIX, some network file systems): nothing tells then that two write a file.
    """
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return True
    return True


def is_abandoned(path: Path) -> bool:
    """True for a file that was held by a process that is no more; False where that cannot be known."""
    try:
        import fcntl

        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def check_writable(path: Path) -> None:
    """Refuse an output that cannot be replaced, before any work is done. Raises OutputError."""
    if path.is_dir():
        raise OutputError(f"{path}: is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise OutputError(f"{path}: the folder {path.parent} does not exist; create it first")
    # the mode, too: root may write everything, but a file marked read-only is meant to stay
    if path.exists() and not (os.access(path, os.W_OK) and path.stat().st_mode & 0o222):
        raise OutputError(f"{path}: exists and is read-only; choose another output or change its permissions")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(f"{path}: the folder {path.parent} is read-only; choose another output")


def output_error(path: Path, error: OSError) -> OutputError:
    """OutputError for a failed write, with the remedy."""
    reason = error.strerror or str(error)
    return OutputError(f"{path}: cannot be written ({reason}); free some space or choose another folder")


def _mode_of_new_file(path: Path) -> int:
    """Mode of the file that is replaced, or what the umask gives to a new one (mkstemp gives 0600)."""
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems have no such thing; the file itself is safe
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
