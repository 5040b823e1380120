"""docs/reference/format.md is enough to read a SeedΔ file: its tables are complete, and a decoder follows them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from page_decoder import PAGE, Decoder, table
from seeddelta.calibrate import capture_gradient, write_covariance
from seeddelta.gguf import schema
from seeddelta.gguf.descriptions import COLUMNS
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.reader import open_seeddelta

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.gguf"))
TYPES = {"STRING": "string", "BOOL": "bool", "UINT8": "u8", "UINT32": "u32", "UINT64": "u64", "FLOAT32": "f32",
         "FLOAT64": "f64"}  # fmt: skip


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_table_of_tensors_is_on_the_page() -> None:
    found = [(*names_in(row[0]), row[1], row[2].strip("| ") == "yes") for row in table("The table of tensors")]
    assert found == [(column.name, TYPES[column.type.name], column.required) for column in COLUMNS]


def test_the_keys_are_on_the_page() -> None:
    on_page = [name for row in table("Other keys") for name in names_in(row[0])]
    keys = {value for name, value in vars(schema).items() if name.startswith("KEY_")}
    assert len(on_page) == len(set(on_page))
    assert set(on_page) == keys
    for name in (*schema.BASES, *schema.RESIDUALS, *schema.SUFFIXES):
        assert f"`{name}`" in PAGE, name


def test_files_have_no_other_keys(tiny_dense: Path, tiny_text: Path, tmp_path: Path) -> None:
    """Of `quantize` with all that it can measure, and what it measured: every key is on the page, with its type."""
    pytest.importorskip("llama_cpp")
    made = tmp_path / "made.gguf"
    options: dict[str, Any] = dict(ctx=64, threads=1, progress=False)
    seeddelta.quantize(tiny_dense, made, text=tiny_text, chunks=4, bits=3, gradient="auto", **options)
    header = read_header(made)
    known = {name: row[1] for row in table("Other keys") for name in names_in(row[0])}
    known |= {schema.TENSORS + column.name: "array" for column in COLUMNS}
    own = [key for key in header.metadata if key.startswith(schema.PREFIX)]
    assert {schema.KEY_CALIBRATION_MODE, schema.TENSORS + "rel_out", schema.KEY_GRADIENT_SHA256} <= set(own)
    for key in own:
        kind = header.metadata.type(key).name
        assert known[key].startswith("array" if kind == "ARRAY" else TYPES[kind]), key

    write_covariance(
        tmp_path / "cov.gguf", seeddelta.calibrate.capture(tiny_dense, np.arange(128) % 64 + 32, **options)
    )
    options.pop("threads")
    capture_gradient(tiny_dense, tiny_text, tmp_path / "grad.gguf", chunks=2, **options)
    for heading, file in {"The covariance file": "cov.gguf", "The gradient file": "grad.gguf"}.items():
        metadata = read_header(tmp_path / file).metadata
        prefix = metadata["general.type"] + "."
        on_page = {prefix + name for row in table(heading) for name in names_in(row[0])}
        assert on_page == {key for key in metadata if key.startswith(prefix)}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_page_decodes_every_golden_file(path: Path) -> None:
    decoder = Decoder(path)
    with open_seeddelta(path) as file:
        assert decoder.names == list(file.tensors)
        for name, tensor in file.tensors.items():
            expected = tensor.to_weight().dequantize()
            np.testing.assert_allclose(decoder.weights(name), expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max())
