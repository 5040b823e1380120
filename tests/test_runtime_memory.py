"""The dense matrices are never resident (docs/runtime.md, Memory)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp")

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


def test_resident_memory(smollm2_seeddelta: Path, smollm2_f16: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also with a fallback, which is mapped but not read."""
    command = [sys.executable, "-c", CHILD, str(smollm2_seeddelta), str(smollm2_f16)]
    child = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    used = json.loads(child.stdout.splitlines()[-1])
    buffers = re.findall(r"(KV|compute) buffer size += +([\d.]+) MiB", child.stderr)
    assert {kind for kind, _ in buffers} == {"KV", "compute"}, child.stderr
    resident = used["RssAnon"] + used["RssFile"] + used["RssShmem"]
    allowed = smollm2_seeddelta.stat().st_size / 2**20 + sum(float(size) for _, size in buffers) + 80
    with capsys.disabled():
        parts = ", ".join(f"{key} {value:.0f}" for key, value in used.items())
        print(f"\nresident {resident:.0f} MiB ({parts}), allowed {allowed:.0f}; {buffers}")
    assert resident <= allowed
    assert used["VmHWM"] <= 1.25 * allowed
