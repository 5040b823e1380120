"""The dense matrices are never resident (docs/internals/runtime.md, Memory)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.slow

CHILD = """
import json, sys
import seeddelta
model, fallback = sys.argv[1:]
llm = seeddelta.load(model, fallback=fallback, n_ctx=512, n_threads=2, n_threads_batch=2, verbose=True)
never = {llm.token_eos(): -100.0}
llm.create_completion("The history of the Roman Empire", max_tokens=64, temperature=0, logit_bias=never)
assert llm.n_tokens >= 64
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({k: int(status[k].split()[0]) / 1024 for k in ("RssAnon", "RssFile", "RssShmem", "VmHWM")}))
"""


def measure(model: Path, fallback: Path) -> tuple[dict[str, float], list[tuple[str, str]]]:
    """Memory of a process after 64 tokens, MiB, and the sizes of llama.cpp's buffers."""
    command = [sys.executable, "-c", CHILD, str(model), str(fallback)]
    child = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    used = json.loads(child.stdout.splitlines()[-1])
    buffers = re.findall(r"(KV|compute) buffer size += +([\d.]+) MiB", child.stderr)
    assert {kind for kind, _ in buffers} == {"KV", "compute"}, child.stderr
    return used | {"resident": used["RssAnon"] + used["RssFile"] + used["RssShmem"]}, buffers


def test_resident_memory(smollm2_seeddelta: Path, smollm2_f16: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also with a fallback, which is mapped but not read."""
    used, buffers = measure(smollm2_seeddelta, smollm2_f16)
    allowed = smollm2_seeddelta.stat().st_size / 2**20 + sum(float(size) for _, size in buffers) + 80
    with capsys.disabled():
        parts = ", ".join(f"{key} {value:.0f}" for key, value in used.items())
        print(f"\n{parts} MiB, allowed {allowed:.0f}; {buffers}")
    assert used["resident"] <= allowed
    assert used["VmHWM"] <= 1.25 * allowed


def test_no_matrix_is_left(smollm2_full: Path, smollm2_f16: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With embedding and output matrix converted, too, the view holds the norms alone."""
    used, dense = measure(smollm2_full, smollm2_f16)[0], measure(smollm2_f16, smollm2_f16)[0]
    saved = (smollm2_f16.stat().st_size - smollm2_full.stat().st_size) / 2**20
    with capsys.disabled():
        print(f"\nresident {used['resident']:.0f} MiB, dense {dense['resident']:.0f}; the file is {saved:.0f} smaller")
    assert used["RssShmem"] < 2
    assert dense["resident"] - used["resident"] > saved - 10
