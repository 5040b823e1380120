"""Write a file so that no failure and no kill harms what was there: a temporary one takes the name at the very end."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import OutputError, SeedDeltaError

_SUFFIX = ".part"
SPLIT_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.[^.]+)?")


def names_of_parts(name: str) -> list[str]:
    """Names of all parts of the model of which this is the name of one; the name itself when there is one part only."""
    match = SPLIT_NAME.fullmatch(name)
    if match is None:
        return [name]
    return [f"{match[1]}-{n + 1:05d}-of-{match[3]}{match[4] or ''}" for n in range(int(match[3]))]


@contextlib.contextmanager
def atomic_output(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path in the folder of `path` that is renamed to `path` when the block ends without an exception.

    OSErrors of the block become OutputError: reading errors of memory maps are signals, so what fails is writing.
    What a process left that was killed in this block is removed by the next one that writes the same path.
    """
    path = Path(path)
    check_writable(path)
    path = real_path(path)
    remove_abandoned(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=_SUFFIX, dir=path.parent)
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
        if isinstance(error, SeedDeltaError):
            raise
        raise output_error(path, error) from error
    finally:
        os.close(handle)
        temporary.unlink(missing_ok=True)


def remove_abandoned(path: Path) -> None:
    """Remove what processes left that were killed while they wrote a path."""
    with contextlib.suppress(OSError):  # a folder that may be written, not listed
        for left in path.parent.iterdir():
            if left.name.startswith(f".{path.name}.") and left.name.endswith(_SUFFIX) and is_abandoned(left):
                left.unlink(missing_ok=True)


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


_read: Counter[tuple[int, int]] = Counter()  # device and inode of the files that somebody reads now
_lock = threading.Lock()
_ROOM = 40  # bytes of a name that temporary files and folders beside an output need


@contextlib.contextmanager
def reading(paths: Iterable[str | os.PathLike[str]]) -> Iterator[None]:
    """Until the block ends no output may replace these files, in any thread; a folder stands for the files in it.

    What is no file (an address, a name that does not exist) is passed over.
    """
    found = [identity for path in paths for identity in _identities(Path(path))]
    with _lock:
        _read.update(found)
    try:
        yield
    finally:
        with _lock:
            _read.subtract(found)


def _identities(path: Path) -> Iterator[tuple[int, int]]:
    with contextlib.suppress(OSError, ValueError):
        for place in path.iterdir() if path.is_dir() else map(path.with_name, names_of_parts(path.name)):
            with contextlib.suppress(OSError):
                state = place.stat()
                yield state.st_dev, state.st_ino


def check_outputs(paths: Iterable[Path | None]) -> None:
    """Refuse outputs of one command of which one cannot be written, or two are the same file. Raises OutputError."""
    places: dict[Path, Path] = {}
    for path in paths:
        if path is not None:
            check_writable(path)
            same = places.setdefault(real_path(path), path)
            if same is not path:
                raise OutputError(f"{path}: is the name of two outputs; give each a name of its own")


def real_path(path: Path) -> Path:
    """Where an output is written: links are followed, so that the link stays one."""
    return Path(os.path.realpath(path))


def check_writable(path: Path) -> None:
    """Refuse an output that cannot be replaced, before any work is done. Raises OutputError."""
    given, path = path, real_path(path)
    if path.is_dir():
        raise OutputError(f"{given}: is a folder; give the name of a file")
    if os.path.lexists(path) and not path.is_file():
        raise OutputError(f"{given}: is no regular file but a device, a pipe or the like; give the name of a file")
    if not path.parent.is_dir():
        raise OutputError(f"{given}: the folder {path.parent} does not exist; create it first")
    longest = os.pathconf(path.parent, "PC_NAME_MAX") - _ROOM
    if len(os.fsencode(path.name)) > longest:
        raise OutputError(f"{given}: the name is longer than {longest} bytes; give a shorter one")
    if path.exists():
        state = path.stat()
        if _read[state.st_dev, state.st_ino] > 0:
            raise OutputError(f"{given}: is an input of the same command; choose another output")
        # the mode, too: root may write everything, but a file marked read-only is meant to stay
        if not (os.access(path, os.W_OK) and state.st_mode & 0o222):
            raise OutputError(f"{given}: exists and is read-only; choose another output or change its permissions")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(f"{given}: the folder {path.parent} is read-only; choose another output")


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
