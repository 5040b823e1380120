"""Target names and layer ranges."""

from __future__ import annotations

import pytest
from seeddelta.errors import RecipeError
from seeddelta.gguf import names


def test_groups_and_canonical_order() -> None:
    assert names.parse_targets("attn_q, ffn_down ,ffn_gate") == ("ffn_gate", "ffn_down", "attn_q")
    assert names.parse_targets(["ffn"]) == names.FFN_TARGETS
    assert names.parse_targets("ffn,attn") == names.parse_targets("all") == names.TARGETS
    assert names.parse_targets("head, ffn_up,embd") == ("ffn_up", "embd", "head")
    assert names.parse_targets("all,embd,head") == names.parse_targets("full") == names.KNOWN_TARGETS


@pytest.mark.parametrize("bad", ["", "ffn_gat", "ffn_gate,,", "token_embd"])
def test_unknown_targets(bad: str) -> None:
    with pytest.raises(RecipeError, match="choose from"):
        names.parse_targets(bad)


def test_layers() -> None:
    assert names.parse_layers(None) is None
    assert names.parse_layers("2-4") == {2, 3, 4}
    assert names.parse_layers("0-1, 7") == {0, 1, 7}
    assert names.parse_layers("29-29", 30) == {29}


@pytest.mark.parametrize("bad", ["4-2", "a-b", "-1", "1-", "1 2", "0-999999999999"])
def test_bad_layers(bad: str) -> None:
    with pytest.raises(RecipeError, match="layers"):
        names.parse_layers(bad)


def test_layers_beyond_the_model() -> None:
    with pytest.raises(RecipeError, match="layer 30, but the model has 0-29"):
        names.parse_layers("0-30", 30)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("blk.12.ffn_gate.weight", (12, "ffn_gate")),
        ("blk.0.attn_output.weight", (0, "attn_output")),
        ("blk.0.attn_norm.weight", None),
        ("blk.0.ffn_gate.bias", None),
        ("blk.0.attn_qkv.weight", (0, "attn_qkv")),
        ("blk.0.ffn_gate_exps.weight", (0, "ffn_gate_exps")),
        ("blk.7.ffn_down_shexp.weight", (7, "ffn_down_shexp")),
        ("blk.0.ffn_gate_inp.weight", None),
        ("token_embd.weight", None),
        ("xblk.0.ffn_gate.weight", None),
    ],
)
def test_split_name(name: str, expected: tuple[int, str] | None) -> None:
    assert names.split_name(name) == expected


def test_embedding_and_head_are_in_no_layer() -> None:
    layers = frozenset({3})
    assert names.is_target("token_embd.weight", ("embd",), layers)
    assert not names.is_target("token_embd.weight", ("head", "ffn_up"), None)
    assert names.is_target("output.weight", ("head",), layers)
    assert not names.is_target("output_norm.weight", names.KNOWN_TARGETS, None)
    assert not names.is_target("token_embd_norm.weight", names.KNOWN_TARGETS, None)
