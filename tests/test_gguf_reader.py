"""SeedΔ files: what was stored is what is read, and every damage has a name."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import seeddelta
from description_tables import Arrays, Keys, Table, changed
from gguf import GGUFValueType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seeddelta import _core
from seeddelta.errors import FormatError, SeedDeltaError, UnsupportedVersionError
from seeddelta.gguf import schema
from seeddelta.gguf.reader import is_seeddelta, open_seeddelta
from seeddelta.gguf.writer import Typed
from tiny_models import TARGET_NAMES, write_model

LANES, COO = "blk.0.ffn_up.weight", "blk.1.attn_q.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def good(folder: Path) -> Path:
    """A file with tensors of byte lanes that have a coo residual in int8."""
    source = write_model(folder / "dense.gguf")
    recipe = seeddelta.Recipe(
        input=source,
        output=folder / "good.gguf",
        bits=3,
        scheme="coo",
        K=5,
        vals="int8",
        targets="all",
    )
    seeddelta.build(recipe, progress=False)
    return folder / "good.gguf"


def test_reads_what_was_built(good: Path) -> None:
    assert is_seeddelta(good)
    with open_seeddelta(good) as file:
        assert file.version == 1
        assert sorted(file.tensors) == sorted(TARGET_NAMES)
        assert file.dense_tensors == [
            "token_embd.weight", "blk.0.attn_norm.weight", "blk.1.attn_norm.weight", "output_norm.weight"
        ]  # fmt: skip
        assert list(file.metadata["tokenizer.ggml.tokens"]) == ["<s>", "a", "Ω", "\n"]
        assert file.dense("token_embd.weight").shape == (40, 64)
        tensor = file.tensors[LANES]
        assert tensor.description.shape == (96, 64)
        assert tensor.base_seed == 1
        assert tensor.payload_bytes == sum(array.nbytes for array in tensor.arrays.values())
        shapes = {suffix: (str(array.dtype), array.shape) for suffix, array in tensor.arrays.items()}
        assert shapes == {
            "base_seed": ("uint64", (1,)),
            "row_scale": ("float16", (96,)),
            "codes": ("uint8", (6, 6, 64)),
            "d_idx": ("uint16", (96, 5)),
            "d_val": ("int8", (96, 5)),
            "d_scale": ("float16", (96,)),
        }
        assert all(array.base is not None and not array.flags.writeable for array in tensor.arrays.values())
        weight = tensor.to_weight()
        assert (weight.n_out, weight.n_in) == (96, 64)
    assert np.isfinite(weight.dequantize()).all()  # the arrays outlive the file


def test_gguf_py_opens_it(good: Path) -> None:
    reader = gguf.GGUFReader(good)
    assert {tensor.tensor_type.name for tensor in reader.tensors} <= {"I8", "I16", "I32", "I64", "F16", "F32"}
    assert reader.fields["seeddelta.version"].contents() == 1


def test_plain_gguf_is_no_seeddelta(folder: Path, good: Path) -> None:
    assert not is_seeddelta(folder / "dense.gguf")
    with pytest.raises(FormatError, match="not a SeedΔ file; make one with `seeddelta quantize`"):
        open_seeddelta(folder / "dense.gguf")


def test_unchanged_rewrite_is_good(good: Path, tmp_path: Path) -> None:
    path = changed(good, tmp_path / "same.gguf", lambda keys, arrays, table: None)
    assert len(open_seeddelta(path).tensors) == len(TARGET_NAMES)


UNKNOWN: dict[str, Callable[[Keys, Arrays, Table], object]] = {
    "version": lambda k, a, t: k.update({schema.KEY_VERSION: Typed(2, GGUFValueType.UINT32)}),
    "array": lambda k, a, t: t.update(order=Typed([1] * len(TARGET_NAMES), GGUFValueType.ARRAY)),
    "no array": lambda k, a, t: t.update(order=Typed(1, GGUFValueType.UINT32)),
    "base": lambda k, a, t: t.put(LANES, "base", 7),
    "residual": lambda k, a, t: t.put(LANES, "residual", 9),
    "code": lambda k, a, t: t.put(LANES, "code", 99),
    "no code": lambda k, a, t: t.pop("code"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_is_not_known_is_refused(good: Path, tmp_path: Path, case: str) -> None:
    path = changed(good, tmp_path / "new.gguf", UNKNOWN[case])
    assert is_seeddelta(path)
    with pytest.raises(UnsupportedVersionError, match=r"new\.gguf.*install a newer seeddelta") as caught:
        open_seeddelta(path)
    if case in ("base", "residual", "code"):
        assert f"seeddelta.tensors.{case} of tensor '{LANES}'" in str(caught.value)


CASES: dict[str, tuple[Callable[[Keys, Arrays, Table], object], str]] = {
    "no version": (lambda k, a, t: k.pop(schema.KEY_VERSION), "seeddelta.version is missing"),
    "text for version": (
        lambda k, a, t: k.update({schema.KEY_VERSION: Typed("1", GGUFValueType.STRING)}),
        "seeddelta.version is missing or no number",
    ),
    "no descriptions": (lambda k, a, t: t.clear(), "has no description"),
    "description twice": (lambda k, a, t: [values.append(values[0]) for values in t.values()], "is there twice"),
    "dense as well": (
        lambda k, a, t: a.update({LANES: np.zeros((96, 64), np.float16)}),
        f"'{LANES}' is there twice",
    ),
    "other shape": (lambda k, a, t: t.put(LANES, "n_out", 95), "row_scale.*says float16\\[95\\]"),
    "K beyond n_in": (lambda k, a, t: t.put(LANES, "resid_k", 65), f"'{LANES}': K is 65 for 64 columns"),
    "rotation": (lambda k, a, t: t.put(LANES, "rotation_block", 48), f"'{LANES}': rotation_block 48"),
    "rotation too large": (lambda k, a, t: t.put(LANES, "rotation_block", 128), "128"),
    "no payload": (lambda k, a, t: a.pop("blk.0.ffn_up.codes"), "'blk.0.ffn_up.weight' lacks its payload"),
    "codes of another type": (
        lambda k, a, t: a.update({"blk.0.ffn_up.codes": a["blk.0.ffn_up.codes"].astype(np.int32)}),
        "'blk.0.ffn_up.codes' is I32",
    ),
    "codes of another shape": (
        lambda k, a, t: a.update({"blk.0.ffn_up.codes": a["blk.0.ffn_up.codes"][:-1].copy()}),
        "'blk.0.ffn_up.codes' is I8",
    ),
    "stray payload": (lambda k, a, t: [values.pop(0) for values in t.values()], "has no description"),
    "index beyond n_in": (lambda k, a, t: a["blk.1.attn_q.d_idx"].__setitem__((9, 4), 64), f"'{COO}'.*column 64 of 64"),
    "negative index": (lambda k, a, t: a["blk.1.attn_q.d_idx"].__setitem__((9, 4), -1), "column 65535 of 64"),
    "indices not ascending": (lambda k, a, t: a["blk.1.attn_q.d_idx"].__setitem__((9, 0), 63), f"'{COO}'.*not ascend"),
    "NaN row scale": (
        lambda k, a, t: a["blk.1.attn_q.row_scale"].__setitem__(3, np.nan),
        f"'{COO}': row_scale has NaN",
    ),
    "infinite value scale": (lambda k, a, t: a["blk.1.attn_q.d_scale"].__setitem__(3, np.inf), "d_scale has NaN"),
}


def assert_named(path: Path, message: str, *words: str) -> None:
    """Opening says what is wrong, in which file and what to do, and has these words, too."""
    with pytest.raises(FormatError, match=message) as caught:
        open_seeddelta(path)
    for word in (path.name, "build", *words):
        assert word in str(caught.value)


def serve(path: Path) -> _core.ServedModel:
    """What the run time makes of a file."""
    pytest.importorskip("llama_cpp")
    from seeddelta.runtime.library import loaded_ggml

    model = _core.ServedModel(path, loaded_ggml(), _core.Options())
    model.stub_file().close()
    return model


def assert_not_served(path: Path) -> None:
    with pytest.raises(FormatError, match=re.escape(path.name)):
        serve(path)


@pytest.mark.parametrize("case", [*CASES, *UNKNOWN])
def test_what_is_refused_is_not_served(good: Path, tmp_path: Path, case: str) -> None:
    change = UNKNOWN[case] if case in UNKNOWN else CASES[case][0]
    assert_not_served(changed(good, tmp_path / "bad.gguf", change))


@pytest.mark.parametrize("case", CASES)
def test_damage_is_named(good: Path, tmp_path: Path, case: str) -> None:
    change, message = CASES[case]
    assert_named(changed(good, tmp_path / "bad.gguf", change), message)


def test_padding_of_short_rows_is_allowed(good: Path, tmp_path: Path) -> None:
    def change(keys: Keys, arrays: Arrays, table: Table) -> None:
        arrays["blk.1.attn_q.d_idx"][5] = [3, 9, 9, 9, 9]
        arrays["blk.1.attn_q.d_val"][5] = [1, 2, 0, 0, 0]

    path = changed(good, tmp_path / "padded.gguf", change)
    assert list(open_seeddelta(path).tensors) == serve(path).served

    def repeat(keys: Keys, arrays: Arrays, table: Table) -> None:
        change(keys, arrays, table)
        arrays["blk.1.attn_q.d_val"][5, 2] = 7

    path = changed(good, tmp_path / "repeated.gguf", repeat)
    for look in (open_seeddelta, serve):
        with pytest.raises(FormatError, match="not ascend"):
            look(path)


def test_truncation_anywhere_is_found(good: Path, tmp_path: Path) -> None:
    data = good.read_bytes()
    cut = tmp_path / "cut.gguf"
    for at in range(0, len(data) - 32, len(data) // 150):
        cut.write_bytes(data[:at])
        with pytest.raises(FormatError, match=r"cut\.gguf"):
            open_seeddelta(cut)
        assert_not_served(cut)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_damage_never_crashes(good: Path, tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(good.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=6)):
        raw[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "flipped.gguf"
    path.write_bytes(raw)
    try:
        with open_seeddelta(path) as file:
            for tensor in file.tensors.values():
                tensor.to_weight().dequantize(0, 1)
    except SeedDeltaError:
        pass
    with contextlib.suppress(SeedDeltaError):
        serve(path)
