"""SeedΔ models by the preloaded library (`seeddelta exec`), in a process that has no Python of ours: the same logits,
bit for bit, as by `seeddelta.load` on the same llama.cpp, and one clear line where there are none."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta

pytest.importorskip("llama_cpp")

from native_helpers import BATCHES, Told, load_and_eval, python_logits, tell, with_scale
from tiny_llama import N_LAYERS, write_experts, write_llama

# Every base, residual, layout and use that is served
CASES: dict[str, dict[str, Any]] = {
    "rows": {"bits": 4, "targets": "all"},
    "embedding": {"bits": 5, "targets": "full"},
    "columns": {"bits": 3, "targets": "all", "column_tensor": ["ffn_down", "ffn_gate", "attn_k"]},
    "coo": {"base_kind": "prng_block", "scheme": "coo", "K": 8, "base_scale": 0.005},
    "coo-int8": {"base_kind": "lanes", "scheme": "coo", "K": 8, "vals": "int8", "bits": 2},
    "block": {"base_kind": "fht_struct", "scheme": "block", "K": 1, "block": 32, "base_scale": 0.0003},
    "block-int8": {"base_kind": "lanes", "scheme": "block", "K": 1, "block": 64, "vals": "int8", "row_scale": "f32"},
    "codebook": {"base_kind": "lanes", "scheme": "codebook_resid", "K": 2, "codebook_size": 8, "bits": 2},
    "statecells": {"base_kind": "none", "scheme": "codebook_resid", "K": "auto", "bits": 4, "codebook_size": 24},
    "seed-per-row": {"base_kind": "prng_block", "scheme": "none", "seed_per": "row", "seed_search": 32, "block": 8},
    "seed-per-block": {"base_kind": "prng_block", "scheme": "none", "seed_per": "block", "seed_search": 32, "block": 8},
    "proc-sparse": {
        "proc_sparse": True, "proc_target": "both", "proc_fanout": 2, "proc_watermark": 50, "proc_base_scale": 0.05,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def dense(smollm2_quantized: Path, model_dir: Path) -> Path:
    return write_llama(model_dir / "native.gguf", smollm2_quantized)


def built(source: Path, name: str, **recipe: Any) -> Path:
    path = source.with_name(f"native-{name}.seeddelta.gguf")
    if not path.exists():
        options = {"no_checkpoint": True, "effort": "fast"} | recipe
        seeddelta.build(seeddelta.Recipe(input=source, output=path, **options), progress=False)
    return path


@pytest.fixture(scope="module")
def models(dense: Path, smollm2_quantized: Path, model_dir: Path) -> dict[str, Path]:
    experts = write_experts(model_dir / "native-experts.gguf", smollm2_quantized, "qwen2moe")
    found = {name: built(dense, name, **recipe) for name, recipe in CASES.items()}
    return found | {"experts": built(experts, "of-experts", targets="full")}


@pytest.fixture(scope="module")
def rows(models: dict[str, Path]) -> Path:
    return models["rows"]


@pytest.fixture(scope="module")
def told(models: dict[str, Path], dense: Path, model_dir: Path) -> Told:
    """One process that loads all models, one after the other, and an ordinary one."""
    jobs = []
    for path in (*models.values(), dense):
        jobs += [*load_and_eval(path), {"close": "m"}]
    return tell(jobs, model_dir, metrics_json=str(model_dir / "native-metrics.json"))


@pytest.mark.parametrize("name", [*CASES, "experts", "ordinary"])
def test_logits_are_those_of_python(
    name: str, models: dict[str, Path], dense: Path, told: Told, model_dir: Path
) -> None:
    paths = models | {"ordinary": dense}
    assert told.code == 0, told.stderr[-2000:]
    assert told.lines == []
    number = list(paths).index(name)
    assert told.results[3 * number]
    np.testing.assert_array_equal(told.logits(3 * number + 1), python_logits(paths[name]))


def test_counters_are_those_of_python(models: dict[str, Path], told: Told, model_dir: Path) -> None:
    """So the kernels ran; of the last model, as those before it were unloaded."""
    assert told.code == 0
    metrics = json.loads((model_dir / "native-metrics.json").read_text())
    path = models["experts"]
    found = metrics[str(path)]
    llm = seeddelta.load(
        path, n_ctx=128, n_batch=128, n_threads=2, n_threads_batch=2, logits_all=True, flash_attn=True, verbose=False
    )
    for batch in BATCHES:
        llm.eval(batch)
    expected = llm.seeddelta.metrics()
    llm.close()
    assert found["seeddelta.calls"] > 0
    assert found["seeddelta.experts"] > 0
    assert found["seeddelta.rows"] > 0
    expected = {name: value for name, value in expected.items() if name in found}
    # llama-cpp-python asks one context after the other for its logits; nodes are all that another walk sees
    assert len(expected) > 25
    for name in ("seeddelta.nodes_seen", "seeddelta.prefetched"):
        expected.pop(name), found.pop(name)
    assert {name: found[name] for name in expected} == expected


def refused(told: Told, *, words: str = "") -> str:
    """The one line of a process that loaded nothing and went on."""
    assert told.code == 0, told.stderr[-2000:]
    assert told.results[0] is False, told.results
    errors = [line for line in told.lines if " error: " in line]
    assert len(errors) == 1, told.stderr[-2000:]
    assert words in errors[0]
    return errors[0]


def load_only(path: Path) -> list[dict[str, Any]]:
    return [{"load": "m", "path": path}]


def test_models_that_end_the_program_are_refused(rows: Path, tmp_path: Path) -> None:
    """llama.cpp asserts what it reads of a header, and refuses no file."""
    path, data, key = tmp_path / "m.gguf", bytearray(rows.read_bytes()), b"llama.block_count"
    at = data.index(key) + len(key) + 4
    data[at : at + 4] = (5000).to_bytes(4, "little")
    path.write_bytes(data)
    refused(tell(load_only(path), tmp_path), words=f"{path}: llama.block_count must be between 1 and 512, and is 5000")


def test_fallback_serves_what_is_beyond_the_gap(rows: Path, dense: Path, tmp_path: Path) -> None:
    line = refused(tell(load_only(rows), tmp_path, set="gap=0"), words="above the gap 0, and must be computed densely")
    assert str(rows) in line
    assert "fallback=model.gguf in SEEDDELTA_SET" in line
    refused(tell(load_only(rows), tmp_path, set="gap=much"), words="SEEDDELTA_SET: gap=much: write a number")
    settings = f"'fallback={dense}' dense=blk.0.*,blk.1.ffn_*"
    told = tell(load_and_eval(rows), tmp_path, set=settings, metrics_json=str(tmp_path / "m.json"))
    config = seeddelta.RuntimeConfig(fallback=dense, dense=("blk.0.*", "blk.1.ffn_*"))
    np.testing.assert_array_equal(told.logits(1), python_logits(rows, config=config))
    metrics = json.loads((tmp_path / "m.json").read_text())[str(rows)]
    assert metrics["seeddelta.dense_weights"] == 10
    assert metrics["seeddelta.weights"] == 7 * N_LAYERS - 10
    everything = tell(load_and_eval(rows), tmp_path, set=f"fallback={dense} gap=0")
    np.testing.assert_array_equal(everything.logits(1), python_logits(dense))


def test_weights_that_are_not_finite_come_from_the_fallback(dense: Path, tmp_path: Path) -> None:
    """A scale whose products float32 does not hold."""
    name = "blk.1.ffn_up.weight"
    path = with_scale(built(dense, "rows", **CASES["rows"]), tmp_path / "m.gguf", name, 3e38)
    told = tell(load_and_eval(path), tmp_path)
    assert told.code == 0
    assert told.results == [True, None]
    assert f"tensor '{name}': NaN or infinity in its result; give the original model as fallback" in told.lines[0]
    told = tell(load_and_eval(path), tmp_path, set=f"fallback={dense}")
    np.testing.assert_array_equal(told.logits(1), python_logits(path, fallback=dense))


def test_unsafe_weights_need_the_fallback(dense: Path, tmp_path: Path) -> None:
    path = built(dense, "unsafe", bits=4, targets="attn_q", seeddelta_gap=1e-6, beyond_gap="fallback")
    refused(tell(load_only(path), tmp_path), words="tensor 'blk.0.attn_q.weight' is marked unsafe by its build")
    told = tell(load_and_eval(path), tmp_path, set=f"fallback={dense}")
    np.testing.assert_array_equal(told.logits(1), python_logits(path, fallback=dense))


def test_fallback_of_another_model_is_refused(rows: Path, smollm2_quantized: Path, tmp_path: Path) -> None:
    other = write_llama(tmp_path / "other.gguf", smollm2_quantized, width=128)
    refused(tell(load_only(rows), tmp_path, set=f"fallback={other}"), words="the model that the SeedΔ file was made")
    refused(tell(load_only(rows), tmp_path, set=f"fallback={tmp_path / 'none'}"), words="cannot be read")


def test_what_is_not_served_is_refused_by_name(rows: Path, models: dict[str, Path], tmp_path: Path) -> None:
    refused(tell(load_only(rows), tmp_path, kwta_k="0.5"), words="SEEDDELTA_KWTA_K: is not read in llama.cpp's")
    refused(tell(load_only(rows), tmp_path, set="statecells=on"), words="has no StateCells weights")
    assert tell(load_only(models["statecells"]), tmp_path, set="statecells=on").results == [True]
    sparse = models["proc-sparse"]
    refused(tell(load_only(sparse), tmp_path, set="proc_sparse=off"), words="proc-sparse, which is switched")


def test_a_model_that_is_not_mapped_is_refused(rows: Path, tmp_path: Path) -> None:
    """llama.cpp reads the placeholders into memory of its own then."""
    told = tell([*load_and_eval(rows, use_mmap=False), {"close": "m"}, *load_and_eval(rows)], tmp_path)
    assert told.code == 0
    assert told.results[:2] == [True, None]
    assert "is not where the model was mapped" in told.lines[0]
    np.testing.assert_array_equal(told.logits(4), python_logits(rows))
    told = tell(load_and_eval(rows, use_mlock=True), tmp_path)
    np.testing.assert_array_equal(told.logits(1), python_logits(rows))


def test_who_looks_at_nodes_is_refused(rows: Path, dense: Path, tmp_path: Path) -> None:
    """They would see operations of ours in place of products. Those of an ordinary model may be looked at."""
    jobs = [*load_and_eval(rows, watched=True), {"close": "m"}, *load_and_eval(rows), {"close": "m"}]
    told = tell([*jobs, *load_and_eval(dense, watched=True)], tmp_path)
    assert told.code == 0, told.stderr[-2000:]
    assert told.results[:2] == [True, None]
    assert "looks at the graph's nodes one by one" in told.lines[0]
    np.testing.assert_array_equal(told.logits(4), python_logits(rows))
    np.testing.assert_array_equal(
        told.logits(7), python_logits(dense, config=seeddelta.RuntimeConfig(attention="llama"))
    )


def test_two_models_of_equal_tensor_names(models: dict[str, Path], dense: Path, tmp_path: Path) -> None:
    """Also the same file twice, beside the ordinary model that it was made from, and again after the first is gone."""
    paths = {"a": models["rows"], "b": models["columns"], "c": models["rows"], "d": dense}
    jobs: list[dict[str, Any]] = [{"load": name, "path": path} for name, path in paths.items()]
    jobs += [{"eval": name, "tokens": BATCHES} for name in "dcbabd"]
    jobs += [{"close": "a"}, {"close": "b"}, *[{"eval": name, "tokens": BATCHES} for name in "cd"]]
    jobs += [{"load": "e", "path": dense}, {"load": "f", "path": paths["b"]}]
    jobs += [{"eval": name, "tokens": BATCHES} for name in "efcd"]
    told = tell(jobs, tmp_path)
    assert told.code == 0, told.stderr[-2000:]
    expected = {path: python_logits(path) for path in set(paths.values())}
    known = paths | {"e": dense, "f": paths["b"]}
    for number, job in enumerate(jobs):
        if "eval" in job:
            np.testing.assert_array_equal(told.logits(number), expected[known[job["eval"]]], err_msg=str(number))


def test_a_file_that_changes_while_it_is_loaded(rows: Path, models: dict[str, Path], tmp_path: Path) -> None:
    """Replaced, the old one is still there; made shorter, nothing computed counts; loaded again, it is the new one."""
    path = Path(shutil.copy(rows, tmp_path / "model.gguf"))
    other = models["columns"]
    evaluate = {"eval": "m", "tokens": BATCHES}
    jobs = [{"load": "m", "path": path}, evaluate, {"copy": [other, path]}, evaluate, {"close": "m"}]
    jobs += [{"load": "m", "path": path}, evaluate, {"truncate": [path, path.stat().st_size // 2]}, evaluate]
    jobs += [{"load": "n", "path": path}]
    told = tell(jobs, tmp_path)
    assert told.code == 0, told.stderr[-2000:]
    np.testing.assert_array_equal(told.logits(1), python_logits(rows))
    np.testing.assert_array_equal(told.logits(3), python_logits(rows))
    np.testing.assert_array_equal(told.logits(6), python_logits(other))
    assert told.results[8] is None
    assert f"{path}: was changed or truncated while the model was in use" in told.lines[0]
    assert told.results[9] is False
    assert "the file is corrupt or truncated" in told.lines[-1]


def test_parts_of_a_split_model(rows: Path, dense: Path, tmp_path: Path) -> None:
    recipe = seeddelta.Recipe(
        input=dense, output=tmp_path / "model.gguf", split_max_size="20K", effort="fast", **CASES["rows"]
    )
    seeddelta.build(recipe, progress=False)
    parts = sorted(tmp_path.glob("model-*.gguf"))
    assert len(parts) > 1
    for part in (parts[0], parts[-1]):
        np.testing.assert_array_equal(tell(load_and_eval(part), tmp_path).logits(1), python_logits(rows))
    parts[1].unlink()
    refused(tell(load_only(parts[0]), tmp_path), words=f"{parts[1].name} of the same model is missing")


def test_memory_is_given_back(rows: Path, tmp_path: Path) -> None:
    """Loading the same model often leaves neither files nor mappings behind."""
    jobs = [*load_and_eval(rows), {"close": "m"}] * 30
    told = tell(jobs, tmp_path)
    assert told.code == 0, told.stderr[-2000:]
    expected = python_logits(rows)
    for number in range(1, len(jobs), 3):
        np.testing.assert_array_equal(told.logits(number), expected)


def test_nothing_is_written_where_nothing_can_be(rows: Path, tmp_path: Path) -> None:
    told = tell(load_and_eval(rows), tmp_path, metrics_json=str(tmp_path / "no" / "m.json"))
    assert told.code == 0
    assert told.results[1] is not None
    assert "the metrics are not written" in told.lines[0]
    assert os.listdir(tmp_path) == [Path(told.results[1]).name]
