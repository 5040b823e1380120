"""Recipes: defaults, presets, what is refused, and YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from seeddelta import Recipe
from seeddelta.convert.describe import describe
from seeddelta.convert.rates import RATES
from seeddelta.errors import RecipeError
from seeddelta.gguf import payload
from seeddelta.settings.recipe import PRESETS


def recipe(**options: Any) -> Recipe:
    return Recipe(**({"input": "in.gguf", "output": "out.gguf"} | options))


def test_defaults() -> None:
    default = recipe()
    assert (default.base_kind, default.bits, default.residual_scheme) == ("lanes", 4, "none")
    assert default.targets == ("full",)
    assert recipe(layers="0-1").targets == recipe(base_kind="prng_block").targets == ("all",)
    assert recipe(layers="0-1", targets="embd").targets == ("embd",)
    assert recipe(base_kind="prng_block").residual_scheme == "coo"
    assert recipe(base_kind="none").residual_scheme == "coo"
    assert recipe(scheme="coo").residual_scheme == "coo"


def test_is_frozen() -> None:
    with pytest.raises(ValidationError):
        recipe().bits = 3  # type: ignore[misc]


@pytest.mark.parametrize("preset", PRESETS)
def test_presets(preset: str) -> None:
    made = recipe(preset=preset)
    for name, value in PRESETS[preset].items():
        assert getattr(made, name) == value
    assert recipe(preset=preset, seed=9).seed == 9


def test_options_win_over_the_preset() -> None:
    assert recipe(preset="tiny", bits=3).bits == 3
    assert recipe(preset="prng-coo", K=7).entries_for(100, 8) == 7
    rates = [(r.bits, r.target_bpw, r.size) for r in (
        recipe(preset="large"), recipe(preset="large", bits=3), recipe(preset="large", size="90M"),
        recipe(preset="large", target_bpw=4.7), recipe(preset="large", target_bpw=None),
    )]  # fmt: skip
    assert rates == [(4, 5.1, None), (3, None, None), (4, None, "90M"), (4, 4.7, None), (4, None, None)]


@pytest.mark.parametrize("rates", [{"bits": 4, "size": "80M"}, {"bits": 4, "target_bpw": 4.4}])
def test_one_rate_is_given(rates: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=r"--bits 4 and --.* contradict each other; give one of --bits, --bpw"):
        recipe(**rates)


def test_rates() -> None:
    assert recipe().rates == RATES == (1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6)
    for options in ({"layout": "column"}, {"column_tensor": "ffn_down"}):
        assert recipe(**options).rates == RATES[2:]


@pytest.mark.parametrize(
    ("n_in", "block"), [(576, 64), (1536, 64), (4096, 64), (96, 32), (7, 0), (6, 2), (11008, 64), (13824, 64), (100, 4)]
)
def test_automatic_rotation(n_in: int, block: int) -> None:
    assert recipe().rotation_for(n_in) == block
    assert recipe(base_kind="prng_block").rotation_for(n_in) == 0


def test_given_rotation() -> None:
    assert recipe(rotation_block=512).rotation_for(1536) == 512
    assert recipe(rotation_block=0).rotation_for(1536) == 0
    with pytest.raises(RecipeError, match="512 does not divide 576"):
        recipe(rotation_block=512).rotation_for(576)


def test_entries_that_fit_in_the_bits() -> None:
    auto = recipe(preset="prng-coo", bits=4)
    for n_in in (576, 1536):
        entries = auto.entries_for(n_in, 64)
        assert 3.9 < (entries * 24 + 32) / n_in <= 4
    assert recipe(scheme="coo", K=64).entries_for(40, 8) == 40
    assert recipe().entries_for(576, 64) == 0


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"scheme": "coo"}, 32),
        ({"scheme": "block"}, 1),
        ({"scheme": "block", "K": 100}, 9),
        ({"scheme": "codebook"}, 8),
        ({"scheme": "codebook", "K": 100, "codebook_size": 50}, 50),
    ],
)
def test_entries_that_are_given(options: dict[str, Any], wanted: int) -> None:
    assert recipe(base_kind="none", **options).entries_for(576, 1536) == wanted


@pytest.mark.parametrize("vals", ["fp16", "int8"])
@pytest.mark.parametrize("scheme", ["coo", "block", "codebook"])
def test_schemes_have_equal_bytes(scheme: str, vals: str) -> None:
    if scheme == "codebook" and vals == "int8":
        pytest.skip("its amplitudes are float16")
    options: dict[str, Any] = {"base_kind": "none", "scheme": scheme, "vals": vals, "K": "auto", "block": 32, "bits": 5}
    description = describe(recipe(**options), "blk.0.ffn_up.weight", (1536, 576), "F16")
    bits = 8 * payload.payload_bytes(description) / (1536 * 576)
    assert 3.9 < bits <= 5 + 0.001


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 7}, "choose from 1, 1.5, 2"),
        ({"layers": "5-2"}, "lower number first"),
        ({"targets": "ffn_gat"}, "choose from full, all, ffn"),
        ({"vals": "int4"}, "vals"),
        ({"K": 0}, "K"),
        ({"K": "many"}, "K"),
        ({"block": 48}, "block"),
        ({"rotation_block": 48}, "power of two"),
        ({"rotation_block": -64}, "power of two"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 64}, "seed"),
        ({"seed_search": 5, "hessian": "h.safetensors"}, "not with --hessian"),
        ({"seed_search": 5, "base_kind": "none"}, "base with a seed"),
        ({"base_scale": 0.1}, "for --base-kind prng_block or fht_struct"),
        ({"base_kind": "none", "scheme": "codebook", "vals": "int8"}, "coo and block"),
        ({"scheme": "block", "K": "auto"}, "give a number"),
        ({"base_kind": "prng_block", "rotation_block": 64}, "for --base-kind lanes"),
        ({"base_kind": "none", "scheme": "none"}, "stores nothing"),
        ({"scheme": "coo", "K": "auto"}, "give a number"),
        ({"imatrix_power": float("nan")}, "imatrix_power"),
        ({"imatrix_eps": -1}, "imatrix_eps"),
        ({"seeddelta_gap": 0}, "seeddelta_gap"),
        ({"threads": -1}, "threads"),
        ({"preset": "best"}, "choose from tiny"),
        ({"bit": 3}, "bit"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe(**options)


def test_codebook_is_an_alias() -> None:
    assert recipe(scheme="codebook").scheme == "codebook_resid"


def test_yaml_round_trip(tmp_path: Path) -> None:
    made = recipe(bits=2, layers="0-3", targets="ffn", imatrix="im.dat", seed=5)
    made.to_yaml(tmp_path / "recipe.yaml")
    assert Recipe.from_yaml(tmp_path / "recipe.yaml") == made
    assert Recipe.from_yaml(tmp_path / "recipe.yaml", bits=3).bits == 3


@pytest.mark.parametrize(("text", "message"), [("- 1", "mapping"), ("{", "not YAML"), ("bits: 9", "choose from")])
def test_bad_yaml(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=message):
        Recipe.from_yaml(path, input="a", output="b")
    with pytest.raises(RecipeError, match="cannot be read"):
        Recipe.from_yaml(tmp_path / "nothing.yaml")


def test_provenance_has_no_paths_and_no_threads() -> None:
    one = recipe(input="/a/m.gguf", output="/b/o.gguf", imatrix="/c/i.dat", threads=1)
    two = recipe(input="/d/m.gguf", output="/e/p.gguf", imatrix="/f/i.dat", threads=2, report_json="/g/r.json")
    assert one.provenance() == two.provenance()
    assert "/" not in str(one.provenance())


def test_build_is_the_function_of_the_package() -> None:
    import seeddelta.convert.pipeline

    assert seeddelta.Recipe is Recipe
    assert seeddelta.build is seeddelta.convert.pipeline.build
