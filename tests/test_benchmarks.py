"""The programs of benchmarks/ run, on the smallest shape."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from seeddelta import _core
from seeddelta.session import open_model
from seeddelta.session.decoder import Decoder
from tiny_llama import write_llama

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
NAMES = ("F16", "seeddelta-4", "Q4_K")
N_PROMPT, N_GEN, DEPTH = 32, 4, 40

pytestmark = pytest.mark.usefixtures("smollm2_quantized")  # the tokenizer


@pytest.fixture(scope="module")
def work(model_dir: Path) -> Path:
    return model_dir / "benchmark-models"


@pytest.fixture(scope="module")
def result(work: Path) -> Any:
    """Two groups of two models, one repetition."""
    paths = [str(Path(seeddelta.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [
        sys.executable, str(BENCHMARKS / "bench_decode.py"), "--shape", "tiny", "--models", ",".join(NAMES),
        "--threads", "1", "--reps", "1", "--prompt", str(N_PROMPT), "--gen", str(N_GEN), "--depth", f"0,{DEPTH}",
        "--together", "2", "--work", str(work), "--results", str(work / "results"),
    ]  # fmt: skip
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)})
    return json.loads((work / "results" / "decode-tiny.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_every_model_is_measured_at_every_depth(result: Any) -> None:
    assert result["settings"]["groups"] == [["F16", "seeddelta-4"], ["F16", "Q4_K"]]
    assert list(result["models"]) == list(NAMES)
    for model in result["models"].values():
        assert [speed["depth"] for speed in model["speed"]] == [0, DEPTH]
        for speed in model["speed"]:
            for part in ("prompt", "generation"):
                assert 0 < speed[part]["min"] <= speed[part]["median"] <= speed[part]["max"]
                assert "samples" not in speed[part]
    model = result["models"]["seeddelta-4"]
    ours, theirs = (result["models"][name]["speed"][1]["prompt"] for name in ("seeddelta-4", "F16"))
    relative = model["relative"][1]["prompt"]["median"]  # to F16 beside it: one of its two measurements
    assert ours["median"] / theirs["max"] * 0.999 <= relative <= ours["median"] / theirs["min"] * 1.001
    assert result["models"]["F16"]["relative"] is None


def test_models_are_what_their_names_say(result: Any) -> None:
    kinds = {name: model["kind"] for name, model in result["models"].items()}
    assert kinds == {"F16": "F16", "seeddelta-4": "SeedΔ 4 bits", "Q4_K": "Q4_K"}
    metrics = result["models"]["seeddelta-4"]["metrics"]
    assert metrics["seeddelta.weights"] == 14
    # each matrix, for every token that is generated and every prompt, at the least
    assert metrics["seeddelta.calls"] >= 14 * 2 * (N_GEN + 1)


def test_machine_is_described(result: Any) -> None:
    assert result["machine"]["isa"] == _core.isa_active()
    assert "CPU" in result["machine"]["ggml"]


def test_figure_is_written(result: Any, work: Path) -> None:
    assert (work / "results" / "decode-tiny.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture(params=NAMES)
def llm(request: pytest.FixtureRequest, result: Any, work: Path) -> Iterator[Any]:
    model = open_model(next(work.glob(f"synthetic-tiny-{request.param}*.gguf")), n_ctx=64, threads=1)
    yield model
    model.close()


def test_layers_are_repeated_and_logits_are_finite(llm: Any) -> None:
    assert llm.metadata["llama.block_count"] == "2"
    logits = Decoder(llm).decode(np.arange(100, 116, dtype=np.int32), 0, slice(0, 16))
    assert np.isfinite(logits).all()
    assert 0.1 < logits.std() < 100


def test_speed_of_proc_sparse_weights(work: Path) -> None:
    paths = [str(Path(seeddelta.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, str(BENCHMARKS / "bench_proc_sparse.py"), "speed", "--shapes", "64x128", "--reps", "1"]
    command += ["--fanouts", "1,0.5", "--results", str(work / "results")]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)})
    saved = json.loads((work / "results" / "proc-sparse-speed.json").read_text(encoding="utf-8"))
    rows = saved["shapes"]["64x128"]
    assert {name for name in rows if "fan-out" in name} == {
        f"fan-out {fanout}, base {scale}" for fanout in ("1", "0.5") for scale in ("0.05", "0")
    }
    assert all(0 < row["range"][0] <= row["range"][1] for row in rows.values())
    assert rows["fan-out 0.5, base 0"]["bytes_of_dense"] < 0.3 < rows["fan-out 1, base 0"]["bytes_of_dense"] < 0.55


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["tiny-dense", "tiny-experts"])
def test_stages_of_quantize(work: Path, shape: str) -> None:
    command = [sys.executable, str(BENCHMARKS / "bench_quantize.py"), "--shape", shape, "--chunks", "2"]
    command += ["--work", str(work), "--results", str(work / "results")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    saved = json.loads((work / "results" / f"quantize-{shape}.json").read_text(encoding="utf-8"))
    for stage in ("text through blocks", "factor", "encode embedding and head"):
        assert stage in done.stdout
        assert saved["stages"][stage]["seconds"] > 0
    assert saved["over_bounds"] > 0
    assert saved["whole_hours"] > 0
    assert max(saved["disk"].values()) > 0
    assert len(saved["loaded"]) == 2


@pytest.mark.slow
def test_costs_of_a_conversion(work: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "bench_costs.py"), "--shapes", "tiny-dense", "--blocks", "1"]
    subprocess.run([*command, "--work", str(work), "--results", str(work / "results")], check=True)
    (costs,) = json.loads((work / "results" / "costs.json").read_text(encoding="utf-8"))["shapes"].values()
    assert list(costs) == ["fast", "normal", "best"]
    assert costs["fast"]["file"] == costs["normal"]["file"] > 50000 * 64 / 2  # the embedding at five bits, and layers
    assert costs["best"]["disk"] > costs["normal"]["disk"] > costs["normal"]["file"]


@pytest.mark.slow
def test_clients_of_a_server(smollm2_quantized: Path, tmp_path: Path) -> None:
    """Throughput and a soak, of a tiny model for seconds."""
    pytest.importorskip("fastapi")
    pytest.importorskip("openai")
    model = tmp_path / "tiny.seeddelta.gguf"
    dense = write_llama(tmp_path / "dense.gguf", smollm2_quantized)
    seeddelta.build(seeddelta.Recipe(input=dense, output=model, bits=4, targets="full"), progress=False)
    paths = [str(Path(seeddelta.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    for program, arguments in (
        ("bench_serve.py", ["--serve", f"tiny={model}", "--streams", "1,2", "--tokens", "8", "--reps", "1"]),
        ("soak_serve.py", [str(model), "--minutes", "0.1", "--clients", "4"]),
    ):
        command = [sys.executable, str(BENCHMARKS / program), *arguments, "--results", str(tmp_path)]
        subprocess.run(command, check=True, env=environment)
    served = json.loads((tmp_path / "serve.json").read_text(encoding="utf-8"))["models"]["tiny"]
    assert [count for count, one in served["streams"].items() if one["speed"] > 0 < one["pass_ms"]] == ["1", "2"]
    assert served["first_token_ms"]["behind"] > 0
    soak = json.loads((tmp_path / "soak.json").read_text(encoding="utf-8"))
    assert (soak["failed"], soak["exit_code"]) == (0, 0)
    assert sum(soak["requests"].values()) > 20
