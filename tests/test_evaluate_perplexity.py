"""Perplexity against a computation from llama-cpp-python's own logits, and its rules at the edges."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from llama_helpers import TEXT
from seeddelta import session
from seeddelta.errors import EvaluationError
from seeddelta.evaluate import PerplexityResult, paired_difference, perplexity, scoring
from seeddelta.evaluate.speed import measure
from seeddelta.session import open_model
from seeddelta.session.decoder import Decoder

N_CTX = 128


@pytest.fixture(scope="module")
def llm(short_quantized: Path) -> Iterator[Any]:
    config = seeddelta.RuntimeConfig(attention="llama")  # the bits of llama_cpp.Llama
    model = open_model(short_quantized, n_ctx=N_CTX, n_batch=N_CTX, threads=1, config=config)
    yield model
    model.close()


@pytest.fixture(scope="module")
def tokens(llm: Any) -> Any:
    tokens = session.tokenize(llm, TEXT * 8)
    assert len(tokens) > 3 * N_CTX
    return tokens


def direct_nll(path: Path, tokens: Any, chunks: int, bos: int | None = None) -> np.ndarray[Any, Any]:
    """llama-perplexity's rule by the high-level API: all logits of a chunk, positions n_ctx/2 … n_ctx - 2."""
    import llama_cpp

    settings: dict[str, Any] = {"n_ctx": N_CTX, "n_batch": N_CTX, "n_threads": 1, "n_threads_batch": 1}
    model = llama_cpp.Llama(str(path), logits_all=True, flash_attn=True, verbose=False, **settings)
    result = []
    for chunk in range(chunks):
        window = [int(token) for token in tokens[chunk * N_CTX : (chunk + 1) * N_CTX]]
        if bos is not None:
            window[0] = bos
        model.reset()
        model.eval(window)
        for position in range(N_CTX // 2, N_CTX - 1):
            row = model.scores[position].astype(np.float64)
            top = row.max()
            result.append(top + math.log(np.exp(row - top).sum()) - row[window[position + 1]])
    model.close()
    return np.array(result).reshape(chunks, -1)


def test_equals_the_definition(llm: Any, tokens: Any, short_quantized: Path) -> None:
    result = perplexity(llm, tokens, n_ctx=N_CTX, chunks=2)
    expected = direct_nll(short_quantized, tokens, 2)
    np.testing.assert_allclose(result.nll, expected, rtol=0, atol=1e-4)
    assert result.ppl == pytest.approx(math.exp(expected.mean()), rel=1e-5)
    # the stderr of llama-perplexity: sums of nll and nll² over all tokens
    count, mean = expected.size, expected.mean()
    stderr = math.sqrt(((expected**2).sum() / count - mean**2) / (count - 1)) * math.exp(mean)
    assert result.stderr == pytest.approx(stderr, rel=1e-4)
    assert (result.chunks, result.tokens_scored) == (2, 2 * (N_CTX // 2 - 1))
    assert len(result.to_dict()["chunk_nll"]) == 2


def test_the_size_of_batches_does_not_matter(tokens: Any, short_f16: Path) -> None:
    # 128; 48 + 48 + 32, where the second half begins within a batch. llama.cpp's own kernels differ by some .02
    results = []
    for n_batch in (N_CTX, 48):
        model = open_model(short_f16, n_ctx=N_CTX, n_batch=n_batch, threads=1)
        results.append(perplexity(model, tokens, n_ctx=N_CTX, chunks=2).nll)
        model.close()
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=0.1)
    assert results[1].mean() == pytest.approx(results[0].mean(), abs=0.003)


def test_a_model_that_wants_bos_gets_it(
    llm: Any, tokens: Any, short_quantized: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert session.bos_token(llm) is None  # SmolLM2 has add_bos_token = false
    monkeypatch.setattr(scoring, "bos_token", lambda _: 1)
    result = perplexity(llm, tokens, n_ctx=N_CTX, chunks=1)
    np.testing.assert_allclose(result.nll, direct_nll(short_quantized, tokens, 1, bos=1), rtol=0, atol=1e-4)


def test_text_and_tokens_are_the_same(llm: Any, tokens: Any) -> None:
    done: list[tuple[int, int]] = []
    result = perplexity(llm, TEXT * 8, n_ctx=N_CTX, chunks=1, on_chunk=lambda at, total: done.append((at, total)))
    assert np.array_equal(result.nll, perplexity(llm, tokens, n_ctx=N_CTX, chunks=1, progress=True).nll)
    assert done == [(1, 1)]


def test_all_chunks_are_whole_ones(llm: Any, tokens: Any) -> None:
    assert perplexity(llm, tokens[: 2 * N_CTX + N_CTX // 2], n_ctx=N_CTX).chunks == 2
    assert session.plan_chunks(2 * N_CTX + 1, N_CTX, 9) == 2


@pytest.mark.parametrize(
    ("n_tokens", "n_ctx", "chunks", "message"),
    [(255, 128, None, "at least 256"), (1000, 2, None, "nothing to score"), (1000, 128, 0, "at least 1")],
)
def test_what_cannot_be_scored(n_tokens: int, n_ctx: int, chunks: int | None, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        session.plan_chunks(n_tokens, n_ctx, chunks)


def test_a_context_that_is_too_small(llm: Any) -> None:
    with pytest.raises(EvaluationError, match="n_ctx=512"):  # llama.cpp makes 256 of 128
        perplexity(llm, np.ones(1024, np.int32), n_ctx=512)
    with pytest.raises(EvaluationError, match="do not fit"):
        Decoder(llm).decode(np.ones(2, np.int32), llm.n_ctx() - 1)
    with pytest.raises(EvaluationError, match="do not fit the context"):
        measure(llm, n_prompt=llm.n_ctx() + 1, n_gen=0)


def test_log_norm_is_exact_and_refuses_nan() -> None:
    logits = np.random.default_rng(0).normal(0, 30, (5, 4000)).astype(np.float32)
    wide = logits.astype(np.float64)
    expected = wide.max(axis=1) + np.log(np.exp(wide - wide.max(axis=1, keepdims=True)).sum(axis=1))
    np.testing.assert_allclose(scoring.log_norm(logits), expected, rtol=1e-14)
    logits[3, 7] = np.nan
    with pytest.raises(EvaluationError, match="not finite"):
        scoring.log_norm(logits)


def test_paired_difference_is_sharper_than_either_error() -> None:
    rng = np.random.default_rng(1)
    nll = rng.gamma(2, 1.5, (16, 255))
    base = PerplexityResult(nll, 512)
    worse = PerplexityResult(nll + 0.01 + rng.normal(0, 0.02, nll.shape), 512)
    change = paired_difference(worse, base)
    assert change.log_ratio == pytest.approx(math.log(worse.ppl / base.ppl), rel=1e-9)
    assert change.percent == pytest.approx(100 * (worse.ppl / base.ppl - 1))
    assert abs(change.log_ratio - 0.01) < 5 * change.stderr < 0.1 * base.stderr / base.ppl
    same = paired_difference(base, base)
    assert (same.log_ratio, same.stderr) == (0.0, 0.0)
    with pytest.raises(EvaluationError, match="tokenizer"):
        paired_difference(base, PerplexityResult(nll[:2], 512))


def test_read_text_drops_one_newline(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a\n\n")
    assert session.read_text(path) == b"a\n"
    with pytest.raises(FileNotFoundError, match="none: no such file"):
        session.read_text(tmp_path / "none")
    with pytest.raises(EvaluationError, match="cannot be read"):
        session.read_text(tmp_path)


def test_a_text_is_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("aß".encode()[:2])  # cut within a character
    assert session.read_text(path) == b"a\xc3"
    path.write_bytes(b"a\xffb")
    with pytest.raises(EvaluationError, match="text: not UTF-8 at byte 1; give a text file"):
        session.read_text(path)


def test_speed_leaves_the_model_usable(llm: Any) -> None:
    ask: dict[str, Any] = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    before = llm.create_completion(**ask)["choices"][0]["text"]
    sample = measure(llm, n_prompt=100, n_gen=4, threads=1)
    assert sample.prompt is not None
    assert sample.prompt > 0
    assert sample.generation is not None
    assert measure(llm, n_prompt=0, n_gen=1, threads=1).prompt is None
    assert llm.create_completion(**ask)["choices"][0]["text"] == before != ""


def test_speed_at_a_depth_fills_the_cache_once(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[tuple[int, int]] = []  # position, tokens
    decode = Decoder.decode

    def counted(self: Decoder, tokens: Any, position: int, *args: Any) -> Any:
        decoded.append((position, len(tokens)))
        return decode(self, tokens, position, *args)

    monkeypatch.setattr(Decoder, "decode", counted)
    Decoder(llm)  # an empty cache
    for depth, filled in ((32, [(0, 32)]), (32, []), (48, [(32, 16)]), (16, [])):
        decoded.clear()
        measure(llm, n_prompt=8, n_gen=2, threads=1, depth=depth)
        assert decoded == [*filled, (depth, 8), (depth, 1), (depth + 1, 1)]
        assert Decoder(llm, keep=depth).cached == depth
    with pytest.raises(EvaluationError, match="do not fit"):
        measure(llm, n_prompt=9, n_gen=1, depth=llm.n_ctx() - 8)
    assert Decoder(llm).cached == 0
