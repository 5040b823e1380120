"""How many processors this process may use: those of its affinity mask, within the quota of its control group."""

from __future__ import annotations

import math
import os
from pathlib import Path

MAX_THREADS = 512  # GGML_MAX_N_THREADS of ggml.h: with more ggml ends the process
_CGROUP = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def processors() -> int:
    """Processors that this process may use, at least 1: for every default number of threads."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(_CGROUP, _MOUNT)
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def _quota(table: Path, mount: Path) -> float | None:
    """The smallest quota of a process's control groups in processors, as containers set it; None without one.

    `table` is the process's list of groups, `mount` where their files are: version 2 of control groups has `cpu.max` in
    the group and in those around it, version 1 two files of the controller `cpu`.
    """
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return None
    found = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = mount / controllers if controllers else mount
        # A container often sees its own group as the root, whatever the list says.
        place = root / group.lstrip("/")
        for folder in [place, *place.parents]:
            if folder == mount.parent:
                break
            if (quota := _quota_of(folder)) is not None:
                found.append(quota)
    return min(found, default=None)


def _quota_of(folder: Path) -> float | None:
    try:
        if (file := folder / "cpu.max").is_file():
            quota, period = file.read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return float(quota) / float(period) if quota != "max" and float(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
