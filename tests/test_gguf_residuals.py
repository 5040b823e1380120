"""Damage to the payload of the schemes block and codebook_resid and of the base fht_struct has a name, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from description_tables import Arrays, Table, changed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seeddelta.errors import FormatError, SeedDeltaError
from seeddelta.gguf.reader import open_seeddelta
from test_gguf_reader import assert_named, assert_not_served
from tiny_models import write_model

BLOCK, BOOK = "block", "codebook_resid"
NAME, STEM = "blk.1.ffn_down.weight", "blk.1.ffn_down"  # [64, 96]: 3 blocks of 32
OPTIONS: dict[str, dict[str, Any]] = {
    BLOCK: {"scheme": BLOCK, "K": 2, "block": 32, "vals": "int8"},
    "block fp16": {"scheme": BLOCK, "K": 2, "block": 32},
    BOOK: {"scheme": BOOK, "K": 3, "codebook_size": 20},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file of each scheme, with base fht_struct."""
    folder = tmp_path_factory.mktemp("residuals")
    source = write_model(folder / "dense.gguf")
    made = {}
    for name, options in OPTIONS.items():
        made[name] = folder / f"{name.replace(' ', '-')}.gguf"
        recipe = seeddelta.Recipe(input=source, output=made[name], base_kind="fht_struct", seeddelta_gap=9, **options)
        seeddelta.build(recipe, progress=False)
    return made


def put(suffix: str, at: Any, value: Any) -> Callable[[Arrays, Table], object]:
    return lambda arrays, table: arrays[f"{STEM}.{suffix}"].__setitem__(at, value)


def cast(suffix: str, dtype: str) -> Callable[[Arrays, Table], object]:
    return lambda a, t: a.update({f"{STEM}.{suffix}": a[f"{STEM}.{suffix}"].astype(dtype)})


def cut(suffix: str) -> Callable[[Arrays, Table], object]:
    return lambda a, t: a.update({f"{STEM}.{suffix}": a[f"{STEM}.{suffix}"][:-1].copy()})


def drop(suffix: str) -> Callable[[Arrays, Table], object]:
    return lambda a, t: a.pop(f"{STEM}.{suffix}")


def say(column: str, value: Any) -> Callable[[Arrays, Table], object]:
    return lambda a, t: t.put(NAME, column, value)


