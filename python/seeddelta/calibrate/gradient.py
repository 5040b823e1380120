"""Second moments of the loss' gradients at the outputs of a model's matrices: how errors of rows go together.

For a matrix with outputs y_t the loss grows by about ½ Σ_t (g_tᵀ E x_t)², g_t = ∂loss/∂y_t, the loss being that of
tokens drawn from the model's own prediction (its expected gradient squares are the Fisher information). What is kept is
G = Σ_t g_t g_tᵀ / ‖g_t‖: tokens of large gradients count more, but do not own it.

With a function for it, each matrix also gets its price: what an error of its weights costs the model.

The gradient comes down from the logits block by block: on the way up the hidden states before each block are written to
the disk, on the way down each block is computed again. So memory holds one block, its G and a chunk for each thread.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import needs_extra
from ..gguf import names
from ..gguf.source import SourceModel, open_source
from ..numeric import one_blas_thread
from ..processors import processors
from ..settings.calibration import GRADIENT_CHUNKS
from ..storage.output import check_writable
from .block import block_matrices, in_order, read_block
from .block_shape import ModelShape, model_shape
from .gradient_file import write_gradient
from .head import Head, read_head
from .moments import ChunkMoments, Moments, Price, chunk_moments, cut_mean, unit_diagonal, unit_rows
from .states import States, write_states
from .text import Texts, Windows, read_texts, text_files

F32 = npt.NDArray[np.float32]
T = TypeVar("T")


def capture_gradient(
    model: str | os.PathLike[str],
    text: Texts,
    output: str | os.PathLike[str],
    *,
    ctx: int = 512,
    chunks: int | None = GRADIENT_CHUNKS,
    seed: int = 1,
    threads: int = 0,
    price: Price | None = None,
    progress: bool = True,
) -> int:
    """Write the gradient file of a GGUF model of ARCHITECTURES (families.py); returns how many matrices it has.

    `chunks` of `ctx` tokens are taken from all over the text, or in equal parts of several (None: all of it). `seed` is
    that of the drawn labels. The result does not depend on `threads` (0: all processors). With `price` the file has the
    price of each of these matrices, of the embedding and of the output matrix. The hidden states before
    every block take 4 · chunks · ctx · n_embd bytes each in the folder of the output. Raises NotAvailableError for
    another kind of model, EvaluationError for a text that is too short, OutputError for the output.
    """
    with needs_extra("llama"):
        from ..progress import tqdm

    source, output = open_source(Path(model)), Path(output)
    shape = model_shape(source, ctx)
    check_writable(output)
    windows = read_texts(source.path, text_files(text), ctx, chunks)
    rows = {
        name: source.tensors[name].shape[0]
        for layer in reversed(range(shape.layers))  # as they are found
        for name in block_matrices(source, layer)
    }
    priced = () if price is None else tuple(name for name in names.MODEL_TENSORS if name in source.tensors)
    with (
        one_blas_thread(),
        tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder,
        ThreadPoolExecutor(threads or processors()) as pool,
        tqdm(desc="gradient", unit="block", total=2 * shape.layers, disable=not progress) as bar,
    ):
        found = _Backward(source, shape, windows, Path(folder), pool, seed, price, lambda: bar.update())
        prices = None if price is None else found.prices
        write_gradient(
            output, rows, found.matrix, prices, priced, model_name=source.path.name, windows=windows, seed=seed
        )
    return len(rows)


class _Backward:
    """Goes through the model upwards, then gives G block by block downwards."""

    def __init__(
        self,
        source: SourceModel,
        shape: ModelShape,
        windows: Windows,
        folder: Path,
        pool: ThreadPoolExecutor,
        seed: int,
        price: Price | None,
        done: Callable[[], object],
    ) -> None:
        self.source, self.shape, self.windows, self.folder, self.pool = source, shape, windows, folder, pool
        self.price, self.done = price, done
        self.prices: dict[str, float] = {}  # of the matrices that were asked for; of embedding and head at the end
        self.gradient = self._forward(seed)  # ∂loss/∂x of every chunk, after the block `self.layer`
        self.layer = shape.layers
        self.found: dict[str, F32] = {}

    def matrix(self, name: str) -> F32:
        """G of a matrix, the mean of its diagonal 1, or all 0; blocks must be asked for from the last to the first."""
        place = names.split_name(name)
        assert place is not None
        while self.layer > place[0]:
            self.layer -= 1
            self.found = self._backward(self.layer)
        return self.found.pop(name)

    def _states(self, layer: int) -> States:
        return States(self.folder / f"states-{layer}.f32", self.windows.ctx, self.shape.n_embd)

    def _each(self, work: Callable[[int], T]) -> Iterator[T]:
        return in_order(self.pool, work, range(self.windows.chunks))

    def _forward(self, seed: int) -> list[F32]:
        with write_states(self._states(0)) as writer:
            embedding = self.source.matrix(names.EMBEDDING)
            for tokens in self.windows.tokens:
                writer.add(np.asarray(self.shape.embedding_scale * embedding[tokens]))
            del embedding
        for layer in range(self.shape.layers):
            block, before = read_block(self.source, self.shape, layer), self._states(layer)
            with write_states(self._states(layer + 1)) as writer:
                for after in self._each(lambda chunk, b=block, s=before: b.forward(s.read(chunk))[0]):  # type: ignore[misc]
                    writer.add(after)
            self.done()
        head, last = read_head(self.source, self.shape), self._states(self.shape.layers)
        gradients, variance = [], np.zeros(len(head.matrix), np.float64)
        way = self._each(lambda chunk: head.gradient(last.read(chunk), np.random.default_rng([seed, chunk])))
        for gradient, own in way:
            gradients.append(gradient)
            variance += own
        if self.price is not None:
            self._price_head(head, last, variance)
        return gradients

    def _price_head(self, head: Head, last: States, variance: npt.NDArray[np.float64]) -> None:
        """Price of the output matrix, whose gradients' second moments are Σ p (1 − p) on the diagonal."""
        assert self.price is not None
        inputs, power, tokens = np.zeros((head.matrix.shape[1],) * 2, np.float32), 0.0, 0
        for chunk in range(self.windows.chunks):
            x, square = unit_rows(head.inputs(last.read(chunk)))
            inputs += x.T @ x
            power += float(square.sum())
            tokens += len(x)
        power *= head.shape.logit_scale**2 * float(variance.sum()) / tokens**2
        mean = max(float(variance.mean()), 1e-60)
        moments = Moments(np.asarray(variance / mean, np.float32), unit_diagonal(inputs), power)
        name = names.HEAD if names.HEAD in self.source.tensors else names.EMBEDDING
        self.prices[name] = self.price(name, head.matrix, moments)

    def _price_embedding(self) -> None:
        """Add the price of what the embedding gives the first block: of errors as large as its rows."""
        embedding, total, tokens = self.source.matrix(names.EMBEDDING), 0.0, 0
        for chunk, own in enumerate(self.windows.tokens):
            x = self.shape.embedding_scale * embedding[own]
            g = np.square(self.gradient[chunk]).sum(-1, dtype=np.float64)
            total += float(g @ np.square(x).mean(-1, dtype=np.float64))
            tokens += len(own)
        self.prices[names.EMBEDDING] = self.prices.get(names.EMBEDDING, 0.0) + total / (2 * tokens)

    def _backward(self, layer: int) -> dict[str, F32]:
        block, before = read_block(self.source, self.shape, layer), self._states(layer)
        self._states(layer + 1).remove()
        start = f"blk.{layer}."
        full = {name.removeprefix(start).removesuffix(".weight"): name for name in block_matrices(self.source, layer)}
        sums = {kind: np.zeros((len(block.w[kind]),) * 2, np.float32) for kind in full}
        inputs: dict[str, F32] = {}
        power: dict[str, list[npt.NDArray[np.float64]]] = {kind: [] for kind in full}
        first: dict[str, str] = {}

        def of_chunk(chunk: int) -> ChunkMoments:
            told: dict[str, tuple[F32, F32]] = {}

            def seen(kind: str, g: F32, _: F32, x: F32) -> None:
                if kind in full:
                    told[kind] = g, x

            back = block.forward(before.read(chunk))[1]
            self.gradient[chunk] = back(self.gradient[chunk], seen)
            return chunk_moments(told, inputs=self.price is not None)

        for own in self._each(of_chunk):

            def add(kind: str, own: ChunkMoments = own) -> None:
                sums[kind] += own.gradients[kind].T @ own.gradients[kind]
                power[kind].append(own.power[kind])
                if kind in own.inputs:
                    inputs[kind] = inputs.get(kind, 0) + own.inputs[kind].T @ own.inputs[kind]

            list(self.pool.map(add, sums))
            first |= own.first
        found = {kind: unit_diagonal(g) for kind, g in sums.items()}
        if self.price is not None:
            units = {kind: unit_diagonal(h) for kind, h in inputs.items()}
            for kind, name in full.items():
                moments = Moments(found[kind], units[first[kind]], cut_mean(np.concatenate(power[kind])))
                self.prices[name] = self.price(name, block.w[kind], moments)
            if layer == 0:
                self._price_embedding()
        self.done()
        return {full[kind]: g for kind, g in found.items()}
