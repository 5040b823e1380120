"""Parts of the autotuning: groups, the knapsack against brute force, the search, matrices exchanged in llama.cpp."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import seeddelta
from hypothesis import given
from hypothesis import strategies as st
from llama_helpers import load, logits_of, tokens_of
from seeddelta.errors import RecipeError
from seeddelta.gguf.source import open_source
from seeddelta.runtime.quantize import quantized_model
from seeddelta.tune.allocate import Choice, allocate
from seeddelta.tune.groups import make_groups
from seeddelta.tune.search import NEAR, smallest
from seeddelta.tune.state import State
from seeddelta.tune.switch import SwitchedModel
from tiny_llama import write_llama


def names(layers: int, *roles: str) -> list[str]:
    return [f"blk.{layer}.{role}.weight" for layer in range(layers) for role in roles]


def test_groups_are_roles_in_bands() -> None:
    groups = make_groups([*names(10, "attn_v", "ffn_up"), "token_embd.weight"], 3)
    assert [group.name for group in groups if group.role == "attn_v"] == [
        "attn_v 0", "attn_v 1-3", "attn_v 4-5", "attn_v 6-8", "attn_v 9",
    ]  # fmt: skip
    assert groups[-1].tensors == ("token_embd.weight",)
    assert sorted(name for group in groups for name in group.tensors) == sorted([*names(10, "attn_v", "ffn_up"),
                                                                                "token_embd.weight"])  # fmt: skip
    assert len(make_groups(names(10, "attn_v"), 3, detail=True)) == 10
    assert [group.name for group in make_groups(names(2, "attn_v"), 4)] == ["attn_v 0", "attn_v 1"]
    assert len(make_groups(names(30, "attn_v"), 4)) == 6


choices = st.lists(
    st.lists(st.tuples(st.integers(1, 40), st.floats(0, 10)), min_size=1, max_size=4), min_size=1, max_size=4
)


@given(choices, st.integers(1, 150), st.sampled_from([1, 7, 64]))
def test_allocation_is_the_best_there_is(raw: list[list[tuple[int, float]]], budget: int, unit: int) -> None:
    groups = {
        f"group {at}": [Choice(float(i), unit * size, loss) for i, (size, loss) in enumerate(options)]
        for at, options in enumerate(raw)
    }
    budget *= unit
    within = [
        found for found in itertools.product(*groups.values()) if sum(choice.nbytes for choice in found) <= budget
    ]  # fmt: skip
    if not within:
        with pytest.raises(RecipeError, match="raise it"):
            allocate(groups, budget)
        return
    found = allocate(groups, budget)
    assert list(found) == list(groups)
    assert sum(choice.nbytes for choice in found.values()) <= budget
    best = min(sum(choice.loss for choice in option) for option in within)
    assert sum(choice.loss for choice in found.values()) == pytest.approx(best)


def test_a_budget_of_fine_steps_is_not_exceeded() -> None:
    random = np.random.default_rng(0)
    groups = {
        f"{at}": [Choice(rate, int(random.integers(10**8)), float(1 / rate)) for rate in (1, 2, 3, 4)]
        for at in range(40)
    }  # fmt: skip
    least = sum(min(choice.nbytes for choice in options) for options in groups.values())
    for budget in (least, least + 10**8 + 1, 3 * 10**9):
        found = allocate(groups, budget)
        assert sum(choice.nbytes for choice in found.values()) <= budget


@dataclass(frozen=True)
class Model:
    bits: float
    predicted_kl: float
    change_limit: float


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_search_finds_the_smallest(factor: float, noise: float) -> None:
    """The divergence falls by 4 a bit; the change follows it with another factor than assumed, and an error."""

    def predict(bits: float) -> float:
        return float(4 ** (1 - bits))

    def build(bits: float) -> Model:
        wrong = 1 + noise * np.sin(1000 * bits)
        return Model(bits, predict(bits), 100 * float(np.expm1(factor * wrong * predict(bits))))

    tried = smallest(2.0, 1.0, 9.0, predict, build)
    assert len(tried) <= 6
    exact = 1 - np.log(np.log1p(0.02) / factor) / np.log(4)
    assert tried[-1].change_limit <= 2.0
    assert exact - 0.06 <= tried[-1].bits <= exact + 2 * NEAR + 0.06


def test_search_without_an_end() -> None:
    with pytest.raises(RecipeError, match="not met at"):
        smallest(1.0, 1.0, 5.0, lambda bits: 1 / bits, lambda bits: Model(bits, 1 / bits, 50.0))


def test_state_is_that_of_its_identity(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = State(path, {"model": 1})
    assert state.once("a", lambda: [0.1, 1e-17]) == [0.1, 1e-17]
    assert State(path, {"model": 1}).once("a", lambda: pytest.fail("measured twice")) == [0.1, 1e-17]
    assert State(path, {"model": 2}).restored == 0
    path.write_bytes(path.read_bytes()[:-10])
    assert State(path, {"model": 1}).restored == 0


@pytest.mark.parametrize("quantized", [False, True])
def test_exchanged_matrices_are_what_llama_computes_with(
    smollm2_quantized: Path, tmp_path: Path, quantized: bool
) -> None:
    dense = write_llama(tmp_path / "dense.gguf", smollm2_quantized)
    coded = tmp_path / "coded.gguf"
    recipe = seeddelta.Recipe(input=dense, output=coded, bits=2, targets="ffn_down,attn_v,embd")
    seeddelta.build(recipe, progress=False)
    changed = seeddelta.dequantize(coded, tmp_path / "changed.gguf", progress=False)
    path = quantized_model(dense, tmp_path, "Q8_0") if quantized else dense
    source = open_source(path)
    new = open_source(changed)
    tensors = [name for name in source.tensors if "ffn_down" in name or "attn_v" in name or "token_embd" in name]
    assert len(tensors) == 5
    with SwitchedModel(source, tensors, n_ctx=64, threads=1) as model:
        tokens = tokens_of(model.llm, 32)
        plain = last_logits(model.llm, tokens)
        for name in tensors:
            model.put(name, new.matrix(name))
        exchanged = last_logits(model.llm, tokens)
        for name in tensors:
            model.restore(name)
        np.testing.assert_array_equal(last_logits(model.llm, tokens), plain)
    assert np.abs(exchanged - plain).max() > 0.01
    if not quantized:
        for path, found in ((dense, plain), (changed, exchanged)):
            llm = load(path, threads=1, n_ctx=64, flash_attn=True)
            np.testing.assert_allclose(logits_of(llm, tokens)[-1], found, rtol=0, atol=1e-4)
            llm.close()


def last_logits(llm: object, tokens: list[int]) -> np.ndarray:
    from seeddelta.runtime.decoder import Decoder

    decoder = Decoder(llm)
    return decoder.decode(np.asarray(tokens, np.int32), 0)[0].copy()
