"""Capture on the real model: the sums are those of the inputs that NumPy computes."""

from __future__ import annotations

import ctypes
import shutil

import numpy as np
import pytest
from seeddelta.calibrate import capture, open_covariance, write_covariance
from seeddelta.cli.main import main
from seeddelta.errors import ImatrixError
from seeddelta.gguf.imatrix import read_imatrix, write_imatrix
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.source import file_sha256, open_source
from seeddelta.gguf.writer import PlannedTensor, copied_metadata, write_gguf

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
def captured(short_f16, text):
    return run(short_f16, text)


def first_input(model_path, text):
    """Inputs of blk.0.attn_q, float64 [tokens, 576]: the normalized embeddings of the chunks' tokens."""
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


def test_sums_are_those_of_the_inputs(captured, short_f16, text):
    x = first_input(short_f16, text)
    name = captured.representatives["blk.0.attn_q.weight"]
    assert captured.hook.tokens(name) == len(x) == 3 * CTX
    np.testing.assert_allclose(captured.hook.square(name)[0], (x**2).sum(axis=0), rtol=1e-3)
    normalized = x / np.linalg.norm(x, axis=1, keepdims=True) * np.sqrt(x.shape[1])
    np.testing.assert_allclose(captured.hook.norm_square(name)[0], (normalized**2).sum(axis=0), rtol=1e-3)
    covariance = captured.hook.covariance(name)
    np.testing.assert_array_equal(covariance, covariance.T)
    np.testing.assert_allclose(covariance, normalized.T @ normalized, rtol=1e-3, atol=0.02)


@pytest.fixture(scope="module")
def every_input(short_f16):
    """Inputs of three matrices, float64 [tokens, n_in] each, and the tokens: copied by a callback in Python, with the
    whole graph computed."""
    import llama_cpp
    from llama_cpp import llama_cpp as native
    from seeddelta.runtime.contexts import evaluation_callback
    from seeddelta.runtime.library import loaded_ggml

    at = loaded_ggml().layout()
    wanted = {b"blk.1.attn_output.weight", b"blk.1.ffn_down.weight", b"blk.5.ffn_down.weight"}
    inputs: dict[str, list[np.ndarray]] = {}

    @native.ggml_backend_sched_eval_callback
    def callback(node, ask, _):
        if ctypes.c_int32.from_address(node + at["op"]).value != at["op_mul_mat"]:
            return not ask
        weight, source = (ctypes.c_void_p.from_address(node + at["src"] + 8 * i).value for i in (0, 1))
        name = ctypes.string_at(weight + at["name"])
        if name in wanted and not ask:
            columns, rows = (ctypes.c_int64 * 2).from_address(source + at["ne"])
            stride = (ctypes.c_size_t * 2).from_address(source + at["nb"])[1] // 4
            data = ctypes.c_void_p.from_address(source + at["data"]).value
            flat = np.ctypeslib.as_array((ctypes.c_float * (rows * stride)).from_address(data))
            inputs.setdefault(name.decode(), []).append(flat.reshape(rows, stride)[:, :columns].astype(np.float64))
        return name in wanted or not ask

    class Hook:
        callback = user_data = None

    Hook.callback, Hook.user_data = ctypes.cast(callback, ctypes.c_void_p).value, None
    with evaluation_callback(Hook):
        llm = llama_cpp.Llama(
            str(short_f16), n_ctx=CTX, n_batch=CTX, n_ubatch=CTX, n_threads=2, logits_all=True, verbose=False
        )
    tokens = np.random.default_rng(0).integers(1000, 20000, 2 * CTX)
    for window in tokens.reshape(2, CTX):
        llm.reset()
        llm.eval(window.tolist())
    llm.close()
    return tokens, {name: np.concatenate(rows) for name, rows in inputs.items()}


def test_sums_are_those_of_every_input(short_f16, every_input):
    tokens, inputs = every_input
    captured = run(short_f16, tokens, chunks=2, layers="1-5", targets="attn_output,ffn_down")
    assert len(inputs) == 3
    for name, x in inputs.items():
        assert captured.hook.tokens(name) == len(x) == len(tokens)  # of the last layer, too
        np.testing.assert_allclose(captured.hook.square(name)[0], (x**2).sum(axis=0), rtol=1e-5)
        normalized = x / np.linalg.norm(x, axis=1, keepdims=True) * np.sqrt(x.shape[1])
        np.testing.assert_allclose(captured.hook.norm_square(name)[0], (normalized**2).sum(axis=0), rtol=1e-5)
        wanted = normalized.T @ normalized
        assert np.linalg.norm(captured.hook.covariance(name) - wanted) < 1e-6 * np.linalg.norm(wanted)
    assert captured.nonfinite() == {}


