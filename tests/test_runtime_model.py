"""A SeedΔ model inside a stock llama.cpp computes what is in the file, whatever threads and batches, and goes away."""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from llama_helpers import TEXT, divergence, load, load_small, logits_of, marked_unsafe, perplexity_of, tokens_of
from seeddelta import _core
from seeddelta.errors import ConfigError, FormatError, SourceModelError
from seeddelta.runtime import RuntimeConfig
from tiny_llama import SHORT_LAYERS, write_llama

llama_cpp = pytest.importorskip("llama_cpp")

WEIGHTS = SHORT_LAYERS * 7


def test_generates_text_and_counts(short_seeddelta: Path) -> None:
    llm = load(short_seeddelta, logits_all=False)
    assert isinstance(llm, llama_cpp.Llama)
    assert llm.model_path == str(short_seeddelta)
    assert not any(key.startswith("seeddelta.") for key in llm.metadata)
    reply = llm.create_completion("The capital of France is", max_tokens=8, temperature=0)
    assert reply["choices"][0]["text"]
    assert llm.seeddelta.enabled
    assert len(llm.seeddelta.tensors) == WEIGHTS
    counters = llm.seeddelta.counters()
    decodes = counters["blk.0.attn_q.weight"]["calls"]
    prompt = len(llm.tokenize(b"The capital of France is"))
    assert decodes == reply["usage"]["completion_tokens"]
    for name, counts in counters.items():
        assert counts["calls"] == counts["rewrites"] == decodes
        assert counts["tokens"] == prompt + decodes - 1 or name.startswith(f"blk.{SHORT_LAYERS - 1}."), name
        assert counts["dense_calls"] == counts["nonfinite_events"] == 0
        # k and v share the activations of q, up those of gate
        shares = name.split(".")[2] in ("attn_k", "attn_v", "ffn_up")
        assert counts["reused"] == (decodes if shares else 0), name
        # asked for by the product before, when that was of one token
        assert counts["prefetched"] - (decodes - 1) in (0, 1), name
    metrics = llm.seeddelta.metrics()
    assert metrics["seeddelta.weights"] == WEIGHTS
    assert metrics["seeddelta.calls"] == WEIGHTS * decodes
    llm.close()


def test_equals_the_dequantized_model(short_seeddelta: Path, short_dequantized: Path) -> None:
    ours, stock = load(short_seeddelta), load(short_dequantized)
    assert not stock.seeddelta.enabled
    assert stock.seeddelta.counters() == {}
    assert all(name.startswith("attention.") for name in stock.seeddelta.metrics())
    tokens = tokens_of(ours, 400)
    a, b = logits_of(ours, tokens), logits_of(stock, tokens)
    # What remains is the rounding of the activations to 8 bits.
    assert divergence(b, a) < 2e-3
    ours_log, stock_log = (np.log(perplexity_of(logits, tokens, 64)) for logits in (a, b))
    assert ours_log == pytest.approx(stock_log, rel=2e-3)


def test_threads_change_nothing(short_seeddelta: Path) -> None:
    logits = []
    for threads in (1, 2, 4):
        llm = load(short_seeddelta, threads)
        tokens = tokens_of(llm, 33)
        logits.append(np.vstack([logits_of(llm, tokens), logits_of(llm, tokens[:3], batch=1)]))
        llm.close()
    np.testing.assert_array_equal(logits[0], logits[1])
    np.testing.assert_array_equal(logits[0], logits[2])


def test_instruction_sets_change_nothing(short_two_layers: Path) -> None:
    active = _core.isa_active()
    llm = load(short_two_layers, n_ctx=64, n_batch=64)
    tokens = tokens_of(llm, 9)
    expected = logits_of(llm, tokens)
    try:
        for name in _core.isa_available():
            _core.isa_select(name)
            np.testing.assert_array_equal(logits_of(llm, tokens), expected, err_msg=name)
    finally:
        _core.isa_select(active)


def test_batches_change_little(short_seeddelta: Path) -> None:
    """Our products are equal bit for bit; llama.cpp's attention is not, and rounding to 8 bits enlarges the difference.
    docs/internals/runtime.md has the tolerance."""
    llm = load(short_seeddelta)
    tokens = tokens_of(llm, 512)
    whole = logits_of(llm, tokens)
    for batch, count in ((7, 140), (1, 64)):
        assert divergence(whole[:count], logits_of(llm, tokens[:count], batch)) < 5e-3


def test_small_batches_of_a_large_prompt(short_two_layers: Path) -> None:
    """Several graphs inside one decode call: activations are never shared across them."""
    whole, parts = load(short_two_layers), load(short_two_layers, n_ubatch=16)
    tokens = tokens_of(whole, 100)
    assert divergence(logits_of(whole, tokens), logits_of(parts, tokens)) < 2e-3


