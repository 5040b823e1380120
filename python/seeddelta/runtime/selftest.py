"""A small graph of the loaded ggml, rewritten by our hook and computed: the last step of the probe.

That the fields lie where they are thought to lie does not say that a rewritten node is computed as it should be. So
each form (product by rows and by columns, experts, look-up, attention) is computed once beside ggml's own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..gguf.schema import LANE_BYTES, LANES, LanesBase, lane_code

F32, F16, I32 = 0, 1, 26
_CODE = 8  # byte lanes of 4 bits
_N_OUT, _N_IN, _TOKENS, _EXPERTS = 40, 64, 3, 2
_HEADS, _DIM, _POSITIONS = 2, 32, 64
_TOLERANCE = 0.03  # of the largest value: activations have 8 bits
_MEMORY = 1 << 21
_pointer, _size, _long = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", _size), ("mem_buffer", _pointer), ("no_alloc", ctypes.c_bool))


# of ggml.h and ggml-cpu.h: result and arguments
_PROTOTYPES: Mapping[str, tuple[Any, ...]] = {
    "ggml_init": (_pointer, _InitParams),
    "ggml_free": (None, _pointer),
    "ggml_new_tensor_4d": (_pointer, _pointer, ctypes.c_int, _long, _long, _long, _long),
    "ggml_get_data": (_pointer, _pointer),
    "ggml_set_name": (_pointer, _pointer, ctypes.c_char_p),
    "ggml_mul_mat": (_pointer, _pointer, _pointer, _pointer),
    "ggml_mul_mat_id": (_pointer, _pointer, _pointer, _pointer, _pointer),
    "ggml_get_rows": (_pointer, _pointer, _pointer, _pointer),
    "ggml_flash_attn_ext": (_pointer, *[_pointer] * 5, *[ctypes.c_float] * 3),
    "ggml_new_graph": (_pointer, _pointer),
    "ggml_build_forward_expand": (None, _pointer, _pointer),
    "ggml_graph_compute_with_ctx": (ctypes.c_int, _pointer, _pointer, ctypes.c_int),
}


class _Graph:
    """Tensors by address, in a context of their own; shapes are NumPy's."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._call = {
            name: ctypes.CFUNCTYPE(*types)(ctypes.cast(getattr(library, name), _pointer).value or 0)
            for name, types in _PROTOTYPES.items()
        }
        self._context = self._call["ggml_init"](_InitParams(_MEMORY, None, False))

    def close(self) -> None:
        self._call["ggml_free"](self._context)

    def tensor(self, data: npt.NDArray[Any] | None, shape: tuple[int, ...], kind: int, name: str = "") -> int:
        sizes = (*shape[::-1], 1, 1, 1)[:4]
        made: int = self._call["ggml_new_tensor_4d"](self._context, kind, *sizes)
        self._call["ggml_set_name"](made, name.encode())
        if data is None:  # a placeholder
            data = np.full(int(np.prod(shape)), np.nan, np.float16)
        ctypes.memmove(self._call["ggml_get_data"](made), np.ascontiguousarray(data).ctypes.data, data.nbytes)
        return made

    def op(self, name: str, *arguments: Any) -> int:
        return int(self._call[f"ggml_{name}"](self._context, *arguments))

    def compute(self, hook: _core.GraphHook, *nodes: int) -> str | None:
        """Compute all; the first is shown to the hook before. What is wrong, or None."""
        graph = self._call["ggml_new_graph"](self._context)
        for node in nodes:
            self._call["ggml_build_forward_expand"](graph, node)
        see = ctypes.CFUNCTYPE(ctypes.c_bool, _pointer, ctypes.c_bool, _pointer)(hook.callback)
        see(nodes[0], True, hook.user_data)
        error = hook.take_error()
        if error is None and self._call["ggml_graph_compute_with_ctx"](self._context, graph, 1) != 0:
            return "ggml does not compute it"
        error = error or hook.take_error()
        return None if error is None else error[2]

    def values(self, node: int, count: int) -> npt.NDArray[np.float32]:
        address = self._call["ggml_get_data"](node)
        found: npt.NDArray[np.float32] = np.ctypeslib.as_array((ctypes.c_float * count).from_address(address)).copy()
        return found


