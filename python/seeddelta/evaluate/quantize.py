"""llama.cpp's own quantizer, as the loaded library has it: what SeedΔ models are compared with."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import RecipeError, SourceModelError, needs_extra
from ..processors import processors
from ..storage.output import atomic_output

# llama.cpp's names and numbers (llama.h, enum llama_ftype)
LLAMA_TYPES = {
    "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12, "Q3_K_L": 13,
    "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ2_XXS": 19, "IQ2_XS": 20, "IQ3_XS": 22,
    "IQ3_XXS": 23, "IQ4_NL": 25, "IQ3_S": 26, "IQ3_M": 27, "IQ2_S": 28, "IQ2_M": 29, "IQ4_XS": 30,
}  # fmt: skip

Importances = Sequence[tuple[bytes, npt.NDArray[np.float32]]]


def parse_types(text: str) -> list[str]:
    """Types from "Q4_K_M,Q3_K_M". Raises RecipeError for one that is not in LLAMA_TYPES."""
    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    unknown = next((name for name in names if name not in LLAMA_TYPES), None)
    if unknown is not None or not names:
        known = ", ".join(LLAMA_TYPES)
        raise RecipeError(f"{text!r}: {unknown or 'nothing'} is no type of llama.cpp; choose from {known}")
    return names


def quantized_model(
    dense: Path,
    folder: Path,
    name: str,
    *,
    imatrix: Path | None = None,
    announce: Callable[[str], None] = lambda text: None,
) -> Path:
    """`dense` quantized to the type `name` of LLAMA_TYPES in `folder`, with an importance matrix if one is given.

    A file that is there and newer than the model is taken as it is. Raises RecipeError for an unknown type, OutputError
    when it cannot be written, SourceModelError when llama.cpp refuses the model.
    """
    (kind,) = parse_types(name)
    path = folder / f"{dense.stem}-{kind}{'' if imatrix is None else '-imatrix'}.gguf"
    inputs = [dense] if imatrix is None else [dense, imatrix]
    if not path.exists() or path.stat().st_mtime < max(one.stat().st_mtime for one in inputs):
        announce(f"quantize {path.name}")
        quantize(dense, path, LLAMA_TYPES[kind], importances=None if imatrix is None else importances_of(imatrix))
    return path


def quantize(
    dense: Path, path: Path, ftype: int, *, importances: Importances | None = None, pure: bool = False
) -> None:
    """llama_model_quantize to a number of LLAMA_TYPES. `importances` are names and E[x²], float32[n_in]; `pure`: no
    mixture of types, and the embedding in Q8_0. Raises as `quantized_model`.
    """
    with needs_extra("llama"):
        from llama_cpp import llama_cpp

        from ..runtime.llama_log import collected, reason_of

    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread = processors()
    params.ftype = ftype
    if pure:
        params.pure = True
        params.token_embedding_type = llama_cpp.GGML_TYPE_Q8_0
    if importances is not None:
        entry, floats = llama_cpp.llama_model_imatrix_data, ctypes.POINTER(ctypes.c_float)
        rows = [entry(key, data.ctypes.data_as(floats), data.size) for key, data in importances]
        table = (entry * (len(rows) + 1))(*rows, entry(None, None, 0))  # ends with a name of null
        params.imatrix = ctypes.cast(table, ctypes.POINTER(entry))
    # one of its warnings a tensor would hide ours
    with collected() as lines, atomic_output(path) as temporary:
        failed = llama_cpp.llama_model_quantize(os.fsencode(dense), os.fsencode(temporary), ctypes.byref(params))
        if failed:
            reason = reason_of(lines) or f"error {failed}"
            raise SourceModelError(f"{dense}: llama.cpp cannot quantize it to {path.name}: {reason}")


def importances_of(imatrix: Path) -> list[tuple[bytes, npt.NDArray[np.float32]]]:
    """Names and E[x²] of an importance matrix, as llama-quantize hands them over. Raises ImatrixError."""
    from ..gguf.imatrix import read_imatrix

    return [(name.encode(), entry.mean_square()) for name, entry in read_imatrix(imatrix).entries.items()]
