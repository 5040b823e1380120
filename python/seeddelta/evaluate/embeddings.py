"""Models without logits: how near a model's embeddings are to another's, token by token and text by text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import EvaluationError
from ..session import bos_token, plan_chunks, read_text, tokenize
from ..session.decoder import Decoder
from .kl import Estimate

if TYPE_CHECKING:
    import llama_cpp

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class EmbeddingResult:
    """Cosines between a model's embeddings and the first model's.

    token: f64[chunks, n_ctx], of each token's hidden state after the last layer.
    text: f64[chunks], of the mean of a chunk's tokens.
    """

    token: F64
    text: F64

    @property
    def token_mean(self) -> Estimate:
        """Mean over the tokens; the standard error is over the chunks, whose tokens are not independent."""
        return _mean(self.token.mean(axis=1))

    @property
    def text_mean(self) -> Estimate:
        return _mean(self.text)

    def to_dict(self) -> dict[str, Any]:
        return {
            "tokens": int(self.token.size),
            "token_cosine": self.token_mean.value,
            "token_cosine_stderr": self.token_mean.stderr,
            "token_cosine_least": float(self.token.min()),
            "text_cosine": self.text_mean.value,
            "text_cosine_stderr": self.text_mean.stderr,
        }


def embed_text(
    llm: llama_cpp.Llama,
    path: Path,
    *,
    text: str,
    n_ctx: int,
    chunks: int | None,
    report: Callable[[int, int, str], None] = lambda done, total, shown: None,
) -> int:
    """Write the embedding of every token of a text file, float32[chunks, n_ctx, n_embd], to a .npy file.

    Each chunk of n_ctx tokens is a text of its own. Returns the number of chunks. Raises EvaluationError when the text
    is too short, or a chunk is longer than the model takes.
    """
    from llama_cpp import llama_cpp as api

    longest = min(llm.n_batch, int(api.llama_model_n_ctx_train(llm.model)) or llm.n_batch)
    if n_ctx > longest:
        raise EvaluationError(f"{llm.model_path}: takes {longest} tokens at once; give --ctx {longest} or less")
    tokens = tokenize(llm, read_text(text))
    total = plan_chunks(len(tokens), n_ctx, chunks, str(text))
    decoder, bos = Decoder(llm), bos_token(llm)
    n_embd = llm.n_embd()
    api.llama_set_embeddings(llm.ctx, True)
    found = np.lib.format.open_memmap(path, "w+", np.float32, (total, n_ctx, n_embd))
    for chunk in range(total):
        window = tokens[chunk * n_ctx : (chunk + 1) * n_ctx].copy()
        if bos is not None:
            window[0] = bos
        decoder.clear()
        decoder.decode(window, 0, slice(0, n_ctx))
        address = api.llama_get_embeddings(llm.ctx)
        if not address:
            raise EvaluationError(f"{llm.model_path}: llama.cpp gives neither logits nor embeddings of it")
        found[chunk] = np.ctypeslib.as_array(address, (n_ctx, n_embd))
        report(chunk + 1, total, "")
    api.llama_set_embeddings(llm.ctx, False)
    if not np.isfinite(found).all():
        raise EvaluationError(f"{llm.model_path}: its embeddings are not finite; the file is damaged")
    found.flush()
    return total


def compare_embeddings(base: Path, other: Path) -> EmbeddingResult:
    """Cosines between the embeddings in two files of `embed_text`. Raises EvaluationError when they do not fit."""
    a, b = np.load(base, mmap_mode="r"), np.load(other, mmap_mode="r")
    if a.shape != b.shape:
        raise EvaluationError(
            f"the models give embeddings of {a.shape} and {b.shape} of one text; are they the same model?"
        )
    token = np.stack([_cosine(x, y) for x, y in zip(a, b, strict=True)])
    text = np.array([_cosine(x.mean(axis=0), y.mean(axis=0)) for x, y in zip(a, b, strict=True)])
    return EmbeddingResult(token, text)


def _cosine(x: F32, y: F32) -> F64:
    """Of the last axis; 1 for two zeros, 0 for one."""
    wide, other = x.astype(np.float64), y.astype(np.float64)
    norms = np.linalg.norm(wide, axis=-1), np.linalg.norm(other, axis=-1)
    product = norms[0] * norms[1]
    cosine = np.divide((wide * other).sum(axis=-1), product, out=np.zeros_like(product), where=product > 0)
    return np.asarray(np.where((norms[0] == 0) & (norms[1] == 0), 1.0, cosine))


def _mean(values: F64) -> Estimate:
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return Estimate(float(values.mean()), error)
