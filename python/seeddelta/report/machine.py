"""The machine that something was measured on."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    """CPU, kernel, instruction sets and versions that a measurement depends on, and the time; JSON can hold it."""
    from .. import __version__, _core
    from ..session import system_info

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
            versions[package] = __version__ if package == "seeddelta" else "?"
    interesting = ("avx", "fma", "f16c", "amx", "vnni", "asimd", "sve")
    return {
        "cpu": cpu.get("model name", platform.processor()),
        "flags": sorted(flag for flag in cpu.get("flags", "").split() if any(word in flag for word in interesting)),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "kernel": platform.platform(),
        "python": platform.python_version(),
        "isa": _core.isa_active(),
        "ggml": system_info(),
        "versions": versions,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