def test_activations_are_not_carried_over(short_f16: Path, tmp_path: Path) -> None:
    """With q and v of one layer the last product of a graph and the first of the next read the same tensor."""
    path = tmp_path / "qv.gguf"
    recipe = seeddelta.Recipe(input=short_f16, output=path, targets="attn_q,attn_v", layers="0")
    seeddelta.build(recipe, progress=False)
    llm = load(path)
    tokens = tokens_of(llm, 12)
    whole = logits_of(llm, tokens)
    assert divergence(whole, logits_of(llm, tokens, batch=1)) < 1e-3
    q, v = (llm.seeddelta.counters()[f"blk.0.{name}.weight"] for name in ("attn_q", "attn_v"))
    assert (q["calls"], q["reused"]) == (13, 0)
    assert (v["calls"], v["reused"]) == (13, 13)


def test_two_models_at_once(short_seeddelta: Path, short_two_layers: Path) -> None:
    a, b, dense = load(short_seeddelta), load(short_two_layers), load(short_seeddelta)
    tokens = tokens_of(a, 24)
    alone = logits_of(a, tokens), logits_of(b, tokens)
    counted = a.seeddelta.metrics()["seeddelta.calls"]
    dense.close()
    results: dict[int, np.ndarray] = {}  # type: ignore[type-arg]
    threads = [
        threading.Thread(target=lambda i=i, m=m: results.update({i: logits_of(m, tokens, batch=8)}))
        for i, m in enumerate((a, b))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(2):
        assert divergence(alone[i], results[i]) < 5e-3
    assert a.seeddelta.metrics()["seeddelta.calls"] == counted + 3 * WEIGHTS


def test_ordinary_model_beside_it(short_f16: Path, short_two_layers: Path) -> None:
    """The callback belongs to the one context; the defaults of others are untouched."""
    ours = load(short_two_layers)
    assert not llama_cpp.llama_context_default_params().cb_eval
    plain = llama_cpp.Llama(str(short_f16), n_ctx=128, verbose=False)
    seen = ours.seeddelta.metrics()["seeddelta.nodes_seen"]
    plain.create_completion("Hello", max_tokens=2)
    assert ours.seeddelta.metrics()["seeddelta.nodes_seen"] == seen


# The kernel answers memfd_create and sendfile with ENOSYS.
WITHOUT_MEMFD = """
import ctypes, hashlib, platform, struct, sys
sys.path.insert(0, sys.argv[2])
from llama_helpers import load, logits_of, tokens_of
refused = {"x86_64": (319, 40), "aarch64": (279, 71)}[platform.machine()]
steps = [(0x20, 0, 0, 0), (0x15, 2, 0, refused[0]), (0x15, 1, 0, refused[1]), (0x06, 0, 0, 0x7FFF0000),
         (0x06, 0, 0, 0x50000 | 38)]
program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
whole = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(steps), ctypes.addressof(program)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, whole, 0, 0) == 0
llm = load(sys.argv[1], n_ctx=64, n_batch=64)
assert "/seeddelta-" in open("/proc/self/maps").read()
print(hashlib.sha256(logits_of(llm, tokens_of(llm, 4)).tobytes()).hexdigest())
"""


def test_without_memfd(short_two_layers: Path) -> None:
    llm = load(short_two_layers, n_ctx=64, n_batch=64)
    command = [sys.executable, "-c", WITHOUT_MEMFD, str(short_two_layers), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == hashlib.sha256(logits_of(llm, tokens_of(llm, 4)).tobytes()).hexdigest()


def resident_kib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def test_load_and_free(short_two_layers: Path) -> None:
    def once() -> None:
        llm = load(short_two_layers, n_ctx=64, logits_all=False)
        llm.create_completion("Hello", max_tokens=1)
        llm.close()

    descriptors = len(os.listdir("/proc/self/fd"))
    once()
    gc.collect()
    before = resident_kib()
    for _ in range(4):
        once()
    gc.collect()
    assert resident_kib() - before < 60_000  # one more model would be 260 000
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_freed_without_close(short_two_layers: Path) -> None:
    llm = load(short_two_layers, n_ctx=64, logits_all=False)
    context, handle = llm._ctx, llm.seeddelta
    del llm
    gc.collect()
    assert context.ctx is None
    assert handle.counters()["blk.0.attn_q.weight"]["calls"] == 0


def test_state_and_pickle(short_two_layers: Path) -> None:
    llm = load(short_two_layers, n_ctx=64, n_batch=64)
    tokens = tokens_of(llm, 16)
    expected = logits_of(llm, tokens)
    state = llm.save_state()
    llm.reset()
    llm.load_state(state)
    assert llm.n_tokens == len(tokens)
    again = pickle.loads(pickle.dumps(llm))
    assert again.seeddelta.enabled
    np.testing.assert_array_equal(logits_of(again, tokens), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_gpu_layers": 1}, "n_gpu_layers"),
        ({"n_gpu_layers": -1}, "n_gpu_layers"),
        ({"op_offload": True}, "op_offload"),
        ({"use_mmap": False}, "use_mmap"),
        ({"lora_path": "x.gguf"}, "lora_path"),
    ],
)
def test_options_that_cannot_be(short_two_layers: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(short_two_layers, **options)


def test_files_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.gguf: no such file"):
        seeddelta.load(tmp_path / "missing.gguf")
    (tmp_path / "text.gguf").write_text(TEXT)
    with pytest.raises(FormatError, match="not a GGUF file"):
        seeddelta.load(tmp_path / "text.gguf")


def test_dense_from_the_start(short_two_layers: Path, short_f16: Path) -> None:
    config = RuntimeConfig(dense=("blk.0.*", "blk.1.attn_?.weight"))
    with pytest.raises(SourceModelError, match=r"blk\.0\..*on the list.*fallback"):
        load(short_two_layers, config=config)
    llm = load(short_two_layers, config=config, fallback=short_f16)
    assert len(llm.seeddelta.dense) == 10
    assert sorted(llm.seeddelta.tensors) == [
        f"blk.1.{t}.weight" for t in ("attn_output", "ffn_down", "ffn_gate", "ffn_up")
    ]
    tokens = tokens_of(llm, 32)
    logits = logits_of(llm, tokens)
    assert set(llm.seeddelta.counters()) == set(llm.seeddelta.tensors)
    # everything dense is the original model itself
    all_dense = load(short_two_layers, config=RuntimeConfig(dense=("*",), fallback=short_f16))
    dense = logits_of(load(short_f16), tokens)
    np.testing.assert_array_equal(logits_of(all_dense, tokens), dense)
    assert divergence(dense, logits) < divergence(dense, logits_of(load(short_two_layers), tokens))


def test_unsafe_tensor(short_two_layers: Path, short_f16: Path, tmp_path: Path) -> None:
    path = marked_unsafe(short_two_layers, tmp_path / "unsafe.gguf", "blk.1.attn_v.weight")
    with pytest.raises(SourceModelError, match=r"blk\.1\.attn_v\.weight' is marked unsafe.*--seeddelta-fallback"):
        load(path)
    llm = load(path, fallback=short_f16)
    assert list(llm.seeddelta.dense) == ["blk.1.attn_v.weight"]
    logits_of(llm, tokens_of(llm, 4))
    assert llm.seeddelta.metrics()["seeddelta.calls"] == 13


def test_tensors_that_missed_the_gap_of_the_build(smollm2_quantized: Path, tmp_path: Path) -> None:
    """They are stored, marked, and run from the fallback: the same as leaving them dense."""
    source = write_llama(tmp_path / "source.gguf", smollm2_quantized)

    def build(name: str, **options: Any) -> tuple[Path, seeddelta.BuildReport]:
        recipe = seeddelta.Recipe(input=source, output=tmp_path / name, bits=2, effort="fast", **options)
        return tmp_path / name, seeddelta.build(recipe, progress=False)

    _, everything = build("all.gguf", seeddelta_gap=9)
    gap = float(np.median([row.metrics.error for row in everything.tensors if row.metrics is not None]))
    kept, report = build("kept.gguf", seeddelta_gap=gap)
    unsafe, marked = build("unsafe.gguf", seeddelta_gap=gap, beyond_gap="fallback")
    names = {row.name for row in marked.unsafe}
    assert names == {row.name for row in report.kept_dense} != set()
    with pytest.raises(SourceModelError, match=r"blk.*is marked unsafe by its build \(relative.*--seeddelta-fallback"):
        load(unsafe)
    tokens = list(range(3, 40))
    llm = load_small(unsafe, fallback=source)
    assert set(llm.seeddelta.dense) == names
    logits = logits_of(llm, tokens)
    np.testing.assert_array_equal(logits, logits_of(load_small(kept), tokens))
    assert llm.seeddelta.metrics()["seeddelta.calls"] > 0
    same_gap = load_small(unsafe, config=RuntimeConfig(gap=gap), fallback=source)  # one metric on both sides
    assert set(same_gap.seeddelta.dense) == names


def test_gap(short_two_layers: Path, short_f16: Path) -> None:
    with pytest.raises(SourceModelError, match=r"above the gap 0\.01"):
        load(short_two_layers, config=RuntimeConfig(gap=0.01))
    llm = load(short_two_layers, config=RuntimeConfig(gap=0.01, fallback=short_f16))
    assert len(llm.seeddelta.dense) == 14
    assert not load(short_two_layers, config=RuntimeConfig(gap=0.5)).seeddelta.dense


def test_fallback_that_does_not_fit(short_two_layers: Path, tmp_path: Path) -> None:
    from tiny_models import write_model

    with pytest.raises(SourceModelError, match="give the model that the SeedΔ file was made from"):
        load(short_two_layers, fallback=write_model(tmp_path / "tiny.gguf"))
