"""Building with base kind lanes: the file, its parts, and what the covariance brings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from seeddelta import Recipe, build
from seeddelta.gguf import schema
from seeddelta.gguf.reader import open_seeddelta
from seeddelta.gguf.source import open_source
from tiny_models import write_model


def built(folder: Path, **options: object) -> Path:
    source = folder / "dense.gguf"
    if not source.exists():
        write_model(source)
    out = folder / f"{len(list(folder.iterdir()))}.gguf"
    build(Recipe(input=source, output=out, base_kind="lanes", **options), progress=False)  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6])
def test_file_says_lanes_and_decodes(tmp_path: Path, bits: float) -> None:
    path = built(tmp_path, bits=bits)
    stored = open_seeddelta(path).tensors
    dense = open_source(tmp_path / "dense.gguf")
    rates = {one.description.base.bits for one in stored.values() if isinstance(one.description.base, schema.LanesBase)}
    assert bits in rates
    for name, tensor in stored.items():
        one = tensor.description
        w = dense.matrix(name)
        error = np.linalg.norm(w - tensor.to_weight().dequantize()) / np.linalg.norm(w)
        assert error == pytest.approx(one.norms.err / one.norms.w, rel=1e-3)
        assert error < {2: 0.36, 3: 0.2, 4: 0.11, 5: 0.055, 6: 0.03}[bits]


def test_threads_and_executors_give_the_same_bytes(tmp_path: Path) -> None:
    one, many = built(tmp_path, threads=1), built(tmp_path, threads=3, executor="threads:2")
    assert one.read_bytes() == many.read_bytes()