# file, what happens to it, what the message says
CASES: dict[str, tuple[str, Callable[[Arrays, Table], object], str]] = {
    "block beyond n_in": (BLOCK, put("b_map", (7, 1), 3), "b_map has block 3 of 3"),
    "negative block": (BLOCK, put("b_map", (7, 1), -1), "b_map has block 65535 of 3"),
    "blocks descend": (BLOCK, put("b_map", 7, [2, 1]), "b_map does not ascend"),
    "block twice": (BLOCK, put("b_map", 7, [1, 1]), "b_map does not ascend"),
    "NaN scale": (BLOCK, put("b_scale", (63, 1), np.nan), "b_scale has NaN"),
    "infinite scale": (BLOCK, put("b_scale", (0, 0), -np.inf), "b_scale has NaN or infinite"),
    "NaN value": ("block fp16", put("b_val", (63, 1, 31), np.nan), "b_val has NaN"),
    "infinite value": ("block fp16", put("b_val", (0, 0, 0), np.inf), "b_val has NaN or infinite"),
    "b_map missing": (BLOCK, drop("b_map"), f"'{NAME}' lacks its payload '{STEM}.b_map'"),
    "b_val missing": (BLOCK, drop("b_val"), "lacks its payload"),
    "b_scale missing": (BLOCK, drop("b_scale"), "lacks its payload"),
    "b_val of another type": (BLOCK, cast("b_val", "<f2"), "b_val' is F16.*says int8"),
    "b_map of another type": (BLOCK, cast("b_map", "<i4"), "b_map' is I32.*says int16"),
    "b_val too short": (BLOCK, cut("b_val"), r"b_val' is I8\[63, 2, 32\].*says int8\[64, 2, 32\]"),
    "b_map too short": (BLOCK, cut("b_map"), "b_map' is I16"),
    "more blocks than there are": (BLOCK, say("resid_k", 4), "kept is 4 for 3 blocks"),
    "fewer blocks than stored": (BLOCK, say("resid_k", 1), r"b_map' is I16\[64, 2\].*says int16\[64, 1\]"),
    "no blocks": (BLOCK, say("resid_k", 0), "resid_k of"),
    "width of a block": (BLOCK, say("resid_block", 48), "resid_block of"),
    "other width of a block": (BLOCK, say("resid_block", 64), "b_val' is I8"),
    "vals of block": (BLOCK, say("vals", 2), "vals of"),
    "atom beyond size": (BOOK, put("r_codes", (63, 2), 20), "r_codes has atom 20 of 20"),
    "negative atom": (BOOK, put("r_codes", (0, 0), -2), "r_codes has atom 65534 of 20"),
    "NaN atom": (BOOK, put("r_dict", (19, 95), np.nan), "r_dict has NaN"),
    "infinite atom": (BOOK, put("r_dict", (0, 0), np.inf), "r_dict has NaN or infinite"),
    "NaN amplitude": (BOOK, put("r_vals", (63, 2), np.nan), "r_vals has NaN"),
    "infinite amplitude": (BOOK, put("r_vals", (63, 2), np.inf), "r_vals has NaN or infinite"),
    "r_dict missing": (BOOK, drop("r_dict"), f"'{NAME}' lacks its payload '{STEM}.r_dict'"),
    "r_codes missing": (BOOK, drop("r_codes"), "lacks its payload"),
    "r_vals missing": (BOOK, drop("r_vals"), "lacks its payload"),
    "r_dict of another type": (BOOK, cast("r_dict", "<f4"), "r_dict' is F32.*says float16"),
    "r_dict too short": (BOOK, cut("r_dict"), r"r_dict' is F16\[19, 96\].*says float16\[20, 96\]"),
    "r_codes too short": (BOOK, cut("r_codes"), "r_codes' is I16"),
    "size of another dictionary": (BOOK, say("resid_size", 21), "r_dict' is F16"),
    "dictionary too large": (BOOK, say("resid_size", 65537), "resid_size of"),
    "no atoms": (BOOK, say("resid_size", 0), "resid_size of"),
    "K of codebook": (BOOK, say("resid_k", 4), "r_codes' is I16"),
    "no K": (BOOK, say("resid_k", 0), "resid_k of"),
    "fht scale NaN": (BOOK, say("scale", float("nan")), "scale of"),
    "fht scale infinite": (BOOK, say("scale", float("inf")), "scale of"),
    "seed missing": (BOOK, drop("base_seed"), "lacks its payload"),
    "seed of another type": (BOOK, cast("base_seed", "<i4"), "base_seed' is I32"),
    "seed twice": (
        BOOK,
        lambda a, t: a.update({f"{STEM}.base_seed": np.zeros(2, "<i8")}),
        r"base_seed' is I64\[2\].*says int64\[1\]",
    ),
    "row scale NaN": (BLOCK, put("row_scale", 5, np.nan), "row_scale has NaN"),
    "both schemes": (
        BOOK,
        lambda a, t: a.update({f"{STEM}.b_map": np.zeros((64, 1), "<i2")}),
        f"payload tensor '{STEM}.b_map' has no description",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_damage_is_named(files: dict[str, Path], tmp_path: Path, case: str) -> None:
    name, change, message = CASES[case]
    path = changed(files[name], tmp_path / "bad.gguf", lambda keys, arrays, table: change(arrays, table))
    assert_named(path, message, STEM)


@pytest.mark.parametrize("case", CASES)
def test_what_is_refused_is_not_served(files: dict[str, Path], tmp_path: Path, case: str) -> None:
    name, change, _ = CASES[case]
    assert_not_served(changed(files[name], tmp_path / "bad.gguf", lambda keys, arrays, table: change(arrays, table)))


def test_fht_struct_has_a_largest_width(files: dict[str, Path], tmp_path: Path) -> None:
    wide = (1 << 18) + 1
    path = changed(files[BOOK], tmp_path / "wide.gguf", lambda k, a, t: t.put(NAME, "n_in", wide))
    with pytest.raises(FormatError, match=r"wide\.gguf.*at most 262144 columns, not 262145.*build it again"):
        open_seeddelta(path)


@pytest.mark.parametrize("name", OPTIONS)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_damage_never_crashes(files: dict[str, Path], tmp_path: Path, name: str, data: st.DataObject) -> None:
    """Also without the checks of the data: the core has its own, and a product must not read beyond an array."""
    raw = bytearray(files[name].read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=6)):
        raw[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "flipped.gguf"
    path.write_bytes(raw)
    for check_data in (True, False):
        try:
            with open_seeddelta(path, check_data=check_data) as file:
                for tensor in file.tensors.values():
                    weight = tensor.to_weight()
                    weight.matmul(np.ones((1, weight.n_in), np.float32))
        except SeedDeltaError:
            pass
