"""The llama.cpp that llama-cpp-python has loaded: addresses of ggml functions, the probe, and what cannot be served."""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess

import llama_cpp

from .. import _core
from ..children import python_command
from ..errors import UnsupportedLlamaError

TESTED_VERSIONS = (
    "0.3.16",
    "0.3.20",
    "0.3.30",
    "0.3.33",
    "0.3.36",
)  # docs/internals/runtime.md
_TRIAL = "from seeddelta.runtime import library; library.probe()"


def unsupported(what: str) -> UnsupportedLlamaError:
    """The exception for a llama.cpp that does not fit: what failed, which version it is, and the remedy."""
    return UnsupportedLlamaError(
        f"llama-cpp-python {llama_cpp.__version__} cannot run SeedΔ models: {what}. "
        f"Tried, and working, are {', '.join(TESTED_VERSIONS)}: pip install 'llama-cpp-python=={TESTED_VERSIONS[-1]}'"
    )


def native_library() -> ctypes.CDLL:
    """The loaded libllama; its dependencies' symbols (libggml-base) can be looked up through it."""
    library = getattr(llama_cpp.llama_cpp, "_lib", None)
    if not isinstance(library, ctypes.CDLL):
        raise unsupported("its shared library cannot be found")
    return library


def ggml_symbols() -> dict[str, int]:
    """Address of every ggml function that is used; those that the library does not export are left out."""
    library, symbols = native_library(), {}
    for name in _core.ggml_symbols():
        try:
            symbols[name] = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    return symbols


def probe(symbols: dict[str, int] | None = None) -> _core.LoadedGgml:
    """Probe a ggml and have it compute (default: the loaded one). Raises UnsupportedLlamaError."""
    try:
        return _core.LoadedGgml(ggml_symbols() if symbols is None else symbols)
    except RuntimeError as error:
        raise unsupported(str(error)) from error


@functools.cache
def loaded_ggml() -> _core.LoadedGgml:
    """The loaded ggml, probed once a process.

    A release that no test knows is tried in a process of its own first: what ends that would have ended this one.
    """
    check_version()
    if llama_cpp.__version__.split("+")[0] not in TESTED_VERSIONS:
        _try_elsewhere()
    return probe()


def _try_elsewhere() -> None:
    try:
        trial = subprocess.run(python_command(_TRIAL), capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise unsupported(f"it was not tested, and trying it in another process failed ({error})") from error
    if trial.returncode != 0:
        how = f"signal {-trial.returncode}" if trial.returncode < 0 else f"status {trial.returncode}"
        said = (trial.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise unsupported(f"it was not tested, and a trial of it ended with {how}: {said}")


def check_version() -> None:
    """Raise UnsupportedLlamaError for a release older than the first tested one, whatever the probe would find."""
    oldest = TESTED_VERSIONS[0]
    found, needed = ([int(part) for part in re.findall(r"\d+", text)[:3]] for text in (llama_cpp.__version__, oldest))
    if found < needed:
        raise unsupported(f"it is older than {oldest}, the oldest that passes the tests")
