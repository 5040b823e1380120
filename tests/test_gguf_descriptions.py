"""The table of converted tensors: typed arrays say what the descriptions say, and every damage has a name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from description_tables import Arrays, Keys, Table, changed, table_of
from gguf import GGUFValueType
from seeddelta.errors import FormatError
from seeddelta.gguf.descriptions import COLUMNS, description_arrays, read_descriptions
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.reader import open_seeddelta
from seeddelta.gguf.schema import TENSORS, NoBase, Norms, TensorDescription
from seeddelta.gguf.writer import Typed, write_gguf
from seeddelta.kinds.coo import CooResidual
from seeddelta.kinds.prng_block import PrngBlockBase
from tiny_models import TARGET_NAMES, write_model

NAME = "blk.0.ffn_up.weight"
GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.gguf"))
REQUIRED = [column.name for column in COLUMNS if column.required]
OPTIONAL = [column.name for column in COLUMNS if not column.required]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of byte lanes with a coo residual."""
    folder = tmp_path_factory.mktemp("table")
    source = write_model(folder / "dense.gguf")
    recipe = seeddelta.Recipe(
        input=source, output=folder / "good.gguf", bits=3, scheme="coo", K=5, vals="int8", targets="all"
    )
    seeddelta.build(recipe, progress=False)
    return folder / "good.gguf"


def written(path: Path, descriptions: list[TensorDescription]) -> Path:
    """A file of metadata alone."""
    write_gguf(path, description_arrays(descriptions), [], lambda tensor: [])
    return path


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_what_is_read_is_written_again(golden: Path, tmp_path: Path) -> None:
    """Every base, residual and option: the same bytes in the same arrays, and no array more."""
    metadata = read_header(golden).metadata
    again = read_header(written(tmp_path / "again.gguf", read_descriptions(metadata))).metadata
    keys = [key for key in metadata if key.startswith(TENSORS)]
    assert list(again) == keys
    assert [again.raw(key) for key in keys] == [metadata.raw(key) for key in keys]


def test_every_column_is_in_a_golden_file() -> None:
    there = {key for path in GOLDEN for key in read_header(path).metadata}
    rare = {"trims_soft", "trims_hard", "rel_out", "unsafe"}  # what the small files give no reason for
    assert {column.name for column in COLUMNS if column.key not in there} <= rare


def plain(**changes: Any) -> TensorDescription:
    fields: dict[str, Any] = dict(
        name=NAME, shape=(8, 96), source_type="Q4_0", base=NoBase(kind="none"),
        residual=CooResidual(scheme="coo", K=3, vals="fp16"), row_scale="f32",
        norms=Norms(w=1, w_hat=0.5, err=0.25, w_w=2, w_hat_w=3, err_w=4), unsafe=False,
    )  # fmt: skip
    return TensorDescription(**(fields | changes))


def test_all_fields_come_back(tmp_path: Path) -> None:
    """Each has its own value in one of the descriptions; the other shows what a tensor without it says."""
    base = PrngBlockBase(kind="prng_block", scale=0.1, block=16, seed_per="block", rotation_block=32)
    norms = Norms(w=1, w_hat=0.5, err=0.25, w_w=2, w_hat_w=3, err_w=4, rel_out=0.125)
    rare = plain(name="blk.1.Ω.weight", base=base, source_type="BF16", row_scale="f16", norms=norms, unsafe=True)
    experts = plain(name="e", experts=65536)
    sparse = seeddelta.gguf.schema.ProcSparseResidual(
        scheme="proc_sparse", block=32, kept=3, trims_soft=1 << 40, trims_hard=7
    )
    expected = [plain(), rare, experts, plain(name="p", residual=sparse)]
    assert read_descriptions(read_header(written(tmp_path / "m.gguf", expected)).metadata) == expected


def test_arrays_that_say_nothing_are_left_out() -> None:
    keys = description_arrays([plain(), plain(name="other")])
    assert {key.removeprefix(TENSORS) for key in keys} == {*REQUIRED, "resid_k"}
    assert description_arrays([]) == {}


