"""Run a model over a text and sum what goes into its matrices, through llama.cpp's evaluation callback.

For every input x of a matrix: E[x²] as llama-imatrix counts it, and of x̂ = x / ‖x‖ · sqrt(n_in) the squares and the
covariance E[x̂ x̂ᵀ]. Without the normalization a few first tokens with enormous activations own the sums. Every expert
of a mixture has sums of its own, over the tokens that chose it, and all experts of a layer share one covariance.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from seeddelta import _core

from ..errors import IdleWeightsWarning, ImatrixError, needs_extra, some
from ..gguf import names
from ..gguf.header import Header
from ..gguf.imatrix import Imatrix, ImatrixEntry
from ..gguf.model_file import read_header
from ..gguf.source import file_sha256
from ..gguf.targets import chosen

F64 = npt.NDArray[np.float64]


class Sums(Protocol):
    """Sums of the inputs of matrices, as `_core.CaptureHook` has them."""

    def tokens(self, name: str) -> int: ...
    def nonfinite_tokens(self, name: str) -> int: ...
    def counts(self, name: str) -> npt.NDArray[np.int64]: ...
    def square(self, name: str) -> F64: ...
    def norm_square(self, name: str) -> F64: ...
    def covariance(self, name: str) -> npt.NDArray[np.float32]: ...
    def covariance_rows(self, name: str, begin: int, end: int) -> npt.NDArray[np.float32]: ...


@dataclass(frozen=True)
class Capture:
    """Sums over `tokens` tokens; see `_core.CaptureHook` for shapes.

    `representatives` maps a matrix to the matrix under whose name the sums of their common input stand (q, k and v
    share one, gate and up another).
    """

    hook: Sums
    representatives: dict[str, str]
    tokens: int
    chunks: int
    ctx: int
    model_name: str
    model_sha256: str
    text_name: str
    text_sha256: str
    covariance: bool

    def nonfinite(self) -> dict[str, int]:
        """Representatives whose input was NaN or infinite in some tokens, and in how many; these were left out."""
        counts = {name: self.hook.nonfinite_tokens(name) for name in sorted(set(self.representatives.values()))}
        return {name: count for name, count in counts.items() if count}

    def imatrix(self) -> Imatrix:
        """E[x²] of every matrix in llama.cpp's form."""
        entries = {}
        for name, same in self.representatives.items():
            counts = self.hook.counts(same).astype(np.float32)
            entries[name] = ImatrixEntry(self.hook.square(same).astype(np.float32), counts)
        return Imatrix(entries, (self.text_name,), self.chunks, self.ctx)


def capture(
    model_path: str | os.PathLike[str],
    text: str | os.PathLike[str] | npt.NDArray[np.integer[Any]],
    *,
    ctx: int = 512,
    chunks: int | None = None,
    covariance: bool = True,
    targets: str | Iterable[str] | None = None,
    layers: str | None = None,
    only: Iterable[str] | None = None,
    threads: int = 0,
    progress: bool = True,
) -> Capture:
    """Evaluate the text in chunks of `ctx` tokens (BOS first) and sum the inputs of the target matrices.

    `targets` are those of names.parse_targets; without them all, or with `layers` those of the blocks. `only` has the
    names of tensors to leave the others out.
    `text` is a file, or its tokens, integers [n]. Runs on the CPU. Raises ImatrixError when nothing is captured,
    EvaluationError when the text is too short, SourceModelError and FormatError for a model that cannot be read.

    Set OMP_WAIT_POLICY=passive before llama_cpp is imported, as the command does: its idle threads otherwise spin on
    the processors that the sums need (two to three times the time on 2 processors).
    """
    with needs_extra("llama"):
        from ..progress import tqdm

    from ..gguf.positions import check_context
    from ..runtime.library import loaded_ggml
    from ..session import plan_chunks, refuse_encoder_decoder
    from .block_run import open_hooked

    header = read_header(Path(model_path))
    _core.check_loadable(header.path)
    check_context(header, ctx)
    path = header.path  # the first part, when there are several
    wanted = wanted_matrices(header, targets, layers, only)
    hook = _core.CaptureHook(loaded_ggml(), wanted, covariance, threads)
    llm = open_hooked(str(path), hook, ctx, threads)
    try:
        refuse_encoder_decoder(llm, path)
        tokens, text_name, text_sha256 = _tokens(llm, text)
        total = plan_chunks(len(tokens), ctx, chunks, text_name)
        for chunk in tqdm(range(total), desc="imatrix", unit="chunk", disable=not progress):
            _decode(llm, hook, tokens[chunk * ctx : (chunk + 1) * ctx])
    finally:
        llm.close()
    representatives = known_inputs(path, wanted, hook.representatives)
    return Capture(
        hook=hook, representatives=representatives,
        tokens=max(hook.tokens(n) for n in set(representatives.values())), chunks=total, ctx=ctx,
        model_name=path.name, model_sha256=file_sha256(header.parts), text_name=text_name, text_sha256=text_sha256,
        covariance=covariance,
    )  # fmt: skip


