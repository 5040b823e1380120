"""Write a file so that no failure and no kill harms what was there: a temporary one takes the name at the very end."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .errors import OutputError

_SUFFIX = ".part"


@contextlib.contextmanager
def atomic_output(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path in the folder of `path` that is renamed to `path` when the block ends without an exception.

    OSErrors of the block become OutputError: reading errors of memory maps are signals, so what fails is writing.
    What a process left that was killed in this block is removed by the next one that writes the same path.
    """
    path = Path(path)
    check_writable(path)
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
        if isinstance(error, OutputError):
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
