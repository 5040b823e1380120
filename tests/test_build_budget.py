"""Rates that meet a budget: below it, near it, of the least loss, and what is fixed stays."""

from __future__ import annotations

import numpy as np
import pytest
import seeddelta
from hypothesis import given, settings
from hypothesis import strategies as st
from knapsack import Choice, allocate
from seeddelta.convert.budget import CODE_ERROR, costs, fit_rates, sensitivity
from seeddelta.convert.encode import encode_tensor
from seeddelta.convert.rates import RATES
from seeddelta.convert.recipe import parse_size
from seeddelta.errors import RecipeError
from seeddelta.gguf import names
from tiny_models import tiny_weights, write_model

KINDS = ("attn_q", "attn_v", "ffn_up", "ffn_down")
NAMES = [f"blk.{layer}.{matrix}.weight" for layer in range(6) for matrix in KINDS]
SHAPE = (50, 20)
WEIGHTS = 1000


def bytes_at(name, rate):
    return 2 * WEIGHTS if rate == "dense" else int(WEIGHTS * rate / 8) + 3


def fitted(budget, rates=None, fixed=()):
    rates = rates or dict.fromkeys(NAMES, 4.0)
    prices = costs(rates, 6, dict.fromkeys(rates, SHAPE), lambda name: None)
    return fit_rates(rates, set(fixed), budget, prices, RATES, bytes_at)


def loss(rates):
    return sum(sensitivity(name, 6, SHAPE) * WEIGHTS * CODE_ERROR[rate] for name, rate in rates.items())


@settings(deadline=None)
@given(st.floats(1.1, 6.2))
def test_budget_is_met_and_used(bits):
    budget = int(bits * WEIGHTS * len(NAMES) / 8)
    rates = fitted(budget)
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
    cost = {name: sensitivity(name, 6, SHAPE) for name in NAMES}
    for name in NAMES:
        assert all(rates[name] >= rates[other] for other in NAMES if cost[name] > cost[other])


@settings(deadline=None, max_examples=30)  # the exact solution takes its time
@given(st.floats(1.2, 6.0))
def test_rates_are_of_the_least_loss(bits):
    """As good as the exact solution, but for one step that did not fit."""
    budget = int(bits * WEIGHTS * len(NAMES) / 8)
    prices = {name: sensitivity(name, 6, SHAPE) * WEIGHTS for name in NAMES}
    options = {
        name: [Choice(rate, bytes_at(name, rate), price * CODE_ERROR[rate]) for rate in RATES]
        for name, price in prices.items()
    }
    best = sum(choice.loss for choice in allocate(options, budget).values())
    rates = fitted(budget)
    ladder = sorted(CODE_ERROR)
    following = dict(zip(ladder, [*ladder[1:], ladder[-1]], strict=True))
    gains = [prices[name] * (CODE_ERROR[rate] - CODE_ERROR[following[rate]]) for name, rate in rates.items()]
    assert best <= loss(rates) * (1 + 1e-9)
    assert loss(rates) <= best + max(gains) + 1e-9


def test_later_layers_first():
    rates = fitted(int(3.5 * WEIGHTS * len(NAMES) / 8))
    assert all(rates[f"blk.{layer}.{kind}.weight"] <= rates[f"blk.{layer + 1}.{kind}.weight"]
               for layer in range(1, 4) for kind in KINDS)  # fmt: skip
    assert rates["blk.0.ffn_up.weight"] == rates["blk.5.ffn_up.weight"] > rates["blk.1.ffn_up.weight"]


def test_every_target_has_a_sensitivity():
    for target in names.matrices():
        inner, outer = (sensitivity(f"blk.{layer}.{target}.weight", 6, SHAPE) for layer in (3, 5))
        assert 0 < inner <= outer
    assert {sensitivity(name, 6, (49152, 576)) for name in names.MODEL_TENSORS} == {2.0}
    assert {sensitivity(name, 6, (128256, 4096)) for name in names.MODEL_TENSORS} == {2.0}
    assert 0.4 < sensitivity("token_embd.weight", 6, (262144, 640)) < 0.45  # more rows for their length
    experts = [sensitivity(f"blk.3.ffn_{kind}.weight", 6, SHAPE) for kind in ("down_exps", "down_shexp")]
    assert experts[0] < experts[1] == 1.5
    fused, up = (sensitivity(f"blk.3.ffn_{kind}_exps.weight", 6, SHAPE) for kind in ("gate_up", "up"))
    assert fused == up


def test_losses_are_those_of_the_encoder():
    """CODE_ERROR is the square of the error of Gaussian numbers."""
    weights = np.random.default_rng(0).normal(0, 1, (96, 576)).astype(np.float32)

    def error(bits):
        recipe = seeddelta.Recipe(input="a", output="b", bits=bits)
        return encode_tensor("blk.0.ffn_up.weight", weights, "F16", recipe, None, None).metrics.rel_l2

    for bits, expected in CODE_ERROR.items():
        assert error(bits) ** 2 == pytest.approx(expected, rel=0.1)


def test_measured_prices_decide():
    """What is measured stands beside the table, which is taken in its measure for the others."""
    measured = {name: 7 * sensitivity(name, 6, SHAPE) * WEIGHTS for name in NAMES[:12]} | {NAMES[0]: 1e6}
    prices = costs(NAMES, 6, dict.fromkeys(NAMES, SHAPE), measured.get)
    assert prices == pytest.approx({n: measured.get(n, 7 * sensitivity(n, 6, SHAPE) * WEIGHTS) for n in NAMES})
    rates = fit_rates(dict.fromkeys(NAMES, 4.0), set(), int(3 * WEIGHTS * len(NAMES) / 8), prices, RATES, bytes_at)
    assert rates[NAMES[0]] == 6 > max(rate for name, rate in rates.items() if name != NAMES[0])


def test_fixed_rates_stay():
    fixed = {NAMES[0], NAMES[3]}
    start = dict.fromkeys(NAMES, 4.0) | {NAMES[0]: "dense", NAMES[3]: 1.0}
    rates = fitted(3 * WEIGHTS * len(NAMES) // 8, start, fixed)
    assert rates[NAMES[0]] == "dense"
    assert rates[NAMES[3]] == 1.0
    with pytest.raises(RecipeError, match="raise it, or free some with --tensor-type"):
        fitted(2 * WEIGHTS, start, fixed)


def test_builds_are_within_their_targets(tmp_path):
    source = write_model(tmp_path / "dense.gguf")

    def build(name, **options):
        recipe = seeddelta.Recipe(input=source, output=tmp_path / name, effort="fast", **options)
        return seeddelta.build(recipe, progress=False)

    largest = build("six.gguf", bits=6)
    for target in (2.6, 3.7):
        report = build("bpw.gguf", target_bpw=target)
        assert target - 0.6 < report.bits_per_weight <= target
        assert len({round(row.bits_per_weight) for row in report.tensors}) > 1
    size = largest.file_bytes - 2000
    report = build("size.gguf", size=str(size))
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
    ("text", "size"), [("1000", 1000), ("2K", 2000), ("1.5M", 1_500_000), ("1GB", 10**9), ("3 mb", 3_000_000)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "options",
    [
        {"size": "0"},
        {"size": "many"},
        {"size": "90MiB"},
        {"size": "9" * 400 + "G"},
        {"target_bpw": 0},
        {"target_bpw": 4, "size": "1G"},
        {"target_bpw": 4, "base_kind": "prng_block"},
    ],
)
def test_wrong_targets(options):
    with pytest.raises(RecipeError):
        seeddelta.Recipe(input="a", output="b", **options)
