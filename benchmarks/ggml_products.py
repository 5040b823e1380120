"""ggml's own matrix-vector product of the library that llama-cpp-python brings, to measure beside ours."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np
from seeddelta.runtime.library import native_library

GGML_TYPES = {
    "F16": 1,
    "Q8_0": 8,
    "Q4_0": 2,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "IQ4_XS": 23,
    "Q3_K": 11,
    "IQ3_S": 21,
    "IQ3_XXS": 18,
    "Q2_K": 10,
}
GGML_TYPES |= {"IQ2_XXS": 16}  # ggml.h, enum ggml_type
F32 = 0
QUANTIZED_ROWS = 16  # ggml's IQ types take seconds a megabyte to quantise: the matrix repeats this many rows


class InitParams(ctypes.Structure):
    """ggml_init_params (ggml.h)"""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Ggml:
    """The few functions of ggml that a graph of products needs."""

    def __init__(self) -> None:
        library = native_library()
        pointer, size, long, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, ctypes.c_int
        signatures: dict[str, tuple[Any, list[Any]]] = {
            "ggml_init": (pointer, [InitParams]),
            "ggml_free": (None, [pointer]),
            "ggml_new_tensor_2d": (pointer, [pointer, integer, long, long]),
            "ggml_get_data": (pointer, [pointer]),
            "ggml_mul_mat": (pointer, [pointer, pointer, pointer]),
            "ggml_new_graph_custom": (pointer, [pointer, size, ctypes.c_bool]),
            "ggml_build_forward_expand": (None, [pointer, pointer]),
            "ggml_graph_compute_with_ctx": (integer, [pointer, pointer, integer]),
            "ggml_quantize_chunk": (size, [integer, pointer, pointer, long, long, long, pointer]),
            "ggml_row_size": (size, [integer, long]),
            "ggml_blck_size": (long, [integer]),
            "ggml_cpu_init": (None, []),
        }
        for name, (result, arguments) in signatures.items():
            function = _function(library, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("ggml_"), function)
        self.cpu_init: Any
        self.cpu_init()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def _function(library: ctypes.CDLL, name: str) -> Any:
    """A function of ggml. The CPU backend may be a library of its own that only llama.cpp's loader has opened."""
    try:
        return library[name]
    except AttributeError:
        from pathlib import Path

        import llama_cpp

        for path in sorted((Path(llama_cpp.__file__).parent / "lib").glob("libggml-cpu*")):
            try:
                return ctypes.CDLL(str(path))[name]
            except (OSError, AttributeError):
                continue
        raise


class GgmlProduct:
    """W·x by ggml; a graph repeats it, with copies of W in turns. `weights` is f32[n_out, n_in], `x` f32[n_in]."""

    def __init__(
        self, ggml: Ggml, kind: int, weights: np.ndarray[Any, Any], x: np.ndarray[Any, Any], copies: int = 1
    ) -> None:
        self._ggml, self._kind, self._shape, self._x, self._copies = ggml, kind, weights.shape, x, copies
        n_out, n_in = weights.shape
        rows = min(QUANTIZED_ROWS, n_out)
        some = np.empty((rows, ggml.row_size(kind, n_in)), np.uint8)
        importance = np.ones(n_in, np.float32)  # IQ2_XXS needs one
        ggml.quantize_chunk(kind, weights.ctypes.data, some.ctypes.data, 0, rows, n_in, importance.ctypes.data)
        self._stored = np.tile(some, (-(-n_out // rows), 1))[:n_out]

    def seconds(self, calls: int) -> float:
        ggml, (n_out, n_in) = self._ggml, self._shape
        # a node takes less than 1 KiB; the computation puts its own buffers into the context too
        room = self._copies * (self._stored.nbytes + 1024) + calls * (4 * n_out + 1024) + 64 * n_in + (16 << 20)
        context = ggml.init(InitParams(room, None, False))
        try:
            copies = [ggml.new_tensor_2d(context, self._kind, n_in, n_out) for _ in range(self._copies)]
            x = ggml.new_tensor_2d(context, F32, n_in, 1)
            for w in copies:
                ctypes.memmove(ggml.get_data(w), self._stored.ctypes.data, self._stored.nbytes)
            ctypes.memmove(ggml.get_data(x), self._x.ctypes.data, 4 * n_in)
            warm, graph = (ggml.new_graph_custom(context, count + 8, False) for count in (1, calls))
            ggml.build_forward_expand(warm, ggml.mul_mat(context, copies[0], x))
            for call in range(calls):
                ggml.build_forward_expand(graph, ggml.mul_mat(context, copies[call % self._copies], x))
            ggml.graph_compute_with_ctx(context, warm, 1)
            begin = time.thread_time()
            ggml.graph_compute_with_ctx(context, graph, 1)
            return time.thread_time() - begin
        finally:
            ggml.free(context)