def wanted_matrices(
    header: Header, targets: str | Iterable[str] | None, layers: str | None, only: Iterable[str] | None = None
) -> list[str]:
    """Names of the matrices that a capture is asked for. Raises ImatrixError when there is none."""
    selected = names.default_targets(layers) if targets is None else names.parse_targets(targets)
    wanted = [info.name for info in chosen(header, selected, layers) if not _only_looked_up(info.name, header)]
    wanted = wanted if only is None else [name for name in wanted if name in set(only)]
    if not wanted:
        raise ImatrixError(
            f"{header.path}: no matrix matches the targets {','.join(selected)}; look with seeddelta inspect"
        )
    return wanted


def _tokens(
    llm: Any, text: str | os.PathLike[str] | npt.NDArray[np.integer[Any]]
) -> tuple[npt.NDArray[np.int32], str, str]:
    """Tokens of the text, its name, and its SHA-256."""
    from ..session import read_text, tokenize

    if isinstance(text, (str, os.PathLike)):
        data = read_text(text, whole=True)  # once: a pipe has nothing to read again
        return tokenize(llm, data.removesuffix(b"\n")), Path(text).name, hashlib.sha256(data).hexdigest()
    tokens = np.ascontiguousarray(text, np.int32)
    return tokens, "tokens", hashlib.sha256(tokens.astype("<i4").tobytes()).hexdigest()


def _decode(llm: Any, hook: _core.CaptureHook, chunk: npt.NDArray[np.int32]) -> None:
    """Raises ImatrixError for what the hook could not sum."""
    from ..session import bos_token
    from ..session.decoder import Decoder

    bos = bos_token(llm)
    window = chunk if bos is None else np.concatenate([[np.int32(bos)], chunk[1:]])
    # All logits: of tokens that have none, the last layer computes nothing. They cost nothing, for the hook stops the
    # graph after the last matrix.
    Decoder(llm).decode(window, 0, slice(0, len(window)))
    if hook.error:
        raise ImatrixError(f"{llm.model_path}: {hook.error}")


def known_inputs(path: Path, wanted: Sequence[str], found: dict[str, str]) -> dict[str, str]:
    """The representatives that were found; warns of matrices that have none. Raises ImatrixError when none has one."""
    # Embeddings are multiplied by where they are the output matrix, too, and that is rarely said in the file.
    missing = [name for name in wanted if name not in found and name != names.EMBEDDING]
    if not found:
        raise ImatrixError(f"{path}: the model never multiplied by {some(wanted)}; choose others with --targets")
    if missing:
        warnings.warn(
            f"{path}: the model never multiplied by {some(missing)}; nothing is known of their inputs",
            IdleWeightsWarning,
            stacklevel=3,
        )
    return found


def _only_looked_up(name: str, header: Header) -> bool:
    """True for embeddings of layers, and of a model with an output matrix of its own: nothing is multiplied by them."""
    return name == names.LAYER_EMBEDDING or (name == names.EMBEDDING and names.HEAD in header.tensors)
