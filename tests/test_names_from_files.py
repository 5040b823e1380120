"""Names that come from files are data: never a path, never markup, whatever their bytes are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import seeddelta
from command_process import Commands
from gguf import GGMLQuantizationType
from seeddelta.cli.main import main
from seeddelta.errors import FormatError
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.source import open_source
from seeddelta.gguf.writer import PlannedTensor, copied_metadata, write_gguf
from seeddelta.storage.checkpoint import Store


def with_tensor(source: Path, path: Path, name: str, **metadata: Any) -> Path:
    """A copy of a model with one more matrix of 64 x 64."""
    model = open_source(source)
    plan = [PlannedTensor(info.name, info.shape, info.type) for info in model.tensors.values()]
    more = np.random.default_rng(0).normal(0, 0.1, (64, 64)).astype(np.float16)
    plan.append(PlannedTensor(name, more.shape, GGMLQuantizationType.F16))
    values = copied_metadata(model.header) | metadata
    write_gguf(path, values, plan, lambda tensor: [more if tensor.name == name else model.raw(tensor.name)])
    return path


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("name", ["../../evil.weight", "/tmp/seeddelta-evil.weight", "a/b.weight", "..", "con:.weight"])
def test_a_tensors_name_is_no_path(name: str, tiny_dense: Path, tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    model = with_tensor(tiny_dense, inner / "m.gguf", name)
    before = files_in(tmp_path)
    seeddelta.build(seeddelta.Recipe(input=model, output=inner / "o.gguf", bits=4), progress=False)
    assert files_in(tmp_path) == before | {"a/b/o.gguf"}
    assert not Path("/tmp/seeddelta-evil.weight.sdpart").exists()


def test_a_record_of_any_name_stays_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    names = ["../x", "/etc/x", "x" * 300, "a\0b", "é🙂", "blk.0.ffn_up.weight"]
    with Store(folder, busy="busy") as store:
        for name in names:
            store.save(name, name, {})
        assert all(store.load(name, name) is not None for name in names)
        store.keep_only(names[:1])
        assert [store.has(name) for name in names] == [True] + [False] * 5
    assert files_in(tmp_path) <= {"records"} | {f"records/{path.name}" for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["", "a\0b.weight", "y" * 128 + ".weight", "line\nend.weight", "\x1b[31m.weight"])
def test_names_that_are_no_text_are_refused(name: str, tiny_dense: Path, tmp_path: Path, capsys: Any) -> None:
    model = with_tensor(tiny_dense, tmp_path / "m.gguf", name)
    with pytest.raises(FormatError, match="tensor name"):
        read_header(model)
    assert main(["build", "-i", str(model), "-o", str(tmp_path / "o.gguf"), "--bits", "4", "-q"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.rstrip("\n").isprintable()


def test_brackets_are_no_markup(tiny_dense: Path, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "[red]x[/blue]" / ":smile:"
    folder.mkdir(parents=True)
    model, output = folder / "m[bold]y.gguf", folder / "[b]o.gguf"
    with_tensor(tiny_dense, model, "[red]t[/blue].weight")
    assert main(["build", "-i", str(model), "-o", str(output), "--bits", "4"]) == 0
    shown = capsys.readouterr().out.replace("\n", "")
    assert "[red]x[/blue]/:smile:/[b]o.gguf" in shown
    for command in (["inspect", output], ["verify", output], ["card", output]):
        assert main([str(argument) for argument in command]) == 0
        shown = "".join(capsys.readouterr())
        assert "[red]t[/blue]" in shown or command[0] in ("verify", "card"), command
    model.write_bytes(tiny_dense.read_bytes())  # llama.cpp takes no tensor that it does not know
    assert main(["bench", "-m", str(model), "-p", "8", "-n", "0", "-r", "1", "-q"]) == 0
    assert "m[bold]y.gguf" in capsys.readouterr().out


def test_metadata_do_not_reach_the_terminal_raw(tiny_dense: Path, tmp_path: Path, capsys: Any) -> None:
    recipe = seeddelta.Recipe(input=tiny_dense, output=tmp_path / "o.gguf", bits=4)
    seeddelta.build(recipe, progress=False)
    changed = tmp_path / "c.gguf"
    data = (tmp_path / "o.gguf").read_bytes()
    name = tiny_dense.name.encode()
    assert name in data
    changed.write_bytes(data.replace(name, b"\x1b[2J" + name[4:]))
    assert main(["inspect", str(changed)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\\x1b[2J" in shown


LATIN = "m\udce9"  # the byte E9, as Python has it in names


@pytest.fixture
def latin(tiny_dense: Path, tiny_text: Path, tmp_path: Path) -> Path:
    for source, suffix in ((tiny_dense, ".gguf"), (tiny_text, ".txt")):
        (tmp_path / f"{LATIN}{suffix}").write_bytes(source.read_bytes())
    return tmp_path / LATIN


@pytest.mark.slow
def test_file_names_of_any_bytes(latin: Path, tmp_path: Path) -> None:
    with Commands() as commands:
        check_file_names(latin, lambda *arguments: commands.run(list(map(str, arguments)), tmp_path))


def check_file_names(latin: Path, command: Callable[..., tuple[int, str]]) -> None:
    def run(*arguments: object) -> None:
        code, said = command(*arguments)
        assert code == 0, said

    model, text = latin.with_suffix(".gguf"), latin.with_suffix(".txt")
    output, report = latin.with_suffix(".sd.gguf"), latin.with_suffix(".json")
    short = ("-f", text, "-c", "64", "--chunks", "4")
    run("quantize", model, "-o", output, "--bits", "4", *short, "--json", report)
    assert output.is_file()
    assert report.is_file()
    run("imatrix", "-m", model, "-o", latin.with_suffix(".imatrix"), "--hessian", latin.with_suffix(".cov"), *short)
    run("build", "-i", model, "-o", output, "--bits", "4", "--hessian", latin.with_suffix(".cov"))
    for path in (model, output):
        run("run", "-m", path, "-p", "hi", "-n", "4", "--json", report)
    run("eval", "-m", model, "-m", output, *short, "--no-speed", "--json")
    run("inspect", output)
    run("verify", output, "--source", model)
    run("dequantize", output, "-o", latin.with_suffix(".f16.gguf"))
    run("report", "-m", model, "-m", output, *short, "--no-speed", "-o", latin.parent / f"{LATIN}-report")
    run("card", output, "-o", latin.with_suffix(".md"))


def test_arguments_of_any_bytes(tiny_dense: Path) -> None:
    command = [sys.executable, "-m", "seeddelta", "run", "-m", str(tiny_dense), "-n", "2", "-p", os.fsdecode(b"h\xe9")]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("h�".encode())


def test_a_source_of_63_bytes_is_read(tiny_dense: Path, tmp_path: Path) -> None:
    name = "y" * 56 + ".weight"
    assert name in read_header(with_tensor(tiny_dense, tmp_path / "m.gguf", name)).tensors
    assert gguf.GGUFReader(tmp_path / "m.gguf")
