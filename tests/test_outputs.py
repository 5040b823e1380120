"""No output replaces an input, another output, or what is no file; one mechanism for every command."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
import seeddelta
from seeddelta.cli import main as program
from seeddelta.errors import OutputError
from seeddelta.settings.tree import Settings, flag_of, group_of, guarded, paths_of
from seeddelta.storage.output import atomic_output, check_outputs, check_writable, reading


def trees() -> dict[str, type[Settings]]:
    found = {name: program.settings_tree(name) for name in program.COMMANDS}
    return {name: tree for name, tree in found.items() if tree is not None}


def paths_in(tree: type[Settings], at: tuple[str, ...] = ()) -> dict[tuple[str, ...], str | None]:
    """Every setting that holds paths, and what kind of output it is."""
    found: dict[tuple[str, ...], str | None] = {}
    for name, field in tree.model_fields.items():
        inner, place = group_of(field), (*at, name)
        if inner is not None:
            found |= paths_in(inner, place)
        elif "Path" in str(field.annotation):
            found[place] = flag_of(field).output
    return found


# What a command writes, by the names that outputs have. A new output is a line here, and an `output` of its Flag.
OUTPUTS = {
    "output", "report_json", "metrics_json", "as_json", "save_kl_base", "build", "history", "resume", "work", "keep",
    "checkpoint",
}  # fmt: skip
ALSO = {("imatrix", "hessian"), ("imatrix", "gradient")}  # which build reads
READ = {("build", "checkpoint"), ("quantize", "checkpoint")}


@pytest.mark.parametrize("name", trees())
def test_every_output_of_a_command_is_marked(name: str) -> None:
    for path, output in paths_in(trees()[name]).items():
        expected = (path[-1] in OUTPUTS or (name, path[-1]) in ALSO) and (name, path[-1]) not in READ
        assert (output is not None) == expected, f"{name}: {'.'.join(path)}"


def outputs_of(name: str) -> list[str]:
    return [path[0] for path, kind in paths_in(trees()[name]).items() if kind == "file" and len(path) == 1]


def inputs_of(name: str) -> list[str]:
    return [path[0] for path, kind in paths_in(trees()[name]).items() if kind is None and len(path) == 1]


# but exec's, whose inputs are the arguments of a program (test_cli_exec.py)
CASES = [(name, output) for name in trees() if name != "exec" and inputs_of(name) for output in outputs_of(name)]


@pytest.mark.parametrize(("name", "output"), CASES)
def test_an_output_that_is_an_input_is_refused(name: str, output: str, tmp_path: Path) -> None:
    """With settings that are not checked further: whatever reads a path protects it."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    tree = trees()[name]
    for source in inputs_of(name):
        several = "tuple" in str(tree.model_fields[source].annotation)
        values: dict[str, Any] = dict.fromkeys(tree.model_fields)
        values |= {source: (victim,) if several else victim, output: victim}
        with pytest.raises(OutputError, match="is an input"), guarded(tree.model_construct(**values)):
            pass
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("name", [name for name in trees() if len(outputs_of(name)) > 1])
def test_two_outputs_of_one_name_are_refused(name: str, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "one")
    first, second = outputs_of(name)[:2]
    values = dict.fromkeys(trees()[name].model_fields) | {first: tmp_path / "one", second: link}
    settings = trees()[name].model_construct(**values)
    with pytest.raises(OutputError, match="two outputs"), guarded(settings):
        pass


def test_text_that_names_a_file_is_an_input(tmp_path: Path) -> None:
    from seeddelta.settings.measuring import RunSettings

    adapter = tmp_path / "lora.gguf"
    adapter.write_bytes(b"lora")
    for text in (str(adapter), f"{adapter}:0.5"):
        settings = RunSettings(model=tmp_path / "m.gguf", prompt="a", runtime={"lora": (text,)}, metrics_json=adapter)
        assert adapter in paths_of(settings)[0]
        with pytest.raises(OutputError, match="is an input"), guarded(settings):
            pass


def test_files_of_groups_are_inputs(tmp_path: Path) -> None:
    from seeddelta.settings.measuring import RunSettings

    model, skip, metrics = tmp_path / "m.gguf", tmp_path / "skip.json", tmp_path / "metrics.json"
    for path in (model, skip):
        path.write_bytes(b"")
    settings = RunSettings(model=model, prompt="a", runtime={"kwta": {"file": skip}}, metrics_json=metrics)
    read, written = paths_of(settings)
    assert {model, skip} <= set(read)
    assert written == [metrics]
    with guarded(settings):
        pass


def run(*arguments: object) -> int:
    return program.main([str(argument) for argument in arguments])


SHORT = ("-c", "64", "--chunks", "2", "-q")