def test_norms_beyond_float32_are_its_largest(tmp_path: Path) -> None:
    norms = Norms(w=1e300, w_hat=1, err=1, w_w=1, w_hat_w=1, err_w=1)
    (found,) = read_descriptions(read_header(written(tmp_path / "m.gguf", [plain(norms=norms)])).metadata)
    assert found.norms.w == float(np.finfo(np.float32).max)


def test_absent_arrays_are_zeros(good: Path, tmp_path: Path) -> None:
    """Whatever a file may lack: reading is the same with the zeros (and NaN) that it stands for."""
    with open_seeddelta(good) as file:
        expected = [tensor.description for tensor in file.tensors.values()]

    def fill(keys: Keys, arrays: Arrays, table: Table) -> None:
        for column in COLUMNS:
            table.setdefault(column.name, [column.absent] * len(TARGET_NAMES))

    path = changed(good, tmp_path / "all.gguf", fill)
    assert set(table_of(read_header(path))) == {*REQUIRED, *OPTIONAL}
    with open_seeddelta(path) as file:
        assert [tensor.description for tensor in file.tensors.values()] == expected
    without = changed(good, tmp_path / "less.gguf", lambda k, a, t: t.pop("rotation_block"))
    with open_seeddelta(without) as file:
        assert {tensor.description.rotation_block for tensor in file.tensors.values()} == {0}


def test_an_absent_array_that_would_be_needed(good: Path, tmp_path: Path) -> None:
    bad = changed(good, tmp_path / "bad.gguf", lambda k, a, t: t.pop("resid_k"))
    with pytest.raises(FormatError, match=rf"{TENSORS}resid_k of tensor '{TARGET_NAMES[0]}' is 0: .*build"):
        open_seeddelta(bad)


def test_no_tensors(good: Path, tmp_path: Path) -> None:
    def empty(keys: Keys, arrays: Arrays, table: Table) -> None:
        for name in [name for name in arrays if name.startswith("blk.") and not name.endswith("norm.weight")]:
            del arrays[name]
        keys.pop("seeddelta.crc32")
        table.clear()

    with open_seeddelta(changed(good, tmp_path / "none.gguf", empty)) as file:
        assert not file.tensors


Change = Callable[[Keys, Arrays, Table], object]


def entry(column: str, value: Any) -> Change:
    return lambda keys, arrays, table: table.put(NAME, column, value)


RANGES: list[tuple[str, Any, str]] = [
    ("n_out", 0, "out of range"),
    ("n_in", (1 << 31) + 1, "out of range"),
    ("experts", 65537, "is 65537"),
    ("layout", 2, "number 2"),
    ("source_type", 9999, "number 9999.*pip install -U gguf"),
    ("vals", 2, "number 2"),
    ("row_scale", 2, "number 2"),
    ("scale", nan, "is nan: Input should be a finite number"),
    ("scale", inf, "is inf"),
    ("resid_k", 0, "is 0: Input should be greater than or equal to 1"),
    ("norm_w", nan, "is nan"),
    ("norm_err_w", -inf, "is -inf"),
    ("rel_out", inf, "is inf"),
    # what lanes and coo do not have
    ("base_block", 32, "is 32, but 0 is all that base lanes can have"),
    ("seed_per", 1, "is 1, but 0"),
    ("resid_block", 64, "is 64, but 0 is all that residual coo can have"),
    ("resid_size", 6, "is 6, but 0"),
    ("trims_soft", 1, "is 1, but 0"),
    ("trims_hard", 1, "is 1, but 0"),
]


@pytest.mark.parametrize(("column", "value", "message"), RANGES)
def test_values_out_of_range(good: Path, tmp_path: Path, column: str, value: Any, message: str) -> None:
    path = changed(good, tmp_path / "bad.gguf", entry(column, value))
    with pytest.raises(FormatError, match=rf"bad\.gguf: {TENSORS}{column} of tensor '{NAME}' .*{message}") as e:
        open_seeddelta(path)
    assert type(e.value) is FormatError
    assert "build it again" in str(e.value)


