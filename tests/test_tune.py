"""Autotuning of a tiny model: budget, recipe, gap, roll-back, and a kill at any point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import seeddelta
from architectures import write_architecture
from llama_helpers import TEXT
from seeddelta.cli.main import main
from seeddelta.errors import EvaluationError, RecipeError, SourceModelError
from seeddelta.storage.checkpoint import open_record
from seeddelta.tune import TuneOptions, autotune, plan, tuning
from seeddelta.tune.rates import Allocator
from tiny_llama import N_LAYERS, write_llama

ROLES = 7


@pytest.fixture(scope="module")
def dense(smollm2_quantized: Path, model_dir: Path) -> Path:
    return write_llama(model_dir / "tiny-tune.gguf", smollm2_quantized)


@pytest.fixture(scope="module")
def text(model_dir: Path) -> Path:
    path = model_dir / "tune.txt"
    path.write_text("\n".join([TEXT] * 12), encoding="utf-8")
    return path


def options_of(folder: Path, dense: Path, text: Path, *, recipe: Any = None, **options: Any) -> TuneOptions:
    settings: dict[str, Any] = {"ctx": 64, "chunks": 2, "verify_chunks": 4}
    base = {"input": dense, "output": folder / "out.gguf", "threads": 1, "targets": "all", "effort": "fast"} | (
        recipe or {"target_bpw": 3.4}
    )
    return TuneOptions(
        recipe=seeddelta.Recipe(**base), output=folder / "recipe.yaml", text=text, **(settings | options)
    )  # fmt: skip


def test_a_recipe_within_the_budget(dense: Path, text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    built, recipe = tmp_path / "built.gguf", tmp_path / "recipe.yaml"
    common = [str(dense), "-f", str(text), "-o", str(recipe), "-c", "64", "--chunks", "2", "-t", "1", "-q"]
    common += ["--targets", "all", "--set", "effort=fast"]
    budget = ["--bpw", "3.4", "--verify-chunks", "4", "--build", str(built)]
    assert main(["autotune", *common, *budget, "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert len(report["groups"]) == N_LAYERS * ROLES
    assert report["evaluations"] == 1 + len(report["groups"]) + 8 + len(report["candidates"])
    assert all(group["kl"] > 0 for group in report["groups"])
    assert 0.5 < report["additivity"] < 2
    assert report["bits_per_weight"] <= 3.4
    assert report["decision"] in ("tuned", "repaired", "uniform")
    assert not (tmp_path / "recipe.yaml.autotune").exists()
    again = tmp_path / "again.gguf"
    assert main(["build", "--config", str(recipe), "-o", str(again), "-q"]) == 0
    assert again.read_bytes() == built.read_bytes()
    with seeddelta.open_seeddelta(again) as file:
        payload = sum(tensor.payload_bytes for tensor in file.tensors.values())
    assert payload == report["target_bytes"]


def test_the_best_of_the_measured_gets_more_bits(dense: Path, text: Path, tmp_path: Path) -> None:
    report = autotune(options_of(tmp_path, dense, text, verify_chunks=0), progress=False)
    assert report.decision == "unverified"
    rates = {group.name: group.rate for group in report.groups}
    assert len(set(rates.values())) > 1
    # of two groups of one role (as many weights) the one that costs more has no less
    by_name = {group.name: group for group in report.groups}
    for role in {name.split()[0] for name in rates}:
        one, other = sorted((by_name[f"{role} {layer}"] for layer in range(N_LAYERS)), key=lambda group: group.kl)
        assert one.rate <= other.rate
    table = report.to_table()
    assert table.row_count == len(rates)


def test_a_gap_keeps_matrices_dense_or_gives_them_more(dense: Path, text: Path, tmp_path: Path) -> None:
    """Every matrix has an error of about 0.09 at 4 bits: a gap of 0.06 leaves 5, 6 and dense."""
    recipe = {"target_bpw": 9.0, "seeddelta_gap": 0.06}
    report = autotune(options_of(tmp_path, dense, text, recipe=recipe, verify_chunks=0), progress=False)
    rates = {group.rate for group in report.groups}
    assert rates <= {5, 6, "dense"}
    assert "dense" in rates
    built = seeddelta.build(seeddelta.Recipe.from_yaml(tmp_path / "recipe.yaml"), progress=False)
    assert not built.kept_dense
    assert all(row.metrics.rel_l2 <= 0.06 for row in built.tensors if row.metrics is not None)
    with pytest.raises(RecipeError, match="seeddelta-gap"):
        autotune(
            options_of(tmp_path, dense, text, recipe={"target_bpw": 3, "seeddelta_gap": 0.06}, verify_chunks=0),
            progress=False,
        )


def test_given_rates_stay(dense: Path, text: Path, tmp_path: Path) -> None:
    recipe = {"target_bpw": 3.4, "tensor_type": (r"blk\.0\.=dense", "ffn_up=2"), "targets": "ffn,attn_v"}
    report = autotune(options_of(tmp_path, dense, text, recipe=recipe, verify_chunks=2), progress=False)
    assert {group.name for group in report.groups} == {"attn_v 1", "ffn_down 1", "ffn_gate 1"}
    built = seeddelta.build(seeddelta.Recipe.from_yaml(tmp_path / "recipe.yaml"), progress=False)
    bits = {row.name: row.bits_per_weight for row in built.tensors}
    assert set(bits) == {f"blk.1.{role}.weight" for role in ("attn_v", "ffn_down", "ffn_gate", "ffn_up")} | {
        "blk.0.ffn_up.weight"
    }
    assert all(rate < 2.7 for name, rate in bits.items() if "ffn_up" in name)
    assert built.bits_per_weight <= 3.4


@pytest.mark.slow
def test_the_perplexity_is_kept_to(dense: Path, text: Path, tmp_path: Path) -> None:
    """Random weights have a flat distribution, which hardly changes: a small limit."""
    recipe = {"target_bpw": None}
    report = autotune(options_of(tmp_path, dense, text, recipe=recipe, max_dppl=0.5), progress=False)
    assert report.chosen is not None
    assert report.chosen.change_limit <= 0.5
    smaller = [one for one in report.candidates if one.target_bytes < report.chosen.target_bytes]
    assert all(one.change_limit > 0.5 for one in smaller if one.name.startswith("tuned"))
    assert seeddelta.Recipe.from_yaml(tmp_path / "recipe.yaml").input == dense


@pytest.mark.slow
def test_what_is_not_better_is_rolled_back(
    dense: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sensitivities turned round make every allocation bad, the repaired one too."""
    right = Allocator._choices

    def wrong(self: Allocator, trust: float) -> Any:
        choices = right(self, trust)
        if trust == 0:  # the uniform rates
            return choices
        for name, options in choices.items():
            role_costs = "ffn" not in name
            choices[name] = [
                type(choice)(choice.rate, choice.nbytes, choice.loss * (1e-9 if role_costs else 1))
                for choice in options
            ]
        return choices

    monkeypatch.setattr(Allocator, "_choices", wrong)
    report = autotune(options_of(tmp_path, dense, text), progress=False)
    assert report.decision == "uniform"
    assert "rolled back" in report.message
    assert [one.name for one in report.candidates] == ["tuned", "uniform", "repaired"]
    assert report.uniform is not None
    assert all(one.kl >= report.uniform.kl for one in report.candidates)
    built = seeddelta.build(seeddelta.Recipe.from_yaml(tmp_path / "recipe.yaml"), progress=False)
    assert built.target_bytes_after == report.target_bytes == report.uniform.target_bytes
    assert {row.bits_per_weight // 1 for row in built.tensors} <= {2, 3, 4}


@pytest.mark.slow
def test_killed_anywhere_it_goes_on(dense: Path, text: Path, tmp_path: Path) -> None:
    """Killed again and again, each time after a few more results: nothing is measured twice, the result is the same."""
    arguments = [
        dense,
        "-f",
        text,
        "--bpw",
        "3.4",
        "-c",
        "64",
        "--chunks",
        "2",
        "--verify-chunks",
        "4",
        "-t",
        "1",
    ]
    arguments += ["--targets", "all"]
    program = [sys.executable, "-m", "seeddelta.cli.main", "autotune", *arguments, "-q", "--json"]

    def command(folder: Path) -> list[Any]:
        folder.mkdir(exist_ok=True)
        return [*program, "-o", folder / "recipe.yaml", "--build", folder / "out.gguf"]

    whole = tmp_path / "whole"
    expected = json.loads(subprocess.run(command(whole), check=True, capture_output=True, timeout=120).stdout)
    killed = tmp_path / "killed"
    state = killed / "recipe.yaml.autotune" / "measured.sdpart"

    def results() -> int:
        return len(open_record(state).state) if state.exists() else 0

    for wanted in (2, 20, expected["evaluations"] - 2):
        process = subprocess.Popen(command(killed), start_new_session=True, stdout=subprocess.PIPE)
        while results() < wanted:
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    before = results()
    found = json.loads(subprocess.run(command(killed), check=True, capture_output=True, timeout=120).stdout)
    assert found["restored"] == before
    assert found["evaluations"] == expected["evaluations"]
    for name in ("groups", "checks", "candidates", "decision", "message", "target_bytes"):
        assert found[name] == expected[name]
    assert (killed / "out.gguf").read_bytes() == (whole / "out.gguf").read_bytes()
    recipes = [(folder / "recipe.yaml").read_text().replace(str(folder), "") for folder in (killed, whole)]
    assert recipes[0] == recipes[1]
    assert sorted(path.name for path in killed.iterdir()) == ["out.gguf", "recipe.yaml"]


@pytest.mark.slow
def test_another_budget_measures_nothing_anew(
    dense: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = autotune(options_of(tmp_path, dense, text, keep=True), progress=False)
    monkeypatch.setattr(tuning.Meter, "_open", lambda self: pytest.fail("measured twice"))
    second = autotune(options_of(tmp_path, dense, text, recipe={"target_bpw": 4.5}, keep=True), progress=False)
    assert second.restored >= first.evaluations - len(first.candidates)
    assert second.groups != first.groups
    assert 3.4 < second.bits_per_weight <= 4.5


def test_dry_run_says_what_and_how_long(
    dense: Path, text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    planned = plan(options_of(tmp_path, dense, text))
    assert planned.evaluations == 1 + N_LAYERS * ROLES + 8
    assert min(planned.measure_seconds, planned.encode_seconds, planned.verify_seconds) > 0
    command = ["autotune", str(dense), "-f", str(text), "-o", str(tmp_path / "r.yaml"), "--bpw", "4", "--dry-run"]
    assert main(command) == 0
    assert "15 groups: attn_q 0" in capfd.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": {"target_bpw": None}}, "give one of --size, --bpw and --max-dppl"),
        ({"max_dppl": 2.0}, "give one of"),
        ({"verify_chunks": 1}, "too few to compare"),
        ({"reference": 3.3}, "is no rate"),
        ({"recipe": {"target_bpw": 3, "tensor_type": ("ffn_up=proc:0.5",)}}, "leave proc-sparse out"),
        ({"recipe": {"target_bpw": None, "base_kind": "prng_block"}, "max_dppl": 2.0}, "--base-kind lanes"),
    ],
)
def test_options_that_exclude_each_other(
    dense: Path, text: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        options_of(tmp_path, dense, text, **options)


def test_texts_and_budgets_that_are_too_small(
    dense: Path, text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(EvaluationError, match="are needed to measure and to compare"):
        autotune(options_of(tmp_path, dense, text, chunks=100), progress=False)
    with pytest.raises(RecipeError, match="lowest rates"):
        autotune(options_of(tmp_path, dense, text, recipe={"target_bpw": 0.5}), progress=False)
    with pytest.raises(SourceModelError, match="is left to tune"):
        autotune(options_of(tmp_path, dense, text, recipe={"target_bpw": 3, "tensor_type": (".=3",)}), progress=False)
    assert main(["autotune", str(dense), "-f", str(text), "-o", "r.yaml", "--max-dppl", "little"]) == 1
    assert "no percentage" in capfd.readouterr().err


@pytest.mark.slow
def test_a_real_model(smollm2_f16: Path, text: Path, tmp_path: Path) -> None:
    """SmolLM2: values of layer 1 cost far more than those of layer 0, whose attention hardly matters."""
    recipe = {"target_bpw": 3.1, "layers": "0-1", "targets": "attn_k,attn_v"}
    report = autotune(options_of(tmp_path, smollm2_f16, text, recipe=recipe, verify_chunks=0), progress=False)
    groups = {group.name: group for group in report.groups}
    assert groups["attn_v 1"].kl > 3 * groups["attn_v 0"].kl
    assert groups["attn_v 1"].rate > groups["attn_v 0"].rate
    assert report.bits_per_weight <= 3.1
    assert all(0.3 < check.measured_kl / check.predicted_kl < 3 for check in report.checks)


_MLA = {"attn_kv_a_mqa", "attn_k_b", "attn_v_b", "ffn_up_exps", "ffn_up_shexp"}
_STREAMS = {"laurel_l", "inp_gate", "altup_proj", "per_layer_model_proj"}


@pytest.mark.parametrize(
    ("architecture", "targets", "measured"),
    [
        pytest.param("deepseek2", "mla,experts,shared", _MLA, marks=pytest.mark.slow, id="deepseek2"),
        pytest.param("granitehybrid", "ssm", {"ssm_in", "ssm_out"}, id="granitehybrid"),
        pytest.param("gemma3n", "other", _STREAMS, marks=pytest.mark.slow, id="gemma3n"),
    ],
)
def test_roles_of_other_architectures(
    architecture: str, targets: str, measured: set[str], smollm2_quantized: Path, text: Path, tmp_path: Path
) -> None:
    dense = write_architecture(tmp_path / "dense.gguf", smollm2_quantized, architecture)
    recipe = {"target_bpw": 3.9, "targets": targets}
    options = options_of(tmp_path, dense, text, recipe=recipe, verify_chunks=0, chunks=1, bands=1)
    report = autotune(options, progress=False)
    assert all(group.kl > 0 for group in report.groups)
    assert measured <= {group.name.split()[0] for group in report.groups}
    made = seeddelta.Recipe.from_yaml(options.output, output=tmp_path / "built.gguf")
    built = seeddelta.build(made, progress=False)
    assert sum(tensor.bytes_after for tensor in built.tensors) == report.target_bytes  # every matrix has its rate
