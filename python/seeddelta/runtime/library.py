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
from .selftest import compute_products

TESTED_VERSIONS = (
    "0.3.16",
    "0.3.20",
    "0.3.30",
    "0.3.33",
    "0.3.36",
)  # docs/internals/runtime.md
_TRIAL = "from seeddelta.runtime import library; library.examine()"


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
    """Address of every function that the probe asks for; those that the library does not export are left out."""
    return _addresses([*_core.ggml_required_symbols(), *_core.ggml_known_symbols()])


def attention_symbols() -> dict[str, int]:
    """The same, with what taking over attention needs."""
    return _addresses([*_core.ggml_required_symbols(), *_core.attention_required_symbols()])


def _addresses(names: list[str]) -> dict[str, int]:
    library = native_library()
    symbols = {}
    for name in names:
        try:
            symbols[name] = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    return symbols


def probe(symbols: dict[str, int]) -> _core.GgmlAbi:
    """Layout of the loaded ggml. Raises UnsupportedLlamaError when it cannot be learned."""
    try:
        return _core.GgmlAbi(symbols)
    except RuntimeError as error:
        raise unsupported(str(error)) from error


@functools.cache
def ggml_abi() -> _core.GgmlAbi:
    """Layout of the loaded ggml, probed once a process; at the end a rewritten graph is computed.

    A release that no test knows is tried in a process of its own first: what ends that would have ended this one.
    """
    check_version()
    if llama_cpp.__version__.split("+")[0] not in TESTED_VERSIONS:
        _try_elsewhere()
    return examine()


def examine() -> _core.GgmlAbi:
    """Probe the loaded ggml and compute. Raises UnsupportedLlamaError."""
    abi = probe(ggml_symbols())
    if hasattr(native_library(), "ggml_graph_compute_with_ctx"):  # not when the CPU's functions are loaded later
        wrong = compute_products(abi, native_library())
        if wrong is not None:
            raise unsupported(wrong)
    return abi


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
