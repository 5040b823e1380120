"""What the builder keeps of a matrix, sheds, and makes up for; files of it, and damage to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeddelta
from description_tables import changed
from seeddelta import _core
from seeddelta.cli.main import main
from seeddelta.convert.describe import describe
from seeddelta.convert.proc_sparse import Inverse, choose_blocks, compensate, encode_proc_sparse, hard_shed
from seeddelta.convert.recipe import Recipe
from seeddelta.errors import RecipeError
from seeddelta.gguf import schema
from seeddelta.gguf.reader import open_seeddelta, weight_arguments
from test_gguf_reader import assert_named, assert_not_served
from test_gguf_residuals import cast, cut, drop, put, say
from tiny_models import TARGET_NAMES, write_model

NAME, STEM = "blk.1.ffn_down.weight", "blk.1.ffn_down"  # [64, 96]: 3 blocks of 32
RNG = np.random.default_rng(5)
WEIGHTS = RNG.standard_normal((40, 200)).astype(np.float32) * RNG.uniform(0.5, 2, 200).astype(np.float32)
MIX = RNG.standard_normal((200, 20)).astype(np.float32)
COVARIANCE = (MIX @ MIX.T + 0.3 * np.eye(200)).astype(np.float32)


def recipe_of(**options: Any) -> Recipe:
    return Recipe(input="dense.gguf", output="out.gguf", proc_sparse=True, **options)


def encode(
    name: str = "w", weights: Any = WEIGHTS, importance: Any = None, covariance: Any = None, **options: Any
) -> Any:
    encoded = encode_proc_sparse(name, weights, "F16", recipe_of(**options), importance, covariance)
    weight = _core.Weight(name, *weights.shape, **weight_arguments(encoded.description, encoded.arrays))
    return encoded, weight.dequantize()


def kept_of(encoded: Any) -> np.ndarray[Any, Any]:
    blocks = -(-encoded.description.shape[1] // encoded.description.residual.block)
    bits = np.unpackbits(encoded.arrays["p_map"].view(np.uint8), axis=1, bitorder="little")
    assert not bits[:, blocks:].any()
    return bits[:, :blocks] == 1


@pytest.mark.parametrize("scale", [0.05, 0])
def test_a_row_keeps_the_blocks_of_most_energy(scale: float) -> None:
    encoded, decoded = encode(proc_fanout=3, proc_base_scale=scale)
    energy = np.stack([(WEIGHTS[:, b : b + 32] ** 2).sum(axis=1) for b in range(0, 200, 32)], axis=1)
    order = np.argsort(-energy, axis=1)
    kept = kept_of(encoded)
    assert (kept.sum(axis=1) == 3).all()
    assert np.take_along_axis(kept, order[:, :3], axis=1).all()
    inside = np.repeat(kept, 32, axis=1)[:, :200]
    assert not decoded[~inside].any()
    step = encoded.arrays["p_scale"].astype(np.float32) * encoded.arrays["row_scale"].astype(np.float32)
    assert (np.abs(decoded - WEIGHTS)[inside].reshape(40, -1) <= 0.51 * step[:, None] + 1e-6).all()


def test_importance_moves_the_choice() -> None:
    importance = np.ones(200, np.float32)
    importance[64:96] = 100
    assert not kept_of(encode(proc_fanout=2)[0])[:, 2].all()
    assert kept_of(encode(proc_fanout=2, importance=importance)[0])[:, 2].all()


@pytest.mark.parametrize(("fanout", "kept"), [(64, 7), (3, 3), (0.5, 4), (0.01, 1), (6.6, 7)])
def test_fanout_is_a_number_or_a_share(fanout: float, kept: int) -> None:
    assert encode(proc_fanout=fanout)[0].description.residual.kept == kept


def test_kept_weights_make_up_for_the_others() -> None:
    importance = (np.diag(COVARIANCE) / np.diag(COVARIANCE).mean()).astype(np.float32)
    plain, _ = encode(proc_fanout=4, importance=importance)
    encoded, decoded = encode(proc_fanout=4, covariance=COVARIANCE)
    assert (plain.method, encoded.method) == ("weighted", "feedback")
    inside = np.repeat(kept_of(encoded), 32, axis=1)[:, :200]
    without = np.where(inside, WEIGHTS, 0)
    lost = [float(np.einsum("oi,ij,oj->", e, COVARIANCE, e)) for e in (decoded - WEIGHTS, without - WEIGHTS)]
    assert lost[0] < 0.5 * lost[1]
    whole = float(np.einsum("oi,ij,oj->", WEIGHTS, COVARIANCE, WEIGHTS))
    assert encoded.metrics.rel_out == pytest.approx((lost[0] / whole) ** 0.5, rel=1e-3)
    assert plain.metrics.rel_l2 < encoded.metrics.rel_l2  # the weights pay for the outputs


@pytest.mark.parametrize("free", [20, 150, 0, 200])
def test_minimum_of_the_error_of_the_outputs(free: int) -> None:
    """Its gradient is 0 in the free entries: by both systems, more entries fixed than free and the other way round."""
    rng = np.random.default_rng(free)
    entries = np.argsort(rng.random((5, 200)), axis=1) < free
    target = rng.standard_normal((5, 200))
    lost = np.where(entries, 0, rng.standard_normal((5, 200)))
    inverse = Inverse.of("w", COVARIANCE, 1e-3)
    error = compensate(target, lost, entries, inverse) - target - lost
    np.testing.assert_array_equal(error[~entries], -lost[~entries])
    gradient = error @ inverse.matrix
    assert not entries.any() or np.abs(gradient[entries]).max() < 1e-8
    assert entries.all() or np.abs(gradient[~entries]).max() > 0.1


def test_shedding() -> None:
    def entries(**options: Any) -> tuple[Any, np.ndarray[Any, Any]]:
        encoded = encode(proc_base_scale=0, **options)[0]
        return encoded.description.residual, (encoded.arrays["p_val"] != 0).reshape(40, -1).sum(axis=1)

    whole, full = entries(proc_shed_eps=0)
    assert whole.trims_soft == whole.trims_hard == 0
    marked, counts = entries(proc_shed_eps=0, proc_watermark=30)
    assert (counts <= 30).all()
    assert marked.trims_hard == 40 * (200 - 30)
    soft, fewer = entries(proc_shed_eps=0.5)
    rms = np.sqrt((WEIGHTS**2).mean(axis=1, keepdims=True)).astype(np.float16).astype(np.float32)
    assert soft.trims_soft == int((np.abs(WEIGHTS / rms) < 0.5).sum()) > 0
    assert (fewer < full).all()
    # what is left of a shed entry is the base alone
    encoded, decoded = encode(proc_watermark=10)
    values = _core.prng_block_values(1, 0, 40, 200, 32) * np.float32(encoded.description.base.scale)
    shed = np.abs(decoded - values * encoded.arrays["row_scale"].astype(np.float32)[:, None]) < 1e-6
    assert (shed.sum(axis=1) >= 190).all()
    assert (values.std() / 0.05) == pytest.approx(1, rel=0.05)


def test_ties_are_broken_in_order() -> None:
    flat = np.ones((2, 6))
    assert choose_blocks(flat, 2).tolist() == [[True, True, False, False, False, False]] * 2
    assert choose_blocks(flat, 4, column_heads=2).tolist() == [[True, True, False] * 2] * 2
    assert hard_shed(flat, 4, None).tolist() == [[False] * 4 + [True] * 2] * 2


def test_heads() -> None:
    weights = np.random.default_rng(1).standard_normal((128, 256)).astype(np.float32)
    rows = kept_of(encode("blk.0.attn_q.weight", weights, proc_fanout=3, proc_head=64, proc_target="attn")[0])
    assert all((rows[begin : begin + 64] == rows[begin]).all() for begin in (0, 64))
    assert (rows[0] != rows[64]).any()
    output = kept_of(encode("blk.0.attn_output.weight", weights, proc_fanout=1, proc_head=64, proc_target="attn")[0])
    assert (output.reshape(128, 4, 2).sum(axis=2) == 1).all()
    with pytest.raises(RecipeError, match="--proc-head 48 does not divide the 256 columns"):
        encode("blk.0.attn_output.weight", weights, proc_head=48)


def test_a_matrix_of_zeros_and_rows_of_zeros() -> None:
    for zeros in (
        np.zeros((3, 64), np.float32),
        np.concatenate([np.zeros((1, 64)), np.ones((2, 64))]).astype(np.float32),
    ):
        _, decoded = encode(weights=zeros, covariance=np.eye(64, dtype=np.float32), proc_fanout=1)
        assert not decoded[0].any()
        assert np.isfinite(decoded).all()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("proc") / "dense.gguf")


@pytest.fixture(scope="module")
def good(source: Path) -> Path:
    out = source.with_name("proc.gguf")
    seeddelta.build(recipe_of_file(source, out, proc_fanout=2, proc_target="both"), progress=False)
    return out


def recipe_of_file(source: Path, output: Path, **options: Any) -> Recipe:
    return Recipe(input=source, output=output, proc_sparse=True, **options)


def test_file_round_trip(source: Path, good: Path) -> None:
    report = seeddelta.build(
        recipe_of_file(source, good.with_name("again.gguf"), proc_fanout=2, proc_target="both", threads=2),
        progress=False,
    )
    assert good.with_name("again.gguf").read_bytes() == good.read_bytes()
    dense = seeddelta.gguf.source.open_source(source)
    with open_seeddelta(good) as file:
        assert set(file.tensors) == set(TARGET_NAMES)
        assert file.metadata[schema.KEY_SCHEME] == schema.RESIDUALS["proc_sparse"].number
        for row in report.tensors:
            tensor = file.tensors[row.name]
            encoded = encode_proc_sparse(row.name, dense.matrix(row.name), "F16", report_recipe(source))
            np.testing.assert_array_equal(
                tensor.to_weight().dequantize(),
                _core.Weight(
                    row.name, *row.shape, **weight_arguments(encoded.description, encoded.arrays)
                ).dequantize(),
            )
            assert tensor.description.residual.kept == 2
            assert row.bytes_after == tensor.payload_bytes
            assert row.trims == tensor.description.trims


def test_memoria_menor_o_igual_que_50_por_ciento_de_densa() -> None:
    """`Memoria ≤50% de densa en capas objetivo`: at the defaults, for the matrices of an MLP of 576 and 1536."""
    weights = np.random.default_rng(1).standard_normal((64, 1536)).astype(np.float32)
    for matrix in (weights, weights[:, :576]):
        encoded, _ = encode(weights=matrix)
        assert sum(array.nbytes for array in encoded.arrays.values()) <= 0.5 * 2 * matrix.size


@pytest.mark.parametrize(("options", "said"), [
    ({}, {"KIND": 0, "SCALE": 0.05, "block": 32}), ({"proc_base_scale": 0}, {"KIND": 255, "SCALE": 0, "block": 32}),
    ({"proc_fanout": 3, "proc_block": 64}, {"KIND": 0, "SCALE": 0.05, "block": 64, "K": 3}),
])  # fmt: skip
def test_seeddelta_base_kind(options: dict[str, Any], said: dict[str, float], source: Path, tmp_path: Path) -> None:
    """`seeddelta.base.kind`, and the other keys: of the proc-sparse tensors that the file has."""
    seeddelta.build(recipe_of_file(source, tmp_path / "a.gguf", **options), progress=False)
    with open_seeddelta(tmp_path / "a.gguf") as file:
        assert {one.description.base.number for one in file.tensors.values()} == {said["KIND"]}
        keys = {schema.KEY_BASE_KIND: "KIND", schema.KEY_BASE_SCALE: "SCALE", schema.KEY_RESID_K: "K",
                schema.KEY_RESID_BLOCK: "block"}  # fmt: skip
        found = {short: file.metadata[key] for key, short in keys.items() if key in file.metadata}
    assert found == pytest.approx(said)


def report_recipe(source: Path) -> Recipe:
    return recipe_of_file(source, source.with_name("x.gguf"), proc_fanout=2, proc_target="both")


def test_dry_run_knows_the_bytes(source: Path, good: Path) -> None:
    planned = seeddelta.build(recipe_of_file(source, good, proc_fanout=2, proc_target="both", dry_run=True))
    with open_seeddelta(good) as file:
        assert planned.target_bytes_after == sum(tensor.payload_bytes for tensor in file.tensors.values())


def test_targets_and_fanouts_of_single_tensors(source: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "proc_fanout": 1,
        "tensor_type": [r"blk\.1\.ffn_up=proc:0.99", "blk.1.ffn_gate=dense", "blk.0.ffn_up=3"],
    }
    seeddelta.build(recipe_of_file(source, tmp_path / "a.gguf", **options), progress=False)
    with open_seeddelta(tmp_path / "a.gguf") as file:
        kept = {name: tensor.description.residual for name, tensor in file.tensors.items()}
        assert {name: one.kept for name, one in kept.items() if one.scheme == "proc_sparse"} == {
            "blk.0.ffn_gate.weight": 1, "blk.0.ffn_down.weight": 1,
            "blk.1.ffn_up.weight": 2, "blk.1.ffn_down.weight": 1,
        }  # fmt: skip
        assert file.tensors["blk.0.ffn_up.weight"].description.base.kind == "lanes"
        assert "blk.1.ffn_gate.weight" in file.dense_tensors
        assert not any("attn" in name for name in file.tensors)
    recipe = Recipe(input=source, output=tmp_path / "b.gguf", tensor_type=["ffn_up=proc:1"], proc_base_scale=0)
    seeddelta.build(recipe, progress=False)
    with open_seeddelta(tmp_path / "b.gguf") as file:
        kinds = {name: tensor.description.base.kind for name, tensor in file.tensors.items()}
        assert {kind for name, kind in kinds.items() if "ffn_up" in name} == {"none"}
        assert {kind for name, kind in kinds.items() if "ffn_up" not in name} == {"lanes"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"proc_sparse": True, "base_kind": "prng_block"}, "a weight of its own"),
        ({"proc_sparse": True, "preset": "prng-coo"}, "a weight of its own"),
        ({"proc_fanout": 3}, "--proc-fanout is for --proc-sparse"),
        ({"tensor_type": ["a=proc:0"]}, "no fan-out"),
        ({"tensor_type": ["a=proc:nan"]}, "no fan-out"),
        ({"proc_sparse": True, "proc_base_scale": -1}, "proc_base_scale"),
        ({"proc_sparse": True, "proc_block": 16}, "proc_block"),
        ({"proc_sparse": True, "proc_target": "head"}, "proc_target"),
    ],
)
def test_what_contradicts_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe(input="a.gguf", output="b.gguf", **options)


def test_nothing_is_silently_off(source: Path, tmp_path: Path) -> None:
    recipe = recipe_of_file(source, tmp_path / "a.gguf", proc_target="attn", targets="ffn")
    with pytest.raises(RecipeError, match="none of the chosen tensors is of --proc-target attn"):
        seeddelta.build(recipe, progress=False)
    with pytest.raises(RecipeError, match="neither codebook nor proc-sparse"):
        describe(recipe_of(), "blk.0.ffn_up_exps.weight", (64, 64), "F16", experts=4)


def test_command_line(source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "cli.gguf"
    flags = ["--proc-fanout", "2", "--proc-base-scale", "0.1", "--proc-watermark", "20", "--proc-shed-eps", "0.01"]
    flags += ["--proc-block", "32", "--proc-target", "attn"]
    assert main(["build", "-i", str(source), "-o", str(out), "--proc-sparse=on", *flags, "-q"]) == 0
    with open_seeddelta(out) as file:
        for name, tensor in file.tensors.items():
            assert "attn" in name
            assert tensor.description.residual.trims_hard > 0
            assert tensor.description.base.scale == pytest.approx(0.1 / _core.PRNG_BLOCK_STD)
    assert main(["inspect", str(out)]) == 0
    assert "proc_sparse" in capfd.readouterr().out


Change = Callable[[Any, Any], object]
DAMAGE: dict[str, tuple[Change, str]] = {
    "a block less": (put("p_map", (7, 0), 0b001), "p_map does not have 2 of 3 blocks"),
    "a block more": (put("p_map", (7, 0), 0b111), "p_map does not have 2 of 3 blocks"),
    "a block beyond": (put("p_map", (7, 0), 0b1001), "p_map does not have 2 of 3 blocks"),
    "NaN scale": (put("p_scale", 3, np.nan), "p_scale has NaN"),
    "p_map missing": (drop("p_map"), f"'{NAME}' lacks its payload '{STEM}.p_map'"),
    "p_val missing": (drop("p_val"), "lacks its payload"),
    "p_scale missing": (drop("p_scale"), "lacks its payload"),
    "p_val too short": (cut("p_val"), r"p_val' is I8\[63, 2, 32\].*says int8\[64, 2, 32\]"),
    "p_val of another type": (cast("p_val", "<f2"), "p_val' is F16.*says int8"),
    "kept": (say("resid_k", 3), "p_val' is I8"),
    "more than there are": (say("resid_k", 4), "kept is 4 for 3 blocks"),
    "no blocks": (say("resid_k", 0), "resid_k of"),
    "width": (say("resid_block", 48), "resid_block of"),
    "base of another block": (say("base_block", 64), "prng_block of the same block"),
    "base of chosen seeds": (say("seed_per", 1), "one seed"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(good: Path, tmp_path: Path, case: str) -> None:
    change, message = DAMAGE[case]
    path = changed(good, tmp_path / "bad.gguf", lambda keys, arrays, table: change(arrays, table))
    assert_named(path, message, STEM)


@pytest.mark.parametrize("case", DAMAGE)
def test_what_is_refused_is_not_served(good: Path, tmp_path: Path, case: str) -> None:
    change, _ = DAMAGE[case]
    assert_not_served(changed(good, tmp_path / "bad.gguf", lambda keys, arrays, table: change(arrays, table)))
