"""Rates that meet a budget: below it, near it, the sensitive tensors first, and what is fixed stays."""

from __future__ import annotations

import numpy as np
import pytest
import seeddelta
from hypothesis import given
from hypothesis import strategies as st
from seeddelta.build.budget import fit_rates
from seeddelta.build.rates import RATES, is_sensitive
from seeddelta.build.recipe import parse_size
from seeddelta.errors import RecipeError
from tiny_models import tiny_weights, write_model

NAMES = [f"blk.{layer}.{matrix}.weight" for layer in range(6) for matrix in ("attn_q", "attn_v", "ffn_up", "ffn_down")]
WEIGHTS = 1000


def bytes_at(name, rate):
    return 2 * WEIGHTS if rate == "dense" else int(WEIGHTS * rate / 8) + 3


@given(st.floats(1.1, 6.2))
def test_budget_is_met_and_used(bits):
    budget = int(bits * WEIGHTS * len(NAMES) / 8)
    rates = fit_rates(dict.fromkeys(NAMES, 4.0), set(), budget, bytes_at, 6)
    used = sum(bytes_at(name, rate) for name, rate in rates.items())
    assert used <= budget
    smallest_step = min(
        (
            bytes_at(name, higher) - bytes_at(name, rate)
            for name, rate in rates.items()
            for higher in RATES
            if higher > rate
        ),
        default=budget,
    )
    assert used + smallest_step > budget or all(rate == 6 for rate in rates.values())
    for name in NAMES:
        for other in NAMES:
            if is_sensitive(name, 6) and not is_sensitive(other, 6):
                assert rates[name] >= rates[other]


def test_fixed_rates_stay():
    fixed = {NAMES[0], NAMES[3]}
    start = dict.fromkeys(NAMES, 4.0) | {NAMES[0]: "dense", NAMES[3]: 1.0}
    rates = fit_rates(start, fixed, 3 * WEIGHTS * len(NAMES) // 8, bytes_at, 6)
    assert rates[NAMES[0]] == "dense"
    assert rates[NAMES[3]] == 1.0
    with pytest.raises(RecipeError, match="raise the target"):
        fit_rates(start, fixed, 2 * WEIGHTS, bytes_at, 6)


def test_builds_are_within_their_targets(tmp_path):
    source = write_model(tmp_path / "dense.gguf")

    def build(name, **options):
        recipe = seeddelta.Recipe(input=source, output=tmp_path / name, **options)
        return seeddelta.build(recipe, progress=False)

    largest = build("six.gguf", bits=6)
    for target in (2.6, 3.7):
        report = build("bpw.gguf", target_bpw=target)
        assert target - 0.6 < report.bits_per_weight <= target
        assert len({round(row.bits_per_weight) for row in report.tensors}) > 1
    size = largest.file_bytes - 2000
    report = build("size.gguf", target_size=str(size))
    assert (tmp_path / "size.gguf").stat().st_size == report.file_bytes <= size
    pinned = build("pinned.gguf", target_bpw=3.7, tensor_type=("attn_q=1",))
    assert all(row.bits_per_weight < 2 for row in pinned.tensors if "attn_q" in row.name)


def test_experts_and_embedding_are_within_the_budget(tmp_path):
    experts = {"blk.0.ffn_up_exps.weight": np.random.default_rng(0).normal(0, 1, (4, 40, 64)).astype(np.float32)}
    source = write_model(tmp_path / "dense.gguf", tiny_weights() | experts)
    recipe = seeddelta.Recipe(input=source, output=tmp_path / "out.gguf", targets="full", target_bpw=3.7)
    report = seeddelta.build(recipe, progress=False)
    assert 3.1 < report.bits_per_weight <= 3.7
    bits = {row.name: row.bits_per_weight for row in report.tensors}
    assert bits["token_embd.weight"] >= max(bits[name] for name in experts)


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1000), ("2K", 2048), ("1.5M", 3 << 19), ("1GiB", 1 << 30), ("3 mb", 3 << 20)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "options",
    [
        {"target_size": "0"},
        {"target_size": "many"},
        {"target_bpw": 0},
        {"target_bpw": 4, "target_size": "1G"},
        {"target_bpw": 4, "base_kind": "prng_block"},
    ],
)
def test_wrong_targets(options):
    with pytest.raises(RecipeError):
        seeddelta.Recipe(input="a", output="b", **options)