def test_fields_that_other_kinds_lack(tmp_path: Path) -> None:
    """Base none has no scale, no code and no rotation; the residual none has no values."""
    golden = Path(__file__).parent / "golden"
    for name, columns in {
        "none-block": ("scale", "code", "base_block", "rotation_block", "column_scale", "resid_size"),
        "three": ("resid_k", "resid_block", "resid_size", "vals"),
        "fht": ("code", "base_block", "rotation_block", "column_scale"),
        "statecells": ("vals", "resid_block", "trims_soft"),
    }.items():
        for column in columns:

            def change(keys: Keys, arrays: Arrays, table: Table, column: str = column) -> None:
                table.put(table["name"][0], column, True if column == "column_scale" else 1)

            path = changed(golden / f"{name}.gguf", tmp_path / "bad.gguf", change)
            with pytest.raises(FormatError, match=rf"{TENSORS}{column} of tensor .* is (1|1\.0|True), but 0 is all"):
                open_seeddelta(path)


@pytest.mark.parametrize("column", REQUIRED)
def test_required_arrays(good: Path, tmp_path: Path, column: str) -> None:
    path = changed(good, tmp_path / "bad.gguf", lambda k, a, t: t.pop(column))
    with pytest.raises(FormatError, match=rf"bad\.gguf: the key {TENSORS}{column} is missing.*build"):
        open_seeddelta(path)


@pytest.mark.parametrize("column", [column.name for column in COLUMNS])
def test_types_and_lengths(good: Path, tmp_path: Path, column: str) -> None:
    """Another integer, real or text type of the same values, a value that is no array, one entry more and one less."""
    own = next(one.type for one in COLUMNS if one.name == column)
    count = len(TARGET_NAMES)
    others: list[tuple[Any, ...]] = [
        ([1] * count, GGUFValueType.ARRAY, kind)
        for kind in (GGUFValueType.UINT16, GGUFValueType.INT32, GGUFValueType.INT8, GGUFValueType.UINT64,
                     GGUFValueType.FLOAT32, GGUFValueType.FLOAT64, GGUFValueType.BOOL)
        if kind != own
    ]  # fmt: skip
    others += [(["a"] * count, GGUFValueType.ARRAY, GGUFValueType.STRING)] if column != "name" else []
    others += [(1, GGUFValueType.UINT32), ("a", GGUFValueType.STRING)]
    for other in others:
        path = changed(good, tmp_path / "bad.gguf", lambda k, a, t, o=other: t.update({column: Typed(*o)}))
        with pytest.raises(FormatError, match=rf"{TENSORS}{column} is no array of {own.name.lower()}.*build"):
            open_seeddelta(path)
    for length in (1, count - 1, count + 1):
        path = changed(
            good, tmp_path / "bad.gguf",
            lambda k, a, t, n=length: t.update({column: (t.get(column, [0] * count) * 2)[:n]}),
        )  # fmt: skip
        with pytest.raises(FormatError, match=rf"{TENSORS}.* has \d+ entries for \d+ tensors.*build"):
            open_seeddelta(path)


@pytest.mark.parametrize("column", ["name", "n_out", "scale", "residual", "norm_w"])
def test_arrays_that_leave_the_file(good: Path, tmp_path: Path, column: str) -> None:
    """A count that no file can hold is refused before anything is read or allocated."""
    key = (TENSORS + column).encode()
    data = bytearray(good.read_bytes())
    at = data.index(struct.pack("<Q", len(key)) + key) + 8 + len(key) + 8
    assert struct.unpack_from("<Q", data, at) == (len(TARGET_NAMES),)
    for count in (len(data), 1 << 32, (1 << 61) + 1, (1 << 64) - 1):
        struct.pack_into("<Q", data, at, count)
        (tmp_path / "bad.gguf").write_bytes(data)
        with pytest.raises(FormatError, match=rf"bad\.gguf: the file ends inside the value of {TENSORS}{column}"):
            open_seeddelta(tmp_path / "bad.gguf")


def test_names_that_are_no_text(good: Path, tmp_path: Path) -> None:
    data = good.read_bytes()
    key = (TENSORS + "name").encode()
    at = data.index(NAME.encode(), data.index(key))
    (tmp_path / "bad.gguf").write_bytes(data[:at] + b"\xff\xfe" + data[at + 2 :])
    with pytest.raises(FormatError, match="lacks its payload"):
        open_seeddelta(tmp_path / "bad.gguf")
