"""Texts, schemas and samplers of `seeddelta run`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from seeddelta.cli.main import main

pytest.importorskip("llama_cpp")


@pytest.fixture
def run(smollm2_quantized: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def call(*arguments: str, fails: bool = False) -> str:
        code = main(["run", "-m", str(smollm2_quantized), "-q", "-t", "2", *arguments])
        shown = capsys.readouterr()
        assert bool(code) == fails
        return shown.err if fails else shown.out

    return call


def test_a_prompt_from_a_file(run: Callable[..., str], tmp_path: Path) -> None:
    text = tmp_path / "prompt.txt"
    text.write_text("The capital of France is")
    assert run("-f", str(text), "-n", "6") == run("-p", "The capital of France is", "-n", "6")
    assert "nothing to continue" in run("-n", "6", fails=True)
    assert "leave one" in run("-p", "x", "-f", str(text), fails=True)
    assert "no such file" in run("-f", "/nowhere.txt", fails=True)
    text.write_bytes(b"One\r\ntwo")
    assert run("-f", str(text), "-n", "6") == run("-p", "One\ntwo", "-n", "6")


def test_one_number_of_threads(run: Callable[..., str]) -> None:
    assert "--threads 1,2: give one number" in run("-p", "x", "-t", "1,2", fails=True)


def test_all_options_end_with_those_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help-all"]) == 0
    _, heading, last = capsys.readouterr().out.partition("\nFor every command\n")
    assert heading
    assert re.findall("^  (-\\S+)", last, re.MULTILINE) == ["-q,", "--set", "--config", "-v,", "--help-all", "-h,"]


def test_what_has_no_tokens_or_is_a_folder(
    run: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.txt"
    empty.touch()
    assert run("-p", "", fails=True) == "seeddelta: error: --prompt is empty; give some text\n"
    assert f"{empty} is empty; give some text" in run("-f", str(empty), fails=True)
    for command in (["run", str(tmp_path), "-p", "x"], ["chat", str(tmp_path)], ["serve", str(tmp_path)]):
        assert main(command) == 1
        assert f"{tmp_path}: is a folder; give a GGUF model" in capsys.readouterr().err


def test_the_summary_is_for_people(smollm2_quantized: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["run", str(smollm2_quantized), "-t", "2", "-n", "3", "-p"]
    assert main([*ask, "The"]) == 0
    assert re.fullmatch(r"1 prompt token, 3 generated, [\d.]+ tokens/s, \d+ MB\n", capsys.readouterr().err)
    assert main([*ask, "Why is the sky blue?", "--chat", "-v"]) == 0
    said = capsys.readouterr().err
    assert "a plain GGUF model" in said
    found = re.search(r"(\d+) prompt tokens", said)
    assert found is not None
    assert int(found[1]) > 20  # the template's, too


def test_json_in_place_of_the_text_or_beside_it(run: Callable[..., str], tmp_path: Path) -> None:
    ask = ("-p", "The capital of France is", "-n", "6")
    text = run(*ask).removeprefix("The capital of France is").removesuffix("\n")
    found = json.loads(run(*ask, "--json"))
    assert (found["text"], found["generated_tokens"]) == (text, 6)
    assert run(*ask, "--json", str(tmp_path / "metrics.json")) == f"The capital of France is{text}\n"
    assert json.loads((tmp_path / "metrics.json").read_text())["text"] == text


def test_schemas(run: Callable[..., str], tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}')
    text = run("-p", "JSON:", "--json-schema", str(schema)).removeprefix("JSON:")
    assert json.loads(text)["city"] in ("Paris", "Rome")
    for value in ('a"b', "a\nb\t", "a\\b", "😀"):
        schema.write_text(json.dumps({"enum": [value]}))
        assert json.loads(run("-p", "JSON:", "--json-schema", str(schema)).removeprefix("JSON:")) == value
    for text in ('{"$ref": "#/nowhere"}', "{", "[" * 100000, '{"not": {}}'):
        schema.write_text(text)
        assert "grammar" in run("-p", "x", "--json-schema", str(schema), fails=True)


def test_sampling(run: Callable[..., str]) -> None:
    ask = ("-p", "la la la la la la", "-n", "12")
    assert run(*ask) != run(*ask, "--repeat-penalty", "1.8")
    hot = (*ask, "--temp", "3", "--top-k", "0", "--top-p", "1", "-s", "1")
    assert run(*hot, "--min-p", "1") == run(*ask)
    assert run(*hot, "--min-p", "0") != run(*ask)
