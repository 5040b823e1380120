"""A model in llama.cpp for everything that measures or talks: opened, its texts read, tokenized and cut into chunks."""

from __future__ import annotations

import codecs
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import EvaluationError, MissingFileError, ModelError
from ..gguf.hub import model_file
from ..processors import processors
from .decoder import Decoder, Tokens
from .long_words import tokens_of

if TYPE_CHECKING:
    import llama_cpp

_log = logging.getLogger(__name__)


def open_model(
    path: str | os.PathLike[str], *, n_ctx: int = 512, n_batch: int = 512, threads: int | None = None, **options: Any
) -> llama_cpp.Llama:
    """The model (a path, or hf://…) as a `llama_cpp.Llama`, quiet, with flash attention on as llama-perplexity has it.

    `threads` is used for prompts and for generation (default: all cores). `options` go to `seeddelta.load`.
    Raises MissingFileError when there is no such file, ModelError when llama.cpp refuses it, MissingDependencyError
    without llama-cpp-python, and what `seeddelta.load` raises.
    """
    path = model_file(path)
    from ..runtime import load

    threads = threads or processors()
    settings: dict[str, Any] = {"n_threads": threads, "n_threads_batch": threads, "flash_attn": True, "verbose": False}
    _log.info("opening %s with a context of %d and %d threads", path, n_ctx, threads)
    _log.debug("keywords of llama_cpp.Llama and seeddelta.load: %s", options)
    return load(path, n_ctx=n_ctx, n_batch=n_batch, n_ubatch=min(n_batch, 512), **(settings | options))


def has_logits(llm: llama_cpp.Llama) -> bool:
    """False for a model that has no output matrix and gives embeddings alone.

    Where the metadata speak of embeddings one token is decoded to know. Raises ModelError for an encoder with a decoder
    (T5), which wants two texts.
    """
    from llama_cpp import llama_cpp as api

    refuse_encoder_decoder(llm)
    if api.llama_model_has_encoder(llm.model):
        return False
    architecture = llm.metadata.get("general.architecture", "")
    pooled = f"{architecture}.pooling_type" in llm.metadata
    if not pooled and llm.metadata.get(f"{architecture}.attention.causal", "true") == "true":
        return True
    decoder = Decoder(llm)
    logits = decoder.decode(np.zeros(1, np.int32), 0)
    found = bool(np.ptp(logits) > 0)
    decoder.clear()
    return found


def refuse_encoder_decoder(llm: llama_cpp.Llama, path: object = None) -> None:
    """Raise ModelError for an encoder with a decoder (T5): it wants two texts, and ends the process with one."""
    from llama_cpp import llama_cpp as api

    if api.llama_model_has_encoder(llm.model) and api.llama_model_has_decoder(llm.model):
        raise ModelError(
            f"{path or llm.model_path}: is an encoder with a decoder (T5), which seeddelta neither measures nor runs; "
            "seeddelta build converts it without calibration"
        )


def require_logits(llm: llama_cpp.Llama, path: object = None) -> None:
    """Raise EvaluationError for a model without logits, and as `has_logits`. `path` is what the message calls it."""
    if not has_logits(llm):
        raise EvaluationError(
            f"{path or llm.model_path}: has no output matrix: it is an embedding model, which predicts no tokens; "
            "seeddelta eval compares embeddings, seeddelta serve gives them"
        )


def read_text(path: str | os.PathLike[str], *, whole: bool = False) -> bytes:
    """A text file's bytes without one newline at the end (`whole`: with it), as llama-perplexity reads it.

    Raises MissingFileError, or EvaluationError for what is not a text in UTF-8.
    """
    try:
        data = Path(path).read_bytes()
        codecs.getincrementaldecoder("utf-8")().decode(data)  # which takes a text that was cut within a character
    except FileNotFoundError as error:
        raise MissingFileError(f"{path}: no such file; give a text file in UTF-8") from error
    except OSError as error:
        raise EvaluationError(f"{path}: cannot be read ({error.strerror}); give a text file in UTF-8") from error
    except UnicodeDecodeError as error:
        raise EvaluationError(f"{path}: not UTF-8 at byte {error.start}; give a text file in UTF-8") from error
    return data if whole else data.removesuffix(b"\n")


def tokenize(llm: llama_cpp.Llama, text: str | bytes) -> Tokens:
    """All tokens of a text, with BOS in front when the model's add_bos says so; special tokens are plain text."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    # llama.cpp ends the process at what looks like UTF-8 of a code point beyond U+10FFFF
    data = data.decode("utf-8", "replace").encode("utf-8")
    return np.asarray(tokens_of(llm, data), dtype=np.int32)


def plan_chunks(n_tokens: int, n_ctx: int, chunks: int | None, name: str = "the text") -> int:
    """Number of chunks that will be scored. Raises EvaluationError, with the text's name, below 2·n_ctx tokens."""
    if n_ctx < 4:
        raise EvaluationError(f"a context of {n_ctx} leaves nothing to score; use at least 4 (usual: 512)")
    if chunks is not None and chunks < 1:
        raise EvaluationError(f"{chunks} chunks leave nothing to score; use at least 1")
    if n_tokens < 2 * n_ctx:
        raise EvaluationError(
            f"{name} has {n_tokens} tokens, but at least {2 * n_ctx} are needed for a context of {n_ctx}; "
            "use a longer text or a smaller context"
        )
    return min(n_tokens // n_ctx, chunks or n_tokens)


def bos_token(llm: llama_cpp.Llama) -> int | None:
    """The token that begins every chunk, or None when the model has none."""
    from llama_cpp import llama_cpp

    vocab = llama_cpp.llama_model_get_vocab(llm.model)
    return int(llama_cpp.llama_vocab_bos(vocab)) if llama_cpp.llama_vocab_get_add_bos(vocab) else None


def system_info() -> str | None:
    """What the loaded ggml was compiled for and uses, in its words; None without llama-cpp-python."""
    try:
        from llama_cpp import llama_cpp
    except ImportError:
        return None
    return str(llama_cpp.llama_print_system_info().decode())
