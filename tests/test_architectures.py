"""Models of llama.cpp's architectures, tiny and random: converted, and computed as stock llama.cpp computes them."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
import tiny_architectures
from architectures import ARCHITECTURES, write_architecture
from llama_helpers import divergence, load_small, logits_of
from seeddelta.calibrate import capture, write_covariance
from seeddelta.convert.report import BuildReport
from seeddelta.gguf import targets
from seeddelta.gguf.model_file import read_header
from tiny_llama import N_VOCAB

llama_cpp = pytest.importorskip("llama_cpp")

TOKENS = range(20, 80)
SEED = 2  # with the default's weights qwen3next's first token is between two experts, and its state remembers
LARGEST_DIVERGENCE = 0.005  # mean over the tokens, in nats
SHIFTED = set(ARCHITECTURES) - {"qwen35"}  # whose positions have sections, which llama.cpp does not shift
LEAST_SHARE = 0.97  # of the weights that the graph uses
KEPT = (
    "norm",
    "ffn_gate_inp",
    "conv",
    "altup_router",
    "altup_predict",
    "altup_correct",
    "ssm_a",
    "ssm_d",
    ".bias",
    "sinks",
)


def known_to_llama(path: Path) -> bool:
    """True when stock llama.cpp loads the model. What it does not know it refuses; nothing is evaluated."""
    params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    if model:
        llama_cpp.llama_model_free(model)
    return bool(model)


class Converted:
    def __init__(self, name: str, folder: Path, tokenizer_of: Path) -> None:
        self.name = name
        self.dense = write_architecture(folder / f"{name}.gguf", tokenizer_of, name)
        self.seeddelta, self.stock = self.dense.with_suffix(".sd"), self.dense.with_suffix(".f32")
        hessian = self.dense.with_suffix(".cov")
        tokens = np.random.default_rng(0).integers(32, N_VOCAB, 256)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing is missing
            write_covariance(hessian, capture(self.dense, tokens, ctx=64, threads=2, progress=False))
            options: dict[str, Any] = {"hessian": hessian, "threads": 2, "seed": SEED, "effort": "fast"}
            recipe = seeddelta.Recipe(input=self.dense, output=self.seeddelta, **options)
            self.report: BuildReport = seeddelta.build(recipe, progress=False)
        seeddelta.dequantize(self.seeddelta, self.stock, type="f32", progress=False)

    def load(self, **options: Any) -> tuple[Any, Any]:
        """The SeedΔ model, and one of stock llama.cpp with the same weights."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return load_small(self.seeddelta, **options), load_small(self.stock, **options)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest, smollm2_quantized: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    name: str = request.param
    folder = tmp_path_factory.mktemp("architectures")
    if not known_to_llama(write_architecture(folder / "probe.gguf", smollm2_quantized, name)):
        pytest.skip(f"llama-cpp-python {llama_cpp.__version__} does not know {name}")
    return Converted(name, folder, smollm2_quantized)


def assert_alike(expected: np.ndarray[Any, Any], logits: np.ndarray[Any, Any]) -> None:
    tokens = [divergence(e[None], ours[None]) for e, ours in zip(expected, logits, strict=True)]
    assert np.mean(tokens) <= LARGEST_DIVERGENCE
    assert np.median(tokens) <= LARGEST_DIVERGENCE / 4  # a token between two experts may go to the other one


def test_what_is_converted(model: Converted) -> None:
    assert model.report.converted_share >= LEAST_SHARE
    header = read_header(model.dense)
    stays = set(header.tensors) - {tensor.name for tensor in model.report.tensors}
    assert {name for name in stays if not any(part in name for part in KEPT)} == set(model.report.idle)
    idle = {"qwen35": targets.MTP, "glm4moe": targets.MTP, "gemma3n": targets.SHARED_KV}
    assert set(model.report.idle.values()) == ({idle[model.name]} if model.name in idle else set())
    types = {name: info.type.name for name, info in read_header(model.seeddelta).tensors.items()}
    assert {types[name] for name in model.report.idle if name in types} <= {"Q8_0"}
    assert model.report.model_bits_per_weight < (7 if model.report.idle else 5.2)  # tiny ones keep more in F32
    if model.name == "gemma3n":
        assert set(model.report.idle) == {f"blk.{layer}.attn_{kv}.weight" for layer in (20, 21) for kv in "kv"}


def test_equals_stock_llama(model: Converted) -> None:
    ours, stock = model.load()
    expected = logits_of(stock, TOKENS)
    assert_alike(expected, logits_of(ours, TOKENS))
    assert ours.seeddelta.idle == []  # what no graph uses was no target
    assert all(count["calls"] + count["rows"] for count in ours.seeddelta.counters().values())
    assert_alike(expected[:12], logits_of(ours, TOKENS[:12], batch=1))


