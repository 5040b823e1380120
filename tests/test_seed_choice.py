"""Seeds of prng_block chosen by row or block: values and products are the oracle's, the search leaves out nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import seeddelta
from description_tables import Arrays, Table, changed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seeddelta import _core
from seeddelta.calibrate import capture, write_covariance
from seeddelta.calibrate.covariance import open_covariance
from seeddelta.cli.main import main
from seeddelta.convert.encode import encode_tensor
from seeddelta.errors import RecipeError, SeedDeltaError
from seeddelta.gguf.reader import open_seeddelta
from seeddelta.gguf.source import open_source
from seeddelta.kinds.prng_block import SEED_GAIN, SEED_IDX
from test_gguf_reader import assert_named, assert_not_served
from tiny_llama import N_VOCAB, write_llama
from tiny_models import write_model
from weights import weight_of

F32 = np.float32
GOLDEN = 0x9E3779B97F4A7C15
SEED = 0xDEADBEEF12345678
BLOCKS = [8, 16, 32, 64]


@pytest.fixture(autouse=True)
def _restore_isa() -> Iterator[None]:
    active = _core.isa_active()
    yield
    _core.isa_select(active)


def choices(rng: np.random.Generator, n_out: int, n_in: int, block: int, per: str) -> dict[str, Any]:
    shape = (n_out,) if per == "row" else (n_out, -(-n_in // block))
    index = {"seed_idx": rng.integers(0, 1 << 16, shape).astype(np.uint16)}
    if per == "row":
        return index
    gain = rng.integers(-128, 128, shape).astype(np.int8)
    gain[0], gain[-1] = -128, 127  # the largest sums
    return index | {"seed_gain": gain}


@pytest.mark.parametrize("per", ["row", "block"])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(("n_out", "n_in"), [(16, 64), (40, 320), (17, 203), (5, 30)])
def test_products_are_the_oracles(n_out: int, n_in: int, block: int, per: str) -> None:
    rng = np.random.default_rng(n_in + block)
    arrays = choices(rng, n_out, n_in, block, per)
    values = reference.prng_block_values(SEED, 0, n_out, n_in, block, **arrays)
    row_scale = rng.uniform(0.1, 1, n_out).astype(np.float16)
    weight = _core.Weight(
        "w", n_out, n_in, base_kind=0, base_seed=SEED, base_scale=0.01, base_block=block,
        arrays=arrays | {"row_scale": row_scale},
    )  # fmt: skip
    dense = values * F32(0.01) * row_scale.astype(F32)[:, None]
    np.testing.assert_array_equal(weight.dequantize(), dense)
    x = rng.standard_normal((9, n_in)).astype(F32)
    x[3] = np.sign(values[0]) * 5  # every activation is 127
    expected = reference.matmul(values, 0.01, row_scale, x)
    for isa in _core.isa_available():
        _core.isa_select(isa)
        np.testing.assert_array_equal(weight.matmul(x), expected, err_msg=isa)
        np.testing.assert_array_equal(weight.matmul(x, threads=3), expected, err_msg=f"{isa}: threads")
        one_by_one = np.concatenate([weight.matmul(row[None]) for row in x])
        np.testing.assert_array_equal(one_by_one, expected, err_msg=f"{isa}: batch shape")


@pytest.mark.parametrize("block", BLOCKS)
def test_a_choice_is_another_seed(block: int) -> None:
    """And, by the making of the keys, another row of the same seed."""
    index = np.array([0, 1, 65535], np.uint16)
    values = reference.prng_block_values(SEED, 0, 3, 70, block, index)
    for row, choice in enumerate(index.tolist()):
        other = (SEED + choice * GOLDEN) % (1 << 64)
        np.testing.assert_array_equal(values[row], _core.prng_block_values(other, row, row + 1, 70, block)[0])
        np.testing.assert_array_equal(
            values[row], _core.prng_block_values(SEED, row + choice, row + choice + 1, 70, block)[0]
        )


def brute_force(
    weights: np.ndarray[Any, Any], block: int, count: int, importance: Any, step: Any
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Squared errors [choices, n_out, units] with the best gain, and those gains, by NumPy in double precision."""
    n_out, n_in = weights.shape
    width = n_in if step is None else block
    h = np.ones(n_in) if importance is None else importance.astype(np.float64)
    starts = np.arange(0, n_in, width)
    energy = np.add.reduceat(h * weights.astype(np.float64) ** 2, starts, axis=1)
    errors, gains = [], []
    for choice in range(count):
        v = _core.prng_block_values(SEED, choice, choice + n_out, n_in, block).astype(np.float64)
        cross = np.add.reduceat(h * weights * v, starts, axis=1)
        square = np.add.reduceat(h * v * v, starts, axis=1)
        gain = cross / square
        if step is not None:
            unit = step.astype(np.float64)[:, None]  # 0 for a row of zeros, whose gain is 0
            gain = np.clip(np.rint(gain / np.where(unit > 0, unit, 1)), -127, 127) * unit
        errors.append(energy - 2 * gain * cross + gain * gain * square)
        gains.append(gain)
    return np.array(errors), np.array(gains)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    shape=st.tuples(st.integers(1, 40), st.integers(1, 150)),
    block=st.sampled_from(BLOCKS),
    per=st.sampled_from(["row", "block"]),
    weighted=st.booleans(),
    kind=st.sampled_from(["normal", "outliers", "values", "constant"]),
)
def test_pruned_and_exhaustive_search_choose_alike(
    seed: int, shape: tuple[int, int], block: int, per: str, weighted: bool, kind: str
) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal(shape).astype(F32)
    if kind == "outliers":
        weights *= rng.choice([1, 50], shape, p=[0.97, 0.03])
    elif kind == "values":  # rows that the generator can give exactly: ties and zero errors
        weights = _core.prng_block_values(SEED, 7, 7 + shape[0], shape[1], block).astype(F32)
    elif kind == "constant":
        weights[:] = 1
    weights[rng.random(shape[0]) < 0.1] = 0
    importance = rng.uniform(0.01, 10, shape[1]).astype(F32) if weighted else None
    step = (np.abs(weights).max(axis=1) / F32(64 * 37)).astype(F32) if per == "block" else None
    common: dict[str, Any] = dict(seed=SEED, block=block, choices=300, importance=importance, step=step)
    pruned = _core.seed_search(weights, **common, threads=2)
    exhaustive = _core.seed_search(weights, **common, threads=1, prune=False)
    np.testing.assert_array_equal(pruned[0], exhaustive[0])
    if per == "block":
        np.testing.assert_array_equal(pruned[1], exhaustive[1])
    assert exhaustive[2] == 300 * pruned[0].size
    if kind == "values" and per == "row" and shape[1] >= 32:  # fewer columns have twins
        assert (pruned[0][weights.any(axis=1)] == 7).all()
    errors, _ = brute_force(weights, block, 300, importance, step)
    chosen = np.take_along_axis(errors, pruned[0].reshape(1, shape[0], -1).astype(np.int64), axis=0)[0]
    np.testing.assert_allclose(chosen, errors.min(axis=0), rtol=1e-9, atol=1e-6)


