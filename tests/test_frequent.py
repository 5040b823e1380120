"""Rows of frequent tokens have a finer code: which, at what cost, and that llama.cpp computes with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import seeddelta
from seeddelta.convert.budget import CODE_ERROR
from seeddelta.convert.frequent import SHARES, Frequent
from seeddelta.convert.plan import make_plan
from seeddelta.convert.recipe import Recipe, with_rate
from seeddelta.gguf import payload
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.reader import open_seeddelta
from seeddelta.inspection.summary import summarize
from tiny_models import finish

pytest.importorskip("llama_cpp")

N_VOCAB, N_EMBD = 5003, 64  # no whole number of tiles


@pytest.fixture(scope="module")
def dense(model_dir: Path) -> Path:
    """A llama with a vocabulary of its own, whose tied embedding is most of the model."""
    rng = np.random.default_rng(2)
    path = model_dir / "frequent.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(2)
    writer.add_feed_forward_length(192)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(16)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(N_VOCAB)
    writer.add_tokenizer_model("llama")
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += [f"▁{chr(97 + i % 26)}{i}" for i in range(N_VOCAB - len(words) - 26)]
    words += [chr(97 + i) for i in range(26)]
    writer.add_token_list(words)
    writer.add_token_scores([-float(i) for i in range(N_VOCAB)])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (N_VOCAB - 259))
    shapes = {"token_embd": (N_VOCAB, N_EMBD)}
    for i in range(2):
        block = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64)}
        block |= {"ffn_gate": (192, 64), "ffn_up": (192, 64), "ffn_down": (64, 192)}
        shapes |= {f"blk.{i}.{name}": shape for name, shape in block.items()}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(0, shape[1] ** -0.5, shape).astype(np.float16))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm", "blk.1.attn_norm", "blk.1.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(N_EMBD, np.float32))
    finish(writer)
    return path


@pytest.fixture(scope="module")
def text(model_dir: Path) -> Path:
    """Letters and numbers, which are a token a character."""
    rng = np.random.default_rng(3)
    path = model_dir / "frequent.txt"
    path.write_text(" ".join(f"{chr(97 + i % 26)}{i}" for i in (rng.pareto(1.0, 4000) * 60).astype(int) % 4000))
    return path


OPTIONS: dict[str, Any] = {"chunks": 8, "ctx": 64, "threads": 2, "progress": False, "quality": "fast"}


@pytest.fixture(scope="module")
def made(dense: Path, text: Path, model_dir: Path) -> Path:
    path = model_dir / "frequent.seeddelta.gguf"
    seeddelta.quantize(dense, path, text=text, preset="balanced", **OPTIONS)
    return path


def test_frequent_tiles_have_a_finer_code(made: Path) -> None:
    with open_seeddelta(made) as file:
        tensor = file.tensors["token_embd.weight"]
        base = tensor.description.base
        assert base.kind == "lanes"
        fine = np.unpackbits(tensor.arrays["fine_map"], bitorder="little").astype(bool)
        assert fine.sum() == base.fine_tiles
        assert fine[[3, 311, 312]].all()  # digits and letters, which the text is made of
        assert not fine[200:300].any()
        assert len(tensor.to_weight().dequantize()) == N_VOCAB
        shown = next(one for one in summarize(file)["converted"] if one["name"] == "token_embd.weight")
        assert shown["fine_rate"] > shown["rate"]
    header = read_header(made)
    assert header.metadata["seeddelta.tensors.fine_tiles"][0] == base.fine_tiles


def test_rows_of_both_rates_are_near_the_original(made: Path, dense: Path) -> None:
    from seeddelta.gguf.source import open_source

    weights = open_source(dense).matrix("token_embd.weight")
    with open_seeddelta(made) as file:
        tensor = file.tensors["token_embd.weight"]
        fine = np.repeat(np.unpackbits(tensor.arrays["fine_map"], bitorder="little"), 16)[:N_VOCAB] == 1
        lost = ((tensor.to_weight().dequantize() - weights) ** 2).sum(axis=1) / (weights**2).sum(axis=1)
        codes = tensor.description.base.arguments()
        assert tensor.payload_bytes == payload.payload_bytes(tensor.description)
    assert codes["fine_code"] != codes["lane_code"]
    assert lost[fine].mean() < 0.6 * lost[~fine].mean()
    assert lost.max() < 0.1


def test_llama_cpp_computes_with_them(made: Path, tmp_path: Path) -> None:
    """Python's run time, as stock llama.cpp computes with the decoded weights; lookups and the output matrix."""
    plain = tmp_path / "plain.gguf"
    seeddelta.dequantize(made, plain, type="f32", progress=False)
    tokens = [1, 300, 270, 4000, 4900, 280, 265]
    logits = []
    for path in (made, plain):
        llm = seeddelta.load(path, n_ctx=64, logits_all=True, verbose=False)
        llm.eval(tokens)
        logits.append(np.array(llm.scores[: len(tokens)]))
        if path == made:
            counted = llm.seeddelta.counters()["token_embd.weight"]
            assert (counted["rows"], counted["calls"], counted["tokens"]) == (len(tokens), 1, len(tokens))
        llm.close()
    near = np.linalg.norm(logits[0] - logits[1], axis=1) / np.linalg.norm(logits[1], axis=1)
    assert near.max() < 0.03


