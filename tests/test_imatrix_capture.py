"""Capture on the real model: the sums are those of the inputs that NumPy computes, and a stopped capture goes on."""

from __future__ import annotations

import numpy as np
import pytest
from seeddelta.errors import ImatrixError
from seeddelta.gguf.imatrix import read_imatrix, write_imatrix
from seeddelta.gguf.source import open_source
from seeddelta.imatrix import capture, open_covariance, write_covariance

pytest.importorskip("llama_cpp")
CTX = 64


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "calibration.txt"
    path.write_text("The history of the city begins with a harbour, a wall and a market. " * 60, encoding="utf-8")
    return path


def run(model, text, **options):
    options = dict(ctx=CTX, chunks=3, layers="0-1", progress=False, threads=2) | options
    return capture(model, text, **options)


@pytest.fixture(scope="module")
def captured(smollm2_f16, text):
    return run(smollm2_f16, text)


def first_input(model_path, text):
    """Inputs of blk.0.attn_q, float64 [tokens, 576]: the normalised embeddings of the chunks' tokens."""
    import llama_cpp

    llm = llama_cpp.Llama(str(model_path), vocab_only=True, n_ctx=64, verbose=False)
    tokens = llm.tokenize(text.read_bytes().removesuffix(b"\n"), add_bos=True, special=False)
    windows = [list(tokens[i * CTX : (i + 1) * CTX]) for i in range(3)]
    api = llama_cpp.llama_cpp
    vocab = api.llama_model_get_vocab(llm.model)
    if api.llama_vocab_get_add_bos(vocab):
        for window in windows:
            window[0] = api.llama_vocab_bos(vocab)
    source = open_source(model_path)
    embedding = source.matrix("token_embd.weight")[np.concatenate(windows)].astype(np.float64)
    eps = source.header.metadata["llama.attention.layer_norm_rms_epsilon"]
    norm = np.asarray(source.raw("blk.0.attn_norm.weight")).view(np.float32).astype(np.float64)
    llm.close()
    return embedding / np.sqrt((embedding**2).mean(axis=1, keepdims=True) + eps) * norm


def test_sums_are_those_of_the_inputs(captured, smollm2_f16, text):
    x = first_input(smollm2_f16, text)
    name = captured.representatives["blk.0.attn_q.weight"]
    assert captured.hook.tokens(name) == len(x) == 3 * CTX
    np.testing.assert_allclose(captured.hook.square(name), (x**2).sum(axis=0), rtol=1e-3)
    normalised = x / np.linalg.norm(x, axis=1, keepdims=True) * np.sqrt(x.shape[1])
    np.testing.assert_allclose(captured.hook.norm_square(name), (normalised**2).sum(axis=0), rtol=1e-3)
    covariance = captured.hook.covariance(name)
    np.testing.assert_array_equal(covariance, covariance.T)
    np.testing.assert_allclose(covariance, normalised.T @ normalised, rtol=1e-3, atol=0.02)


def test_shared_inputs_are_captured_once(captured):
    shared = captured.representatives
    assert len(shared) == 14
    assert len(set(shared.values())) == 8
    for layer in (0, 1):
        assert len({shared[f"blk.{layer}.attn_{part}.weight"] for part in "qkv"}) == 1
        assert shared[f"blk.{layer}.ffn_gate.weight"] == shared[f"blk.{layer}.ffn_up.weight"]


def test_files(captured, tmp_path):
    write_imatrix(tmp_path / "imatrix.gguf", captured.imatrix())
    imatrix = read_imatrix(tmp_path / "imatrix.gguf")
    assert set(imatrix.entries) == set(captured.representatives)
    write_covariance(tmp_path / "cov.gguf", captured)
    covariance = open_covariance(tmp_path / "cov.gguf")
    matrix = covariance.matrix("blk.1.ffn_up.weight")
    assert matrix.shape == (576, 576)
    assert np.trace(matrix) == pytest.approx(576, rel=1e-3)  # every token has the norm sqrt(n_in)
    assert np.linalg.eigvalsh(matrix.astype(np.float64)).min() > -1e-2
    with pytest.raises(ImatrixError, match=r"blk\.9"):
        covariance.matrix("blk.9.ffn_up.weight")
    data = (tmp_path / "cov.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[: len(data) // 2])
    with pytest.raises(ImatrixError, match=r"cut\.gguf"):
        open_covariance(tmp_path / "cut.gguf")
    with pytest.raises(ImatrixError, match="not a covariance"):
        open_covariance(tmp_path / "imatrix.gguf")


def test_skipped_tokens(smollm2_f16, text, captured):
    fewer = run(smollm2_f16, text, skip=4, covariance=False)
    assert fewer.tokens == 3 * (CTX - 4)
    name = "blk.0.ffn_down.weight"
    assert (fewer.hook.square(name) <= captured.hook.square(name) * (1 + 1e-6)).all()


def test_goes_on_from_a_checkpoint(smollm2_f16, text, captured, tmp_path):
    folder = tmp_path / "parts"
    stopped = run(smollm2_f16, text, checkpoint=folder, checkpoint_every=1, chunks=3)
    assert (folder / "state.json").exists()  # left by the chunk before the last
    again = run(smollm2_f16, text, checkpoint=folder, checkpoint_every=100)
    for result in (stopped, again):
        write_covariance(tmp_path / "b.gguf", result)
        write_covariance(tmp_path / "a.gguf", captured)
        assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    again.discard_checkpoint()
    assert not folder.exists()
