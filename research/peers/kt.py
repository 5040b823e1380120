"""The matrices of a model's layers through the trellis types of ik_llama.cpp, by its own library.

    pip install --no-deps --target ik ik-llama-cpp-python
    python research/peers/kt.py --library ik/ik_llama_cpp/lib/libggml.so --type IQ4_KT -m dense.gguf \\
        --imatrix imatrix.gguf -o iq4_kt.gguf

The types need rows of a multiple of 256 columns. Where a matrix has others, consecutive rows are joined (`--fit join`:
four rows of 576 columns are one of 2304, with the imatrix repeated, and share one row scale) or filled up with
columns of zeros, which are not counted (`--fit pad`). The output is a dense F16 file of what the type gives back; the
last line that is printed, JSON, says how many bytes the type takes.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from dense_file import F32, layer_matrices, write_with
from seeddelta.gguf.imatrix import read_imatrix
from seeddelta.gguf.names import parse_layers, split_name
from seeddelta.gguf.source import open_source
from tqdm.auto import tqdm

TYPES = {"IQ2_KT": 153, "IQ3_KT": 154, "IQ4_KT": 155}  # ik_llama.cpp's ggml.h, enum ggml_type
BLOCK = 256


class Quantizer:
    """One type of ik_llama.cpp's ggml."""

    def __init__(self, library: Path, kind: str) -> None:
        ggml: Any = ctypes.CDLL(str(library))
        pointer, long = ctypes.c_void_p, ctypes.c_int64
        ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, long, long, long, pointer, pointer]
        ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
        ggml.ggml_row_size.argtypes, ggml.ggml_row_size.restype = [ctypes.c_int, long], ctypes.c_size_t
        ggml.ggml_type_name.argtypes, ggml.ggml_type_name.restype = [ctypes.c_int], ctypes.c_char_p
        self._ggml, self._kind = ggml, TYPES[kind]
        if ggml.ggml_type_name(self._kind).decode().upper() != kind:
            raise ValueError(f"{library} has another type than {kind} at {self._kind}")
        self._to_float = ggml[f"dequantize_row_{kind.lower()}"]
        self._to_float.argtypes, self._to_float.restype = [pointer, pointer, long], None

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row."""
        return int(self._ggml.ggml_row_size(self._kind, columns))

    def round_trip(self, rows: F32, importance: F32) -> tuple[F32, float]:
        """What the type gives back for float32[rows, n · 256], and the seconds that quantizing took."""
        rows = np.ascontiguousarray(rows)
        count, columns = rows.shape
        data = np.empty((count, self.row_bytes(columns)), np.uint8)
        back = np.empty_like(rows)
        begin = time.process_time()
        self._ggml.ggml_quantize_chunk(
            self._kind, rows.ctypes.data, data.ctypes.data, 0, count, columns, importance.ctypes.data, None
        )
        seconds = time.process_time() - begin
        for row, out in zip(data, back, strict=True):  # a row begins with its scale
            self._to_float(row.ctypes.data, out.ctypes.data, columns)
        return back, seconds


def through(quantizer: Quantizer, weights: F32, importance: F32, fit: str) -> tuple[F32, int, float]:
    """What the type gives back for a matrix, its bytes, and the seconds that it took."""
    n_out, n_in = weights.shape
    joined = BLOCK // np.gcd(n_in, BLOCK)
    if joined == 1 or fit == "join":
        rows, weigh = weights.reshape(n_out // joined, n_in * joined), np.tile(importance, joined)
        back, seconds = quantizer.round_trip(rows, weigh)
        return back.reshape(weights.shape), len(rows) * quantizer.row_bytes(rows.shape[1]), seconds
    more = -n_in % BLOCK
    rows, weigh = np.pad(weights, ((0, 0), (0, more))), np.pad(importance, (0, more))
    back, seconds = quantizer.round_trip(rows, weigh)
    # the columns of zeros are taken off again, at what they take without the row's scale
    scale = quantizer.row_bytes(BLOCK) * 2 - quantizer.row_bytes(2 * BLOCK)
    filling = (quantizer.row_bytes(rows.shape[1]) - scale) * more / rows.shape[1]
    return back[:, :n_in], round(n_out * (quantizer.row_bytes(rows.shape[1]) - filling)), seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, required=True, help="dense GGUF model")
    parser.add_argument("--imatrix", type=Path, required=True, help="imatrix of the model")
    parser.add_argument("--library", type=Path, required=True, help="libggml of ik_llama.cpp")
    parser.add_argument("--type", choices=TYPES, required=True, help="type of all matrices of the layers")
    parser.add_argument("--fit", choices=("join", "pad"), default="join", help="what becomes of rows that do not fit")
    parser.add_argument("--layers", help="layers, such as 0,10 (default: all)")
    parser.add_argument("-o", "--output", type=Path, help="dense F16 file to write (default: none)")
    options = parser.parse_args()

    source, importances = open_source(options.model), read_imatrix(options.imatrix)
    quantizer = Quantizer(options.library, options.type)
    layers = parse_layers(options.layers)
    matrices, errors = {}, []
    size = weights_in_all = 0
    seconds = 0.0
    for name in tqdm(layer_matrices(source), unit="matrix"):
        place = split_name(name)
        if layers is not None and place is not None and place[0] not in layers:
            continue
        weights = source.matrix(name)
        importance = importances.importance(name, weights.shape[1])
        matrices[name], taken, spent = through(quantizer, weights, importance, options.fit)
        lost = np.sum((weights - matrices[name]) ** 2 * importance) / np.sum(weights**2 * importance)
        errors.append(float(lost))
        size, seconds, weights_in_all = size + taken, seconds + spent, weights_in_all + weights.size
    if options.output is not None:
        write_with(source, options.output, matrices)
    found = {
        "type": options.type,
        "fit": options.fit,
        "bytes": size,
        "bits_per_weight": 8 * size / weights_in_all,
        "weighted_error": float(np.sqrt(np.mean(errors))),
        "processor_seconds": round(seconds, 1),
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
