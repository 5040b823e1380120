"""The same bits in a process where subnormal numbers count as zero: any library built with -ffast-math may do that."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from seeddelta import _core

SOURCE = """
#include <xmmintrin.h>
unsigned get(void) { return _mm_getcsr(); }
void set(unsigned csr) { _mm_setcsr(csr); }
"""
ZERO = 0x8040  # FTZ and DAZ
SMALLEST = 2.0**-24  # float16; the largest subnormal number is 1023 times that


@pytest.fixture(scope="module")
def mxcsr(tmp_path_factory: pytest.TempPathFactory) -> Any:
    compiler = shutil.which("cc")
    if compiler is None or platform.machine() != "x86_64":
        pytest.skip("needs a C compiler on x86-64")
    path = tmp_path_factory.mktemp("mxcsr") / "mxcsr.so"
    (path.parent / "mxcsr.c").write_text(SOURCE)
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", path, path.parent / "mxcsr.c"], check=True)
    return ctypes.CDLL(str(path))


@pytest.fixture(autouse=True)
def _restore(mxcsr: Any) -> Iterator[None]:
    isa, csr = _core.isa_active(), mxcsr.get()
    yield
    mxcsr.set(csr)
    _core.isa_select(isa)


def subnormal(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return (rng.integers(1, 1023, shape) * SMALLEST).astype(np.float16)


def rows(rng: np.random.Generator) -> _core.Weight:
    return _core.Weight("w", 48, 64, base_kind=0, base_scale=1000.0, arrays={"row_scale": subnormal(rng, 48)})


def sparse(rng: np.random.Generator) -> _core.Weight:
    index = np.sort(rng.permuted(np.tile(np.arange(64, dtype=np.uint16), (48, 1)), axis=1)[:, :8], axis=1)
    arrays = {"row_scale": np.ones(48, np.float16), "d_idx": index, "d_val": subnormal(rng, 48, 8)}
    return _core.Weight("w", 48, 64, base_kind=255, arrays=arrays)


def columns(rng: np.random.Generator) -> _core.ColumnWeight:
    return _core.ColumnWeight("w", subnormal(rng, 48, 64))


@pytest.mark.parametrize("make", [rows, sparse, columns])
def test_subnormal_halves_are_numbers(mxcsr: Any, make: Callable[[np.random.Generator], Any]) -> None:
    rng = np.random.default_rng(2)
    weight, x = make(rng), 1000 * rng.normal(size=(3, 64)).astype(np.float32)
    normal = {}
    for isa in _core.isa_available():
        _core.isa_select(isa)
        normal[isa] = weight.matmul(x)
    before = mxcsr.get()
    for isa, expected in normal.items():
        _core.isa_select(isa)
        mxcsr.set(before | ZERO)
        found = weight.matmul(x)
        mxcsr.set(before)
        assert np.abs(expected).max() > 0
        np.testing.assert_array_equal(found, expected, err_msg=isa)
