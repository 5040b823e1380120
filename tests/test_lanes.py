"""Base kind lanes: the NumPy oracle, every instruction set and the text of docs/reference/format.md agree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import reference
from description_tables import changed
from lane_models import write_lanes
from seeddelta import _core
from seeddelta.errors import UnsupportedVersionError
from seeddelta.gguf import schema
from seeddelta.gguf.reader import open_seeddelta
from test_core_kernels import LANES, _restore_isa, check_all, code_of, dense_of, lanes_weight  # noqa: F401
from tiny_models import TARGET_NAMES, write_model

DOCS = Path(__file__).parents[1] / "docs" / "reference" / "format.md"
CODES = [code.number for code in _core.lane_codes()]


@pytest.mark.parametrize("number", CODES)
def test_rotation_and_column_scales(number: int) -> None:
    rng = np.random.default_rng(2)
    scale = rng.integers(-9, 10, 192).astype(np.int8)
    weight, oracle = lanes_weight(rng, 35, 192, number, rotation=64, column_scale=scale)
    x = rng.standard_normal((3, 192)).astype(np.float32)
    check_all(weight, oracle, x)
    np.testing.assert_allclose(weight.matmul(x), x @ weight.dequantize().T, rtol=0.05, atol=1)  # rounding


def largest_sum_of_a_four(q: np.ndarray[Any, Any]) -> int:
    """Of the positive or of the negative ones of columns 0, 1, 4, 5 or 2, 3, 6, 7 of eight neighbors."""
    eights = q.astype(int).reshape(-1, 8)
    fours = np.concatenate([eights[:, [0, 1, 4, 5]], eights[:, [2, 3, 6, 7]]])
    return int(max(np.maximum(fours, 0).sum(axis=1).max(), np.maximum(-fours, 0).sum(axis=1).max()))


@pytest.mark.parametrize("number", CODES)
def test_sums_of_16_bits_hold_any_activations(number: int) -> None:
    """Of one magnitude, which are 127 each without the limit of a four; and of Gaussian ones, where some reach it."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((9, 640)).astype(np.float32)
    x[1:3] = np.sign(x[1:3])
    x[3], x[4] = 1, -1
    q, scale = reference.quantize_activations(x, reference.LANE_GROUP)
    largest = [largest_sum_of_a_four(row) for row in q]
    assert max(largest) <= 258
    assert min(largest[1:5]) > 250
    assert max(largest[5:]) > 250
    assert set(np.abs(q[3:5]).ravel()) == {64}
    coarser = scale > np.abs(x.reshape(9, 5, reference.LANE_GROUP)).max(axis=2) / np.float32(127)
    assert coarser[1:5].all()
    assert 0 < coarser[5:].mean() < 0.5
    weight, oracle = lanes_weight(rng, 50, 640, number)
    check_all(weight, oracle, x)
    check_all(weight, oracle, x[:4])


def test_docs_have_the_codes() -> None:
    """The patterns, units and tables that somebody would write a decoder from."""
    text = DOCS.read_text()
    cells = (r"(\d+) ", r"([\d.]+) ", *3 * (r"((?:\d+(?:, \d+)*)?) ?",), r"([\d.]+) ")
    rows = re.findall("^" + "".join(rf"\| {cell}" for cell in cells) + r"\|$", text, re.M)
    assert len(rows) == len(_core.lane_codes())
    for (number, bits, pattern, values_with_bits, added, unit), code in zip(rows, _core.lane_codes(), strict=True):
        assert [int(n) for n in added.split(", ") if n] == code.added
        assert [int(n) for n in values_with_bits.split(", ") if n] == list(range(code.values_with_bits))
        assert (int(number), float(bits), float(unit)) == (
            code.number,
            code.bits,
            pytest.approx(code.deviation, rel=1e-6),
        )
        assert [int(n) for n in pattern.split(", ")] == code.emits
        tables = re.findall(rf"^code {number} values? (\d(?:, \d)*) ([AB]) (.*)$", text, re.M)
        entries = {
            (int(value), which): [int(n) for n in row.split()]
            for values, which, row in tables
            for value in values.split(", ")
        }
        assert sorted(entries) == [(v, w) for v in range(sum(code.emits)) for w in "AB"]
        np.testing.assert_array_equal(
            np.array([entries[key] for key in sorted(entries)]).reshape(-1, 2, 16), code.tables
        )
        # without a bias byte products of two values fit 16 bits
        tables = code.tables.astype(int)
        if not code.added:
            assert np.abs(tables).max(axis=2).sum(axis=1).max() <= 63
        assert tables.max(axis=2).sum(axis=1).max() + sum(code.added) <= 63
        assert tables.min(axis=2).sum(axis=1).min() >= -63


def test_lines_are_those_of_the_docs() -> None:
    for code in _core.lane_codes():
        steps, values = len(code.emits), sum(code.emits)
        lines, columns = (steps // 2, 4 * values) if steps % 2 == 0 else (steps, 8 * values)
        if code.added:
            patterns = 8 // code.values_with_bits
            lines, columns = patterns * steps // 2 + len(code.added), patterns * 4 * values
        for n_in in (1, 8, 9, 30, 64, 576, 1000):
            assert code.lines(n_in) == lines * -(-n_in // columns)


def test_wrong_arrays_are_refused() -> None:
    arrays = {"row_scale": np.ones(16, np.float16)}
    with pytest.raises(ValueError, match=r"tensor 'w'.*needs codes"):
        _core.Weight("w", 16, 64, base_kind=LANES, lane_code=8, arrays=arrays)
    arrays["codes"] = np.zeros((1, 8, 64), np.uint8)
    with pytest.raises(ValueError, match="codes"):
        _core.Weight("w", 16, 72, base_kind=LANES, lane_code=8, arrays=arrays)


def test_files(tmp_path: Path) -> None:
    dense = write_model(tmp_path / "dense.gguf")
    names = {name: CODES[i % len(CODES)] for i, name in enumerate(TARGET_NAMES)}
    path = write_lanes(dense, tmp_path / "lanes.gguf", names, scaled=True)
    assert {tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors} <= {"I8", "I64", "F16", "F32"}
    with open_seeddelta(path) as file:
        assert file.version == 1
        assert sorted(file.tensors) == sorted(TARGET_NAMES)
        for name, tensor in file.tensors.items():
            base = tensor.description.base
            assert isinstance(base, schema.LanesBase)
            assert base.code == names[name]
            codes = tensor.arrays["codes"]
            assert codes.dtype == np.uint8
            code = code_of(base.code)
            values = reference.lanes_values(
                codes, *tensor.description.shape, code.emits, code.tables, code.added, code.values_with_bits
            )
            expected = reference.dequantize(
                values, base.scale, tensor.arrays["row_scale"], rotation_block=base.rotation_block,
                seed=tensor.base_seed, column_scale=tensor.arrays["column_scale"],
            )  # fmt: skip
            np.testing.assert_allclose(tensor.to_weight().dequantize(), expected, rtol=1e-5, atol=1e-6)


def test_a_code_of_a_later_release(tmp_path: Path) -> None:
    dense = write_model(tmp_path / "dense.gguf")
    path = write_lanes(dense, tmp_path / "lanes.gguf", {TARGET_NAMES[0]: 8})
    later = changed(path, tmp_path / "later.gguf", lambda keys, arrays, table: table.put(TARGET_NAMES[0], "code", 99))
    with pytest.raises(UnsupportedVersionError, match=r"code of byte lanes with the number 99.*install a newer"):
        open_seeddelta(later)
