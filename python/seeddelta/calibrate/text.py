"""A calibration text as windows of tokens."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .._extras import needs_extra
from ..errors import EvaluationError, SourceModelError


@dataclass(frozen=True)
class Windows:
    """`tokens` int32[chunks, ctx], each chunk begins with BOS where the model wants it; name and hash of the text."""

    tokens: npt.NDArray[np.int32]
    name: str
    sha256: str

    @property
    def chunks(self) -> int:
        return len(self.tokens)

    @property
    def ctx(self) -> int:
        return int(self.tokens.shape[1])

    @property
    def vocabulary(self) -> npt.NDArray[np.int32]:
        """The tokens that occur, ascending."""
        return np.unique(self.tokens)

    def identity(self) -> list[str | int]:
        """What tells these windows from others."""
        return [hashlib.sha256(self.tokens.astype("<i4").tobytes()).hexdigest(), self.chunks, self.ctx]


def bundled_text() -> Path:
    """The calibration text of the package: articles, novels, code, dialogue, several languages (data/LICENCES.md)."""
    return Path(__file__).parent / "data" / "calibration.txt"


def read_windows(
    model: Path,
    text: str | os.PathLike[str] | bytes,
    name: str,
    ctx: int,
    chunks: int | None,
    *,
    spread: bool = True,
) -> Windows:
    """Windows of a text (a file, or its bytes), tokenised by a model.

    Fewer chunks than the text has are taken from all over it, so that every kind of text in it is there; without
    `spread` they are the first ones, and not more than there are. Raises
    EvaluationError when the text is too short or unreadable, SourceModelError when llama.cpp refuses the model.
    """
    with needs_extra("llama"):
        import llama_cpp

    from ..runtime.session import bos_token, plan_chunks, read_text, tokenize

    data = text if isinstance(text, bytes) else read_text(text)
    try:
        llm = llama_cpp.Llama(str(model), vocab_only=True, n_ctx=64, verbose=False)
    except (ValueError, RuntimeError) as error:
        raise SourceModelError(f"{model}: llama.cpp cannot read its tokenizer ({error}); is it complete?") from error
    try:
        tokens = tokenize(llm, data)
        bos = bos_token(llm)
    finally:
        llm.close()
    there = plan_chunks(len(tokens), ctx, None)
    wanted = there if chunks is None else chunks if spread else min(chunks, there)
    if wanted > there:
        raise EvaluationError(f"{name}: has {there} chunks of {ctx} tokens, {wanted} are wanted; give a longer text")
    at = np.arange(wanted) * there // wanted if spread else np.arange(wanted)
    windows = np.stack([tokens[i * ctx : (i + 1) * ctx] for i in at]).astype(np.int32)
    if bos is not None:
        windows[:, 0] = bos
    return Windows(windows, name, hashlib.sha256(data).hexdigest())
