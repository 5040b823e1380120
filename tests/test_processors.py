"""Default numbers of threads: the processors of the affinity mask, within the quota of the control group."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import seeddelta
from seeddelta import processors as module
from seeddelta.errors import ConfigError

SOURCES = Path(seeddelta.__file__).parent


def test_one_function_counts_them() -> None:
    counting = re.compile(r"cpu_count|sched_getaffinity")
    found = [path.name for path in SOURCES.rglob("*.py") if counting.search(path.read_text(encoding="utf-8"))]
    assert sorted(found) == ["machine.py", "processors.py"]  # a report tells what the machine has


def test_the_affinity_mask_counts() -> None:
    program = "from seeddelta.processors import processors; print(processors())"
    first = min(os.sched_getaffinity(0))
    done = subprocess.run(
        ["taskset", "-c", str(first), sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"


@pytest.mark.parametrize(
    ("table", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/\n", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, 2.0),
        ("0::/a/b\n", {"a/b/cpu.max": "50000 100000", "a/cpu.max": "200000 100000"}, 0.5),
        ("0::/not/seen/in/the/container\n", {"cpu.max": "300000 100000"}, 3.0),
        ("3:cpu,cpuacct:/x\n1:memory:/y\n", {"cpu,cpuacct/x/cpu.cfs_quota_us": "250000",
                                              "cpu,cpuacct/x/cpu.cfs_period_us": "100000"}, 2.5),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("0::/\n", {"cpu.max": "nonsense"}, None),
        ("", {}, None),
    ],
)  # fmt: skip
def test_quotas_of_control_groups(table: str, files: dict[str, str], expected: float | None, tmp_path: Path) -> None:
    mount = tmp_path / "cgroup"
    mount.mkdir()
    for name, text in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(text + "\n")
    (tmp_path / "table").write_text(table)
    assert module._quota(tmp_path / "table", mount) == expected


def test_a_quota_is_rounded_up_and_within_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for quota, expected in ((None, 8), (0.5, 1), (1.0, 1), (2.5, 3), (64.0, 8)):
        monkeypatch.setattr(module, "_quota", lambda *_, q=quota: q)
        assert module.processors() == expected


def test_more_threads_than_ggml_takes_are_refused(tiny_dense: Path) -> None:
    pytest.importorskip("llama_cpp")
    for name in ("n_threads", "n_threads_batch"):
        with pytest.raises(ConfigError, match="512 threads at most"):
            seeddelta.load(tiny_dense, verbose=False, **{name: 99999})
