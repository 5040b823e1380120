"""Blocks run one at a time give the sums and hidden states of the whole model, whatever depends on their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import seeddelta
import tiny_llama
from architectures import write_architecture
from seeddelta.calibrate import capture
from seeddelta.calibrate.block_run import BlockRun
from seeddelta.calibrate.engine import BlockEngine
from seeddelta.calibrate.groups import Group, find_groups, groups_of
from seeddelta.calibrate.text import Windows, read_windows
from seeddelta.convert.quantize import estimate_quantize
from seeddelta.errors import EvaluationError
from seeddelta.gguf import names
from seeddelta.gguf.source import open_source
from seeddelta.gguf.targets import convertible

pytest.importorskip("llama_cpp")
CTX = 64


def windows_of(high: int, chunks: int = 3) -> Windows:
    return Windows(np.random.default_rng(0).integers(20, high, (chunks, CTX)).astype(np.int32), "random", "")


def sums_by_block(model: Path, windows: Windows, groups: list[Group], folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    engine = BlockEngine(open_source(model), windows, groups, folder, threads=2)
    found = {}
    for group in groups:
        there = [name for name in engine.matrices(group) if name in convertible(engine.source.header)]
        with engine.run(group, there) as run:
            for name, same in run.representatives.items():
                found[name] = run.covariance(same)
                assert run.tokens(same) == windows.tokens.size
    return found


def assert_same_sums(model: Path, windows: Windows, found: dict[str, np.ndarray[Any, Any]], **options: Any) -> None:
    whole = capture(model, windows.tokens.ravel(), ctx=CTX, threads=2, progress=False, **options)
    assert set(found) == set(whole.representatives)
    for name, same in whole.representatives.items():
        expected = whole.hook.covariance(same)
        assert np.linalg.norm(found[name] - expected) < 1e-5 * np.linalg.norm(expected), name


@pytest.mark.parametrize("kind", ["llama", "phi3", "mpt", "llama-experts", "qwen2moe", "qwen3moe"])
def test_sums_are_those_of_the_whole_model(kind: str, smollm2_quantized: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    if kind in ("llama-experts", "qwen2moe"):
        tiny_llama.write_experts(path, smollm2_quantized, kind.split("-")[0])
    elif kind == "qwen3moe":
        write_architecture(path, smollm2_quantized, kind)
    else:
        getattr(tiny_llama, f"write_{kind}")(path, smollm2_quantized)
    windows = windows_of(tiny_llama.N_VOCAB)
    windows.tokens[:, 0] = 1  # the capture puts BOS there
    groups = find_groups(open_source(path), windows.tokens[0], threads=2)
    assert groups == [Group(0, 1), Group(1, 2)]
    assert_same_sums(path, windows, sums_by_block(path, windows, groups, tmp_path))


def test_a_pattern_of_blocks_is_kept(smollm2_quantized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gemma2: every other block has a window of 24 tokens, which llama.cpp takes from the number of the block."""
    monkeypatch.setattr(tiny_llama, "N_LAYERS", 4)
    path = tiny_llama.write_gemma2(tmp_path / "model.gguf", smollm2_quantized)
    windows = windows_of(tiny_llama.N_VOCAB)
    windows.tokens[:, 0] = 1
    groups = find_groups(open_source(path), windows.tokens[0], threads=2)
    assert groups == [Group(0, 2, 0.125), Group(2, 4, 0.125)]  # it multiplies what comes by sqrt(64)
    assert_same_sums(path, windows, sums_by_block(path, windows, groups, tmp_path))


def test_a_model_whose_pattern_is_as_long_as_itself_is_run_whole(smollm2_quantized: Path, tmp_path: Path) -> None:
    path = tiny_llama.write_gemma2(tmp_path / "model.gguf", smollm2_quantized)
    assert find_groups(open_source(path), windows_of(tiny_llama.N_VOCAB).tokens[0], threads=2) is None


def test_a_model_without_a_kind_of_block_may_end_the_trial(smollm2_quantized: Path, tmp_path: Path) -> None:
    """lfm2: llama.cpp's asserts want both kinds of blocks."""
    path = write_architecture(tmp_path / "model.gguf", smollm2_quantized, "lfm2")
    assert find_groups(open_source(path), windows_of(tiny_llama.N_VOCAB).tokens[0], threads=2) is None
    options: dict[str, Any] = {"bits": 4, "ctx": 32, "chunks": 2, "threads": 2}
    assert estimate_quantize(path, tmp_path / "out.gguf", **options).seconds > 0
    report = seeddelta.quantize(path, tmp_path / "out.gguf", **options, progress=False)
    assert report.converted_share > 0.97


def test_arrays_of_the_layers_are_cut(smollm2_quantized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deci, whose blocks have MLPs of different sizes: an array says them."""
    sizes = [96, 64, 128]
    monkeypatch.setattr(tiny_llama, "N_LAYERS", 3)
    random = np.random.default_rng(1)
    tensors = tiny_llama._model(
        tiny_llama._Random(1), True, lambda: tiny_llama._attention(tiny_llama._Random(2))
    )  # fmt: skip
    for layer, size in enumerate(sizes):
        for name, shape in (("gate", (size, 64)), ("up", (size, 64)), ("down", (64, size))):
            matrix = random.normal(0, shape[1] ** -0.5, shape).astype(np.float16)
            tensors[f"blk.{layer}.ffn_{name}.weight"] = matrix
        tensors[f"blk.{layer}.ffn_norm.weight"] = np.ones(64, np.float32)

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop("deci.feed_forward_length")
        writer.add_feed_forward_length(sizes)

    path = tiny_llama._write(tmp_path / "model.gguf", "deci", smollm2_quantized, tensors, keys)
    groups = find_groups(open_source(path), windows_of(tiny_llama.N_VOCAB).tokens[0], threads=2)
    assert groups == groups_of(3, 1)


def test_smollm2(smollm2_f16: Path, tmp_path: Path) -> None:
    """Two of the thirty blocks, and the hidden states after them bit for bit."""
    source, windows = open_source(smollm2_f16), windows_of(40000, chunks=2)
    windows.tokens[:, 0] = 1
    found = sums_by_block(smollm2_f16, windows, [Group(0, 1), Group(1, 2), Group(2, 3)], tmp_path)
    head = found.pop(names.EMBEDDING)  # of the third block, which is not the last of the model
    assert head.shape == (576, 576)
    assert_same_sums(smollm2_f16, windows, found, layers="0-2")
    engine = BlockEngine(source, windows, groups_of(30, 1), tmp_path)
    with BlockRun(source, 0, 2, ctx=CTX, vocabulary=windows.vocabulary, threads=1) as run:
        np.testing.assert_array_equal(run.run(windows.tokens[1]), engine.states_before(2).read(1))


def test_windows_come_from_all_over_the_text(smollm2_quantized: Path, tmp_path: Path) -> None:
    text = b"one two three four. " * 400 + b"Alpha beta gamma delta. " * 400
    windows = read_windows(smollm2_quantized, text, "words", CTX, 4)
    assert windows.tokens.shape == (4, CTX)
    everything = read_windows(smollm2_quantized, text, "words", CTX, None)
    np.testing.assert_array_equal(windows.tokens[0], everything.tokens[0])
    assert not np.intersect1d(windows.tokens[0, 1:], windows.tokens[3, 1:]).size > CTX // 2
    with pytest.raises(EvaluationError, match="give a longer text"):
        read_windows(smollm2_quantized, text, "words", CTX, 10_000)
