"""Our attention by the preloaded library, for SeedΔ models and ordinary ones: the bits and the counters of
`seeddelta.load` with the same settings, and one clear line where it cannot be."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from gguf import GGMLQuantizationType
from seeddelta.runtime import RuntimeConfig
from tiny_llama import N_LAYERS, SHORT_LAYERS

pytest.importorskip("llama_cpp")

from native_helpers import BATCHES, Told, of_both_kinds, tell

SINGLE = len(BATCHES) - 1  # tokens that are computed alone
LONG = [[(7 * i * i + 3 * i) % 400 + 32 for i in range(600)], *BATCHES[1:]]
SHIM = Path(__file__).parent / "faults" / "native_library.c"
COUNTERS = ("attention.nodes", "attention.exact", "attention.prompts", "attention.left")


@pytest.fixture(scope="module")
def models(smollm2_quantized: Path, model_dir: Path) -> dict[str, Path]:
    return of_both_kinds(model_dir / "native-attention", smollm2_quantized)


@pytest.fixture(params=["seeddelta", "ordinary"])
def model(request: pytest.FixtureRequest, models: dict[str, Path]) -> Path:
    return models[request.param]


def by_library(path: Path, folder: Path, tokens: Any = BATCHES, **options: Any) -> tuple[Told, dict[str, Any]]:
    """What a child told, and the counters of the model."""
    metrics = folder / "m.json"
    variables = {name: options.pop(name) for name in ("set", "verbose", "behind") if name in options}
    jobs = [{"load": "m", "path": path, **options}, {"eval": "m", "tokens": tokens}]
    told = tell(jobs, folder, metrics_json=str(metrics), **variables)
    assert told.code == 0, told.stderr[-2000:]
    assert told.results[0], told.lines
    found = json.loads(metrics.read_text())
    assert len(found) == 1
    return told, found.get(str(path)) or found["ordinary models"]


def by_python(
    path: Path, attention: Any, tokens: Any = BATCHES, **options: Any
) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    settings = {"n_ctx": 128, "n_batch": 128, "n_threads": 2, "n_threads_batch": 2, "logits_all": True}
    settings |= {"flash_attn": True, "verbose": False}
    llm = seeddelta.load(path, config=RuntimeConfig(attention=attention), **(settings | options))
    for batch in tokens:
        llm.eval(batch)
    logits, metrics = np.array(llm.scores[: sum(map(len, tokens))]), llm.seeddelta.metrics()
    llm.close()
    return logits, metrics


def attention_of(metrics: dict[str, Any]) -> list[Any]:
    return [metrics[name] for name in COUNTERS]


@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "products"])
def test_bits_and_counters_are_those_of_python(model: Path, flash_attn: bool, tmp_path: Path) -> None:
    told, found = by_library(model, tmp_path, set="attention=exact", flash_attn=flash_attn)
    assert told.lines == []
    logits, expected = by_python(model, "exact", flash_attn=flash_attn)
    np.testing.assert_array_equal(told.logits(1), logits)
    prompts = N_LAYERS if flash_attn else 0  # without flash attention they are llama.cpp's
    counts = [SINGLE * N_LAYERS + prompts, SINGLE * N_LAYERS, prompts, 0]
    assert attention_of(found) == attention_of(expected) == counts
    stock = by_python(model, "llama", flash_attn=flash_attn)[0]
    assert not np.array_equal(logits, stock)
    alone, _ = by_library(model, tmp_path, set="attention=llama", flash_attn=flash_attn)
    np.testing.assert_array_equal(alone.logits(1), stock)


def test_by_default_all_attention_is_ours(model: Path, tmp_path: Path) -> None:
    sizes = {"n_ctx": 1024, "n_batch": 1024}
    told, found = by_library(model, tmp_path, LONG, **sizes)
    np.testing.assert_array_equal(told.logits(1), by_python(model, "exact", LONG, **sizes)[0])
    prompts = found["attention.prompts"]
    assert prompts >= N_LAYERS
    assert attention_of(found) == [SINGLE * N_LAYERS + prompts, SINGLE * N_LAYERS, prompts, 0]
    assert told.lines == []


def test_models_beside_each_other(models: dict[str, Path], tmp_path: Path) -> None:
    """Each has counters of its own, ordinary ones share theirs, also when they are closed before the others."""
    jobs: list[dict[str, Any]] = [{"load": "a", "path": models["ordinary"]}, {"eval": "a", "tokens": BATCHES}]
    jobs += [{"load": "b", "path": models["seeddelta"]}, {"load": "c", "path": models["ordinary"]}]
    jobs += [{"eval": name, "tokens": BATCHES} for name in "cba"]
    jobs += [{"close": "a"}, {"eval": "b", "tokens": BATCHES}, {"eval": "c", "tokens": BATCHES}]
    told = tell(jobs, tmp_path, set="attention=exact", metrics_json=str(tmp_path / "m.json"))
    assert told.code == 0, told.stderr[-2000:]
    assert told.lines == []
    expected = {name: by_python(path, "exact")[0] for name, path in models.items()}
    for number, job in enumerate(jobs):
        if "eval" in job:
            name = "seeddelta" if job["eval"] == "b" else "ordinary"
            np.testing.assert_array_equal(told.logits(number), expected[name], err_msg=str(number))
    found = json.loads((tmp_path / "m.json").read_text())
    assert set(found) == {str(models["seeddelta"]), "ordinary models"}
    assert found[str(models["seeddelta"])]["attention.exact"] == 2 * SINGLE * N_LAYERS
    assert found["ordinary models"]["attention.exact"] == 4 * SINGLE * N_LAYERS


def test_who_looks_at_nodes_sees_llamas(models: dict[str, Path], tmp_path: Path) -> None:
    path, sizes = models["ordinary"], {"n_ctx": 1024, "n_batch": 1024}
    told, found = by_library(path, tmp_path, LONG, watched=True, verbose="on", **sizes)
    np.testing.assert_array_equal(told.logits(1), by_python(path, "llama", LONG, **sizes)[0])
    assert attention_of(found) == [0, 0, 0, 0]
    assert told.lines == [
        "seeddelta: ordinary models: attention is llama.cpp's: the program looks at the graph's nodes one by one (an "
        "evaluation callback)"
    ]
    told, found = by_library(path, tmp_path, watched=True, set="attention=exact")
    assert told.results == [True, None]
    assert attention_of(found) == [0, 0, 0, 0]
    assert len(told.lines) == 1
    assert "attention=exact: the program looks at the graph's nodes one by one" in told.lines[0]


def test_a_cache_that_we_do_not_know(short_f16: Path, tmp_path: Path) -> None:
    """By default llama.cpp computes with it; with `exact` nothing is."""
    cache = {"type_k": int(GGMLQuantizationType.Q5_0), "type_v": int(GGMLQuantizationType.Q5_0)}
    told, found = by_library(short_f16, tmp_path, LONG, n_ctx=1024, n_batch=1024, **cache)
    assert told.lines == []
    assert attention_of(found)[:3] == [0, 0, 0]
    assert found["attention.left"] > SINGLE * SHORT_LAYERS
    told, found = by_library(short_f16, tmp_path, set="attention=exact", **cache)
    assert told.results == [True, None]
    assert len(told.lines) == 1
    assert "attention=exact: attention of this model cannot be taken over: " in told.lines[0]


def test_settings_that_cannot_be(models: dict[str, Path], tmp_path: Path) -> None:
    """An ordinary model is llama.cpp's then, and one line says so, however many there are."""
    path = models["ordinary"]
    jobs: list[dict[str, Any]] = []
    for name in "ab":
        jobs += [{"load": name, "path": path}, {"eval": name, "tokens": BATCHES}]
    told = tell(jobs, tmp_path, set="attention=fast")
    assert told.code == 0, told.stderr[-2000:]
    stock = by_python(path, "llama")[0]
    np.testing.assert_array_equal(told.logits(1), stock)
    np.testing.assert_array_equal(told.logits(3), stock)
    assert len(told.lines) == 1
    assert told.lines[0].startswith("seeddelta: error: SEEDDELTA_SET: attention=fast: ")