def test_pruning_leaves_out_nearly_all() -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((300, 64)).astype(F32)
    step = (np.abs(weights).max(axis=1) / F32(64 * 37)).astype(F32)
    found = []
    for isa in _core.isa_available():
        _core.isa_select(isa)
        found.append(_core.seed_search(weights, seed=3, block=8, choices=4096, step=step))
        assert found[-1][0].max() > 2048
        assert 0 < found[-1][2] < 0.01 * 4096 * found[-1][0].size
    for other in found:
        np.testing.assert_array_equal(other[0], found[0][0])
        np.testing.assert_array_equal(other[1], found[0][1])


def test_search_refuses() -> None:
    good: dict[str, Any] = dict(seed=1, block=8, choices=4)
    for change, message in [
        ({"choices": 0}, "choices"),
        ({"choices": 65537}, "choices"),
        ({"block": 24}, "block"),
        ({"importance": np.zeros(64, F32)}, "not positive"),
        ({"importance": np.ones(63, F32)}, "importance"),
        ({"step": np.ones(3, F32)}, "step"),
        ({"step": np.full(4, np.nan, F32)}, "step has a NaN"),
    ]:
        with pytest.raises(ValueError, match=message):
            _core.seed_search(np.ones((4, 64), F32), **(good | change))
    with pytest.raises(ValueError, match="weights has a NaN"):
        _core.seed_search(np.full((4, 64), np.inf, F32), **good)