@pytest.mark.parametrize(
    "command",
    [
        "imatrix -m {m} -f {t} -o {m}",
        "imatrix -m {m} -f {t} -o {t}",
        "imatrix -m {m} -f {t} -o i --hessian {m}",
        "imatrix -m {m} -f {t} -o i --gradient {t}",
        "imatrix -m {m} -f {t} -o i --hessian i",
        "quantize {m} -o {t} -f {t} --bits 4",
        "quantize {m} -o o -f {t} --bits 4 --json={m}",
        "quantize {m} -o o -f {t} --bits 4 --json=o",
        "eval -m {m} -f {t} --no-speed --save-kl-base {m}",
        "eval -m {m} -f {t} --no-speed --save-kl-base {t}",
        "run -m {m} -p a -n 1 --json={m}",
    ],
)
def test_commands_leave_their_inputs_alone(
    command: str, tiny_dense: Path, tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    model, text = tmp_path / "m.gguf", tmp_path / "t.txt"
    model.write_bytes(tiny_dense.read_bytes())
    text.write_bytes(tiny_text.read_bytes())
    arguments = command.format(m=model, t=text).split()
    assert run(*arguments, *(SHORT if arguments[0] != "run" else ())) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "is an input" in error or "two outputs" in error
    assert model.read_bytes() == tiny_dense.read_bytes()
    assert text.read_bytes() == tiny_text.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "t.txt"]


def test_a_config_file_is_an_input(tiny_dense: Path, tmp_path: Path, capsys: Any) -> None:
    config = tmp_path / "build.yaml"
    config.write_text("bits: 4\n")
    assert run("build", "-i", tiny_dense, "-o", config, "--config", config, "-q") == 1
    assert "is an input" in capsys.readouterr().err
    assert config.read_text() == "bits: 4\n"


def test_functions_leave_their_inputs_alone(tiny_dense: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(tiny_dense.read_bytes())
    hard = tmp_path / "hard.gguf"
    os.link(model, hard)
    folder = tmp_path / "folder"
    folder.symlink_to(tmp_path)
    for victim in (model, hard, folder / "m.gguf"):
        with pytest.raises(OutputError, match="is an input"):
            seeddelta.build(seeddelta.Recipe(input=model, output=victim, bits=4), progress=False)
        with pytest.raises(OutputError, match="is an input"):
            seeddelta.quantize(model, victim, bits=4, ctx=64, chunks=2, progress=False)
        with pytest.raises(OutputError, match="is an input"):
            seeddelta.dequantize(model, victim, progress=False)
    report = seeddelta.Recipe(input=model, output=tmp_path / "o.gguf", report_json=model, bits=4)
    with pytest.raises(OutputError, match="is an input"):
        seeddelta.build(report, progress=False)
    assert model.read_bytes() == tiny_dense.read_bytes()


def test_all_parts_of_a_split_model_are_inputs(tiny_dense: Path, tmp_path: Path) -> None:
    whole = tmp_path / "w.gguf"
    recipe = seeddelta.Recipe(input=tiny_dense, output=whole, bits=4, split_max_size="40K")
    parts = sorted(map(Path, seeddelta.build(recipe, progress=False).files))
    assert len(parts) > 1
    before = parts[1].read_bytes()
    with pytest.raises(OutputError, match="is an input"):
        seeddelta.dequantize(parts[0], parts[1], progress=False)
    assert parts[1].read_bytes() == before


def test_a_folder_stands_for_its_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with reading([tmp_path]), pytest.raises(OutputError, match="is an input"):
        check_writable(tmp_path / "model.safetensors")
    check_writable(tmp_path / "model.safetensors")


def test_inputs_are_protected_in_every_thread(tmp_path: Path) -> None:
    victim, errors = tmp_path / "v", []
    victim.write_text("v")

    def write() -> None:
        try:
            with atomic_output(victim) as temporary:
                temporary.write_text("w")
        except OutputError as error:
            errors.append(error)

    with reading([victim]), reading([victim]):
        pass
    with reading([victim]):
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    assert len(errors) == 1
    assert victim.read_text() == "v"
    write()
    assert victim.read_text() == "w"


def test_devices_and_pipes_are_no_outputs(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    places = [pipe, Path("/dev/null")]
    if os.geteuid() == 0:
        null = tmp_path / "null"
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        places.append(null)
    for place in places:
        with pytest.raises(OutputError, match="no regular file"), atomic_output(place):
            pass
        assert not stat.S_ISREG(os.lstat(place).st_mode)


def test_links_stay_links(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link, target = tmp_path / "link", tmp_path / "disk" / "there"
    link.symlink_to(target)
    for text in ("first", "second"):
        with atomic_output(link) as temporary:
            temporary.write_text(text)
        assert link.is_symlink()
        assert target.read_text() == text
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == ["there"]


def test_links_in_a_circle_and_names_that_are_too_long(tmp_path: Path) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(OutputError, match="no regular file"):
        check_writable(circle)
    with pytest.raises(OutputError, match="longer than"):
        check_writable(tmp_path / ("x" * 250))
    check_outputs([tmp_path / ("x" * 200), None])
