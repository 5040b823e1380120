"""Log-probabilities of a base model on disk, in the form of llama-perplexity's --kl-divergence-base.

The file (llama.cpp, tools/perplexity/perplexity.cpp; little endian): `_logits_`, i32 n_ctx, n_vocab and n_chunk, the
i32 tokens of all chunks, and for each scored position a row {f32 scale, f32 least, u16 codes [n_vocab, made even]}
with log p = scale · code + least. Sixteen bits cover the 16 nats below the most likely token, in steps of 0.0002;
whatever is less likely has the code 0.
"""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import EvaluationError, OutputError
from ..session.decoder import Tokens
from ..storage.output import atomic_output
from .scoring import Scored, scored_positions

_MAGIC = b"_logits_"
_RANGE = np.float32(16)  # nats below the most likely token
_STEPS = np.float32(65535)
_ROUNDING = 0.1  # nats above 0 that float32 may make of the most likely token's log-probability
_MAX_VOCAB = 1 << 24  # far beyond any tokenizer
_REMEDY = "make it again with `seeddelta eval --save-kl-base` or llama-perplexity --kl-divergence-base"


def row_type(n_vocab: int) -> np.dtype[np.void]:
    """One scored position."""
    return np.dtype([("scale", "<f4"), ("least", "<f4"), ("codes", "<u2", (n_vocab + n_vocab % 2,))])