def test_weight_refuses_wrong_choices() -> None:
    good: dict[str, Any] = dict(base_kind=0, base_block=8, row_scale=np.ones(4, np.float16))
    index, gain = np.zeros((4, 9), np.uint16), np.ones((4, 9), np.int8)
    weight_of(4, 70, **good, seed_idx=index, seed_gain=gain)
    for change, message in [
        ({"seed_gain": gain}, "without seed_idx"),
        ({"seed_idx": index}, "seed_idx"),
        ({"seed_idx": index[:, :8].copy(), "seed_gain": gain}, "seed_idx has shape"),
        ({"seed_idx": index, "seed_gain": gain[:3].copy()}, "seed_gain has shape"),
        ({"seed_idx": index.astype(np.uint32), "seed_gain": gain}, "dtype uint32"),
        ({"seed_idx": index[0, :4].copy(), "base_kind": 255}, "for prng_block"),
        ({"base_block": 24}, "8, 16, 32 or 64"),
    ]:
        with pytest.raises(ValueError, match=message):
            weight_of(4, 70, **good | change)


def recipe(**options: Any) -> seeddelta.Recipe:
    fixed = {"input": "in.gguf", "output": "out.gguf", "base_kind": "prng_block", "scheme": "none"}
    return seeddelta.Recipe(**(fixed | options))


def error_of(weights: np.ndarray[Any, Any], importance: Any = None, **options: Any) -> float:
    return encode_tensor("t", weights, "F16", recipe(**options), importance).metrics.rel_l2_w


def test_more_seeds_and_smaller_blocks_err_less() -> None:
    weights = np.random.default_rng(5).standard_normal((40, 128)).astype(F32)
    importance = np.random.default_rng(6).uniform(0.1, 10, 128).astype(F32)
    rows = [error_of(weights, seed_per="row", seed_search=n) for n in (2, 64, 2048)]
    assert rows[0] > rows[1] > rows[2]
    for h in (None, importance):
        by_block = [error_of(weights, h, seed_per="block", block=b, seed_search=4096) for b in (64, 32, 16, 8)]
        assert sorted(by_block, reverse=True) == by_block
        assert by_block[-1] < 0.5
        assert error_of(weights, h, seed_per="block", block=8, seed_search=64) > by_block[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed_per": "row"}, "needs --seed-search 2 to 65536"),
        ({"seed_per": "block", "seed_search": 65537}, "needs --seed-search 2 to 65536"),
        ({"seed_per": "row", "seed_search": 9, "base_kind": "fht_struct"}, "for --base-kind prng_block"),
        ({"seed_per": "row", "seed_search": 9, "base_scale": 0.1}, "without --base-scale"),
        ({"seed_per": "column", "seed_search": 9}, "seed_per"),
        ({"block": 8, "scheme": "block"}, "not with --scheme block"),
        ({"block": 16, "base_kind": "lanes"}, "for --base-kind prng_block"),
    ],
)
def test_recipes_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe(**options)


