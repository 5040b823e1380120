"""What llama.cpp refuses, or would end the process for: one sentence with its reason, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from gguf import GGMLQuantizationType, GGUFValueType
from seeddelta.cli.main import main
from seeddelta.errors import ModelError
from seeddelta.gguf.source import SourceModel, file_sha256, open_source
from seeddelta.gguf.writer import PlannedTensor, Typed, Value, copied_metadata, write_gguf

pytest.importorskip("llama_cpp")
Change = Callable[[SourceModel, dict[str, Value], dict[str, np.ndarray[Any, Any]]], None]


def changed(source: Path, path: Path, change: Change) -> Path:
    """A copy of a model whose metadata and tensors are changed first."""
    model = open_source(source)
    metadata: dict[str, Value] = dict(copied_metadata(model.header))
    shapes = {name: info.shape for name, info in model.tensors.items()}
    tensors = {name: model.matrix(name).reshape(shapes[name]) for name in model.tensors}
    tensors = {
        n: a.astype(np.float16 if model.tensors[n].type.name == "F16" else np.float32) for n, a in tensors.items()
    }
    change(model, metadata, tensors)
    plan = [
        PlannedTensor(n, a.shape, GGMLQuantizationType["F16" if a.dtype == "f2" else "F32"]) for n, a in tensors.items()
    ]
    write_gguf(path, metadata, plan, lambda tensor: [tensors[tensor.name]])
    return path


def short_vocabulary(model: SourceModel, metadata: dict[str, Value], tensors: dict[str, Any]) -> None:
    tensors["token_embd.weight"] = np.concatenate([tensors["token_embd.weight"], tensors["token_embd.weight"][:64]])


def half_norms(model: SourceModel, metadata: dict[str, Value], tensors: dict[str, Any]) -> None:
    tensors["blk.0.attn_norm.weight"] = tensors["blk.0.attn_norm.weight"].astype(np.float16)


def small_alignment(model: SourceModel, metadata: dict[str, Value], tensors: dict[str, Any]) -> None:
    metadata["general.alignment"] = Typed(8, GGUFValueType.UINT32)


def unreadable_template(model: SourceModel, metadata: dict[str, Value], tensors: dict[str, Any]) -> None:
    metadata["tokenizer.chat_template"] = Typed("{{ messages|nosuchfilter }}", GGUFValueType.STRING)


def heads_of_each_layer(model: SourceModel, metadata: dict[str, Value], tensors: dict[str, Any]) -> None:
    metadata["llama.attention.head_count_kv"] = Typed([2, 2], GGUFValueType.ARRAY, GGUFValueType.UINT32)


def a_missing_tensor(model: SourceModel, metadata: dict[str, Value], tensors: dict[str, Any]) -> None:
    del tensors["blk.1.ffn_down.weight"]


SHORT = ("-c", "64", "--chunks", "4", "-q")
COMMANDS = {
    "quantize": "quantize {m} -o {o} --bits 4 -f {t} -c 64 --chunks 4 -q",
    "imatrix": "imatrix -m {m} -o {o} -f {t} -c 64 --chunks 4 -q",
    "run": "run -m {m} -p hi -n 2 -q",
    "eval": "eval -m {m} -f {t} -c 64 --chunks 2 --no-speed -q",
    "bench": "bench -m {m} -p 8 -n 2 -r 1 -q",
    "sparsify": "sparsify {m} -o {o} -f {t} -c 64 -q",
}


REASONS = {
    short_vocabulary: "token_embd.weight' has wrong shape",
    half_norms: "blk.0.attn_norm.weight' has one dimension and is F16",
    small_alignment: "general.alignment must be a multiple of 32",
    a_missing_tensor: "blk.1.ffn_down.weight' not found",
}
TOLD = [("run", change) for change in REASONS] + [("quantize", change) for change in REASONS]
TOLD += [(command, change) for command in COMMANDS for change in (half_norms, a_missing_tensor)]


@pytest.mark.parametrize(("command", "change"), dict.fromkeys(TOLD))
def test_the_reason_reaches_the_user(
    command: str, change: Change, tiny_dense: Path, tiny_text: Path, tmp_path: Path, capfd: Any
) -> None:
    model = changed(tiny_dense, tmp_path / "m.gguf", change)
    arguments = COMMANDS[command].format(m=model, o=tmp_path / "o", t=tiny_text).split()
    assert main(arguments) == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert REASONS[change] in error, error
    assert str(model) in error
    assert not (tmp_path / "o").exists()


def test_a_template_that_nobody_uses_is_no_reason(
    tiny_dense: Path, tiny_text: Path, tmp_path: Path, capsys: Any
) -> None:
    model = changed(tiny_dense, tmp_path / "m.gguf", unreadable_template)
    for command in ("quantize", "run", "eval"):
        arguments = COMMANDS[command].format(m=model, o=tmp_path / command, t=tiny_text).split()
        assert main(arguments) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert main(["run", "-m", str(model), "--chat", "-p", "hi", "-n", "2", "-q"]) == 1
    assert "chat template cannot be read: No filter named 'nosuchfilter'" in capsys.readouterr().err


def test_a_load_by_python_says_why(tiny_dense: Path, tmp_path: Path) -> None:
    model = changed(tiny_dense, tmp_path / "m.gguf", a_missing_tensor)
    with pytest.raises(ModelError, match=r"m.gguf: llama.cpp cannot load it: .*blk.1.ffn_down.weight' not found"):
        seeddelta.load(model, verbose=False)


def test_heads_that_are_given_for_each_layer(tiny_dense: Path, tiny_text: Path, tmp_path: Path) -> None:
    model = changed(tiny_dense, tmp_path / "m.gguf", heads_of_each_layer)
    seeddelta.quantize(
        model, tmp_path / "o.gguf", bits=4, gradient="auto", text=tiny_text, ctx=64, chunks=4, progress=False
    )


def test_texts_that_are_no_utf8(tiny_dense: Path, tiny_text: Path, tmp_path: Path) -> None:
    """Each is refused by its place; llama.cpp would end the process at most of them."""
    text = tmp_path / "t.txt"
    wrong = (b"\xf5\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xff\xfe", b"\xed\xa0\x80")
    before = tiny_text.read_bytes()
    for command, tail in zip(("quantize", "eval", "quantize", "eval"), wrong, strict=True):
        text.write_bytes(before + tail + b" and more")
        arguments = COMMANDS[command].format(m=tiny_dense, o=tmp_path / "o", t=text).split()
        done = subprocess.run([sys.executable, "-m", "seeddelta", *arguments], capture_output=True, text=True)
        assert done.returncode == 1, done.stderr
        assert f"{text}: not UTF-8 at byte {len(before)}; give a text file in UTF-8" in done.stderr


def test_a_text_from_a_pipe(tiny_dense: Path, tiny_text: Path, tmp_path: Path) -> None:
    from seeddelta.gguf.model_file import read_header

    covariance, text = tmp_path / "cov.gguf", f"<(cat {tiny_text})"
    line = f"imatrix -m {tiny_dense} -o {tmp_path / 'o.gguf'} --hessian {covariance} -f {text} -c 64 --chunks 4 -q"
    for arguments in (line, f"eval -m {tiny_dense} -m {tiny_dense} -f {text} -c 64 --chunks 2 --no-speed -q"):
        done = subprocess.run(["bash", "-c", f"{sys.executable} -m seeddelta {arguments}"], capture_output=True)
        assert done.returncode == 0, done.stderr
    assert read_header(covariance).metadata["seeddelta.covariance.text_sha256"] == file_sha256([tiny_text])


def test_positions_beyond_the_table(smollm2_quantized: Path, tiny_text: Path, tmp_path: Path, capfd: Any) -> None:
    from tiny_architectures import make

    model = make("gpt2", tmp_path, smollm2_quantized)
    for arguments in (
        f"imatrix -m {model} -o {tmp_path / 'o'} -f {tiny_text} -c 512 -q",
        f"quantize {model} -o {tmp_path / 'o'} --bits 4 -f {tiny_text} -c 512 --chunks 2 -q",
        f"run -m {model} -p hi -n 400 -q",
        f"eval -m {model} -f {tiny_text} -c 512 --no-speed -q",
    ):
        assert main(arguments.split()) == 1
        assert "256" in capfd.readouterr().err
    assert main(f"eval -m {model} -f {tiny_text} -c 128 --chunks 2 --reps 1 -t 2 -q".split()) == 0
    llm = seeddelta.load(model, n_ctx=1024, verbose=False)
    assert llm.n_ctx() == 256
    llm.close()


def test_words_of_any_length(tiny_dense: Path) -> None:
    """llama.cpp's splitting calls itself for every character of a word, and so ends the process."""
    from seeddelta.session import tokenize
    from seeddelta.session.long_words import longest_word, tokens_of

    llm = seeddelta.load(tiny_dense, n_ctx=64, verbose=False)
    try:
        assert len(tokenize(llm, "a" * 300_000)) > 1000
        assert tokens_of(llm, b"a city ") == llm.tokenize(b"a city ", special=False)
    finally:
        llm.close()
    assert longest_word(b"") == 0
    assert longest_word(b"ab  c\n\n\nd") == 3
    assert longest_word("é é".encode()) == 2
