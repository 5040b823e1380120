"""The commands build, dequantize and inspect, and the builder under its old name."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from seeddelta.cli import legacy
from seeddelta.cli.main import COMMANDS, main
from seeddelta.errors import RecipeError
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.reader import open_seeddelta
from seeddelta.gguf.roles import Item, sums_by_role
from seeddelta.inspection.summary import origin_of, recipe_of, summarize
from tiny_models import TARGET_NAMES, write_model


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return write_model(tmp_path / "dense.gguf")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.gguf"


def recipe_in(path: Path) -> dict[str, object]:
    recipe = json.loads(read_header(path).metadata["seeddelta.recipe"])
    assert isinstance(recipe, dict)
    return recipe


def test_build_with_defaults(dense: Path, out: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "-i", str(dense), "-o", str(out)]) == 0
    printed = capfd.readouterr()
    assert "blk.1.attn_output.weight" not in printed.out
    with open_seeddelta(out) as file:
        sums = {row["role"]: row for row in summarize(file)["roles"]}
    rows = {cells[0]: cells for line in printed.out.splitlines() if (cells := re.findall(r"[\w.]+", line))}
    for role, row in sums.items():
        shown = f"{row['payload_bytes'] / 1e6:.1f}", f"{row['bits_per_weight']:.2f}"
        errors = (f"{100 * row[name]:.1f}" for name in ("rel_l2", "rel_l2_w"))
        assert rows[role] == [role, str(row["tensors"]), *shown, *errors]
    share = round(100 * out.stat().st_size / sum(one.nbytes for one in read_header(dense).tensors.values()))
    assert f"out.gguf: {out.stat().st_size / 1e6:.1f} MB, {share}% of the original's" in printed.out
    assert "encode" in printed.err  # the progress bar
    assert set(open_seeddelta(out).tensors) == {"token_embd.weight", *TARGET_NAMES}


def test_many_roles_have_few_rows() -> None:
    items = [Item(f"blk.0.{role}.weight", 100, size, None) for size, role in enumerate("abcdefghij", 1)]
    rows = sums_by_role(items, most=4)
    assert [row.role for row in rows] == ["h", "i", "j", "7 other roles"]
    assert (rows[-1].tensors, rows[-1].payload_bytes, rows[-1].rel_l2) == (7, sum(range(1, 8)), None)
    assert sums_by_role(items, most=10) == sums_by_role(items)


def test_quiet(dense: Path, out: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "-i", str(dense), "-o", str(out), "-q"]) == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("old_name", [False, True])
def test_flags_of_the_seed(dense: Path, out: Path, old_name: bool) -> None:
    report = out.with_suffix(".json")
    arguments = [
        "-i", str(dense), "-o", str(out), "--layers", "0-1", "--targets", "ffn_gate,ffn_up,ffn_down",
        "--base-kind", "prng_block", "--seed", "11", "--seed-search", "3", "--scheme", "coo", "--K", "16",
        "--block", "32", "--vals", "int8", "--row-scale", "--imatrix-power", "0.5", "--imatrix-eps", "0.01",
        "--eval-cols", "32", "--json", str(report),
    ]  # fmt: skip
    run = legacy.main if old_name else lambda args: main(["build", *args])
    assert run([*arguments, "-q"]) == 0
    recipe = recipe_in(out)
    expected = {
        "layers": "0-1", "targets": ["ffn_gate", "ffn_up", "ffn_down"], "base_kind": "prng_block", "seed": 11,
        "seed_search": 3, "scheme": "coo", "K": 16, "block": 32, "vals": "int8", "row_scale": "f16",
        "imatrix_power": 0.5, "imatrix_eps": 0.01, "eval_cols": 32,
    }  # fmt: skip
    assert {key: recipe[key] for key in expected} == expected
    assert len(json.loads(report.read_text())["tensors"]) == 6


def test_flags_of_the_patch_plan(dense: Path, out: Path) -> None:
    arguments = ["-i", str(dense), "-o", str(out), "--seeddelta", "--seeddelta-gap", "0.9", "--seeddelta-scheme", "coo"]
    assert legacy.main([*arguments, "--seeddelta-vals", "int8", "--seeddelta-row-scale", "-q"]) == 0
    recipe = recipe_in(out)
    assert (recipe["seeddelta_gap"], recipe["scheme"], recipe["vals"], recipe["row_scale"]) == (
        0.9,
        "coo",
        "int8",
        "f16",
    )


def test_yaml_and_flags(dense: Path, out: Path, tmp_path: Path) -> None:
    config = tmp_path / "recipe.yaml"
    config.write_text(f"input: {dense}\nbits: 2\nseed: 7\ntargets: [attn]\n")
    assert main(["build", "--config", str(config), "-o", str(out), "--bits", "3", "-q"]) == 0
    recipe = recipe_in(out)
    assert (recipe["bits"], recipe["seed"], recipe["targets"]) == (3, 7, ["attn"])


def test_dry_run(dense: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "-i", str(dense), "-o", str(out), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "attn_q" in text
    assert "is not written" in text
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "x.gguf"], "MODEL must be given, for example: seeddelta build model-f16.gguf"),
        (["-i", "nothing.gguf", "-o", "x.gguf"], "nothing.gguf: no such file"),
        (["-i", "DENSE", "-o", "no/such/folder/x.gguf"], "create it first"),
        (["-i", "DENSE", "-o", "x.gguf", "--base-kind", "none", "--scheme", "none"], "stores nothing"),
        (["-i", "DENSE", "-o", "x.gguf", "--bits", "many"], "bits"),
        (["-i", "DENSE", "-o", "x.gguf", "--block", "48"], "block"),
        (["-i", "DENSE", "-o", "x.gguf", "--layers", "0-9"], "the model has 0-1"),
        (["-i", "DENSE", "-o", "x.gguf", "--imatrix", "no.dat"], "no.dat: cannot be read"),
        (["-i", "DENSE", "-o", "DENSE"], "is an input"),
    ],
)
def test_errors_are_one_line_and_exit_code_1(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    arguments: list[str], message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEEDDELTA_DEBUG", raising=False)
    arguments = [str(dense) if argument == "DENSE" else argument for argument in arguments]
    assert main(["build", *arguments]) == 1
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("seeddelta: error: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert not (tmp_path / "x.gguf").exists()


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEDDELTA_DEBUG", "1")
    with pytest.raises(RecipeError):
        main(["build", "-o", "x.gguf"])


def test_unknown_flag_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "--no-such-flag"]) == 2


def test_dequantize(dense: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "-i", str(dense), "-o", str(out), "-q"]) == 0
    assert main(["dequantize", str(out), "-o", str(tmp_path / "d.gguf"), "--type", "f32"]) == 0
    assert " MB" in capsys.readouterr().out
    assert read_header(tmp_path / "d.gguf").tensors[TARGET_NAMES[0]].type == Kind.F32
    assert main(["dequantize", str(out), "-o", str(tmp_path / "e.gguf"), "--type", "q8"]) == 1
    assert "choose from f32, f16, bf16, q8_0" in capsys.readouterr().err


def test_inspect(dense: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["build", "-i", str(dense), "-o", str(out), "-q", "--targets", "all", "--scheme", "coo", "--K", "4"]) == 0
    )
    capsys.readouterr()
    assert main(["inspect", str(out), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["seeddelta"] is True
    assert summary["keys"]["seeddelta.version"] == 1
    assert [tensor["residual"]["K"] for tensor in summary["converted"]] == [4] * len(TARGET_NAMES)
    assert summary["payload_bytes"] == sum(tensor["payload_bytes"] for tensor in summary["converted"])
    row = next(row for row in summary["roles"] if row["role"] == "ffn_up")
    own = [tensor for tensor in summary["converted"] if tensor["role"] == "ffn_up"]
    assert row["tensors"] == len(own) == 2
    error = sum(tensor["norms"]["err"] ** 2 for tensor in own) / sum(tensor["norms"]["w"] ** 2 for tensor in own)
    assert row["rel_l2"] == pytest.approx(error**0.5)
    assert main(["inspect", str(out)]) == 0
    first, *text = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{out}: {out.stat().st_size / 1e6:.1f} MB; {summary['bits_per_weight']:.3f} bits")
    facts = {name: fact for line in text[:5] for name, fact in [re.split("  +", line, maxsplit=1)]}
    assert facts["made from"].startswith("dense.gguf by seeddelta")
    assert (facts["calibrated on"], facts["options"]) == ("nothing", "bits=4.0 K=4 scheme=coo targets=all")
    role = next(line for line in text if " ffn_up " in line)  # the sums of the role's two tensors
    assert f" {100 * row['rel_l2']:.1f} " in role
    assert not any("blk.1.attn_output.weight" in line or "seeddelta.recipe" in line for line in text)
    assert main(["inspect", str(out), "-v"]) == 0
    everything = capsys.readouterr().out
    assert {"blk.1.attn_output.weight", "seeddelta.recipe"} <= set(everything.split())
    assert "coo K=4 fp16" in everything
    assert main(["inspect", str(dense)]) == 0
    plain = capsys.readouterr().out
    assert plain.startswith(f"{dense}: a plain GGUF, {dense.stat().st_size / 1e6:.1f} MB; 16.0")
    assert " ffn_up " in plain
    assert "blk.1.attn_output.weight" not in plain
    assert main(["inspect", str(dense), "-v"]) == 0
    assert {"blk.1.attn_output.weight", "general.architecture"} <= set(capsys.readouterr().out.split())
    assert main(["inspect", str(dense), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seeddelta"] is False


@pytest.mark.parametrize(
    ("recipe", "shown"),
    [
        ("{}", "not in the file"), ("[]", "not in the file"), ('{"target_bpw": [1]}', "target_bpw=[1]"),
        ('{"target_bpw": 4.4}', "preset=balanced"), ('{"base_kind": "lanes", "bits": 3}', "bits=3"),
        ('{"base_kind": "lanes", "size": "80M", "bits": 4}', "size=80M"), ('{"layers": {"a": null}}', "{'a': None}"),
    ],
)  # fmt: skip
def test_options_that_a_file_tells(recipe: str, shown: str) -> None:
    keys = {"seeddelta.calibration.mode": [1.0, 1.0], "seeddelta.calibration.text": "a.txt"}
    told = {"recipe": recipe_of({"seeddelta.recipe": recipe}), "keys": keys, "name": "", "architecture": ""}
    facts = dict(origin_of(told | {"seeddelta": True, "model_weights": 1, "checksums": False}))
    assert shown in facts["options"]
    assert facts["calibrated on"] == "a.txt, ? chunks of ? tokens"


def test_inspect_of_values_of_other_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("general.two", [1, 2])
    writer.add_float32("general.some", float("nan"))
    writer.add_array("general.many", list(range(40)))
    writer.add_tensor("blk.0.attn_q.weight", np.ones((2, 32), np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    assert main(["inspect", str(path), "-v"]) == 0
    assert "? (llama), 0.0M weights" in capsys.readouterr().out
    assert main(["inspect", str(path), "--json"]) == 0
    keys = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["keys"]
    assert (keys["general.two"], keys["general.some"], keys["general.many"]) == ([1, 2], "nan", "array of 40")


def test_inspect_of_a_broken_file(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out.write_bytes(b"GGUF" + bytes(100))
    assert main(["inspect", str(out)]) == 1
    assert "out.gguf" in capsys.readouterr().err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("seeddelta 0.")
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("build", "dequantize", "inspect"))
    assert set(COMMANDS) >= {"build", "dequantize", "inspect"}


@pytest.mark.parametrize("package", ["typer", "pydantic", "gguf", "rich"])
def test_missing_extra_is_named_with_the_remedy(package: str) -> None:
    script = (
        f"import sys; sys.modules[{package!r}] = None; from seeddelta.cli.main import main; sys.exit(main(['--help']))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == f"seeddelta: error: {package} is not installed; run: pip install 'seeddelta[cli]'\n"


@pytest.mark.parametrize("name", ["inspect", "verify", "dequantize", "report", "build", "imatrix"])
def test_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"Example: seeddelta {name}" in " ".join(capsys.readouterr().out.split())
