"""Target names and layer ranges."""

from __future__ import annotations

import pytest
from seeddelta.errors import RecipeError
from seeddelta.gguf import names


def test_groups_and_canonical_order() -> None:
    assert names.parse_targets("attn_q, ffn_down ,ffn_gate") == ("ffn_gate", "ffn_down", "attn_q")
    assert names.parse_targets(["ffn"]) == ("ffn",)
    assert names.parse_targets("attn,ffn,ffn_up,experts,ssm_in") == ("ffn", "attn", "ssm_in")
    assert names.parse_targets("head, ffn_up,embd") == ("embd", "head", "ffn_up")
    assert names.parse_targets("all,embd,head,ffn") == ("all", "embd", "head")
    assert names.parse_targets("all,full") == ("full",)
    assert names.parse_targets("shortconv.in_proj,attn_kv_a_mqa") == ("attn_kv_a_mqa", "shortconv.in_proj")


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
    assert not names.is_target("output_norm.weight", ("full",), None)
    assert not names.is_target("token_embd_norm.weight", ("full",), None)
    assert not names.is_target("token_embd.weight", ("all",), None)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("blk.0.ffn_up.weight", "ffn"),
        ("blk.0.ffn_gate_up_exps.weight", "experts"),
        ("blk.0.ffn_down_chexps.weight", "experts"),
        ("blk.0.ffn_down_shexp.weight", "shared"),
        ("blk.0.attn_gate.weight", "attn"),
        ("blk.0.attn_kv_a_mqa.weight", "mla"),
        ("blk.0.attn_v_b.weight", "mla"),
        ("blk.0.ssm_in.weight", "ssm"),
        ("blk.0.shortconv.in_proj.weight", "ssm"),
        ("blk.0.time_mix_key.weight", "ssm"),
        ("blk.0.inp_gate.weight", "other"),
        ("blk.2.nextn.eh_proj.weight", "other"),
        ("token_embd.weight", "embd"),
        ("per_layer_token_embd.weight", "embd"),
        ("output.weight", "head"),
        ("dense_2.weight", "other"),
        ("altup_proj.weight", "other"),
        ("per_layer_model_proj.weight", "other"),
        ("blk.0.laurel_l.weight", "other"),
    ],
)
def test_roles(name: str, role: str) -> None:
    assert names.is_matrix(name)
    assert names.role_of(name) == role
    groups = [group for group in names.GROUPS if names.is_target(name, (group,), None)]
    assert {role, "full"} <= set(groups)
    assert ("all" in groups) == name.startswith("blk.")


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_inp_shexp.weight", "blk.0.attn_q_a_norm.weight",
        "blk.0.ssm_conv1d.weight", "blk.0.shortconv.conv.weight", "blk.0.attn_sinks.weight", "rope_factors_long.weight",
        "blk.0.ssm_a", "blk.0.altup_router.weight", "position_embd.weight", "blk.0.time_mix_lerp_w.weight",
        "blk.0.ssm_dt.bias", "blk.0.exp_probs_b.bias", "blk.0.nextn.enorm.weight", "rope_freqs.weight",
        "blk.0.attn_norm_2.weight",
    ],
)  # fmt: skip
def test_what_is_no_matrix(name: str) -> None:
    assert not names.is_matrix(name)
    assert not names.is_target(name, ("full",), None)
