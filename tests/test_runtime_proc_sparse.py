"""Proc-sparse weights inside llama.cpp: served, counted, and what the file stands for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import seeddelta
from llama_helpers import assert_threads_change_nothing, divergence, load_small, logits_of, tokens_of
from seeddelta.cli.main import main
from seeddelta.errors import SourceModelError
from seeddelta.gguf.reader import open_seeddelta
from seeddelta.runtime import RuntimeConfig
from tiny_llama import write_llama

pytest.importorskip("llama_cpp")

TOLERANCE = 1e-3  # nats; what rounding the activations to 8 bits makes of all products
MATRICES = 2 * 7  # of 64 or 96 columns: 2 or 3 blocks of 32


@pytest.fixture(scope="module")
def dense(smollm2_quantized: Path, model_dir: Path) -> Path:
    return write_llama(model_dir / "proc.gguf", smollm2_quantized)


def built(dense: Path, name: str, **options: object) -> Path:
    path = dense.with_name(f"proc-{name}.seeddelta.gguf")
    seeddelta.build(seeddelta.Recipe(input=dense, output=path, **options), progress=False)
    return path


@pytest.fixture(scope="module", params=[0.05, 0.0])
def sparse(request: pytest.FixtureRequest, dense: Path) -> Path:
    options = {"proc_target": "both", "proc_fanout": 2, "proc_watermark": 50, "proc_base_scale": request.param}
    return built(dense, str(request.param), proc_sparse=True, **options)


def test_served_and_counted(sparse: Path, tmp_path: Path) -> None:
    stock = load_small(seeddelta.dequantize(sparse, tmp_path / "dense.gguf", progress=False))
    llm = load_small(sparse)
    tokens = tokens_of(llm, 20)
    assert divergence(logits_of(stock, tokens), logits_of(llm, tokens)) < TOLERANCE
    with open_seeddelta(sparse) as file:
        hashed = any(tensor.description.base.kind == "prng_block" for tensor in file.tensors.values())
        trims = sum(tensor.description.trims for tensor in file.tensors.values())
        blocks = 2 * sum(tensor.description.shape[0] for tensor in file.tensors.values())
    metrics = llm.seeddelta.metrics()
    assert metrics["proc.enabled"] == 1
    assert metrics["proc.weights"] == metrics["proc.calls"] == metrics["seeddelta.calls"] == MATRICES
    assert metrics["proc.fanout"] == 2
    assert metrics["proc.trims"] == trims > 0
    assert metrics["proc.blocks"] == 20 * blocks
    # without a base there is no hash work at all
    assert metrics["seeddelta.calls.prng_block"] == (MATRICES if hashed else 0)
    assert metrics["seeddelta.calls.proc_sparse"] == MATRICES


def test_threads_change_nothing(sparse: Path) -> None:
    assert_threads_change_nothing(sparse)


def test_beside_lanes(dense: Path, tmp_path: Path) -> None:
    """Exactly one backend a weight: what is not proc-sparse is served as before."""
    path = built(dense, "mixed", tensor_type=["ffn_up=proc:0.5"])
    out = tmp_path / "metrics.json"
    arguments = ["run", "-m", str(path), "-p", "a b", "-n", "3", "-c", "64", "--json", str(out), "-q"]
    assert main(arguments) == 0
    metrics = json.loads(out.read_text())
    assert metrics["proc.weights"] == 2
    assert metrics["proc.calls"] > 0
    assert metrics["seeddelta.calls"] == metrics["proc.calls"] + metrics["seeddelta.calls.lanes"]
    llm = load_small(dense)
    assert not llm.seeddelta.enabled
    plain = load_small(built(dense, "plain"))
    logits_of(plain, tokens_of(plain, 4))
    metrics = plain.seeddelta.metrics()
    assert metrics["proc.enabled"] == metrics["proc.weights"] == metrics["proc.calls"] == metrics["proc.blocks"] == 0


def test_proc_sparse_on(sparse: Path, tmp_path: Path) -> None:
    """`--proc-sparse=on`, `Toggle runtime y métricas (fanout efectivo, trims)`: `run` takes it."""
    out = tmp_path / "metrics.json"
    arguments = ["run", "-m", str(sparse), "-p", "a b", "-n", "2", "-c", "64", "--json", str(out), "-q"]
    assert main([*arguments, "--proc-sparse=on"]) == 0
    metrics = json.loads(out.read_text())
    assert metrics["proc.calls"] > 0
    assert (metrics["proc.fanout"], metrics["proc.trims"] > 0) == (2, True)


def test_switched_off(dense: Path, sparse: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "metrics.json"
    arguments = ["run", "-m", str(sparse), "-p", "a b", "-n", "3", "-c", "64", "--json", str(out), "-q"]
    assert main([*arguments, "--no-proc-sparse"]) == 1
    assert "--seeddelta-fallback" in capfd.readouterr().err
    assert main([*arguments, "--no-proc-sparse", "--seeddelta-fallback", str(dense)]) == 0
    metrics = json.loads(out.read_text())
    assert metrics["proc.enabled"] == metrics["proc.calls"] == metrics["seeddelta.calls"] == 0
    assert metrics["seeddelta.dense_weights"] == MATRICES
    with pytest.raises(SourceModelError, match="is proc-sparse, which is switched off"):
        load_small(sparse, config=RuntimeConfig(proc_sparse=False))
