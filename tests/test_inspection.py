"""verify finds every damage that is made here, and is quiet about good files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from description_tables import Arrays, Keys, Table, changed
from gguf import GGUFValueType
from seeddelta.cli.main import main
from seeddelta.errors import FormatError, SourceModelError
from seeddelta.gguf import schema
from seeddelta.gguf.imatrix import Imatrix, ImatrixEntry, write_imatrix
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.writer import PlannedTensor, Typed, copied_metadata, write_gguf
from seeddelta.inspection import Verification, verify
from tiny_models import SHAPES, TARGET_NAMES, tiny_weights, write_model

NAME = "blk.0.ffn_up.weight"
EXPERTS = "blk.1.ffn_up_exps.weight"
EMBEDDING = "token_embd.weight"
CONVERTED = (*TARGET_NAMES, EXPERTS, EMBEDDING)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inspection")


@pytest.fixture(scope="module")
def dense(folder: Path) -> Path:
    """Two layers, and a tensor of three experts."""
    experts = np.random.default_rng(5).normal(0, 0.1, (3, 40, 64)).astype(np.float32)
    return write_model(folder / "dense.gguf", tiny_weights() | {EXPERTS: experts})


@pytest.fixture(scope="module")
def imatrix(folder: Path) -> Path:
    rng = np.random.default_rng(2)
    columns = {f"blk.{layer}.{name}.weight": shape[1] for layer in range(2) for name, shape in SHAPES.items()}
    entries = {
        name: ImatrixEntry(rng.gamma(1, 9, (1, n_in)).astype(np.float32), np.array([9], np.float32))
        for name, n_in in columns.items()
    }
    entries[EXPERTS] = ImatrixEntry(rng.gamma(1, 9, (3, 64)).astype(np.float32), np.full(3, 9, np.float32))
    write_imatrix(folder / "imatrix.gguf", Imatrix(entries))
    return folder / "imatrix.gguf"


@pytest.fixture(scope="module")
def good(folder: Path, dense: Path, imatrix: Path) -> Path:
    path = folder / "good.gguf"
    seeddelta.build(seeddelta.Recipe(input=dense, output=path, bits=3, imatrix=imatrix), progress=False)
    return path


def failures(found: Verification) -> set[tuple[str, str]]:
    return {(check.tensor, check.what) for check in found.failures}


def damaged(good: Path, path: Path, at: str, offset: int = 0) -> Path:
    """A copy in which one bit of a tensor of the file is another."""
    data = bytearray(good.read_bytes())
    data[read_header(good).tensors[at].offset + offset] ^= 1
    path.write_bytes(data)
    return path


def rewritten(good: Path, path: Path, change: Any) -> Path:
    """A copy with other keys."""
    header = read_header(good)
    keys: dict[str, Any] = dict(copied_metadata(header))
    change(header, keys)
    plan = [PlannedTensor(name, info.shape, info.type) for name, info in header.tensors.items()]
    data = np.fromfile(good, np.uint8)
    infos = header.tensors
    write_gguf(path, keys, plan, lambda t: [data[infos[t.name].offset : infos[t.name].offset + infos[t.name].nbytes]])
    return path


def test_a_good_file(good: Path, dense: Path, imatrix: Path) -> None:
    found = verify(good)
    assert found.ok
    assert [line[:20] for line in found.skipped] == ["the source is not gi", "the imatrix is not g"]
    counts = found.to_dict()["checks"]
    assert counts["‖Ŵ‖"] == len(CONVERTED)
    assert sum(count for what, count in counts.items() if what.startswith("CRC-32")) == len(read_header(good).tensors)
    found = verify(good, source=dense, imatrix=imatrix)
    assert found.ok
    assert not found.skipped
    counts = found.to_dict()["checks"]
    for what in ("‖W‖", "‖Ŵ‖", "‖W−Ŵ‖"):
        assert counts[what] == len(CONVERTED)
        assert counts[f"{what} weighted"] == len(CONVERTED) - 1  # the imatrix knows nothing of the embedding
    assert counts["kept tensor"] == 3


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("blk.0.ffn_up.codes", {(NAME, "CRC-32 of codes"), (NAME, "‖Ŵ‖")}),
        ("blk.0.ffn_up.row_scale", {(NAME, "CRC-32 of row_scale"), (NAME, "‖Ŵ‖")}),
        ("blk.0.attn_norm.weight", {("blk.0.attn_norm.weight", "CRC-32")}),
        ("token_embd.codes", {(EMBEDDING, "CRC-32 of codes"), (EMBEDDING, "‖Ŵ‖")}),
    ],
)
def test_a_bit_that_is_wrong(good: Path, tmp_path: Path, at: str, expected: set[tuple[str, str]]) -> None:
    assert failures(verify(damaged(good, tmp_path / "bad.gguf", at))) == expected


def test_a_bit_that_is_wrong_beside_the_source(good: Path, dense: Path, tmp_path: Path) -> None:
    norm = "output_norm.weight"
    bad = damaged(good, tmp_path / "bad.gguf", norm)
    assert failures(verify(bad, source=dense)) == {(norm, what) for what in ("CRC-32", "kept tensor")}
    bad = damaged(good, tmp_path / "bad.gguf", "blk.0.ffn_up.codes")
    assert {what for _, what in failures(verify(bad, source=dense))} == {"CRC-32 of codes", "‖Ŵ‖", "‖W−Ŵ‖"}


def test_another_source(good: Path, tmp_path: Path, imatrix: Path) -> None:
    weights = tiny_weights() | {EXPERTS: np.ones((3, 40, 64), np.float32)}
    weights[NAME] = weights[NAME] * np.float32(1.001)
    found = failures(verify(good, source=write_model(tmp_path / "other.gguf", weights), imatrix=imatrix))
    assert ("", "SHA-256 of the source") in found
    assert ("", "SHA-256 of the imatrix") not in found
    assert {(NAME, what) for what in ("‖W‖", "‖W−Ŵ‖", "‖W‖ weighted", "‖W−Ŵ‖ weighted")} <= found
    assert not {what for name, what in found if name not in ("", NAME, EXPERTS)}
    del weights[NAME]
    with pytest.raises(SourceModelError, match=NAME):
        verify(good, source=write_model(tmp_path / "other.gguf", weights))


def test_without_checksums(good: Path, tmp_path: Path) -> None:
    old = rewritten(good, tmp_path / "old.gguf", lambda header, keys: keys.pop(schema.KEY_CRC32))
    found = verify(old)
    assert found.ok
    assert any("no checksums" in line for line in found.skipped)
    assert "‖Ŵ‖" in found.to_dict()["checks"]


@pytest.mark.parametrize("value", [[1, 2], "x"])
def test_checksums_that_are_none(good: Path, tmp_path: Path, value: Any) -> None:
    kind = (GGUFValueType.ARRAY, GGUFValueType.UINT32) if isinstance(value, list) else (GGUFValueType.STRING,)
    bad = rewritten(
        good, tmp_path / "bad.gguf", lambda header, keys: keys.update({schema.KEY_CRC32: Typed(value, *kind)})
    )
    with pytest.raises(FormatError, match=r"one a tensor|no array of uint32"):
        verify(bad)


def test_a_norm_that_is_wrong(good: Path, tmp_path: Path) -> None:
    def change(keys: Keys, arrays: Arrays, table: Table) -> None:
        table["norm_w_hat"][3] *= 1 + 1e-5

    found = verify(changed(good, tmp_path / "bad.gguf", change)).failures
    assert [check.what for check in found] == ["‖Ŵ‖"]


@pytest.mark.parametrize(
    "options",
    [
        {"base_kind": "prng_block", "scheme": "coo", "vals": "int8", "seed_per": "row", "seed_search": 4},
        {"base_kind": "fht_struct", "scheme": "block", "block": 32},
        {"base_kind": "none", "scheme": "codebook_resid", "codebook_size": 8},
        {"proc_sparse": True},
    ],
    ids=lambda options: options.get("base_kind", "proc_sparse"),
)
def test_other_kinds(dense: Path, tmp_path: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.gguf"
    recipe = seeddelta.Recipe(input=dense, output=path, targets="ffn_up,ffn_down", **options)
    seeddelta.build(recipe, progress=False)
    found = verify(path, source=dense)
    assert found.ok
    assert found.to_dict()["checks"]["‖W−Ŵ‖"] == 4
    scheme = options.get("scheme", "proc_sparse")
    assert main(["inspect", str(path)]) == 0
    assert scheme in capsys.readouterr().out


def test_verify_command(good: Path, dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(good), "--source", str(dense), "-q"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["verify", str(good)]) == 0
    assert " checks, none failed: " in capsys.readouterr().out
    bad = damaged(good, tmp_path / "bad.gguf", "blk.0.ffn_up.codes")
    assert main(["verify", str(bad), "-q"]) == 1
    out = capsys.readouterr().out
    assert NAME in out
    assert "CRC-32 of codes" in out
    assert main(["verify", str(bad), "-q", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], len(found["failures"])) == (False, 2)
    assert main(["verify", str(dense)]) == 1
    assert "not a SeedΔ file" in capsys.readouterr().err
