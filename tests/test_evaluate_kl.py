"""Divergence through the file, against the definition on logits that are kept."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from llama_helpers import TEXT, divergence, load, logits_of
from seeddelta.errors import EvaluationError
from seeddelta.evaluate.kl import BaseWriter, DivergenceObserver, DivergenceResult
from seeddelta.evaluate.scoring import Scored, log_norm, score, tokenize

N_VOCAB = 300


def scored(logits: Any, targets: Any, chunk: int = 0) -> Scored:
    return Scored(chunk, logits, log_norm(logits), np.asarray(targets, dtype=np.int32))


def random_logits(seed: int, rows: int = 6, n_vocab: int = N_VOCAB) -> Any:
    return np.random.default_rng(seed).normal(0, 3, (rows, n_vocab)).astype(np.float32)


def write(path: Path, logits: Any, precision: Any = "f2") -> Path:
    with BaseWriter(path, logits.shape[1], len(logits), precision=precision) as base:
        base.update(scored(logits[:2], range(2)))
        base.update(scored(logits[2:], range(2, len(logits))))
    return path


@pytest.mark.parametrize(("precision", "tolerance"), [("f2", 2e-3), ("f4", 1e-5)])
def test_divergence_of_random_logits(tmp_path: Path, precision: str, tolerance: float) -> None:
    p, q = random_logits(1), random_logits(2)
    q[3] = p[3]
    observer = DivergenceObserver(write(tmp_path / "base", p, precision))
    observer.update(scored(q, range(6)))
    result = observer.result(chunks=2)
    assert result.kl.shape == result.same_top.shape == (2, 3)
    expected = [divergence(p[i : i + 1], q[i : i + 1]) for i in range(6)]
    np.testing.assert_allclose(result.kl.ravel(), expected, rtol=tolerance, atol=1e-5)
    np.testing.assert_array_equal(result.same_top.ravel(), p.argmax(axis=1) == q.argmax(axis=1))
    assert result.same_top[1, 0]
    assert 0 <= result.kl[1, 0] < 1e-5


def test_summary() -> None:
    result = DivergenceResult(np.array([[0.0, 1.0], [2.0, 3.0]]), np.array([[True, True], [True, False]]))
    assert result.mean == 1.5
    assert result.stderr == pytest.approx(np.std([0, 1, 2, 3], ddof=1) / 2)
    assert result.same_top_percent == 75
    assert result.same_top_stderr == pytest.approx(25.0)
    assert set(result.to_dict()) == {"mean", "stderr", "median", "p99", "max", "same_top_percent", "same_top_stderr"}


def test_another_text_vocabulary_or_length_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "base", random_logits(1))
    with pytest.raises(EvaluationError, match="vocabularies of 300 and 299"):
        DivergenceObserver(path).update(scored(random_logits(1, n_vocab=299), range(6)))
    with pytest.raises(EvaluationError, match="different tokens"):
        DivergenceObserver(path).update(scored(random_logits(1), [0, 1, 2, 3, 4, 9]))
    with pytest.raises(EvaluationError, match="fewer positions"):
        DivergenceObserver(path).update(scored(random_logits(1, rows=7), range(7)))
    (tmp_path / "other").write_bytes(b"GGUF" + bytes(400))
    with pytest.raises(EvaluationError, match="no file of log-probabilities"):
        DivergenceObserver(tmp_path / "other")


def test_a_full_disk_is_seen_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10**9, 10**9 - 100, 100))
    with pytest.raises(EvaluationError, match=r"needs 0\.1 GB of disk.*--no-kl"):
        BaseWriter(tmp_path / "base", 50_000, 1000)
    assert not (tmp_path / "base").exists()


def test_divergence_of_models(smollm2_quantized: Path, smollm2_two_layers: Path, tmp_path: Path) -> None:
    """Two chunks of 128 with 63 scored positions each, from the file and from logits of whole chunks."""
    logits = []
    for path in (smollm2_quantized, smollm2_two_layers):
        llm = load(path, threads=1, n_ctx=128, flash_attn=True)
        tokens = tokenize(llm, TEXT * 4)
        base = tmp_path / "base"
        if not base.exists():
            with BaseWriter(base, llm.n_vocab(), 126) as writer:
                assert score(llm, tokens, [writer], n_ctx=128, chunks=2) == 2
        else:
            observer = DivergenceObserver(base)
            score(llm, tokens, [observer], n_ctx=128, chunks=2)
        window = [tokens[i * 128 : (i + 1) * 128].tolist() for i in range(2)]
        logits.append([logits_of(llm, chunk)[64:127] for chunk in window])
        llm.close()
    result = observer.result(chunks=2)
    for i in range(2):
        assert result.kl[i].mean() == pytest.approx(divergence(logits[0][i], logits[1][i]), rel=0.02, abs=2e-4)
    same = np.concatenate([p.argmax(axis=1) == q.argmax(axis=1) for p, q in zip(*logits, strict=True)])
    assert np.mean(same == result.same_top.ravel()) > 0.98
    assert 0.5 < result.same_top.mean() < 1


def test_in_a_comparison(smollm2_quantized: Path, smollm2_two_layers: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT * 4, encoding="utf-8")
    models = [smollm2_quantized, smollm2_two_layers, smollm2_quantized]
    comparison = seeddelta.evaluate(models, text=text, n_ctx=64, chunks=2, reps=0, threads=1)
    first, small, again = (model.divergence for model in comparison.models)
    assert first is None
    assert 0.001 < small.mean < 0.5
    assert 0 <= again.mean < 1e-4
    assert again.same_top_percent == 100
    assert comparison.to_dict()["models"][1]["divergence"]["mean"] == small.mean
    without = seeddelta.evaluate(models[:2], text=text, n_ctx=64, chunks=1, reps=0, threads=1, kl=False)
    assert without.models[1].divergence is None
    assert without.to_dict()["settings"]["kl"] is False
