"""Ways to skip inputs, in NumPy: nothing skipped is the original model in every basis; what is read was asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from llama_helpers import TEXT
from tiny_llama import write_llama

RESEARCH = Path(__file__).parents[1] / "research" / "skipping_methods"
pytestmark = pytest.mark.slow
HALF = "qkv=.5,o=.5,gu=.5,down=.5"
METHODS = (
    "qkv=1", "qkv=1+rotate+heads+shift", HALF, f"{HALF}+rotate+heads", f"{HALF}+shift", f"{HALF}+first+fit+residual",
    f"{HALF}+threshold+first", f"{HALF}+cats", "share=.6+heads", "share=.8+heads",
)  # fmt: skip


@pytest.fixture(scope="module")
def found(smollm2_quantized: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("sparsity")
    tiny, text, results = write_llama(folder / "tiny.gguf", smollm2_quantized), folder / "text.txt", folder / "out.json"
    text.write_text(TEXT * 20, encoding="utf-8")
    sys.path.insert(0, str(RESEARCH))
    try:
        from sparsity_methods import main
    finally:
        sys.path.remove(str(RESEARCH))
    options = ["-m", str(tiny), "--calibrate", str(text), "--text", str(text), "--ctx", "64", "--chunks", "2"]
    for method in METHODS:
        options += ["--method", method]
    main([*options, "--calibration-chunks", "4", "--json", str(results), "--name", "test"])
    return {one["method"]: one for one in json.loads(results.read_text())["test"]["results"]}


def test_nothing_skipped_is_dense(found: dict[str, Any]) -> None:
    for method in ("qkv=1", "qkv=1+rotate+heads+shift"):
        assert found[method]["kept"] == 1
        assert abs(found[method]["kl"]) < 1e-5
        assert max(drift for pair in found[method]["drift"] for drift in pair) < 1e-6


def test_reads_what_was_asked_for(found: dict[str, Any]) -> None:
    for method in (HALF, f"{HALF}+rotate+heads", f"{HALF}+shift", f"{HALF}+first+fit+residual", f"{HALF}+cats"):
        assert found[method]["kept"] == pytest.approx(0.5, abs=0.01)
        assert found[method]["kl"] > 1e-4
    assert found[f"{HALF}+threshold+first"]["kept"] == pytest.approx(0.5, abs=0.1)
    assert found["share=.6+heads"]["kept"] == pytest.approx(0.6, abs=0.02)
    assert found["share=.8+heads"]["kept"] == pytest.approx(0.8, abs=0.02)
    assert found["share=.8+heads"]["kl"] < found["share=.6+heads"]["kl"]


def test_first_token_is_whole(found: dict[str, Any]) -> None:
    first, others = found[f"{HALF}+first+fit+residual"]["drift"][-1]
    assert first < 1e-6 < others


def test_unknown_methods_are_named(found: dict[str, Any]) -> None:
    from sparsity_network import Method

    with pytest.raises(SystemExit, match="unknown are \\['qk'\\]"):
        Method.parse("qk=.5")
