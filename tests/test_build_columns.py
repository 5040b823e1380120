"""Column layout in files: build, sizes, feedback, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import seeddelta
from description_tables import changed
from seeddelta import Recipe
from seeddelta.convert.encode import encode_tensor
from seeddelta.convert.feedback import covariance_error, make_column_feedback, make_feedback
from seeddelta.convert.rates import lane_code
from seeddelta.errors import FormatError, RecipeError
from seeddelta.gguf import payload, schema
from seeddelta.gguf.reader import open_seeddelta
from tiny_models import tiny_weights, write_model
from typer.testing import CliRunner

RATES = [2, 2.5, 3, 3.5, 4, 4.5, 5, 6]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model.gguf", tiny_weights())


def build(model: Path, output: Path, **options: Any) -> Any:
    return seeddelta.build(Recipe(input=model, output=output, seeddelta_gap=9, **options), progress=False)


def encode(weights: np.ndarray[Any, Any], feedback: Any = None, importance: Any = None, **options: Any) -> Any:
    recipe = Recipe(input="a", output="b", layout="column", **options)
    return encode_tensor("blk.0.ffn_up.weight", weights, "F16", recipe, importance, feedback)


def values_of(encoded: Any, n_out: int) -> np.ndarray[Any, Any]:
    base, codes = encoded.description.base, encoded.arrays["codes"]
    code = schema.lane_code(base.code)
    return reference.column_lanes_values(codes, n_out, code.emits, code.tables, code.added, code.values_with_bits)


@pytest.mark.parametrize("bits", RATES)
@pytest.mark.parametrize("shape", [(320, 40), (333, 10)])
def test_round_trip(bits: float, shape: tuple[int, int]) -> None:
    weights = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    encoded = encode(weights, bits=bits)
    description = encoded.description
    assert description.is_column
    assert description.rotation_block == (64 if shape[0] == 320 else 0)
    layout = payload.payload_layout(description)
    assert {suffix: (array.shape, array.dtype) for suffix, array in encoded.arrays.items()} == layout
    assert payload.payload_bytes(description) == sum(array.nbytes for array in encoded.arrays.values())
    base = description.base
    values = values_of(encoded, shape[0])
    rows = values * (np.float32(base.scale) * encoded.arrays["row_scale"].astype(np.float32)[:, None])
    if description.rotation_block > 1:
        rows = reference.rotate_back(rows, description.rotation_block, 1)
    error = np.linalg.norm(rows.T - weights) / np.linalg.norm(weights)
    assert encoded.metrics.rel_l2 == pytest.approx(error, rel=1e-4)
    assert error < 1.28 * 2.0**-bits + 0.005


@pytest.mark.parametrize("bits", [1, 1.5])
def test_a_walk_of_few_bits_is_refused(model: Path, tmp_path: Path, bits: float) -> None:
    with pytest.raises(RecipeError, match=r"layout column needs at least 2 bits.*--layout row"):
        build(model, tmp_path / "m.gguf", layout="column", targets="all", bits=bits)
    assert not (tmp_path / "m.gguf").exists()


def test_a_budget_leaves_columns_two_bits(model: Path, tmp_path: Path) -> None:
    report = build(model, tmp_path / "m.gguf", column_tensor=["ffn"], targets="all", target_bpw=2.6)
    with open_seeddelta(tmp_path / "m.gguf") as file:
        rates = {tensor.description.base.bits for tensor in file.tensors.values()}
    assert min(rates) >= 2
    assert report.bits_per_weight <= 2.6


def test_file(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "m.gguf"
    report = build(model, output, layout="column", targets="all")
    planned = build(model, output, layout="column", targets="all", dry_run=True)
    assert [row.bytes_after for row in report.tensors] == [row.bytes_after for row in planned.tensors]
    with open_seeddelta(output) as file:
        assert all(tensor.description.is_column for tensor in file.tensors.values())
        for row in report.tensors:
            tensor = file.tensors[row.name]
            assert row.bytes_after == tensor.payload_bytes == sum(array.nbytes for array in tensor.arrays.values())
            assert tensor.to_weight().layout == "column"
        dense = {name: tensor.to_weight().dequantize() for name, tensor in file.tensors.items()}
    plain = seeddelta.dequantize(output, tmp_path / "plain.gguf", type="f32", progress=False)
    source = seeddelta.gguf.source.open_source(plain)
    for name, weights in dense.items():
        np.testing.assert_array_equal(source.matrix(name), weights)


def test_which_tensors(model: Path, tmp_path: Path) -> None:
    layouts = {}
    for case, options in {
        "auto": {},
        "row": {"layout": "row"},
        "some": {"column_tensor": ["ffn_down", "attn_q"]},
        "full": {"layout": "column", "targets": "full"},
    }.items():
        build(model, tmp_path / "m.gguf", **({"targets": "all"} | options))
        with open_seeddelta(tmp_path / "m.gguf") as file:
            layouts[case] = {name for name, tensor in file.tensors.items() if tensor.description.is_column}
            assert (schema.TENSORS + "layout" in file.metadata) == bool(layouts[case])  # rows say nothing
    assert layouts["auto"] == layouts["row"] == set()
    assert {name.split(".")[2] for name in layouts["some"]} == {"ffn_down", "attn_q"}
    assert not any("token_embd" in name or name == "output.weight" for name in layouts["full"])
    assert len(layouts["full"]) > len(layouts["some"])


@pytest.mark.parametrize(
    "options", [{"scheme": "coo"}, {"base_kind": "prng_block", "scheme": "none"}, {"column_tensor": "("}]
)
def test_recipe_refuses(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=r"column|regular expression"):
        Recipe(**({"input": "a", "output": "b", "layout": "column"} | options))


def test_command_line(model: Path, tmp_path: Path) -> None:
    from seeddelta.cli.main import make_app

    output = tmp_path / "m.gguf"
    runner = CliRunner()
    result = runner.invoke(
        make_app(), ["build", "-i", str(model), "-o", str(output), "--column-tensor", "ffn_down", "-q"]
    )
    assert result.exit_code == 0, result.output
    result = runner.invoke(make_app(), ["inspect", str(output), "--json"])
    layouts = {one["name"]: one["layout"] for one in json.loads(result.output)["converted"]}
    assert {layout for name, layout in layouts.items() if "ffn_down" in name} == {"column"}
    assert {layout for name, layout in layouts.items() if "ffn_down" not in name} == {"row"}
    assert "column" in runner.invoke(make_app(), ["inspect", str(output)]).output


def covariance_of(n_in: int) -> np.ndarray[Any, Any]:
    """Of inputs that go together, some of them much larger than others."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((400, n_in // 4)) @ rng.standard_normal((n_in // 4, n_in)) + rng.standard_normal(
        (400, n_in)
    )
    x *= rng.lognormal(0, 0.7, n_in)
    return np.asarray(x.T @ x / 400, np.float32)


