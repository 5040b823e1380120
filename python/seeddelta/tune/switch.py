"""The original model inside llama.cpp, with matrices that can be exchanged while it is loaded.

llama.cpp maps the file that it loads, shared. Here that file is a stub file (_core.StubFile) that we keep open:
what is written into it is what the next graph multiplies with. Nothing is loaded anew, and ggml computes at its own
speed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import gguf.quants
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from .. import _core
from ..errors import ModelError, SourceModelError
from ..gguf.model_file import read_header
from ..gguf.source import SourceModel
from ..numeric import row_ranges
from ..runtime.session import open_model, require_logits

_FLOATS = (GGMLQuantizationType.F16, GGMLQuantizationType.F32, GGMLQuantizationType.BF16)


class SwitchedModel:
    """A `llama_cpp.Llama` (`llm`) of an original model whose tensors `names` can be exchanged. Close it, or use `with`.

    They have the source's type if it is F16, BF16 or F32, else F16. The model is in memory once, as shared memory.
    Raises what `open_model` and `_core.StubFile` raise.
    """

    def __init__(self, source: SourceModel, names: Iterable[str], *, n_ctx: int, threads: int | None = None) -> None:
        self._source = source
        self._types = {}
        for name in names:
            kind = source.tensors[name].type
            self._types[name] = kind if kind in _FLOATS else GGMLQuantizationType.F16
        kept = {name: name for name in source.tensors if name not in self._types}
        given = {name: (int(kind), source.tensors[name].shape, None) for name, kind in self._types.items()}
        self._view = _core.StubFile(source.path, kept, given)
        try:
            self._fd = os.open(self._view.path, os.O_RDWR)
            self._offsets = {name: info.offset for name, info in read_header(self._view.path).tensors.items()}
            for name in self._types:
                self.restore(name)
            try:
                self.llm = open_model(self._view.path, n_ctx=n_ctx, n_batch=n_ctx, threads=threads)
            except ModelError as error:
                raise ModelError(str(error).replace(self._view.path, str(source.path))) from error
            require_logits(self.llm, source.path)
        except BaseException:
            self._view.close()
            raise

    def put(self, name: str, weights: npt.NDArray[np.float32]) -> None:
        """Compute with float32[rows, n_in] from now on. Raises SourceModelError for weights that F16 cannot hold."""
        kind = self._types[name]
        offset = self._offsets[name]
        for begin, end in row_ranges(*weights.shape):
            data = self._narrow(name, kind, weights[begin:end])
            self._write(data, offset)
            offset += len(data)

    def restore(self, name: str) -> None:
        """Compute with the model's own matrix again."""
        if self._types[name] == self._source.tensors[name].type:
            self._write(self._source.raw(name).data, self._offsets[name])
        else:
            self.put(name, self._source.matrix(name))

    def _narrow(self, name: str, kind: GGMLQuantizationType, values: npt.NDArray[np.float32]) -> Any:
        if kind == GGMLQuantizationType.F32:
            return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        with np.errstate(over="ignore"):
            narrow = gguf.quants.quantize(values, kind)
        if kind == GGMLQuantizationType.F16 and not np.isfinite(narrow).all():
            raise SourceModelError(f"{self._source.path}: tensor {name!r} does not fit F16; start from a BF16 model")
        return np.ascontiguousarray(narrow).reshape(-1).view(np.uint8).data

    def _write(self, data: Any, offset: int) -> None:
        left = memoryview(data)
        while len(left):
            done = os.pwrite(self._fd, left, offset)
            left, offset = left[done:], offset + done

    def close(self) -> None:
        self.llm.close()
        os.close(self._fd)
        self._view.close()

    def __enter__(self) -> SwitchedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
