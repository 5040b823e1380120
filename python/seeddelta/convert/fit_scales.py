"""Row scales and norms of an encoded llama, fitted to the original model's predictions by gradient descent.

The loss is KL(p_dense ‖ p), the mean over all tokens of a text (knowledge distillation, Hinton et al. 2015; tuning only
what is not quantized after the matrices are, as in AQLM, Egiazarian et al. 2024, and QuIP#, Tseng et al. 2024). Fitted
are factors exp(θ) of the scale of every row and of every weight of a norm, so nothing takes more bytes. Gradients come
down through one block at a time; memory holds it and the hidden states of a batch before every block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..calibrate.block import Block, in_order, read_block
from ..calibrate.block_shape import ModelShape
from ..calibrate.head import NORM, Head, read_bias
from ..calibrate.operations import log_softmax
from ..gguf import names
from ..gguf.reader import SeedDeltaFile
from ..gguf.source import SourceModel
from ..storage.checkpoint import read_record, write_record

F32 = npt.NDArray[np.float32]
BATCH = 2  # chunks a step
RATE = 0.002  # of a step at its largest, in logarithms of the factors
_MOMENTS = (0.9, 0.95)  # of Adam (Kingma and Ba 2015)
_WARM_UP = 4  # steps


def fitted_tensors(file: SeedDeltaFile) -> dict[str, int]:
    """Names of the tensors that can be fitted and how many factors each has: matrices whose rows have a scale and
    nothing beside it, and norms in float32."""
    found = {}
    for name in file.header.tensors:
        if name in file.dense_tensors and names.is_norm(name) and file.dense(name).dtype == np.float32:
            found[name] = int(file.dense(name).size)
    for name, tensor in file.tensors.items():
        place, one = names.split_name(name), tensor.description
        plain = one.base.kind == "lanes" and one.residual.scheme == "none" and not one.is_column
        if place is not None and plain and one.experts is None:
            found[name] = one.rows
    return found


class Student:
    """The encoded model; `theta` float32 are logarithms of the factors of `fitted_tensors`, one after the other."""

    def __init__(self, file: SeedDeltaFile, shape: ModelShape, teacher: Head) -> None:
        self.file, self.shape, self._source = file, shape, SourceModel(file.header)
        sizes = fitted_tensors(file)
        ends = np.cumsum(list(sizes.values()))
        self.places = {n: slice(int(end) - size, int(end)) for (n, size), end in zip(sizes.items(), ends, strict=True)}
        self.theta: F32 = np.zeros(int(ends[-1]) if sizes else 0, np.float32)
        self._tied = names.HEAD not in file.tensors and names.HEAD not in self._source.tensors
        head = names.EMBEDDING if self._tied else names.HEAD
        # a head that was not converted is the dense one
        matrix = self.matrix(head) if head in file.tensors else teacher.matrix
        self._head = Head(shape, self._source.matrix(NORM).ravel(), read_bias(self._source), matrix)

    def factor(self, name: str) -> F32:
        """exp(θ) of a tensor, float32 [rows] or [n_embd]; ones for one that is not fitted."""
        return np.exp(self.theta[self.places[name]]) if name in self.places else np.ones(1, np.float32)

    def matrix(self, name: str) -> F32:
        """A tensor with its factors, float32."""
        if name not in self.file.tensors:
            plain = self._source.matrix(name).reshape(self._source.tensors[name].shape)
            return np.asarray(plain * self.factor(name))
        one = self.file.tensors[name].description
        matrix = self.file.tensors[name].to_weight().dequantize()
        if one.experts is not None:
            return matrix.reshape(one.experts, *one.shape)
        return np.asarray(matrix * self.factor(name)[:, None])

    def embedding(self) -> F32:
        """float32 [vocabulary, n_embd]"""
        return self._head.matrix if self._tied else self.matrix(names.EMBEDDING)

    def states(self, embedding: F32, chunks: Iterable[npt.NDArray[np.int32]]) -> list[F32]:
        """Hidden states before the first block."""
        return [np.asarray(self.shape.embedding_scale * embedding[chunk]) for chunk in chunks]

    def block(self, layer: int) -> Block:
        start = f"blk.{layer}."
        all_names = [*self.file.tensors, *self.file.dense_tensors]
        short = {n: n.removeprefix(start).removesuffix(".weight") for n in all_names if n.startswith(start)}
        return Block(self.shape.blocks[layer], {own: self.matrix(name) for name, own in short.items()})

    def head(self) -> Head:
        return replace(self._head, norm=self._head.norm * self.factor(NORM))


@dataclass
class Fit:
    """Fits a `Student` on `tokens` int32[chunks, ctx]; those of `held` int32[n, ctx] only measure it."""

    dense: SourceModel
    student: Student
    tokens: npt.NDArray[np.int32]
    held: npt.NDArray[np.int32]
    pool: ThreadPoolExecutor
    teacher: Head
    done: Callable[[int], object]  # is told of chunks, a pass forwards counts 1
    # hidden states of the original model after the last block
    wanted: list[F32] = field(default_factory=list)

    def prepare(self) -> None:
        """Take all text through the original model."""
        embedding = self.dense.matrix(names.EMBEDDING)
        states = self.student.states(embedding, (*self.tokens, *self.held))
        del embedding
        shape = self.student.shape
        self.wanted = self._through(lambda layer: read_block(self.dense, shape, layer), states)

    def divergence(self) -> float:
        """Mean KL divergence in nats on the text that is held out."""
        embedding = self.student.embedding()
        states = self.student.states(embedding, self.held)
        del embedding
        states = self._through(self.student.block, states)
        head = self.student.head()
        losses = []
        for x, dense in zip(states, self.wanted[len(self.tokens) :], strict=True):
            losses.append(sum(loss for _, loss, _ in self._compared(head, head.normalized(x)[0], dense)) / len(x))
        return float(np.mean(losses))

    def gradient(self, chunks: list[int]) -> tuple[float, F32]:
        """Mean divergence on chunks of the text, and ∂/∂θ."""
        student = self.student
        embedding = student.embedding()
        states = student.states(embedding, self.tokens[chunks])
        del embedding
        before: list[list[F32]] = []
        states = self._through(student.block, states, before)
        total = np.zeros(len(student.theta))
        head = student.head()
        pairs = [(x, self.wanted[chunk]) for x, chunk in zip(states, chunks, strict=True)]
        found = list(in_order(self.pool, lambda pair: self._loss(head, *pair), pairs))
        for _, _, own in found:
            self._add(total, {NORM: own})
        slopes = [dx for _, dx, _ in found]
        for layer in reversed(range(student.shape.layers)):
            block, given = student.block(layer), before.pop()
            pairs = list(zip(given, slopes, strict=True))
            slopes = []
            for dx, own_of in in_order(self.pool, lambda pair, b=block: _back(b, *pair), pairs):  # type: ignore[misc]
                slopes.append(dx)
                self._add(total, {f"blk.{layer}.{kind}.weight": own for kind, own in own_of.items()})
            self.done(2 * len(slopes))
        count = len(chunks) * self.tokens.shape[1]
        return float(np.mean([loss for loss, _, _ in found])), np.asarray(total / count, np.float32)

    def _through(
        self, block_of: Callable[[int], Block], states: list[F32], before: list[list[F32]] | None = None
    ) -> list[F32]:
        """The hidden states after all blocks. Those before each block are added to `before`."""
        for layer in range(self.student.shape.layers):
            if before is not None:
                before.append(states)
            block = block_of(layer)
            states = list(in_order(self.pool, lambda x, b=block: b.forward(x)[0], states))  # type: ignore[misc]
            self.done(len(states))
        return states

    def _add(self, total: npt.NDArray[np.float64], found: Mapping[str, F32]) -> None:
        for name, own in found.items():
            if name in self.student.places:
                total[self.student.places[name]] += own

    def _compared(self, head: Head, last: F32, wanted: F32) -> Iterator[tuple[slice, float, F32]]:
        """Some tokens of a chunk after the other, of their states behind the last norm: which, their divergences' sum,
        and of that ∂/∂ these states."""
        for some, dense in self.teacher.predictions(wanted):
            logits, logits_back = head.logits(last[some])
            own, p = log_softmax(logits), np.exp(dense)
            loss = float((p * (dense - own)).sum(dtype=np.float64))
            yield some, loss, logits_back(np.exp(own) - p)

    def _loss(self, head: Head, x: F32, wanted: F32) -> tuple[float, F32, F32]:
        """Mean divergence of a chunk, and of its sum ∂/∂x and ∂/∂θ of the last norm."""
        last, norm_back = head.normalized(x)
        slope, total = np.empty_like(last), 0.0
        for some, loss, own in self._compared(head, last, wanted):
            total += loss
            slope[some] = own
        return total / len(x), norm_back(slope), np.einsum("ti,ti->i", slope, last)


def _back(block: Block, x: F32, dx: F32) -> tuple[F32, dict[str, F32]]:
    """∂/∂x before a block, and ∂/∂θ of its matrices and norms."""
    found: dict[str, F32] = {}

    def seen(kind: str, dy: F32, y: F32, _: F32) -> None:
        if y.ndim == 2:  # norms of single heads are not fitted
            found[kind] = np.einsum("to,to->o", dy, y)

    return block.forward(x)[1](dx, seen), found


class Adam:
    """Steps of the method Adam, its rate rising at first and falling as a cosine to 0; can be saved and loaded."""

    def __init__(self, size: int, steps: int, rate: float = RATE) -> None:
        self.steps, self.rate, self.step = steps, rate, 0
        self._mean, self._square = np.zeros(size, np.float32), np.zeros(size, np.float32)

    def move(self, theta: F32, gradient: F32) -> None:
        """One step, in place."""
        for moment, value, share in ((self._mean, gradient, _MOMENTS[0]), (self._square, gradient**2, _MOMENTS[1])):
            moment *= share
            moment += (1 - share) * value
        self.step += 1
        mean, square = (m / (1 - s**self.step) for m, s in zip((self._mean, self._square), _MOMENTS, strict=True))
        warm = min(1.0, self.step / _WARM_UP)
        rate = self.rate * warm * (1 + math.cos(math.pi * (self.step - 1) / self.steps)) / 2
        theta -= rate * mean / (np.sqrt(square) + np.float32(1e-12))

    def save(self, path: Path, theta: F32, identity: list[Any], before: float) -> None:
        """Store all that decides the next step; `before` is the divergence at first. Raises OutputError."""
        arrays = {"theta": theta, "mean": self._mean, "square": self._square}
        write_record(path, identity, {"step": self.step, "before": before}, arrays.items())

    def load(self, path: Path, theta: F32, identity: list[Any]) -> float | None:
        """What `before` was; None when there is nothing that belongs to this run."""
        record = read_record(path, identity)
        if record is None or record.arrays["theta"].shape != theta.shape:
            return None
        theta[:], self._mean[:], self._square[:] = map(record.array, ("theta", "mean", "square"))
        self.step = int(record.state["step"])
        return float(record.state["before"])
