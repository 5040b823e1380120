"""Some consecutive blocks of a model in llama.cpp, fed with tokens or hidden states, a chunk of text at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seeddelta import _core

from ..errors import ImatrixError, needs_extra
from ..gguf.source import SourceModel
from ..processors import processors
from .block_view import block_view, model_name, view_name

if TYPE_CHECKING:
    import llama_cpp

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


def open_hooked(
    path: str, hook: _core.CaptureHook, ctx: int, threads: int = 0, *, called: str | None = None
) -> llama_cpp.Llama:
    """A model whose graphs call the hook, for texts of `ctx` tokens that are evaluated at once, with all outputs.

    Inputs must be in host memory: a build for GPUs would send large products there, weights or not. Raises ImatrixError
    when llama.cpp refuses the file, which the message calls `called`.
    """
    with needs_extra("llama"):
        import llama_cpp

    from ..runtime.contexts import evaluation_callback
    from ..runtime.llama_log import native_path, refusals

    workers = threads or processors()
    with native_path(path) as name, evaluation_callback(hook), refusals(called or path, ImatrixError):
        return llama_cpp.Llama(
            name, n_ctx=ctx, n_batch=ctx, n_ubatch=ctx, n_threads=workers, n_threads_batch=workers,
            logits_all=True, verbose=False, n_gpu_layers=0, op_offload=False, offload_kqv=False,
        )  # fmt: skip


class BlockRun:
    """The blocks `first` to `last` - 1 of a model; a context manager.

    `summed` are matrices (by their names in the model, like everything here) whose inputs are summed by the hook,
    `taken` those whose inputs `inputs` gives; `nodes` are nodes of the view's graph, for `values`. `advance` leaves the
    graph after the product with `stop`, one of `taken`. With `vocabulary` int32[n] (ascending) the blocks begin with
    the embedding of tokens, without it with hidden states. `replaced`: see `block_view`. Raises SourceModelError,
    FormatError and OutputError for a view that cannot be made, ImatrixError when llama.cpp does not load it.
    """

    def __init__(
        self,
        source: SourceModel,
        first: int,
        last: int,
        *,
        ctx: int,
        summed: Iterable[str] = (),
        taken: Iterable[str] = (),
        nodes: Iterable[str] = (),
        stop: str | None = None,
        covariance: bool = True,
        vocabulary: npt.NDArray[np.int32] | None = None,
        replaced: Mapping[str, F32] | None = None,
        threads: int = 0,
    ) -> None:
        with needs_extra("llama"):
            from llama_cpp import llama_cpp as api

        from ..runtime.library import loaded_ggml

        self.source, self.first, self.last, self.ctx = source, first, last, ctx
        self._vocabulary = vocabulary
        self._output = f"l_out-{last - first - 1}"
        self.hook = _core.CaptureHook(
            loaded_ggml(),
            self._views(summed),
            covariance,
            threads,
            [self._output, *self._views(taken), *nodes],
        )
        if stop is not None:
            self.hook.stop_after(*self._views([stop]))
        view = block_view(source, first, last, tokens=vocabulary, replaced=replaced)
        try:
            called = f"{source.path}, blocks {first} to {last - 1}"
            self._llm = open_hooked(view.path, self.hook, ctx, threads, called=called)
        finally:
            view.close()
        self._api = api
        self.n_embd = int(self._llm.n_embd())
        self._batch = _Batch(self._api, ctx, self.n_embd, vocabulary is not None)

    def run(self, chunk: npt.NDArray[Any]) -> F32:
        """Hidden states after the blocks, float32[n, n_embd], of tokens int32[n] or hidden states float32[n, n_embd].

        Every call is a text of its own. Raises ImatrixError when llama.cpp or the hook fails.
        """
        self.advance(chunk)
        try:
            return self.hook.values(self._output)
        except KeyError:
            raise ImatrixError(f"{self._where}: the graph has no node {self._output}; run the whole model") from None

    @property
    def _where(self) -> str:
        return f"{self.source.path}: blocks {self.first} to {self.last - 1}"

    def advance(self, chunk: npt.NDArray[Any]) -> None:
        """The same without looking at the hidden states: for `inputs` and `values`."""
        api = self._api
        api.llama_memory_clear(api.llama_get_memory(self._llm.ctx), True)
        if self._vocabulary is not None:
            chunk = np.searchsorted(self._vocabulary, chunk).astype(np.int32)
        code = api.llama_decode(self._llm.ctx, self._batch.fill(chunk))
        if code != 0:
            raise ImatrixError(f"{self._where}: llama.cpp cannot compute {len(chunk)} tokens (code {code})")
        api.llama_synchronize(self._llm.ctx)
        if self.hook.error:
            raise ImatrixError(f"{self._where}: {self.hook.error}")

    def values(self, node: str) -> F32 | None:
        """Values of one of `nodes` in the last run, float32[n, columns], or None when the graph has no such node."""
        try:
            return self.hook.values(node)
        except KeyError:
            return None

    def inputs(self, name: str) -> F32:
        """Inputs of a matrix of `taken` in the last run, float32[n, n_in]."""
        (name,) = self._views([name])
        return self.hook.values(name)

    @property
    def representatives(self) -> dict[str, str]:
        """Matrix -> the matrix under whose name the sums of the same input stand."""
        names = self.hook.representatives.items()
        return {model_name(name, self.first): model_name(same, self.first) for name, same in names}

    @property
    def order(self) -> list[str]:
        """The representatives in the order of the graph."""
        return [model_name(name, self.first) for name in self.hook.order]

    def _views(self, wanted: Iterable[str]) -> list[str]:
        found = [(name, view_name(name, self.first, self.last)) for name in wanted]
        if foreign := [name for name, own in found if own is None]:
            raise ValueError(f"{foreign[0]} is not in the blocks {self.first} to {self.last - 1}")
        return [own for _, own in found if own is not None]

    # the sums, as a CaptureHook has them, by the names in the model
    def tokens(self, name: str) -> int:
        return self.hook.tokens(*self._views([name]))

    def nonfinite_tokens(self, name: str) -> int:
        return self.hook.nonfinite_tokens(*self._views([name]))

    def counts(self, name: str) -> npt.NDArray[np.int64]:
        return self.hook.counts(*self._views([name]))

    def square(self, name: str) -> F64:
        return self.hook.square(*self._views([name]))

    def norm_square(self, name: str) -> F64:
        return self.hook.norm_square(*self._views([name]))

    def covariance(self, name: str) -> F32:
        return self.hook.covariance(*self._views([name]))

    def covariance_rows(self, name: str, begin: int, end: int) -> F32:
        (name,) = self._views([name])
        return self.hook.covariance_rows(name, begin, end)

    def close(self) -> None:
        self._llm.close()

    def __enter__(self) -> BlockRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Batch:
    """A llama_batch over arrays of our own: n tokens of one sequence, all with outputs.

    Models with several positions a token (M-RoPE) want them from hidden states: three equal ones, then 0, as llama.cpp
    makes them of tokens (llm_graph_input_pos::set_input); others read the first n only.
    """

    def __init__(self, api: Any, ctx: int, n_embd: int, from_tokens: bool) -> None:
        self._tokens = np.zeros(ctx, np.int32) if from_tokens else None
        self._states = None if from_tokens else np.zeros((ctx, n_embd), np.float32)
        self._positions = np.zeros(4 * ctx, np.int32)
        self._counts, self._wanted = np.ones(ctx, np.int32), np.ones(ctx, np.int8)
        self._sequence = (ctypes.c_int32 * 1)(0)
        pointer = ctypes.cast(self._sequence, ctypes.POINTER(ctypes.c_int32))
        self._sequences = (ctypes.POINTER(ctypes.c_int32) * (ctx + 1))(*([pointer] * ctx))  # ends with a null pointer

        def address(array: npt.NDArray[Any] | None, kind: Any) -> Any:
            return None if array is None else array.ctypes.data_as(ctypes.POINTER(kind))

        self._batch = api.llama_batch(
            n_tokens=0,
            token=address(self._tokens, ctypes.c_int32),
            embd=address(self._states, ctypes.c_float),
            pos=address(self._positions, ctypes.c_int32),
            n_seq_id=address(self._counts, ctypes.c_int32),
            seq_id=ctypes.cast(self._sequences, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
            logits=address(self._wanted, ctypes.c_int8),
        )

    def fill(self, chunk: npt.NDArray[Any]) -> Any:
        n = len(chunk)
        if self._tokens is not None:
            self._tokens[:n] = chunk
        else:
            assert self._states is not None
            self._states[:n] = chunk
        self._positions[: 4 * n] = np.concatenate([np.tile(np.arange(n), 3), np.zeros(n)])
        self._batch.n_tokens = n
        return self._batch
