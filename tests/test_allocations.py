"""No allocation while ggml's threads compute, and what becomes of a decode for which there is no memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import seeddelta

pytest.importorskip("llama_cpp")

from conftest import made_once
from llama_helpers import with_base_scale
from tiny_llama import write_experts, write_llama

HERE = Path(__file__).parent
PACK = "'state_pack_kv': StatePackKV('binary', min_context=8, gap_every=0, gap=9.0, layers='')"
EXACT = "'state_pack_kv': StatePackKV('exact', min_context=1)"
KEYS = "'event': EventDriven(target='kv', delta_theta=0.5, gap_every=0)"
# model, options, tensor whose products overflow
CASES = {
    "rows": ("full", "{}", None),
    "experts": ("experts", "{}", None),
    "columns": ("columns", "{'kwta': Kwta(k=0.5)}", None),
    "bits of keys": ("full", "{" + PACK + "}", None),
    "events": ("columns", "{'event': EventDriven(target='both', delta_theta=0.1, gap_every=0)}", None),
    "events of keys": ("full", "{" + EXACT + ", " + KEYS + "}", None),
    "fallback": ("full", "{}", "blk.1.ffn_up.weight"),
    "fallback of experts": ("experts", "{}", "blk.1.ffn_up_exps.weight"),
}
QUICK = ("rows",)


@pytest.fixture(scope="session")
def preload(shared_dir: Path) -> Path:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler is installed")
    source = HERE / "faults" / "allocations.cpp"
    command = [compiler, "-O1", "-std=c++17", "-shared", "-fPIC", str(source), "-ldl", "-o"]
    return made_once(
        shared_dir / "allocations.so", lambda path: subprocess.run([*command, str(path)], check=True, timeout=120)
    )


@pytest.fixture(scope="session")
def models(smollm2_quantized: Path, shared_dir: Path) -> dict[str, Path]:
    def build(name: str, dense: Path, **recipe: Any) -> Path:
        options = {"input": dense, "bits": 4, "seeddelta_gap": 9} | recipe
        return made_once(
            shared_dir / f"allocations-{name}.gguf",
            lambda path: seeddelta.build(seeddelta.Recipe(output=path, effort="fast", **options), progress=False),  # type: ignore[arg-type]
        )

    dense = made_once(shared_dir / "allocations-dense.gguf", lambda path: write_llama(path, smollm2_quantized))
    mixture = made_once(
        shared_dir / "allocations-mixture.gguf", lambda path: write_experts(path, smollm2_quantized, "qwen2moe")
    )
    return {
        "dense": dense,
        "mixture": mixture,
        "full": build("full", dense, targets="full"),
        "columns": build("columns", dense, layout="column"),
        "experts": build("experts", mixture, targets="full"),
    }


def decode(preload: Path, models: dict[str, Path], case: str, tmp_path: Path, fail: bool) -> dict[str, Any]:
    model, options, broken = CASES[case]
    path = models[model]
    if broken is not None:
        path = with_base_scale(path, tmp_path / "overflow.gguf", broken, 3e38)
    dense = models["mixture" if model == "experts" else "dense"]
    environment = os.environ | {
        "LD_PRELOAD": str(preload),
        "PYTHONPATH": os.pathsep.join([str(Path(seeddelta.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, str(HERE / "allocation_child.py"), str(dense), str(path), options, str(int(fail))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (found["dense_calls"] > 0) == (broken is not None)
    return found


@pytest.mark.parametrize("case", [case for case in CASES if case not in QUICK])
def test_no_allocation_while_threads_compute(preload: Path, models: dict[str, Path], tmp_path: Path, case: str) -> None:
    assert decode(preload, models, case, tmp_path, fail=False)["computing"] == 0


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES]
)
def test_no_memory_is_an_error_and_the_next_decode_is_right(
    preload: Path, models: dict[str, Path], tmp_path: Path, case: str
) -> None:
    """Every allocation of a few decodes fails once: over all cases more than a thousand."""
    found = decode(preload, models, case, tmp_path, fail=True)
    assert found["computing"] == 0
    assert found["failures"] == found["number"] - 1 >= 50
    assert len(found["messages"]) == 1
    assert "no memory for the next computation" in found["messages"][0]
