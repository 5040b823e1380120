"""What a comparison scores: on which text, against which base, and where the scores and the base's file are kept."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import EvaluationError, MissingFileError
from ..gguf.source import file_stamp
from ..session import read_text
from .base_file import BaseFile
from .chunk_log import log_name
from .client import Worker
from .embeddings import EmbeddingResult, compare_embeddings
from .kl import DivergenceResult
from .perplexity import PerplexityResult


@dataclass(frozen=True)
class Scores:
    """Of one model. `base` is the perplexity of the base in a file that was given."""

    perplexity: PerplexityResult
    divergence: DivergenceResult | None
    base: PerplexityResult | None


@dataclass
class Scoring:
    """Made by `plan`; scores models inside a `with` block, which ends with its temporary files."""

    models: Sequence[Path]
    text: Path | None
    n_ctx: int
    chunks: int | None
    kl: bool
    kl_base: Path | None
    save_kl_base: Path | None
    resume: Path | None
    options: Sequence[dict[str, Any]]
    _stack: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def plan(
        cls,
        models: Sequence[Path],
        text: str | os.PathLike[str] | None,
        n_ctx: int,
        chunks: int | None,
        *,
        kl: bool,
        kl_base: str | os.PathLike[str] | None,
        save_kl_base: str | os.PathLike[str] | None,
        resume: str | os.PathLike[str] | None,
        options: Sequence[dict[str, Any]],
    ) -> Scoring | None:
        """None when there is nothing to score. Raises EvaluationError for options that exclude each other."""
        if text is None and kl_base is None:
            if save_kl_base is not None:
                raise EvaluationError("--save-kl-base needs a text; give one with --text")
            return None
        if kl_base is not None:
            if text is not None or save_kl_base is not None:
                other = "--text" if text is not None else "--save-kl-base"
                raise EvaluationError(f"--kl-base brings its own text, and excludes {other}; leave one of them out")
            n_ctx = BaseFile(kl_base).n_ctx
        elif text is not None and not Path(text).is_file():
            raise MissingFileError(f"{text}: no such file; give a text file")
        elif text is not None and 1 + (size := len(read_text(text))) < 2 * n_ctx:  # before a model is loaded
            raise EvaluationError(
                f"{text}: {size} bytes are fewer than the {2 * n_ctx} tokens that a context of {n_ctx} needs; "
                "use a longer text or a smaller context"
            )
        if save_kl_base is not None and not Path(save_kl_base).parent.is_dir():
            raise EvaluationError(f"{save_kl_base}: the folder does not exist; create it first")

        def path(given: str | os.PathLike[str] | None) -> Path | None:
            return None if given is None else Path(given)

        compared = kl_base is not None or (kl and len(models) > 1)
        return cls(
            models, path(text), n_ctx, chunks, compared, path(kl_base), path(save_kl_base), path(resume), options
        )

    def __enter__(self) -> Scoring:
        self._base = self.kl_base or self.save_kl_base
        if self.resume is not None:
            try:
                self.resume.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise EvaluationError(
                    f"{self.resume}: cannot be made ({error.strerror}); give another folder"
                ) from error
        if self._base is None and self.kl:
            if self.resume is not None:
                self._base = self.resume / f"{log_name(self._identity(0))}.kld"
            else:
                folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="seeddelta-eval-"))
                self._base = Path(folder) / "base.kld"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def embed(self, worker: Worker, index: int, progress: bool) -> EmbeddingResult | None:
        """The embeddings of the model `index`, which a worker has open, beside those of the first; None for that one.

        Raises EvaluationError for options that are about log-probabilities.
        """
        from ..progress import tqdm

        if self.text is None or self.save_kl_base is not None:
            raise EvaluationError(
                f"{worker.path}: has no output matrix: an embedding model has no log-probabilities; "
                "leave --kl-base and --save-kl-base out"
            )
        if not hasattr(self, "_embeddings"):
            self._embeddings = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="seeddelta-eval-")))
        base, own = self._embeddings / "0.npy", self._embeddings / f"{index}.npy"
        if index and not base.exists():
            raise EvaluationError(f"{worker.path}: gives embeddings, {self.models[0]} logits; compare models of a kind")
        with tqdm(desc=f"embeddings {worker.path.name}", unit="chunk", disable=not progress) as bar:

            def show(done: int, total: int, _: str) -> None:
                bar.total = total
                bar.update(done - bar.n)

            worker.request(
                "embeddings", on_progress=show, path=str(own), text=str(self.text), n_ctx=self.n_ctx, chunks=self.chunks
            )
        if index == 0:
            return None
        found = compare_embeddings(base, own)
        own.unlink()
        return found

    def score(self, worker: Worker, index: int, progress: bool) -> Scores:
        """Scores of the model `index`, which a worker has open. The first one comes first."""
        from ..progress import tqdm

        reads = self.kl_base is not None or (self.kl and index > 0)
        writes = not reads and self._base is not None and index == 0
        with tqdm(desc=f"perplexity {worker.path.name}", unit="chunk", disable=not progress) as bar:

            def show(done: int, total: int, shown: str) -> None:
                bar.total = total
                bar.set_postfix_str(shown, refresh=False)
                bar.update(done - bar.n)

            answer = worker.request(
                "scores",
                on_progress=show,
                n_ctx=self.n_ctx,
                chunks=self.chunks,
                text=None if self.text is None else str(self.text),
                base=str(self._base) if reads else None,
                save_base=str(self._base) if writes else None,
                resume=None if self.resume is None else str(self.resume),
                identity=None if self.resume is None else self._identity(index),
            )

        def array(name: str) -> Any:
            return np.asarray(answer[name], dtype=np.float64)

        result = PerplexityResult(array("nll"), self.n_ctx)
        if not reads:
            return Scores(result, None, None)
        divergence = DivergenceResult(array("kl"), array("same_top") > 0, array("delta_p"))
        base = PerplexityResult(array("nll_base"), self.n_ctx) if self.kl_base is not None else None
        return Scores(result, divergence, base)

    def _identity(self, index: int) -> dict[str, Any]:
        """What decides the scores of a model, for --resume."""
        compared = self.kl_base or (self.models[0] if self.kl and index > 0 else None)
        text = None if self.text is None else hashlib.sha256(self.text.read_bytes()).hexdigest()
        return {
            "model": file_stamp(self.models[index]),
            "base": None if compared is None else file_stamp(compared),
            "text": text,
            "n_ctx": self.n_ctx,
            "chunks": self.chunks,
            "options": self.options[index],
            "base_options": self.options[0] if compared is not None and self.kl_base is None else None,
            "saves": None if index or self.kl_base is not None else [self.kl, str(self.save_kl_base)],
        }