def test_feedback_lowers_the_error_of_the_outputs() -> None:
    weights = np.random.default_rng(1).standard_normal((320, 128)).astype(np.float32)
    h = covariance_of(128)
    feedback = make_column_feedback("t", h)
    plain, better = encode(weights, bits=3), encode(weights, feedback, bits=3)
    assert (plain.method, better.method) == ("plain", "feedback")

    def lost(encoded: Any) -> float:
        arguments = seeddelta.gguf.reader.weight_arguments(encoded.description, encoded.arrays)
        return covariance_error(weights, seeddelta._core.Weight("t", 320, 128, **arguments).dequantize(), h)

    assert lost(better) == pytest.approx(better.metrics.rel_out, rel=1e-3)
    assert lost(better) < 0.7 * lost(plain)
    rows = Recipe(input="a", output="b", bits=3)
    by_rows = make_feedback("t", h, code=lane_code(3), rotation_block=64, seed=1)
    row = encode_tensor("blk.0.ffn_up.weight", weights, "F16", rows, None, by_rows)
    assert lost(better) < 1.2 * row.metrics.rel_out


def test_same_bytes_whatever_the_threads() -> None:
    weights = np.random.default_rng(1).standard_normal((64, 80)).astype(np.float32)
    feedback = make_column_feedback("t", covariance_of(80))
    one, three = (encode(weights, feedback, threads=threads) for threads in (1, 3))
    for suffix, array in one.arrays.items():
        np.testing.assert_array_equal(array, three.arrays[suffix])


def test_importance_changes_nothing() -> None:
    weights = np.random.default_rng(1).standard_normal((64, 80)).astype(np.float32)
    importance = np.random.default_rng(2).lognormal(0, 1, 80).astype(np.float32)
    plain, weighted = encode(weights), encode(weights, importance=importance)
    np.testing.assert_array_equal(plain.arrays["codes"], weighted.arrays["codes"])
    np.testing.assert_array_equal(plain.arrays["row_scale"], weighted.arrays["row_scale"])
    assert weighted.method == "plain"


def test_an_input_of_zeros() -> None:
    weights = np.random.default_rng(1).standard_normal((64, 80)).astype(np.float32)
    weights[:, 7] = 0
    encoded = encode(weights)
    assert encoded.arrays["row_scale"][7] == 0
    assert not encoded.arrays["codes"][7].any()


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("layout", 2, "layout of tensor 'blk.0.ffn_up.weight' has the number 2"),
        ("layout", 0, "description says"),
        ("column_scale", True, "layout column is for lanes without column_scale"),
        ("experts", 1, "layout column is for lanes .* not for experts"),
    ],
)
def test_reader_refuses_damage(column: str, value: Any, message: str, model: Path, tmp_path: Path) -> None:
    build(model, tmp_path / "m.gguf", layout="column", targets="ffn_up")
    bad = changed(
        tmp_path / "m.gguf",
        tmp_path / "bad.gguf",
        lambda keys, arrays, table: table.put("blk.0.ffn_up.weight", column, value),
    )
    with pytest.raises(FormatError, match=message):
        open_seeddelta(bad)


def test_reader_refuses_a_scale_that_is_no_number(model: Path, tmp_path: Path) -> None:
    build(model, tmp_path / "m.gguf", layout="column", targets="ffn_up")
    with open_seeddelta(tmp_path / "m.gguf") as file:
        offset = file.header.tensors["blk.0.ffn_up.row_scale"].offset
    data = bytearray((tmp_path / "m.gguf").read_bytes())
    data[offset : offset + 2] = b"\x00\x7e"
    (tmp_path / "bad.gguf").write_bytes(data)
    with pytest.raises(FormatError, match="row_scale"):
        open_seeddelta(tmp_path / "bad.gguf")