class BaseFile:
    """An open file: `n_ctx`, `n_vocab`, and the text as `tokens`, i32[chunks, n_ctx].

    Raises EvaluationError for another kind of file, one of impossible sizes, one that ends too early, and one whose
    tokens are not of its vocabulary.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                magic, numbers = file.read(len(_MAGIC)), file.read(12)
                if magic != _MAGIC or len(numbers) < 12:
                    raise EvaluationError(f"{path}: no file of log-probabilities; {_REMEDY}")
                self.n_ctx, self.n_vocab, chunks = (int(n) for n in np.frombuffer(numbers, "<i4"))
                size = os.fstat(file.fileno()).st_size
                in_bounds = self.n_ctx >= 4 and 1 <= self.n_vocab <= _MAX_VOCAB and chunks >= 1
                if not in_bounds or 4 * self.n_ctx * chunks > size:
                    raise EvaluationError(f"{path}: has impossible sizes; {_REMEDY}")
                tokens: Tokens = np.fromfile(file, "<i4", self.n_ctx * chunks)
        except OSError as error:
            raise EvaluationError(f"{path}: cannot be read ({error.strerror}); {_REMEDY}") from error
        self._type = row_type(self.n_vocab)
        whole = _offset(self.n_ctx, chunks, self._type, chunks)
        if size != whole or tokens.size < self.n_ctx * chunks:
            raise EvaluationError(f"{path}: has {size} bytes where {chunks} chunks take {whole}; {_REMEDY}")
        self.tokens = tokens.reshape(chunks, self.n_ctx)
        if tokens.min() < 0 or tokens.max() >= self.n_vocab:
            raise EvaluationError(f"{path}: has tokens beyond its vocabulary of {self.n_vocab}; {_REMEDY}")
        self._rows = np.memmap(
            self.path, self._type, "r", self.offset(0), shape=(chunks, scored_positions(self.n_ctx))
        )  # fmt: skip

    @property
    def chunks(self) -> int:
        return len(self.tokens)

    def offset(self, chunk: int) -> int:
        """Where the rows of a chunk begin."""
        return _offset(self.n_ctx, len(self.tokens), self._type, chunk)

    def rows(self, chunk: int) -> np.ndarray[Any, Any]:
        """Rows of a chunk as they are stored, `row_type`[scored positions], a view of the file.

        Raises EvaluationError when they are no log-probabilities: not finite, or of a probability above 1.
        """
        rows = np.asarray(self._rows[chunk])
        scale, least = rows["scale"].astype(np.float64), rows["least"].astype(np.float64)
        with np.errstate(invalid="ignore"):
            top = scale * float(_STEPS) + least
        if not (np.isfinite(top) & (scale >= 0) & (top < _ROUNDING)).all():
            raise EvaluationError(f"{self.path}: the log-probabilities of chunk {chunk} are damaged; {_REMEDY}")
        return rows

    def targets(self, chunk: int) -> Tokens:
        """The tokens that the rows of a chunk predict."""
        return np.asarray(self.tokens[chunk, self.n_ctx // 2 + 1 :])

    def nll(self, chunk: int) -> npt.NDArray[np.float64]:
        """Negative log-likelihood of the targets of a chunk under the base model, f64[scored positions]."""
        rows, targets = self.rows(chunk), self.targets(chunk)
        codes = rows["codes"][np.arange(len(targets)), targets]
        return np.asarray(-(rows["scale"].astype(np.float64) * codes + rows["least"]))


class BaseWriter:
    """Observer of the base model: writes its log-probabilities. Use it in a `with` block: the file has its name from
    the block's end on, and is left as it was when the block ends with an exception.

    `tokens` are those of the whole text, i32[chunks · n_ctx]. What a `resumable` run has written is kept as PATH.part;
    `keep` chunks are taken from there. Without room on the disk EvaluationError says so before the model has run for an
    hour.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        tokens: Tokens,
        n_ctx: int,
        n_vocab: int,
        *,
        keep: int = 0,
        resumable: bool = False,
    ) -> None:
        self._path = Path(path)
        part = self._path.with_name(self._path.name + ".part")
        self._part = part if resumable and (not keep or part.exists()) else None
        source = self._part or self._path
        self._type = row_type(n_vocab)
        chunks = len(tokens) // n_ctx
        head = _MAGIC + np.array([n_ctx, n_vocab, chunks], "<i4").tobytes() + np.asarray(tokens, "<i4").tobytes()
        begin, end = (_offset(n_ctx, chunks, self._type, chunk) for chunk in (keep, chunks))
        there = source.stat().st_size if keep and source.is_file() else 0
        if there < (begin if keep else 0):
            raise EvaluationError(f"{path}: lacks some of the {keep} chunks that are done; start with an empty folder")
        free = shutil.disk_usage(self._path.parent).free
        if end - there > free:
            raise EvaluationError(
                f"{self._path.parent}: the divergence needs {(end - there) / 1e9:.1f} GB of disk, and "
                f"{free / 1e9:.1f} GB are free; use fewer chunks, --no-kl, or another folder (TMPDIR)"
            )
        with ExitStack() as stack:
            try:
                if not keep and not resumable:
                    source = stack.enter_context(atomic_output(self._path))
                self._file = stack.enter_context(source.open("r+b" if keep else "wb"))
                if not keep:
                    self._file.write(head)
                elif self._file.read(len(head)) != head:
                    raise EvaluationError(f"{path}: is of another text or model; give another file or an empty folder")
                self._file.seek(begin)
                self._file.truncate()
            except OSError as error:
                raise self._failed(error) from error
            self._stack = stack.pop_all()

    def update(self, scored: Scored) -> None:
        rows = np.zeros(len(scored.targets), self._type)
        top = scored.logits.max(axis=1, keepdims=True)
        least = np.maximum(scored.logits.min(axis=1, keepdims=True), top - _RANGE)
        scale = (top - least) / _STEPS
        rows["scale"], rows["least"] = scale[:, 0], least[:, 0] - scored.log_norm
        steps = (np.maximum(scored.logits, least) - least) / np.where(scale > 0, scale, np.float32(1))
        rows["codes"][:, : scored.logits.shape[1]] = np.rint(steps)
        try:
            self._file.write(rows.tobytes())
        except OSError as error:
            raise self._failed(error) from error

    def flush(self) -> None:
        """Everything so far survives the end of this process."""
        try:
            self._file.flush()
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> EvaluationError:
        if isinstance(error, OutputError):
            return EvaluationError(str(error))
        return EvaluationError(f"{self._path}: cannot be written ({error.strerror}); use --no-kl or another TMPDIR")

    def __enter__(self) -> BaseWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stack.__exit__(kind, error, trace)
            if kind is None and self._part is not None:
                os.replace(self._part, self._path)
        except OSError as failure:
            raise self._failed(failure) from failure


def _offset(n_ctx: int, chunks: int, row: np.dtype[np.void], chunk: int) -> int:
    return len(_MAGIC) + 12 + 4 * n_ctx * chunks + chunk * scored_positions(n_ctx) * row.itemsize
