"""Divergence through the file, against the definition on logits that are kept; the file's form; what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import namedtuple
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from llama_helpers import TEXT, divergence, load, logits_of
from seeddelta.cli.main import main
from seeddelta.errors import EvaluationError
from seeddelta.evaluate.base_file import BaseFile, BaseWriter
from seeddelta.evaluate.chunk_log import ChunkLog
from seeddelta.evaluate.kl import DivergenceObserver, DivergenceResult
from seeddelta.evaluate.scores import score_text
from seeddelta.evaluate.scoring import Scored, log_norm
from tiny_llama import write_llama

N_VOCAB, N_CTX = 301, 8  # an odd vocabulary: rows are padded. Three positions of a chunk are scored
TOKENS = np.arange(2 * N_CTX, dtype=np.int32)
TARGETS = np.array([5, 6, 7, 13, 14, 15])


def scored(logits: Any, targets: Any, chunk: int) -> Scored:
    return Scored(chunk, logits, log_norm(logits), np.asarray(targets, dtype=np.int32))


def random_logits(seed: int, rows: int = 6, n_vocab: int = N_VOCAB) -> Any:
    return np.random.default_rng(seed).normal(0, 3, (rows, n_vocab)).astype(np.float32)


def show(observer: Any, logits: Any) -> None:
    for chunk in range(2):  # positions come in several calls
        for rows in (slice(3 * chunk, 3 * chunk + 2), slice(3 * chunk + 2, 3 * chunk + 3)):
            observer.update(scored(logits[rows], TARGETS[rows], chunk))


def write(path: Path, logits: Any) -> Path:
    with BaseWriter(path, TOKENS, N_CTX, logits.shape[1]) as base:
        show(base, logits)
    return path


def probabilities(logits: Any) -> Any:
    e = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def test_divergence_of_random_logits(tmp_path: Path) -> None:
    p, q = random_logits(1), random_logits(2)
    q[3] = p[3]
    observer = DivergenceObserver(write(tmp_path / "base", p))
    show(observer, q)
    result = observer.result()
    assert result.kl.shape == result.same_top.shape == result.delta_p.shape == (2, 3)
    expected = [divergence(p[i : i + 1], q[i : i + 1]) for i in range(6)]
    np.testing.assert_allclose(result.kl.ravel(), expected, rtol=0, atol=2e-4)
    np.testing.assert_array_equal(result.same_top.ravel(), p.argmax(axis=1) == q.argmax(axis=1))
    at = np.arange(6), TARGETS
    np.testing.assert_allclose(result.delta_p.ravel(), (probabilities(q) - probabilities(p))[at], rtol=0, atol=1e-4)
    assert result.same_top[1, 0]
    assert 0 <= result.kl[1, 0] < 1e-6
    base = BaseFile(tmp_path / "base")
    nll = -np.log(probabilities(p)[at])
    np.testing.assert_allclose(np.concatenate([base.nll(0), base.nll(1)]), nll, rtol=0, atol=2e-4)


def test_tokens_far_below_the_top_are_no_difference(tmp_path: Path) -> None:
    """Nearly all tokens are more than 16 nats below the top: the file does not know by how much."""
    p = random_logits(3)
    p[:, 7] += 40
    observer = DivergenceObserver(write(tmp_path / "base", p))
    show(observer, p)
    np.testing.assert_allclose(observer.result().kl, 0, atol=1e-7)


def test_the_file_is_that_of_llama_perplexity(tmp_path: Path) -> None:
    """Byte by byte: the header, and a row as the C++ reads it (two floats, then codes from the ninth byte on)."""
    p = random_logits(4)
    data = write(tmp_path / "base", p).read_bytes()
    assert data[:8] == b"_logits_"
    assert np.frombuffer(data, "<i4", 3, 8).tolist() == [N_CTX, N_VOCAB, 2]
    np.testing.assert_array_equal(np.frombuffer(data, "<i4", 2 * N_CTX, 20), TOKENS)
    words = 2 * ((N_VOCAB + 1) // 2) + 4
    rows = np.frombuffer(data, "<u2", 6 * words, 20 + 8 * N_CTX).reshape(6, words)
    assert len(data) == 20 + 8 * N_CTX + 2 * rows.size
    for row, logits in zip(rows, p, strict=True):
        scale, least = row[:4].copy().view("<f4").astype(np.float64)
        exact = np.log(probabilities(logits[None]))[0]
        kept = logits > logits.max() - 16
        np.testing.assert_allclose((scale * row[4 : 4 + N_VOCAB] + least)[kept], exact[kept], rtol=0, atol=2e-4)
        assert not row[4 : 4 + N_VOCAB][~kept].any()


def test_summary() -> None:
    same = np.array([[True, True], [True, False]])
    result = DivergenceResult(np.array([[0.0, 1.0], [2.0, 3.0]]), same, np.array([[0.1, -0.1], [0.1, 0.3]]))
    assert result.mean == 1.5
    assert result.stderr == pytest.approx(np.std([0, 1, 2, 3], ddof=1) / 2)
    assert result.same_top_percent == 75
    assert result.same_top_stderr == pytest.approx(25.0)
    assert result.mean_delta_p.value == pytest.approx(10)
    assert result.rms_delta_p.value == pytest.approx(np.sqrt(300))
    squares = np.array([100, 100, 100, 900])
    assert result.rms_delta_p.stderr == pytest.approx(squares.std(ddof=1) / 2 / 2 / np.sqrt(300))
    assert result.to_dict()["max"] == 3
    assert result.to_dict()["median"] == 1.5


def test_error_of_a_quantile_is_its_spread() -> None:
    random = np.random.default_rng(0)
    samples = random.exponential(1, (400, 50, 20))
    for share in (0.5, 0.9, 0.99):
        found = [
            DivergenceResult(kl, np.ones_like(kl, bool), kl).quantile(share) for kl in samples
        ]  # fmt: skip
        spread = np.std([estimate.value for estimate in found])
        assert np.mean([estimate.stderr for estimate in found]) == pytest.approx(spread, rel=0.15)


def test_another_text_vocabulary_or_length_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "base", random_logits(1))
    with pytest.raises(EvaluationError, match="vocabularies of 301 and 299"):
        DivergenceObserver(path).update(scored(random_logits(1, 3, 299), TARGETS[:3], 0))
    with pytest.raises(EvaluationError, match="different tokens"):
        DivergenceObserver(path).update(scored(random_logits(1, 3), [5, 6, 9], 0))
    with pytest.raises(EvaluationError, match="fewer chunks"):
        DivergenceObserver(path).update(scored(random_logits(1, 3), TARGETS[:3], 2))
    (tmp_path / "other").write_bytes(b"GGUF" + bytes(400))
    with pytest.raises(EvaluationError, match="no file of log-probabilities"):
        DivergenceObserver(tmp_path / "other")
    (tmp_path / "short").write_bytes(path.read_bytes()[:-1])
    with pytest.raises(EvaluationError, match="where 2 chunks take"):
        DivergenceObserver(tmp_path / "short")
    (tmp_path / "huge").write_bytes(b"_logits_" + np.array([1 << 30, 10, 1 << 30], "<i4").tobytes())
    with pytest.raises(EvaluationError, match="impossible sizes"):
        DivergenceObserver(tmp_path / "huge")


def test_a_full_disk_is_seen_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10**9, 10**9 - 100, 100))
    with pytest.raises(EvaluationError, match=r"needs 0\.1 GB of disk.*--no-kl"):
        BaseWriter(tmp_path / "base", np.zeros(2048, np.int32), 512, 50_000)
    assert not (tmp_path / "base").exists()


def test_a_log_keeps_whole_chunks_of_its_own_identity(tmp_path: Path) -> None:
    path = tmp_path / "parts" / "one"
    log = ChunkLog(path, {"model": 1}, ("nll", "kl"), 3)
    for chunk in range(2):
        log.append({"nll": np.arange(3.0) + chunk, "kl": np.arange(3.0) - chunk})
    log.close()
    (path / ".000002.sdpart.abc.part").write_bytes(b"half a chunk")
    again = ChunkLog(path, {"model": 1}, ("nll", "kl"), 3)
    assert len(again) == 2
    np.testing.assert_array_equal(again.column("kl"), [[0, 1, 2], [-1, 0, 1]])
    again.append({"nll": np.ones(3), "kl": np.ones(3)})
    again.close()
    for model, chunk, kept in ((1, 0, 3), (1, 2, 2), (1, 1, 1), (2, 0, 0)):
        with (path / f"{chunk:06d}.sdpart").open("ab") as file:  # damage to a chunk ends those that are used
            file.write(b"?" * chunk)
        with closing(ChunkLog(path, {"model": model}, ("nll", "kl"), 3)) as log:
            assert len(log) == kept


@pytest.fixture(scope="module")
def tiny(smollm2_quantized: Path, model_dir: Path) -> tuple[Path, Path]:
    """A llama of random weights, and the same at 2 bits."""
    dense = write_llama(model_dir / "tiny-kl.gguf", smollm2_quantized)
    coded = model_dir / "tiny-kl.seeddelta.gguf"
    seeddelta.build(seeddelta.Recipe(input=dense, output=coded, bits=2, effort="fast"), progress=False)
    return dense, coded


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT * 8, encoding="utf-8")
    return path


def test_perplexity_and_divergence_of_models(tiny: tuple[Path, Path], text: Path, tmp_path: Path) -> None:
    """Two chunks of 128 with 63 scored positions each, from the file and from logits of whole chunks."""
    logits, answers, base = [], [], str(tmp_path / "base")
    for path, files in zip(tiny, ({"save_base": base}, {"base": base}), strict=True):
        llm = load(path, threads=1, n_ctx=128, flash_attn=True)
        answers.append(score_text(llm, n_ctx=128, chunks=2, text=str(text), **files))
        window = [chunk.tolist() for chunk in BaseFile(base).tokens]
        logits.append([logits_of(llm, chunk)[64:127] for chunk in window])
        llm.close()
    targets = np.array([chunk[65:] for chunk in window])
    p, q = (np.array([probabilities(chunk) for chunk in model]) for model in logits)
    for answer, model in zip(answers, (p, q), strict=True):
        nll = -np.log(np.take_along_axis(model, targets[..., None], axis=2)[..., 0])
        np.testing.assert_allclose(answer["nll"], nll, rtol=0, atol=1e-4)
    kl = (p * np.log(p / q)).sum(axis=2)
    np.testing.assert_allclose(answers[1]["kl"], kl, rtol=1e-3, atol=1e-4)
    assert 1e-3 < kl.mean() < 0.5
    same = p.argmax(axis=2) == q.argmax(axis=2)
    assert np.mean(same == (np.array(answers[1]["same_top"]) > 0)) > 0.98
    np.testing.assert_allclose(answers[1]["nll_base"], answers[0]["nll"], rtol=0, atol=2e-4)


@pytest.mark.slow
def test_in_a_comparison(tiny: tuple[Path, Path], text: Path) -> None:
    models = [*tiny, tiny[0]]
    comparison = seeddelta.evaluate(models, text=text, n_ctx=64, chunks=2, reps=0, threads=1)
    first, small, again = (model.divergence for model in comparison.models)
    assert first is None
    assert 0.001 < small.mean < 0.5
    assert 0 <= again.mean < 1e-6
    assert again.same_top_percent == 100
    assert comparison.to_dict()["models"][1]["divergence"]["mean"] == small.mean
    without = seeddelta.evaluate(models[:2], text=text, n_ctx=64, chunks=1, reps=0, threads=1, kl=False)
    assert without.models[1].divergence is None
    assert without.to_dict()["settings"]["kl"] is False


@pytest.mark.slow
def test_a_base_in_a_file_stands_for_the_model(
    tiny: tuple[Path, Path], text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    base, common = tmp_path / "base.kld", ["--no-speed", "-t", "1", "-q"]
    pair = ["-m", str(tiny[0]), "-m", str(tiny[1])]
    settings = ["-f", str(text), "-c", "64", "--chunks", "2"]
    assert main(["eval", *pair, *settings, "--save-kl-base", str(base), *common, "--json"]) == 0
    direct = json.loads(capfd.readouterr().out)["models"][1]
    assert main(["eval", *pair[2:], "--kl-base", str(base), *common, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)["models"][0]
    assert found["divergence"] == direct["divergence"]
    assert found["perplexity"] == direct["perplexity"]
    assert found["difference"]["log_ratio"] == pytest.approx(direct["difference"]["log_ratio"], abs=1e-4)
    assert main(["eval", *pair[2:], "--kl-base", str(base), *common]) == 0
    table = capfd.readouterr().out
    for row in (": 2 chunks of 64", "p99.9", "RMS Δp", "same top", "change"):
        assert row in table
    for wrong, message in (
        ([*settings, "--kl-base", str(base)], "excludes --text"),
        (["--save-kl-base", str(base)], "needs a text"),
        (["--kl-base", str(text)], "no file of log-probabilities"),
    ):
        assert main(["eval", *pair[2:], *common, *wrong]) == 1
        assert message in capfd.readouterr().err


@pytest.mark.slow
def test_a_killed_evaluation_goes_on(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    """Killed in the second model: the result is the same."""
    folder, text = tmp_path / "parts", tmp_path / "text.txt"
    text.write_text(TEXT * 100)
    command = [
        sys.executable, "-m", "seeddelta.cli.main", "eval", "-m", tiny[0], "-m", tiny[1],
        "-f", text, "-c", "64", "--no-speed", "-t", "1", "-q", "--json",
    ]  # fmt: skip

    def run(*more: Any) -> Any:
        done = subprocess.run([*command, *more], check=True, capture_output=True, timeout=120)
        return json.loads(done.stdout)

    expected = run("--chunks", "200")
    process = subprocess.Popen([*command, "--chunks", "200", "--resume", folder], start_new_session=True)
    seen: list[Path] = []  # in the order in which they appear
    while len(seen) < 2 or len(list(seen[1].glob("0*.sdpart"))) < 3:  # some chunks of the second model
        assert process.poll() is None
        seen += [path for path in folder.glob("*.chunks") if path not in seen]
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    found = run("--chunks", "200", "--resume", folder)
    for model, other in zip(found["models"], expected["models"], strict=True):
        for part in ("perplexity", "difference", "divergence"):
            assert model[part] == other[part]


def test_finished_chunks_are_not_scored_again(tiny: tuple[Path, Path], text: Path, tmp_path: Path) -> None:
    llm = load(tiny[0], threads=1, n_ctx=64)
    folder, base = tmp_path / "parts", tmp_path / "base.kld"
    settings: dict[str, Any] = {"n_ctx": 64, "chunks": 4, "text": str(text), "save_base": str(base)}
    done: list[int] = []

    def score() -> Any:
        done.clear()
        resumed = {"resume": str(folder), "identity": {"model": 1}}
        return score_text(llm, **settings, **resumed, report=lambda at, total, shown: done.append(at))

    first, rows = score(), base.read_bytes()
    assert done == [1, 2, 3, 4]
    (log,) = folder.iterdir()
    (log / "000003.sdpart").unlink()
    with (log / "000002.sdpart").open("r+b") as file:
        file.truncate(100)
    base.write_bytes(rows[:-100])
    again = score()
    assert done == [3, 4]
    assert base.read_bytes() == rows
    np.testing.assert_allclose(again["nll"], first["nll"], rtol=0, atol=1e-6)
    base.unlink()
    with pytest.raises(EvaluationError, match="lacks some of the 4 chunks"):
        score()
    llm.close()
