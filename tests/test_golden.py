"""Files that were made once and stay: every later release gives their weights, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from golden_digests import activations, digests
from seeddelta import _core
from seeddelta.convert.rates import LEAST_COLUMN_RATE, RATES, lane_code
from seeddelta.gguf.reader import open_seeddelta

FOLDER = Path(__file__).parent / "golden"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
FILES = sorted(path.name for path in FOLDER.glob("*.gguf"))


@pytest.fixture(autouse=True)
def _restore_isa() -> Iterator[None]:
    active = _core.isa_active()
    yield
    _core.isa_select(active)


def test_every_file_is_expected() -> None:
    assert sorted(EXPECTED) == FILES
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 250_000


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("isa", _core.isa_available())
def test_bits(name: str, isa: str) -> None:
    _core.isa_select(isa)
    assert digests(FOLDER / name) == EXPECTED[name]


def test_every_kind_is_there() -> None:
    """What the files are for: no base, residual, rate or option of a version is missing."""
    bases, schemes, options, lanes, by_column = set(), set(), set(), set(), set()
    for name in FILES:
        with open_seeddelta(FOLDER / name) as file:
            for tensor in file.tensors.values():
                base, residual = tensor.description.base, tensor.description.residual
                bases.add(base.kind)
                schemes.add((residual.scheme, getattr(residual, "vals", None)))
                options.add(("row_scale", tensor.description.row_scale))
                options.add(("experts", tensor.description.experts is not None))
                if tensor.description.is_column:
                    by_column.add(base.code)
                elif base.kind == "lanes":
                    lanes.add((base.code, base.column_scale))
                if base.kind == "prng_block":
                    options.add(("seed_per", base.seed_per))
    assert bases == {"prng_block", "fht_struct", "lanes", "none"}
    assert lanes == {(code.number, scaled) for code in _core.lane_codes() for scaled in (False, True)}
    assert by_column == {lane_code(bits, column=True).number for bits in RATES if bits >= LEAST_COLUMN_RATE}
    assert schemes == {
        ("coo", "fp16"), ("coo", "int8"), ("block", "fp16"), ("block", "int8"), ("codebook_resid", None),
        ("proc_sparse", None), ("none", None),
    }  # fmt: skip
    assert options >= {("row_scale", "f16"), ("row_scale", "f32"), ("experts", True), ("experts", False)}
    assert options >= {("seed_per", per) for per in ("tensor", "row", "block")}


def test_a_changed_bit_is_seen(tmp_path: Path) -> None:
    name = "lanes.gguf"
    data = bytearray((FOLDER / name).read_bytes())
    with open_seeddelta(FOLDER / name) as file:
        at = file.header.tensors["blk.0.attn_q.codes"].offset
    data[at + 200] ^= 1
    (tmp_path / name).write_bytes(data)
    changed = digests(tmp_path / name)
    assert {tensor for tensor in changed if changed[tensor] != EXPECTED[name][tensor]} == {"blk.0.attn_q.weight"}


def test_activations_never_change() -> None:
    assert activations(64)[0, :3].tolist() == [
        float.fromhex(text) for text in ("0x1.e37p-3", "-0x1.0e48p-1", "0x1.6a98p-1")
    ]
