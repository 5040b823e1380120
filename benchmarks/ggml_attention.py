"""One FLASH_ATTN_EXT of the loaded ggml on NumPy arrays, for comparison with ours."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import llama_cpp

Array = np.ndarray[Any, Any]
F32, F16 = 0, 1  # GGML_TYPE_*
TYPES = {np.dtype(np.float32): F32, np.dtype(np.float16): F16}
MARGIN = 16 << 20  # bytes for a graph, and the work buffer that every computation of it makes anew


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def _functions() -> dict[str, Any]:
    pointer, size, number, real = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, ctypes.c_float
    signatures = {
        "ggml_init": (pointer, [_InitParams]),
        "ggml_free": (None, [pointer]),
        "ggml_new_tensor_3d": (pointer, [pointer, ctypes.c_int, number, number, number]),
        "ggml_permute": (pointer, [pointer, pointer, *[ctypes.c_int] * 4]),
        "ggml_flash_attn_ext": (pointer, [*[pointer] * 5, real, real, real]),
        "ggml_new_graph": (pointer, [pointer]),
        "ggml_build_forward_expand": (None, [pointer, pointer]),
        "ggml_get_data": (pointer, [pointer]),
        "ggml_nbytes": (size, [pointer]),
        "ggml_used_mem": (size, [pointer]),
        "ggml_graph_compute_with_ctx": (ctypes.c_int, [pointer, pointer, ctypes.c_int]),
    }
    folder = Path(llama_cpp._lib._name).parent
    libraries = [llama_cpp._lib, *(ctypes.CDLL(str(path)) for path in sorted(folder.glob("libggml-cpu.so")))]
    found = {}
    for name, (result, arguments) in signatures.items():
        function = next(getattr(library, name) for library in libraries if hasattr(library, name))
        function.restype, function.argtypes = result, arguments
        found[name] = function
    return found


class GgmlAttention:
    """Attention of one token, or of several, by ggml.

    Args: q [n_head, dim] or [tokens, n_head, dim] float32; k, v [n_kv, n_kv_head, dim], float16 or float32.
    """

    def __init__(self, q: Array, k: Array, v: Array, scale: float) -> None:
        self._ggml = _functions()
        self._shape = q.shape
        tokens, heads, dim = q.shape if q.ndim == 3 else (1, *q.shape)
        padded = -(-tokens // 64) * 64
        self._room = (
            k.nbytes + v.nbytes + 2 * padded * len(k) + 64 * q.nbytes + (MARGIN if tokens == 1 else 16 * MARGIN)
        )
        self._context = self._ggml["ggml_init"](_InitParams(self._room, None, False))
        n_kv, n_kv_head = k.shape[:2]
        query = self._ggml["ggml_permute"](self._context, self._tensor(F32, (dim, heads, tokens), q), 0, 2, 1, 3)
        key, value = (
            self._ggml["ggml_permute"](
                self._context, self._tensor(TYPES[a.dtype], (dim, n_kv_head, n_kv), a), 0, 2, 1, 3
            )
            for a in (k, v)
        )
        mask = self._tensor(F16, (n_kv, padded, 1), np.zeros((padded, n_kv), np.float16))
        self._node = self._ggml["ggml_flash_attn_ext"](self._context, query, key, value, mask, scale, 0.0, 0.0)
        self._graph = self._ggml["ggml_new_graph"](self._context)
        self._ggml["ggml_build_forward_expand"](self._graph, self._node)

    def _tensor(self, kind: int, shape: tuple[int, int, int], data: Array) -> int:
        tensor: int = self._ggml["ggml_new_tensor_3d"](self._context, kind, *shape)
        if self._ggml["ggml_nbytes"](tensor) != data.nbytes:
            raise SystemExit(f"ggml has another size for {shape} of type {kind}")
        ctypes.memmove(self._ggml["ggml_get_data"](tensor), np.ascontiguousarray(data).ctypes.data, data.nbytes)
        return tensor

    def __call__(self, threads: int = 1) -> Array:
        """Output of one computation, in the shape of q."""
        if self._ggml["ggml_used_mem"](self._context) > self._room - MARGIN // 4:
            raise SystemExit("ggml's memory is used up; make another GgmlAttention")
        if self._ggml["ggml_graph_compute_with_ctx"](self._context, self._graph, threads) != 0:
            raise SystemExit("ggml did not compute the graph")
        data = (ctypes.c_float * int(np.prod(self._shape))).from_address(self._ggml["ggml_get_data"](self._node))
        return np.array(data, np.float32).reshape(self._shape)

    def close(self) -> None:
        self._ggml["ggml_free"](self._context)