def counted() -> np.ndarray[Any, Any]:
    """Parts of a text in which small tokens are frequent."""
    tokens = np.minimum((np.random.default_rng(0).pareto(1.0, 50000) * 60).astype(int), N_VOCAB - 1)
    return np.stack([np.bincount(part, minlength=N_VOCAB) for part in np.array_split(tokens, 4)])


def test_the_budget_is_kept_and_the_loss_is_less(dense: Path, tmp_path: Path) -> None:
    counts = counted()
    recipe = Recipe(input=dense, output=tmp_path / "out.gguf", **with_rate({"target_bpw": 3.6}))
    plain, plan = make_plan(recipe), make_plan(recipe, counts=counts)
    assert not plain.fine
    assert plan.payload_bytes <= 3.6 * sum(one.weights for one in plan.targets.values()) / 8
    tiles = plan.fine["token_embd.weight"]
    assert tiles.bits > plan.recipes["token_embd.weight"].bits
    share = tiles.share
    lost = share * CODE_ERROR[tiles.bits] + (1 - share) * CODE_ERROR[plan.recipes["token_embd.weight"].bits]
    assert lost < 0.8 * CODE_ERROR[plain.recipes["token_embd.weight"].bits]
    fixed = recipe.model_copy(update={"tensor_type": ("token_embd=4",)})
    assert not make_plan(fixed, counts=counts).fine


@pytest.mark.parametrize("other", [{"scheme": "coo", "K": 2}, {"seed_search": 3}])
def test_what_is_of_one_matrix_has_one_rate(dense: Path, tmp_path: Path, other: dict[str, Any]) -> None:
    counts = counted()
    recipe = Recipe(input=dense, output=tmp_path / "out.gguf", **with_rate({"target_bpw": 4.5}), **other)
    assert not make_plan(recipe, counts=counts).fine


def test_what_has_no_frequent_rows() -> None:
    counts = np.tile(np.arange(8000), (4, 1))
    assert Frequent.of("token_embd.weight", (8000, 64), counts) is not None
    assert Frequent.of("blk.0.attn_q.weight", (8000, 64), counts) is None
    assert Frequent.of("token_embd.weight", (800, 64), counts) is None
    assert Frequent.of("token_embd.weight", (8000, 64), None) is None
    assert Frequent.of("token_embd.weight", (8000, 64), np.zeros((4, 3), np.int64)) is None
    found = Frequent.of("output.weight", (8000, 64), counts)
    assert found is not None
    for share in SHARES:
        tiles = found.fine(share)
        assert tiles.count == round(share * 500)
        assert tiles.share == pytest.approx(1 - (1 - share) ** 2, rel=0.01)
        assert tiles.mask[499]
        assert replace(tiles, bits=5).rows(8000).sum() == 16 * tiles.count


def test_the_share_is_that_of_text_that_was_not_counted() -> None:
    """Half of each part's tokens are of no other part."""
    counts = np.zeros((4, 8000), np.int64)
    counts[:, 0] = 10
    counts[range(4), range(1600, 8000, 1600)] = 10
    found = Frequent.of("output.weight", (8000, 64), counts)
    assert found is not None
    tiles = found.fine(5 / 500)
    assert np.flatnonzero(tiles.mask).tolist() == [0, 100, 200, 300, 400]  # all of what was counted
    assert tiles.share == 0.5


def test_threads_and_a_stop_change_no_byte(dense: Path, text: Path, made: Path, tmp_path: Path) -> None:
    path = tmp_path / made.name
    seeddelta.quantize(dense, path, text=text, preset="balanced", **OPTIONS | {"threads": 1})
    assert path.read_bytes() == made.read_bytes()
