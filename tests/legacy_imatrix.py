"""Importance matrices in the old form of llama-imatrix (.dat), which is only read."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from seeddelta.gguf import imatrix as gguf_form
from seeddelta.gguf.imatrix import Imatrix


def write_imatrix(path: Path, imatrix: Imatrix, *, legacy: bool = False) -> None:
    """In either form."""
    if legacy:
        path.write_bytes(_legacy_bytes(imatrix))
    else:
        gguf_form.write_imatrix(path, imatrix)


def _legacy_bytes(imatrix: Imatrix) -> bytes:
    out = bytearray(struct.pack("<i", len(imatrix.entries)))
    for name in sorted(imatrix.entries):
        entry = imatrix.entries[name]
        # llama.cpp stores mean · calls, with calls in chunks; sums stay exact when nothing has to be rescaled
        size = max(imatrix.chunk_size, 1)
        calls = max(1, -(-int(entry.counts.max()) // size))
        mean = entry.mean_square()
        values = entry.sums.ravel() if entry.counts.size == 1 and calls == entry.counts[0] else mean * np.float32(calls)
        encoded = name.encode()
        out += struct.pack("<i", len(encoded)) + encoded + struct.pack("<ii", calls, mean.size)
        out += values.astype("<f4").tobytes()
    dataset = (imatrix.datasets[-1] if imatrix.datasets else "").encode()
    out += struct.pack("<ii", imatrix.chunk_count, len(dataset)) + dataset
    return bytes(out)