def compute_products(abi: _core.GgmlAbi, library: ctypes.CDLL) -> str | None:
    """Every form of product and the look-up, beside ggml's own with the same weights. What differs, or None."""
    rng = np.random.default_rng(7)
    rows = rng.uniform(0.5, 1.5, _N_OUT).astype(np.float16)
    code = lane_code(_CODE)
    tile = (code.lines(_N_IN), LANE_BYTES)
    tiles = -(-_N_OUT // LANES)

    def lanes(name: str, experts: int) -> _core.Weight:
        codes = rng.integers(0, 256, (experts * tiles, *tile), dtype=np.uint8)
        return _core.Weight(
            name, _N_OUT, _N_IN, n_experts=experts, base_kind=LanesBase.number, base_scale=0.01,
            lane_code=code.number, codes=codes, row_scale=np.tile(rows, experts),
        )  # fmt: skip

    single, many = lanes("rows", 1), lanes("experts", _EXPERTS)
    half = rng.normal(size=(_N_OUT, _N_IN)).astype(np.float16)
    by_columns = _core.ColumnWeight("columns", _N_OUT, _N_IN, f16=np.ascontiguousarray(half.T))
    registry = _core.WeightRegistry(abi)
    registry.add(single)
    registry.add(many)
    registry.add(by_columns)

    inputs = rng.normal(size=(_TOKENS, _N_IN)).astype(np.float32)
    chosen = np.array([[1, 0], [0, 1], [1, 0]], np.int32)
    numbers = np.array([3, 0, _N_OUT - 1], np.int32)
    dense = {
        "rows": single.dequantize(), "columns": half.astype(np.float32),
        "experts": many.dequantize().reshape(_EXPERTS, _N_OUT, _N_IN),
    }  # fmt: skip
    for form, name in (("product", "rows"), ("product", "columns"), ("experts", "experts"), ("look-up", "rows")):
        graph = _Graph(library)
        try:
            shape = dense[name].shape
            nodes = []
            for matrix in (graph.tensor(None, shape, F16, name), graph.tensor(dense[name], shape, F32)):
                if form == "product":
                    nodes.append(graph.op("mul_mat", matrix, graph.tensor(inputs, inputs.shape, F32)))
                elif form == "look-up":
                    nodes.append(graph.op("get_rows", matrix, graph.tensor(numbers, numbers.shape, I32)))
                else:
                    x = graph.tensor(inputs, (_TOKENS, 1, _N_IN), F32)
                    nodes.append(graph.op("mul_mat_id", matrix, x, graph.tensor(chosen, chosen.shape, I32)))
            wrong = graph.compute(_core.GraphHook(registry), *nodes)
            count = {"product": _TOKENS * _N_OUT, "look-up": _TOKENS * _N_IN, "experts": chosen.size * _N_OUT}[form]
            wrong = wrong or _difference(*(graph.values(node, count) for node in nodes))
        finally:
            graph.close()
        if wrong is not None:
            return f"a rewritten node ({form}, {name}) is not computed as it should be: {wrong}"
    return None


def compute_attention(abi: _core.GgmlAbi, attention: _core.AttentionHook, library: ctypes.CDLL) -> str | None:
    """Attention of one token beside ggml's own. What differs, or None."""
    rng = np.random.default_rng(8)
    q = rng.normal(size=(_HEADS, 1, _DIM)).astype(np.float32)
    keys, values = (rng.normal(size=(_HEADS, _POSITIONS, _DIM)).astype(np.float16) for _ in range(2))
    mask = np.where(np.arange(64 * _POSITIONS).reshape(64, _POSITIONS) % _POSITIONS < 50, 0, -np.inf)
    hook = _core.GraphHook(_core.WeightRegistry(abi))
    hook.set_attention(attention)
    graph = _Graph(library)
    try:
        sources = (
            graph.tensor(q, q.shape, F32), graph.tensor(keys, keys.shape, F16), graph.tensor(values, values.shape, F16),
            graph.tensor(mask.astype(np.float16), mask.shape, F16),
        )  # fmt: skip
        nodes = [graph.op("flash_attn_ext", *sources, _DIM**-0.5, 0.0, 0.0) for _ in range(2)]
        wrong = graph.compute(hook, *nodes)
        wrong = wrong or _difference(*(graph.values(node, q.size) for node in nodes))
        if not attention.counters()["exact"]:
            wrong = wrong or f"it is left to ggml ({attention.left_because})"
    finally:
        graph.close()
    return None if wrong is None else f"attention is not computed as it should be: {wrong}"


def _difference(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> str | None:
    largest = float(np.abs(theirs).max())
    off = float(np.abs(ours - theirs).max())
    if off <= _TOLERANCE * largest:  # False for NaN
        return None
    return f"{off:.3g} off, of {largest:.3g}"
