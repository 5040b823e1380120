"""Run a model over a text and sum what goes into its matrices, through llama.cpp's evaluation callback.

For every input x of a matrix: E[x²] as llama-imatrix counts it, and of x̂ = x / ‖x‖ · sqrt(n_in) the squares and the
covariance E[x̂ x̂ᵀ]. Without the normalisation a few first tokens with enormous activations own the sums.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seeddelta import _core

from .._extras import needs_extra
from ..errors import ImatrixError
from ..gguf import names
from ..gguf.header import read_header
from ..gguf.imatrix import Imatrix, ImatrixEntry
from ..gguf.source import file_sha256
from .checkpoint import Checkpoint

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Capture:
    """Sums over `tokens` tokens; see `_core.CaptureHook` for shapes.

    `representatives` maps a matrix to the matrix under whose name the sums of their common input stand (q, k and v
    share one, gate and up another).
    """

    hook: _core.CaptureHook
    representatives: dict[str, str]
    tokens: int
    chunks: int
    ctx: int
    model_sha256: str
    text_sha256: str
    text_name: str
    covariance: bool
    checkpoint: Checkpoint | None = None

    def discard_checkpoint(self) -> None:
        """Remove the stored sums, once the results are written."""
        if self.checkpoint is not None:
            self.checkpoint.discard()

    def imatrix(self) -> Imatrix:
        """E[x²] of every matrix in llama.cpp's form."""
        entries = {}
        for name, same in self.representatives.items():
            count = np.array([self.hook.tokens(same)], np.float32)
            entries[name] = ImatrixEntry(self.hook.square(same).astype(np.float32)[None], count)
        return Imatrix(entries, (self.text_name,), self.chunks, self.ctx)


def capture(
    model_path: str | os.PathLike[str],
    text: str | os.PathLike[str],
    *,
    ctx: int = 512,
    chunks: int | None = None,
    covariance: bool = True,
    skip: int = 0,
    targets: str | Iterable[str] = "all",
    layers: str | None = None,
    threads: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 16,
    progress: bool = True,
) -> Capture:
    """Evaluate the text file in chunks of `ctx` tokens (BOS first) and sum the inputs of the target matrices.

    `skip` leaves out the first tokens of every chunk. With `checkpoint` (a folder) the sums are stored every
    `checkpoint_every` chunks, and a capture of the same model, text and options goes on from there.
    Raises ImatrixError when nothing is captured, EvaluationError when the text is too short, SourceModelError and
    FormatError for a model that cannot be read.
    """
    with needs_extra("llama"):
        import llama_cpp
        from tqdm.auto import tqdm

    from ..evaluate.decoder import Decoder
    from ..evaluate.scoring import bos_token, plan_chunks, read_text, tokenize
    from ..runtime.library import ggml_abi
    from ..runtime.model import evaluation_callback

    model_path, text = Path(model_path), Path(text)
    header = read_header(model_path)
    chosen = names.parse_targets(targets)
    wanted = [n for n in header.tensors if names.is_target(n, chosen, names.parse_layers(layers))]
    if not wanted:
        raise ImatrixError(f"{model_path}: no matrix matches the targets {targets!r}; look with seeddelta inspect")
    data = read_text(text)
    hook = _core.CaptureHook(ggml_abi(), wanted, covariance, skip, threads)
    workers = threads or len(os.sched_getaffinity(0))
    with evaluation_callback(hook):
        llm = llama_cpp.Llama(
            str(model_path), n_ctx=ctx, n_batch=ctx, n_ubatch=ctx, n_threads=workers, n_threads_batch=workers,
            logits_all=True, verbose=False,
        )  # fmt: skip
    try:
        tokens = tokenize(llm, data)
        total = plan_chunks(len(tokens), ctx, chunks)
        identity = dict(
            model=file_sha256(model_path), text=hashlib.sha256(data).hexdigest(), ctx=ctx, skip=skip,
            covariance=covariance, names=wanted,
        )  # fmt: skip
        store = Checkpoint(Path(checkpoint), identity) if checkpoint is not None else None
        done, representatives = store.restore(hook, total) if store else (0, {})
        decoder, bos = Decoder(llm), bos_token(llm)
        with tqdm(desc="imatrix", unit="chunk", total=total, initial=done, disable=not progress) as bar:
            for chunk in range(done, total):
                window = tokens[chunk * ctx : (chunk + 1) * ctx].copy()
                if bos is not None:
                    window[0] = bos
                decoder.clear()
                # all logits: of tokens that have none, the last layer computes nothing
                decoder.decode(window, 0, slice(0, ctx))
                if hook.error:
                    raise ImatrixError(f"{model_path}: {hook.error}")
                bar.update()
                if store and (chunk + 1) % checkpoint_every == 0 and chunk + 1 < total:
                    store.save(hook, chunk + 1)
    finally:
        llm.close()
    representatives = {**representatives, **hook.representatives}
    missing = [n for n in wanted if n not in representatives]
    if missing:
        raise ImatrixError(f"{model_path}: the model never multiplied by {missing[0]!r}; leave it out with --targets")
    counted = max(hook.tokens(n) for n in set(representatives.values()))
    return Capture(
        hook=hook,
        representatives=representatives,
        tokens=counted,
        chunks=total,
        ctx=ctx,
        model_sha256=str(identity["model"]),
        text_sha256=str(identity["text"]),
        text_name=text.name,
        covariance=covariance,
        checkpoint=store,
    )
