"""Option values that are wrong: one line that says so, for every option of every command, and never a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from command_process import Commands
from seeddelta.cli import main as program
from seeddelta.settings import Setting, settings_of

WRONG = ("nonsense", "-1", "1e999", "nan", "", "[", "99999999999999999999", "\U0001f4a5", "a=b", "0x10", "1,2,,x", "/")
PART = 25  # of the values of a command
TREES = {name: tree for name in program.COMMANDS if (tree := program.settings_tree(name)) is not None}


def options_of(command: str) -> Iterator[Setting]:
    for setting in settings_of(TREES[command]):
        if setting.names and setting.kind is not bool and not setting.flag.argument:
            yield setting


def required(command: str, but: Setting) -> list[str]:
    found: list[str] = []
    for setting in settings_of(TREES[command]):
        if setting.field.is_required() and len(setting.path) == 1 and setting.path != but.path:
            found += [*(() if setting.flag.argument else setting.names[:1]), "some-file"]
    return found


@pytest.mark.parametrize("command", TREES)
def test_wrong_values_are_one_line(command: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    import importlib

    module = importlib.import_module(program.COMMANDS[command])
    monkeypatch.setattr(module.command, "run", lambda settings: None)
    monkeypatch.setattr("seeddelta.cli._command.guarded", lambda *_: nullcontext())
    app = program.make_app({command: program.COMMANDS[command]})
    cases = [(setting, value) for setting in options_of(command) for value in WRONG]
    for setting, value in cases[:: max(1, len(cases) // PART)]:
        arguments = [command, f"{setting.names[0]}={value}", *required(command, setting)]
        code = program.run_guarded(lambda a=arguments: app(args=a, obj=a))
        said = capsys.readouterr().err
        assert "Traceback" not in said, arguments
        assert "unexpected" not in said, (arguments, said)
        assert code in (0, 1), (arguments, said)
        assert said.count("\n") == code, (arguments, said)


# Values that pass the checks of a single option: what they do to a real model.
REAL = [
    "run -m {m} -p hi -n 999999999999",
    "run -m {m} -p hi -n 2 -c 99999999999",
    "run -m {m} -p hi -n 2 -s 99999999999999",
    "run -m {m} -p hi -n 2 -s -5",
    "run -m {m} -p hi -n 2 --temp 1e30",
    "run -m {m} -p hi -n 2 --top-k 99999999999",
    "run -m {m} -p hi -n 2 --repeat-penalty 1e-30 --temp 1",
    "run -m {m} -p hi -n 2 --json-schema {t}",
    "run -m {m} -p hi -n 2 --lora {t}",
    "run -m {m} -p hi -n 2 --columns f16 --kwta-k 1e-9",
    "run -m {m} -p hi -n 2 --kwta-file {t}",
    "run -m {t} -p hi",
    "run -m / -p hi",
    "run -m {m} -f /",
    "run -m {m} -f {m}",
    "quantize {m} -o {o} --bits 4 -f {m} -c 64 --chunks 2",
    "quantize {m} -o {o} --bits 4 -f / -c 64",
    "quantize {m} -o {o} --bits 4 -f {t} -c 1 --chunks 2",
    "quantize {m} -o {o} --bits 4 -f {t} -c 999999999",
    "quantize {m} -o {o} --bits 4 -f {t} -c 64 --chunks 99999999",
    "quantize {m} -o {o} --size 1 -f {t} -c 64 --chunks 2",
    "quantize {m} -o {o} --bpw 0.001 -f {t} -c 64 --chunks 2",
    "quantize {m} -o {o} --bits 4 --ram 1 -f {t} -c 64 --chunks 2",
    "quantize {m} -o {o} --bits 4 --layers 7-9 -f {t} -c 64 --chunks 2",
    "quantize {m} -o {o} --bits 4 --layers 9-7 -f {t} -c 64 --chunks 2",
    "quantize {m} -o {o} --bits 4 --targets nothing -f {t} -c 64 --chunks 2",
    "quantize {m} -o {o} --bits 4 --tensor-type (=4 -f {t} -c 64 --chunks 2",
    "quantize {m} -o {o} --bits 4 --executor dask://127.0.0.1:1 -f {t} -c 64 --chunks 2",
    "quantize {m} -o {o} --bits 4 --set gradient={t} -f {t} -c 64 --chunks 2",
    "quantize {m} -o {o} --bits 4 --converter {t} -f {t} -c 64 --chunks 2",
    "quantize /tmp -o {o} --bits 4",
    "quantize hf:// -o {o} --bits 4",
    "build -i {m} -o {o} --bits 4 --hessian {t}",
    "build -i {m} -o {o} --bits 4 --imatrix {m}",
    "build -i {m} -o {o} --bits 4 --split-max-size 1",
    "build -i {m} -o {o} --bits 4 --seed 99999999999999999999999",
    "build -i {m} -o {o} --bits 4 --seed-search 5",
    "build -i {m} -o {o} --bits 4 --rotation-block 1048576",
    "build -i {m} -o {o} --base-kind prng_block --scheme coo --K 99999999",
    "build -i {m} -o {o} --config {t}",
    "build -i {m} -o {o} --config {m}",
    "eval -m {m} -f {t} -c 2 --no-speed",
    "eval -m {m} -f {t} -c 9999999999 --no-speed",
    "eval -m {m} --kl-base {t} --no-speed",
    "eval -m {m} -f {t} -c 64 --chunks -3 --no-speed",
    "eval -m {m} -f {t} -c 64 --chunks 2 --resume {t} --no-speed",
    "bench -m {m} -p 99999999999 -n 0",
    "bench -m {m} -p 0 -n 0 -r 1",
    "bench -m {m} -t 1,2,3,9999 -p 4 -n 1 -r 1",
    "sparsify {m} -f {t} -o {o} -c 64 --keep 7",
    "sparsify {m} -f {t} -o {o} -c 1",
    "report --from {t} -o {o}",
    "report -m {m} --quants Q9_Z -o {o}",
    "inspect {t}",
    "verify {m}",
    "dequantize {m} -o {o} --type q7",
    "card {t}",
    "serve -m {t} --port 0",
    "serve -m {m} --host 256.256.256.256 --port 0",
    "chat -m {t}",
]


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with Commands("from seeddelta.convert import executors; executors._CONNECT_SECONDS = 1") as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("line", REAL)
def test_wrong_values_with_a_real_model(
    line: str, commands: Commands, tiny_dense: Path, tiny_text: Path, tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp")
    arguments = line.format(m=tiny_dense, t=tiny_text, o=tmp_path / "o").split()
    code, said = commands.run(arguments, tmp_path)
    assert code in (0, 1), said
    assert "Traceback" not in said, said
    assert "unexpected error" not in said, said
    if code == 1:
        assert sum(line.startswith("seeddelta: error: ") for line in said.splitlines()) == 1, said
