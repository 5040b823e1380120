"""A calibration text as windows of tokens."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import EvaluationError, SourceModelError, needs_extra

if TYPE_CHECKING:
    import llama_cpp

Texts: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None"
PACKAGE = "package"  # in place of a file: the text of the package
_PARTS = 16  # of a text whose tokens are counted: what the others predict of each is what they predict of other texts


@dataclass(frozen=True)
class Windows:
    """`tokens` int32[chunks, ctx], each chunk begins with BOS where the model wants it; name and hash of the text.

    `counts` int64[parts, largest token + 1] says how often each token is in each part of the whole text.
    """

    tokens: npt.NDArray[np.int32]
    name: str
    sha256: str
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))

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
    """The calibration text of the package: articles, novels, code, dialogue, several languages (data/LICENSES.md)."""
    return Path(__file__).parent / "data" / "calibration.txt"


def text_files(texts: Texts) -> list[Path]:
    """The files of a calibration: one, several, or None; None and the name "package" are the text of the package."""
    given = [texts] if texts is None or isinstance(texts, (str, os.PathLike)) else list(texts)
    named = [bundled_text() if text is None or str(text) == PACKAGE else Path(text) for text in given]
    return named or [bundled_text()]


def shares(chunks: int | None, texts: Sequence[Path]) -> list[int | None]:
    """Chunks of each text: as many of one as of another, the last ones have what does not go into equal parts."""
    if chunks is None:
        return [None] * len(texts)
    if chunks < len(texts):
        raise EvaluationError(f"{chunks} chunks are fewer than the {len(texts)} texts; give --chunks {len(texts)}")
    return [chunks * (i + 1) // len(texts) - chunks * i // len(texts) for i in range(len(texts))]


def read_texts(model: Path, texts: Sequence[Path], ctx: int, chunks: int | None) -> Windows:
    """Windows of one text after the other, `shares` of each; raises as `read_windows`.

    Not in turns: what holds every so many chunks out shall hold some of each text out.
    """
    parts = [
        read_windows(model, text, text.name, ctx, share)
        for text, share in zip(texts, shares(chunks, texts), strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    digest = hashlib.sha256("".join(part.sha256 for part in parts).encode()).hexdigest()
    most = max(part.counts.shape[1] for part in parts)
    counts = [np.pad(part.counts, ((0, 0), (0, most - part.counts.shape[1]))) for part in parts]
    name = " + ".join(part.name for part in parts)
    return Windows(np.concatenate([part.tokens for part in parts]), name, digest, np.concatenate(counts))


def python_help() -> list[str]:
    """The topics of Python's own help on its language, by name: a text that every CPython carries."""
    from pydoc_data.topics import topics

    return [topics[name] for name in sorted(topics)]


def read_windows(
    model: Path,
    text: str | os.PathLike[str] | bytes,
    name: str,
    ctx: int,
    chunks: int | None,
    *,
    spread: bool = True,
) -> Windows:
    """Windows of a text (a file, or its bytes), tokenized by a model.

    Fewer chunks than the text has are taken from all over it, so that every kind of text in it is there; without
    `spread` they are the first ones, and not more than there are. Raises
    EvaluationError when the text is too short or unreadable, SourceModelError when llama.cpp refuses the model.
    """
    with _tokenized(model, text) as (llm, data, tokens):
        from ..gguf.model_file import read_header
        from ..gguf.positions import check_context
        from ..session import bos_token, plan_chunks, refuse_encoder_decoder

        check_context(read_header(model), ctx)
        refuse_encoder_decoder(llm, model)
        bos = bos_token(llm)
    there = plan_chunks(len(tokens), ctx, None, name)
    wanted = there if chunks is None else chunks if spread else min(chunks, there)
    if wanted > there:
        raise EvaluationError(f"{name}: has {there} chunks of {ctx} tokens, {wanted} are wanted; give a longer text")
    at = _spread(wanted, there) if spread else np.arange(wanted)
    windows = np.stack([tokens[i * ctx : (i + 1) * ctx] for i in at]).astype(np.int32)
    if bos is not None:
        windows[:, 0] = bos
    return Windows(windows, name, hashlib.sha256(data).hexdigest(), _counts(tokens))


def _counts(tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    length = int(tokens.max()) + 1
    return np.stack([np.bincount(part, minlength=length) for part in np.array_split(tokens, _PARTS)])


def excerpt(
    model: Path, text: str | os.PathLike[str] | bytes, ctx: int, chunks: int, *, calibrated: int = 0
) -> tuple[bytes, int]:
    """Text of so many chunks of ctx tokens or of fewer, from all over a text, and their number, which may be 0.

    None of them is among the `calibrated` ones that `read_windows` takes. Raises as `read_windows`.
    """
    with _tokenized(model, text) as (llm, _, tokens):
        there = len(tokens) // ctx
        free = np.setdiff1d(np.arange(there), _spread(min(calibrated, there), there))
        # one more than is counted: cut elsewhere, a text may have fewer tokens
        taken = free[_spread(min(chunks + 1, len(free)), len(free))]
        pieces = [llm.detokenize(tokens[i * ctx : (i + 1) * ctx].tolist()) for i in taken]
    return b"\n".join(pieces).decode("utf-8", "ignore").encode(), max(len(taken) - 1, 0)


def _spread(count: int, there: int) -> npt.NDArray[np.int64]:
    return np.arange(count) * there // max(count, 1)


def open_vocabulary(model: Path) -> llama_cpp.Llama:
    """The tokenizer of a model, without its weights. Raises SourceModelError when llama.cpp refuses the file."""
    with needs_extra("llama"):
        import llama_cpp

    from ..runtime.llama_log import native_path, refusals

    _core.check_loadable(model)
    with native_path(model) as name, refusals(model, SourceModelError):
        return llama_cpp.Llama(name, vocab_only=True, n_ctx=64, verbose=False)


@contextmanager
def _tokenized(
    model: Path, text: str | os.PathLike[str] | bytes
) -> Iterator[tuple[llama_cpp.Llama, bytes, npt.NDArray[np.int32]]]:
    """The model's vocabulary, the text, and its tokens."""
    from ..session import read_text, tokenize

    data = text if isinstance(text, bytes) else read_text(text, whole=True)
    llm = open_vocabulary(model)
    try:
        yield llm, data, tokenize(llm, data.removesuffix(b"\n"))
    finally:
        llm.close()