def test_sums_do_not_depend_on_the_threads_of_the_hook(short_f16, every_input):
    tokens, _ = every_input
    one, three = (run(short_f16, tokens, chunks=2, layers="1", threads=threads) for threads in (1, 3))
    for name in set(one.representatives.values()):
        np.testing.assert_array_equal(one.hook.covariance(name), three.hook.covariance(name))
        np.testing.assert_array_equal(one.hook.square(name), three.hook.square(name))


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
    np.testing.assert_array_equal(matrix, matrix.T)
    assert np.linalg.eigvalsh(matrix.astype(np.float64)).min() > -1e-2
    with pytest.raises(ImatrixError, match=r"blk\.9"):
        covariance.matrix("blk.9.ffn_up.weight")
    data = (tmp_path / "cov.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[: len(data) // 2])
    with pytest.raises(ImatrixError, match=r"cut\.gguf"):
        open_covariance(tmp_path / "cut.gguf")
    with pytest.raises(ImatrixError, match="not a covariance"):
        open_covariance(tmp_path / "imatrix.gguf")


def rewritten(path, source, *, without=(), metadata=None, change=None):
    """A copy of a covariance file with other metadata, without some tensors or with changed values."""
    header = read_header(source)
    kept = (
        [t for name, t in header.tensors.items() if not name.endswith(without)] if without else header.tensors.values()
    )
    plan = [PlannedTensor(t.name, t.shape, t.type) for t in kept]

    def values(tensor):
        info = header.tensors[tensor.name]
        array = np.fromfile(source, "<f4", info.nbytes // 4, offset=info.offset).reshape(info.shape)
        return [change(array) if change else array]

    write_gguf(path, copied_metadata(header) | (metadata or {}), plan, values)
    return open_covariance(path)


def test_importance_with_and_without_the_diagonal(captured, tmp_path):
    write_covariance(tmp_path / "cov.gguf", captured)
    covariance = open_covariance(tmp_path / "cov.gguf")
    old = rewritten(tmp_path / "old.gguf", tmp_path / "cov.gguf", without=".in_norm2")
    for name in ("blk.0.attn_v.weight", "blk.1.ffn_down.weight"):
        importance = covariance.importance(name)
        assert importance.dtype == np.float32
        assert importance.mean() == pytest.approx(1)
        np.testing.assert_allclose(old.importance(name), importance, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(old.matrix(name), covariance.matrix(name))
        assert not covariance.matrix(name).flags.writeable


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_values_that_no_covariance_has(captured, tmp_path, value):
    write_covariance(tmp_path / "cov.gguf", captured)

    def spoil(array):
        array[(0,) * array.ndim] = value
        return array

    spoilt = rewritten(tmp_path / "spoilt.gguf", tmp_path / "cov.gguf", change=spoil)
    for ask in (spoilt.matrix, spoilt.importance):
        with pytest.raises(ImatrixError, match=r"spoilt\.gguf.*blk\.0\.attn_q.*seeddelta imatrix"):
            ask("blk.0.attn_v.weight")


def test_tokens_that_are_not_finite_are_left_out(short_f16, tmp_path):
    info = open_source(short_f16).header.tensors["token_embd.weight"]
    broken = tmp_path / "broken.gguf"
    shutil.copyfile(short_f16, broken)
    table = np.memmap(broken, np.float16, "r+", info.offset, info.shape)
    table[2000] = np.nan
    table.flush()
    tokens = np.arange(3000, 3000 + 2 * CTX)
    name = "blk.0.attn_q.weight"
    options = dict(chunks=2, layers="0", targets="attn_q")
    whole = run(short_f16, tokens, **options)
    assert whole.nonfinite() == {}
    tokens[[5, CTX + 7]] = 2000
    fewer = run(broken, tokens, **options)
    assert fewer.nonfinite() == {name: 2}
    assert fewer.tokens == 2 * CTX - 2
    assert np.isfinite(fewer.hook.covariance(name)).all()
    assert (fewer.hook.square(name) <= whole.hook.square(name)).all()


def test_command(short_f16, text, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # what the command would set stays in this test
    imatrix, hessian = tmp_path / "imatrix.gguf", tmp_path / "cov.gguf"
    arguments = [
        "imatrix",
        "-m",
        short_f16,
        "-f",
        text,
        "-o",
        imatrix,
        "--ctx",
        CTX,
        "--chunks",
        2,
        "--layers",
        "0",
    ]
    extra = ["--hessian", hessian]
    assert main([str(a) for a in arguments + extra]) == 0
    assert "7 matrices, 128 tokens" in capsys.readouterr().out
    assert len(read_imatrix(imatrix).entries) == 7
    metadata = read_header(hessian).metadata
    described = {key: metadata[f"seeddelta.covariance.{key}"] for key in ("normalized", "text_sha256")}
    assert described == dict(normalized=True, text_sha256=file_sha256(text))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cov.gguf", "imatrix.gguf"]
    # outputs are looked at before the model is
    assert main([str(a) for a in [*arguments, "--hessian", tmp_path / "none" / "cov.gguf"]]) != 0
    assert "does not exist" in capsys.readouterr().err