def test_entries_make_room_for_the_choices() -> None:
    auto: dict[str, Any] = {"scheme": "coo", "K": "auto", "vals": "int8", "bits": 4, "seed_search": 4}
    assert recipe(**auto).entries_for(576, 100) == (4 * 576 - 32) // 24
    assert recipe(**auto, seed_per="row").entries_for(576, 100) == (4 * 576 - 48) // 24
    assert recipe(**auto, seed_per="block", block=8).entries_for(576, 100) == (4 * 576 - 32 - 72 * 24) // 24


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file with choices of rows and one with choices of blocks."""
    folder = tmp_path_factory.mktemp("choices")
    source = write_model(folder / "dense.gguf")
    made = {per: folder / f"{per}.gguf" for per in ("row", "block")}
    for per, path in made.items():
        options = {"input": source, "output": path, "seed_per": per, "seed_search": 100, "block": 8, "K": 2}
        seeddelta.build(recipe(scheme="coo", **options, seeddelta_gap=9, threads=2), progress=False)
        again = recipe(scheme="coo", **(options | {"output": folder / "again.gguf"}), seeddelta_gap=9, threads=1)
        seeddelta.build(again, progress=False)
        assert path.read_bytes() == (folder / "again.gguf").read_bytes()
    return made


def test_file_says_what_was_chosen(files: dict[str, Path]) -> None:
    for per, path in files.items():
        with open_seeddelta(path) as file:
            tensor = file.tensors[NAME]
            base = tensor.description.base
            assert (base.seed_per, base.block) == (per, 8)  # type: ignore[union-attr]
            index = tensor.arrays[SEED_IDX]
            assert index.dtype == np.uint16
            assert index.shape == ((64,) if per == "row" else (64, 12))
            assert 10 < len(np.unique(index)) <= 100
            assert (SEED_GAIN in tensor.arrays) == (per == "block")
            arrays = {s: tensor.arrays[s] for s in (SEED_IDX, SEED_GAIN) if s in tensor.arrays}
            values = reference.prng_block_values(tensor.base_seed, 0, 64, 96, 8, **arrays)
            np.testing.assert_array_equal(np.sign(values) != 0, arrays.get("seed_gain", np.ones((64, 12)))
                                          .repeat(8, axis=1) != 0)  # fmt: skip
            dense = reference.dequantize(
                values, base.scale, tensor.arrays["row_scale"],  # type: ignore[union-attr]
                coo=(tensor.arrays["d_idx"], tensor.arrays["d_val"].astype(F32)),
            )  # fmt: skip
            np.testing.assert_allclose(tensor.to_weight().dequantize(), dense, rtol=1e-5, atol=1e-6)


def test_on_the_command_line(files: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, out = files["row"].with_name("dense.gguf"), tmp_path / "out.gguf"
    command = ["build", "-i", str(source), "-o", str(out), "--base-kind", "prng_block", "--scheme", "none", "-q"]
    assert main([*command, "--seed-per", "block", "--block", "16", "--seed-search", "20"]) == 0
    assert main(["inspect", str(out), "-v"]) == 0
    assert "prng_block 16, seed per block" in capfd.readouterr().out
    assert main([*command, "--seed-per", "block"]) == 1
    assert "needs --seed-search 2 to 65536" in capfd.readouterr().err


@pytest.mark.parametrize("per", ["row", "block"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_damage_never_crashes(files: dict[str, Path], tmp_path: Path, per: str, data: st.DataObject) -> None:
    raw = bytearray(files[per].read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=6)):
        raw[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "flipped.gguf"
    path.write_bytes(raw)
    try:
        with open_seeddelta(path, check_data=False) as file:
            for tensor in file.tensors.values():
                weight = tensor.to_weight()
                weight.matmul(np.ones((1, weight.n_in), F32))
    except SeedDeltaError:
        pass


NAME, STEM = "blk.1.ffn_down.weight", "blk.1.ffn_down"  # [64, 96]
CASES: dict[str, tuple[str, Callable[[Arrays, Table], object], str]] = {
    "choices missing": ("row", lambda a, t: a.pop(f"{STEM}.seed_idx"), f"lacks its payload '{STEM}.seed_idx'"),
    "gains missing": ("block", lambda a, t: a.pop(f"{STEM}.seed_gain"), f"lacks its payload '{STEM}.seed_gain'"),
    "rows for blocks": ("row", lambda a, t: t.put(NAME, "seed_per", 2), "says int16"),
    "blocks for rows": ("block", lambda a, t: t.put(NAME, "seed_per", 1), r"I16\[64, 12\]"),
    "choices for nothing": ("row", lambda a, t: t.put(NAME, "seed_per", 0), "no descr"),
    "another kind": ("row", lambda a, t: t.put(NAME, "seed_per", 3), "seed_per of"),
    "other blocks": ("block", lambda a, t: t.put(NAME, "base_block", 16), r"says int16\[64, 6\]"),
    "no such block": ("block", lambda a, t: t.put(NAME, "base_block", 12), "base_block of"),
    "wide choices": (
        "row",
        lambda a, t: a.update({f"{STEM}.seed_idx": a[f"{STEM}.seed_idx"].astype("<i4")}),
        r"I32\[64\].*says int16",
    ),
    "half gains": (
        "block",
        lambda a, t: a.update({f"{STEM}.seed_gain": a[f"{STEM}.seed_gain"].astype("<f2")}),
        r"F16\[64, 12\].*says int8",
    ),
    "too few choices": (
        "row",
        lambda a, t: a.update({f"{STEM}.seed_idx": a[f"{STEM}.seed_idx"][:63].copy()}),
        r"I16\[63\].*says int16\[64\]",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_damage_is_named(files: dict[str, Path], tmp_path: Path, case: str) -> None:
    per, change, message = CASES[case]
    path = changed(files[per], tmp_path / "bad.gguf", lambda keys, arrays, table: change(arrays, table))
    assert_named(path, message, STEM)


def test_seed_search_para_minimizar_error_ponderado(tmp_path: Path, smollm2_quantized: Path) -> None:
    """`Seed search (pocos trials) para minimizar error ponderado`: by the diagonal of a covariance, too."""
    pytest.importorskip("llama_cpp")
    dense = write_llama(tmp_path / "dense.gguf", smollm2_quantized)
    hessian = tmp_path / "cov.gguf"
    tokens = np.random.default_rng(0).integers(32, N_VOCAB, 128)
    write_covariance(hessian, capture(dense, tokens, ctx=64, threads=1, progress=False))
    options: dict[str, Any] = {"input": dense, "base_kind": "prng_block", "seed_search": 6, "targets": "ffn", "K": 4}
    recipe = seeddelta.Recipe(output=tmp_path / "sd.gguf", hessian=hessian, **options)
    seeddelta.build(recipe, progress=False)
    plain, different = seeddelta.Recipe(output=tmp_path / "plain.gguf", **options), 0
    source, covariance = open_source(dense), open_covariance(hessian)
    with open_seeddelta(tmp_path / "sd.gguf") as file:
        for name, tensor in file.tensors.items():
            weighted = encode_tensor(name, source.matrix(name), "F16", plain, covariance.importance(name))
            assert tensor.base_seed == weighted.arrays["base_seed"].view(np.uint64)[0]
            assert tensor.description.norms == weighted.description.norms
            different += (
                weighted.arrays["base_seed"]
                != encode_tensor(name, source.matrix(name), "F16", plain).arrays["base_seed"]
            )
    assert different  # the weights make a difference


@pytest.mark.parametrize("case", CASES)
def test_what_is_refused_is_not_served(files: dict[str, Path], tmp_path: Path, case: str) -> None:
    per, change, _ = CASES[case]
    assert_not_served(changed(files[per], tmp_path / "bad.gguf", lambda keys, arrays, table: change(arrays, table)))
