"""Options of StatePack-KV on the command line."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import pytest

typer = pytest.importorskip("typer")

import click  # noqa: E402
from seeddelta.cli._state_pack import fields_of, state_pack  # noqa: E402
from seeddelta.cli.main import COMMANDS, make_app  # noqa: E402
from seeddelta.errors import ConfigError  # noqa: E402
from typer.testing import CliRunner  # noqa: E402


@pytest.mark.parametrize("command", ["run", "eval", "bench"])
def test_every_command_has_them(command: str) -> None:
    found = CliRunner().invoke(make_app({command: COMMANDS[command]}), [command, "--help"], env={"COLUMNS": "200"})
    assert found.exit_code == 0
    for flag in ("--state-pack", "--state-pack-eps", "--state-pack-popcnt", "--state-pack-budget"):
        assert flag in click.unstyle(found.output)


def test_fields() -> None:
    assert fields_of({"state_pack": None, "state_pack_eps": None}, "kv") is None
    assert fields_of({"state_pack": "none"}, "kv") is None
    options = {"state_pack": "ternary", "state_pack_eps": "0.7", "state_pack_popcnt": True, "state_pack_budget": 64.0}
    assert fields_of(options, "kv") == {"mode": "ternary", "eps": 0.7, "popcount": True, "budget": 64.0}


@pytest.mark.parametrize(
    ("options", "target", "message"),
    [
        ({"state_pack_budget": 0.1}, "kv", "--state-pack-budget needs --state-pack=exact, binary or ternary"),
        ({"state_pack": "binary", "state_pack_eps": "x"}, "kv", "--state-pack-eps=x is no number"),
        ({"state_pack": "odd"}, "kv", "mode 'odd'"),
        ({"state_pack": "binary", "state_pack_budget": -1.0}, "kv", "budget -1.0 is out of range"),
        ({"state_pack_budget": 0.1}, "mlp", "needs --state-pack-target=kv"),
    ],
)
def test_contradictions(options: dict[str, Any], target: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fields_of(options, target)


_Text: Any = Optional[str]  # noqa: UP045


def test_other_options_of_the_same_name() -> None:
    """A command that has --state-pack for something else keeps it unless the target is kv."""
    calls: list[tuple[Any, Any]] = []

    def inner(
        state_pack: Annotated[_Text, typer.Option("--state-pack")] = None,
        state_pack_target: Annotated[_Text, typer.Option("--state-pack-target")] = None,
        state_pack_kv: Any = None,
    ) -> None:
        calls.append((state_pack, state_pack_kv))

    app = typer.Typer()
    app.command()(state_pack(inner))
    runner = CliRunner()
    assert runner.invoke(app, ["--state-pack", "ternary"]).exit_code == 0
    assert runner.invoke(app, ["--state-pack", "binary", "--state-pack-target", "kv"]).exit_code == 0
    assert calls == [("ternary", None), (None, {"mode": "binary"})]
