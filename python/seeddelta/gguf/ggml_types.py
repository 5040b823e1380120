"""Types of ggml that gguf-py cannot turn into float32: by `to_float` of the llama.cpp that is installed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

Dequantize = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]


class _Traits(ctypes.Structure):
    """The beginning of ggml_type_traits, ggml.h."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


@lru_cache
def by_ggml(kind: GGMLQuantizationType) -> Dequantize | None:
    """What makes float32[weights] of uint8[bytes] of a type; None without llama.cpp, or where it cannot either."""
    try:
        import llama_cpp
    except ModuleNotFoundError:
        return None
    library: Any = getattr(llama_cpp.llama_cpp, "_lib", None)
    traits_of: Any = getattr(library, "ggml_get_type_traits", None)
    if traits_of is None:
        return None
    traits_of.argtypes, traits_of.restype = (ctypes.c_int,), ctypes.POINTER(_Traits)
    traits = traits_of(kind.value).contents
    block, size = gguf.GGML_QUANT_SIZES[kind]
    # a library of another layout, or that means another type by the number
    if (traits.blck_size, traits.type_size) != (block, size) or traits.type_name.decode().upper() != kind.name.upper():
        return None
    if not traits.to_float:  # integers, and types of products' inputs
        return None

    def dequantize(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        data = np.ascontiguousarray(data)
        values = np.empty(data.size // size * block, np.float32)
        traits.to_float(data.ctypes.data, values.ctypes.data, values.size)
        return values

    return dequantize