@pytest.mark.slow
def test_in_one_command(model: Converted, tmp_path: Path) -> None:
    """Some of these cannot be run block by block, and the trial of it ends in an assert of llama.cpp's."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = seeddelta.quantize(
            model.dense, tmp_path / "out.gguf", bits=4, quality="fast", ctx=32, chunks=2, threads=2, progress=False
        )
    assert report.converted_share >= LEAST_SHARE
    assert set(report.uncalibrated) <= {"token_embd.weight", "per_layer_token_embd.weight"}


def decode(llm: Any, tokens: list[tuple[int, int, int]]) -> np.ndarray[Any, Any]:
    """Logits [n, n_vocab] of one batch of (token, position, sequence)."""
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, (token, position, sequence) in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, True
        batch.seq_id[i][0] = sequence
    assert llama_cpp.llama_decode(llm.ctx, batch) == 0
    if hasattr(llm, "seeddelta"):
        llm.seeddelta.check()
    logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(llm.ctx), (len(tokens), N_VOCAB)).copy()
    llama_cpp.llama_batch_free(batch)
    return logits


def of_sequences(llm: Any) -> tuple[np.ndarray[Any, Any], bool]:
    """Logits of four sequences in one batch, of one token more of each, and, where the memory can be shifted (True), of
    one token after the first sequence lost eight."""
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(llm.ctx), True)
    prompt = [(20 + 13 * sequence + i, i, sequence) for sequence in range(4) for i in range(15)]
    parts = [decode(llm, prompt), decode(llm, [(200 + sequence, 15, sequence) for sequence in range(4)])]
    memory = llama_cpp.llama_get_memory(llm.ctx)
    if llama_cpp.llama_memory_can_shift(memory) and llama_cpp.llama_memory_seq_rm(memory, 0, 2, 10):
        llama_cpp.llama_memory_seq_add(memory, 0, 10, -1, -8)
        parts.append(decode(llm, [(300, 8, 0)]))
    return np.concatenate(parts), len(parts) == 3


@pytest.mark.slow
@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("flash", [False, True])
def test_sequences(model: Converted, monkeypatch: pytest.MonkeyPatch, flash: bool, unified: bool) -> None:
    original = llama_cpp.llama_cpp.llama_context_default_params

    def params() -> Any:
        made = original()
        made.n_seq_max, made.kv_unified = 4, unified
        return made

    monkeypatch.setattr(llama_cpp.llama_cpp, "llama_context_default_params", params)
    ours, stock = model.load(flash_attn=flash)
    (expected, shifted), (logits, also) = of_sequences(stock), of_sequences(ours)
    assert_alike(expected, logits)
    assert shifted == also
    assert shifted or model.name not in SHIFTED


TRIED = sorted(name for name in tiny_architectures.TABLE if name not in ARCHITECTURES)
# Tiny models whose large small tensors (tables of positions, mixing) leave less to convert.
SMALLER_SHARE = {"gpt2", "starcoder", "mamba", "rwkv6", "rwkv7", "rwkv6qwen2", "arwkv7", "bert", "plamo2", "jamba"}

# Tiny models that cannot be measured, and what is said: they end the process of stock llama.cpp, or are refused.
NOT_MEASURED = {
    "gemma-embedding": r"llama\.cpp cannot compute this model",
    "nemotron_h": r"llama\.cpp cannot compute this model",
    "plm": "the process of this model was killed by SIGABRT",  # with flash attention, the original model, too
    "t5": "is an encoder with a decoder",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIED[time.localtime().tm_yday % 10 :: 10])
def test_a_tenth_of_what_was_tried(name: str, tmp_path: Path, smollm2_quantized: Path, tiny_text: Path) -> None:
    """Another tenth every day: `seeddelta quantize`, beside stock llama.cpp on the dequantized file."""
    if name in NOT_MEASURED:
        with pytest.raises(seeddelta.SeedDeltaError, match=NOT_MEASURED[name]):
            tiny_architectures.convert(name, tmp_path, smollm2_quantized, tiny_text)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tried = tiny_architectures.convert(name, tmp_path, smollm2_quantized, tiny_text)
        except tiny_architectures.CannotMakeError as error:
            pytest.skip(f"this llama.cpp does not know it: {error}")
    assert tried.share >= LEAST_SHARE or name in SMALLER_SHARE
    if tried.embeddings:
        assert tried.near >= 0.999  # activations are rounded to 8 bits
    else:
        assert tried.near <= 2 * LARGEST_DIVERGENCE