def other_llama(folder: Path, *options: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (apt install gcc)")
    path = folder / "other.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", *options, SHIM, "-ldl", "-o", path], check=True)
    return path


def test_devices_beside_the_cpu(models: dict[str, Path], tmp_path: Path) -> None:
    """Ordinary models may be computed there; those of ours are loaded without."""
    behind = (other_llama(tmp_path, "-DWITH_GPU"),)
    told, found = by_library(models["ordinary"], tmp_path, behind=behind, verbose="on")
    np.testing.assert_array_equal(told.logits(1), by_python(models["ordinary"], "llama")[0])
    assert attention_of(found) == [0, 0, 0, 0]
    assert len(told.lines) == 1
    assert "of this llama.cpp may compute parts of a graph" in told.lines[0]
    told, _ = by_library(models["ordinary"], tmp_path, behind=behind, set="attention=exact")
    assert told.results == [True, None]
    assert len(told.lines) == 1
    assert "error: attention=exact: the device CPU" in told.lines[0]
    told, found = by_library(models["seeddelta"], tmp_path, behind=behind, set="attention=exact")
    assert told.lines == []
    assert found["attention.exact"] == SINGLE * N_LAYERS


def test_a_llama_that_is_not_understood(models: dict[str, Path], tmp_path: Path) -> None:
    """By default it computes all attention, and says so when it is asked to; with `exact` nothing is computed."""
    behind = (other_llama(tmp_path),)
    why = "attention cannot be taken over in this llama.cpp: ggml_flash_attn_ext_set_prec stores the precision"
    for path in models.values():
        told, found = by_library(path, tmp_path, behind=behind)
        assert told.lines == []
        np.testing.assert_array_equal(told.logits(1), by_python(path, "llama")[0])
        assert sum(found.get(name, 0) for name in COUNTERS) == 0
    told, _ = by_library(models["ordinary"], tmp_path, behind=behind, set="attention=exact")
    assert told.results == [True, None]
    assert len(told.lines) == 1
    assert f"error: attention=exact: {why}" in told.lines[0]
    jobs = [{"load": "m", "path": models["seeddelta"]}]
    told = tell(jobs, tmp_path, behind=behind, set="attention=exact")
    assert told.results == [False]
    assert len(told.lines) == 1
    assert why in told.lines[0]
