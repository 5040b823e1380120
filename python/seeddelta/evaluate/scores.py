"""One model over one text: every score of every token, resumable. What `worker.Session` does for the parent."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import EvaluationError
from ..session import plan_chunks, read_text, tokenize
from .base_file import BaseWriter
from .chunk_log import ChunkLog, log_name
from .kl import DivergenceObserver
from .perplexity import NllObserver
from .scoring import Observer, score, scored_positions

if TYPE_CHECKING:
    import llama_cpp


def score_text(
    llm: llama_cpp.Llama,
    *,
    n_ctx: int,
    chunks: int | None = None,
    text: str | None = None,
    base: str | None = None,
    save_base: str | None = None,
    resume: str | None = None,
    identity: dict[str, Any] | None = None,
    report: Callable[[int, int, str], None] = lambda done, total, shown: None,
) -> dict[str, Any]:
    """Scores of the text file `text`, or without it of the text that is in the file `base`.

    Args:
        base: file of log-probabilities of another model; the answer then has the divergence from it.
        save_base: such a file to write of this model.
        resume: folder in which finished chunks are kept under `identity`, and are taken from.
        report: called with the chunks done, their number, and the scores so far in words.
    Returns:
        `nll`, and with a base `kl`, `same_top`, `delta_p` and the base's `nll_base`: lists [chunks][tokens a chunk].
    """
    observer = None if base is None else DivergenceObserver(base)
    if text is not None:
        tokens = tokenize(llm, read_text(text))
    elif observer is not None:
        tokens = observer.base.tokens.reshape(-1)
        # a base of one chunk is a text, too; the rule of two chunks is that of texts
        tokens = np.concatenate([tokens, tokens]) if observer.base.chunks == 1 else tokens
        chunks = min(observer.base.chunks, chunks or observer.base.chunks)
    else:
        raise EvaluationError("neither a text nor a file of log-probabilities is given")
    total = plan_chunks(len(tokens), n_ctx, chunks, text or str(base))
    columns = ("nll",) if observer is None else ("nll", "kl", "same_top", "delta_p")
    folder = None if resume is None else Path(resume)
    with ExitStack() as stack:
        path = None if folder is None else folder / f"{log_name(identity or {})}.chunks"
        log = stack.enter_context(closing(ChunkLog(path, identity or {}, columns, scored_positions(n_ctx))))
        nll = NllObserver()
        observers: list[Observer] = [nll] if observer is None else [nll, observer]
        writer = None
        if save_base is not None:
            keep = min(len(log), total)
            writer = stack.enter_context(
                BaseWriter(
                    save_base, tokens[: total * n_ctx], n_ctx, llm.n_vocab(), keep=keep, resumable=folder is not None
                )
            )
            observers.append(writer)

        def finished(done: int, of: int) -> None:
            if writer is not None:
                writer.flush()  # the log counts only chunks that are in the base, too
            log.append(nll.take() | ({} if observer is None else observer.take()))
            report(done, of, _shown(log, columns))

        if len(log) < total:
            score(llm, tokens, observers, n_ctx=n_ctx, chunks=total, first=len(log), on_chunk=finished)
        answer: dict[str, Any] = {name: log.column(name)[:total].tolist() for name in columns}
    if observer is not None:
        answer["nll_base"] = [observer.base.nll(chunk).tolist() for chunk in range(total)]
    return answer


def _shown(log: ChunkLog, columns: tuple[str, ...]) -> str:
    shown = f"ppl {math.exp(float(log.column('nll').mean())):.2f}"
    return shown if "kl" not in columns else f"{shown}, KL {float(log.column('kl').mean()):.4f}"
