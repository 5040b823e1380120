"""Graphs of single operations, made and computed through the functions of the loaded ggml, with a hook in between."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from seeddelta import _core
from seeddelta.runtime import library

F32, F16, I32 = 0, 1, 26
_CTYPES = {F32: ctypes.c_float, F16: ctypes.c_uint16, I32: ctypes.c_int32}
_POINTERS = (
    "ggml_init", "ggml_new_tensor_4d", "ggml_view_2d", "ggml_get_data", "ggml_set_name", "ggml_mul_mat",
    "ggml_get_rows", "ggml_mul_mat_id", "ggml_add", "ggml_add_inplace", "ggml_new_graph", "ggml_permute",
)  # fmt: skip


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Graph:
    """Tensors and operations in a context of their own; shapes are ggml's, innermost first."""

    def __init__(self, memory: int = 1 << 24) -> None:
        self._lib: Any = library.native_library()
        for name in _POINTERS:
            getattr(self._lib, name).restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(self._lib.ggml_init(_InitParams(memory, None, False)))

    def close(self) -> None:
        self._lib.ggml_free(self._context)

    def tensor(
        self, kind: int, *shape: int, name: str = "", data: np.ndarray[Any, Any] | None = None
    ) -> ctypes.c_void_p:
        sizes = [ctypes.c_int64(n) for n in (*shape, 1, 1, 1)[:4]]
        made = ctypes.c_void_p(self._lib.ggml_new_tensor_4d(self._context, kind, *sizes))
        self._lib.ggml_set_name(made, name.encode())
        if data is not None:
            self.array(made, kind, *shape)[...] = data.reshape(shape[::-1])
        return made

    def array(self, tensor: ctypes.c_void_p, kind: int, *shape: int) -> np.ndarray[Any, Any]:
        """The data of a contiguous tensor, a view in NumPy's order of dimensions."""
        count = int(np.prod(shape))
        address = self._lib.ggml_get_data(tensor)
        return np.ctypeslib.as_array((_CTYPES[kind] * count).from_address(address)).reshape(shape[::-1])

    def view(self, tensor: ctypes.c_void_p, ne0: int, ne1: int, nb1: int, offset: int) -> ctypes.c_void_p:
        sizes = ctypes.c_int64(ne0), ctypes.c_int64(ne1), ctypes.c_size_t(nb1), ctypes.c_size_t(offset)
        return ctypes.c_void_p(self._lib.ggml_view_2d(self._context, tensor, *sizes))

    def permute(self, tensor: ctypes.c_void_p, *axes: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._lib.ggml_permute(self._context, tensor, *axes))

    def op(self, name: str, *sources: ctypes.c_void_p) -> ctypes.c_void_p:
        return ctypes.c_void_p(getattr(self._lib, f"ggml_{name}")(self._context, *sources))

    def compute(self, hook: _core.GraphHook, *nodes: ctypes.c_void_p, threads: int = 2) -> None:
        """Show the nodes to the hook, then compute them in order."""
        callback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)(hook.callback)
        graph = ctypes.c_void_p(self._lib.ggml_new_graph(self._context))
        for node in nodes:
            self._lib.ggml_build_forward_expand(graph, node)
            assert not callback(node, True, hook.user_data)
        assert self._lib.ggml_graph_compute_with_ctx(self._context, graph, threads) == 0
