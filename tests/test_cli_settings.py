"""Every flag of every command arrives in the one setting that it is for, through the program's own parser."""

from __future__ import annotations

import importlib
import json
import re
import typing
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import pytest
from seeddelta.cli._command import environment_of
from seeddelta.cli.main import COMMANDS, main, make_app, run_guarded
from seeddelta.kinds import BASE_OF, RESIDUAL_OF
from seeddelta.processors import processors
from seeddelta.settings import Setting, Settings, settings_of
from seeddelta.settings.yaml import load_yaml

MODULES = {name: importlib.import_module(path) for name, path in COMMANDS.items()}
TREES: dict[str, type[Settings]] = {
    name: module.command.tree for name, module in MODULES.items() if hasattr(module.command, "tree")
}
VISIBLE = 25
# what a setting needs beside it, so that the settings fit together
BESIDE: dict[str, list[str]] = {
    "runtime.gap": ["--seeddelta-fallback", __file__],
    "runtime.dense": ["--seeddelta-fallback", __file__],
    "runtime.proc_sparse": ["--seeddelta-fallback", __file__],
    "runtime.kwta.select": ["--kwta-file", "skip.yaml"],
    "runtime.state_pack_mlp.aggressive": ["--state-pack-mlp", "ternary", "--columns", "f16"],
    "base_scale": ["--base-kind", "prng_block"],
    "seed_per": ["--base-kind", "prng_block", "--seed-search", "2"],
    "block": ["--base-kind", "prng_block"],
    **{
        f"proc_{name}": ["--proc-sparse", "--targets", "all"]
        for name in ("target", "fanout", "block", "base_scale", "watermark", "shed_eps", "head")
    },
    "runtime.state_pack_mlp.mode": ["--state-pack-mlp-eps", "0.5"],
}
BESIDE |= {f"report {name}": ["-m", "model.gguf"] for name in ("saved", "text", "quants")}
BESIDE["report gap"] = ["-m", "model.gguf", "--seeddelta-fallback", __file__]
# one of several settings, without which a command has nothing to do
COMMANDS_NEED = {"report": ["--from", "eval.json"]}
# a text and what it means, where the type does not say it
TEXTS: dict[str, tuple[str, Any]] = {
    "runtime.fallback": (__file__, Path(__file__)),
    "input": ("in.gguf", Path("in.gguf")),
    "preset": ("prng-coo", "prng-coo"),
    "layers": ("0-1", "0-1"),
    "targets": ("ffn", ("ffn",)),
    "tensor_type": ("attn_v=5", ("attn_v=5",)),
    "column_tensor": ("attn", ("attn",)),
    "bits": ("2.5", 2.5),
    "rotation_block": ("32", 32),
    "K": ("16", 16),
    "scheme": ("codebook", "codebook_resid"),
    "executor": ("processes:2", "processes:2"),
}
# commands with the settings of a build, and what else they are given: a preset other than that of a build hides rates
BUILDS: dict[str, list[str]] = {"build": [], "quantize": ["--bits", "4"]}
# settings of a build that change with another one
ALSO: dict[str, set[str]] = {
    "preset": {"base_kind", "scheme", "K", "vals", "targets"},
    "base_kind": {"targets"},
    "layers": {"targets"},
    "proc_sparse": {"targets"},
    "statecells": {"base_kind", "scheme", "K", "targets"},
}


def flags() -> Iterator[Any]:
    """Each flag of each setting once; what further commands make of the same setting is slow."""
    seen = set()
    for command, tree in TREES.items():
        for setting in settings_of(tree):
            place = ("",) if setting.flag.argument else ()
            for flag in (*place, *setting.names, *setting.flag.old):
                own = (setting.path, flag, str(setting.kind), repr(setting.field.default), command in BUILDS)
                marks = [pytest.mark.slow] if own in seen else []
                yield pytest.param(command, setting, flag, id=f"{command} {flag or setting.name}", marks=marks)
                seen.add(own)


def example(setting: Setting) -> tuple[str, Any]:
    """A text for the flag that is not the default, and the value that it means."""
    kind, default = setting.kind, setting.field.default
    if setting.name in TEXTS and (typing.get_origin(kind) is tuple) == isinstance(TEXTS[setting.name][1], tuple):
        return TEXTS[setting.name]
    if setting.field.examples:
        text = str(setting.field.examples[0])
        return text, (text,) if typing.get_origin(kind) is tuple else text
    if setting.group is not None:
        return "on", setting.group()
    if typing.get_origin(kind) is Literal:
        choice = next(one for one in reversed(typing.get_args(kind)) if one != default)
        return str(choice), choice
    if kind in (int, float):
        return number(kind, setting)
    if kind is Path:
        name = "some/file.json" if setting.flag.fits else "some/file"
        return name, Path(name)
    if typing.get_origin(kind) is tuple:
        of = typing.get_args(kind)[0]
        inner = getattr(of, "__origin__", of)
        return ("3", (3,)) if inner is int else ("one", (inner("one"),))
    assert kind is str, f"{setting.name}: give an example in its Field"
    return "some text", "some text"


def number(kind: type, setting: Setting) -> tuple[str, Any]:
    """One inside the range of the setting."""
    rules = setting.field.metadata
    low = max([getattr(rule, "ge", None) or getattr(rule, "gt", None) or 0 for rule in rules], default=0)
    high = min([v for r in rules for v in (getattr(r, "le", None), getattr(r, "lt", None)) if v], default=1e9)
    candidates = (low + 3, low + 2) if kind is int else (low + 0.375, low + 0.25)
    value = next(one for one in candidates if one != setting.field.default and one <= high)
    return str(value), value


def required(command: str, but: Setting) -> list[str]:
    """Arguments that the command cannot do without."""
    found: list[str] = []
    for setting in settings_of(TREES[command]):
        if setting.field.is_required() and len(setting.path) == 1 and setting.path != but.path:
            found += [*(() if setting.flag.argument else setting.names[:1]), example(setting)[0]]
    return found


def handed(command: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The settings that the command gets for these arguments."""
    got: list[Any] = []
    monkeypatch.setattr(MODULES[command].command, "run", got.append)
    monkeypatch.setattr("seeddelta.cli._command.guarded", lambda *_: nullcontext())  # the paths are of no files
    app = make_app({command: COMMANDS[command]})
    assert run_guarded(lambda: app(args=[command, *arguments])) == 0
    return got[0]


def at(settings: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        settings = getattr(settings, part)
    return settings


def differences(one: Any, other: Any, path: tuple[str, ...] = ()) -> set[str]:
    """Names of the settings in which two trees differ; a group that only one has is one of them."""
    found: set[str] = set()
    for name in type(one).model_fields:
        a, b = getattr(one, name), getattr(other, name)
        if isinstance(a, Settings) and isinstance(b, Settings):
            found |= differences(a, b, (*path, name))
        elif a != b:
            found.add(".".join((*path, name)))
    return found


@pytest.mark.parametrize(("command", "setting", "flag"), list(flags()))
def test_it_arrives(command: str, setting: Setting, flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = setting.path[0] == "runtime" or command in BUILDS
    needs = COMMANDS_NEED.get(command, [])
    beside = BESIDE.get(setting.name, []) if own else BESIDE.get(f"{command} {setting.name}", needs)
    other_rate = command == "quantize" and setting.name in ("preset", "target_bpw", "size")
    arguments = [*([] if other_rate else BUILDS.get(command, [])), *beside, *required(command, setting)]
    if setting.kind is bool:
        wanted = not setting.field.default
        given = [flag if wanted else f"--no-{flag.removeprefix('--')}"]
    else:
        text, wanted = example(setting)
        given = [flag, text] if flag else [text]
    # what follows the program of exec is its own
    found = handed(command, [*given, *arguments] if command == "exec" else [*arguments, *given], monkeypatch)
    assert at(found, setting.path) == wanted
    assert type(at(found, setting.path)) is type(wanted) or isinstance(wanted, (Path, bool))
    if not setting.field.is_required():
        without = handed(command, arguments, monkeypatch)
        group = ".".join(setting.optional) if at(without, setting.optional or ()) is None else ""
        wanted_changes = {group or setting.name} | (ALSO.get(setting.name, set()) if command in BUILDS else set())
        if other_rate:
            wanted_changes |= {"target_bpw"}  # of the preset that it has without
        assert differences(without, found) == wanted_changes  # and nowhere else


@pytest.mark.parametrize("command", TREES)
def test_few_are_shown_and_all_are_told(command: str, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert 1 <= sum(line.startswith("  -") for line in shown.splitlines()) <= VISIBLE
    assert main([command, "--help-all"]) == 0
    everything = capsys.readouterr().out
    for setting in settings_of(TREES[command]):
        names = [setting.name] if setting.group is None else []
        assert all(name in everything for name in (*names, *setting.names))


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_a_screen(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main([*command.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 100
    assert not re.search(r"<(str|bool|int|float|list|path)|\bPath\b", "\n".join(lines))  # names of Python's types


@pytest.mark.parametrize("command", ["", "run", "quantize", "exec"])
def test_nothing_given_is_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 2
    shown = capsys.readouterr().out
    assert main([*command.split(), "--help"]) == 0
    assert shown == capsys.readouterr().out


JSON_COMMANDS = [name for name, tree in TREES.items() if "--json" in [n for s in settings_of(tree) for n in s.names]]


@pytest.mark.parametrize("command", JSON_COMMANDS)
def test_json_goes_to_stdout_or_to_a_file(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = TREES[command]
    setting = next(one for one in settings_of(tree) if "--json" in one.names)
    arguments = [*COMMANDS_NEED.get(command, []), *required(command, setting)]
    for given, to in (
        (["--json", *arguments], "-"), ([*arguments, "--json"], "-"), (["--json", "a.json", *arguments], "a.json"),
        (["--json=any", *arguments], "any"), (arguments, None),
    ):  # fmt: skip
        assert at(handed(command, given, monkeypatch), setting.path) == (None if to is None else Path(to))


@pytest.mark.parametrize("command", [name for name, tree in TREES.items() if "threads" in tree.model_fields])
def test_no_threads_are_all_cores(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = next(one for one in settings_of(TREES[command]) if one.name == "threads")
    arguments = [*COMMANDS_NEED.get(command, []), *required(command, setting)]
    found = handed(command, [*arguments, "--threads", "0"], monkeypatch).threads
    assert found == 0 or found == (processors(),)


@pytest.mark.parametrize(
    "written",
    [
        ["a.gguf", "b.gguf", "--reps", "2"], ["-m", "a.gguf", "-m", "b.gguf", "--reps", "2"],
        ["--reps", "2", "--model=a.gguf", "b.gguf"], ["a.gguf", "--reps", "2", "--model", "b.gguf"],
    ],
)  # fmt: skip
def test_models_by_place_and_by_flag_are_the_same(written: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = handed("bench", written, monkeypatch)
    assert (found.model, found.reps) == ((Path("a.gguf"), Path("b.gguf")), 2)
    assert handed("run", ["-m", "-odd.gguf", "-p", "x"], monkeypatch).model == Path("-odd.gguf")


RUN = ["-m", "model.gguf", "-p", "text"]


@pytest.mark.parametrize(
    ("spelled", "means"),
    [
        (["--kwta=on", "--kwta-k=0.4", "--kwta-temp=0.5", "--kwta-duty=2", "--kwta-target=mlp"],
         {"kwta": {"k": 0.4, "temperature": 0.5, "duty": 2, "target": "mlp"}}),
        (["--kwta", "--kwta-k-abs=128"], {"kwta": {"k_abs": 128}}),
        (["--kwta"], {"kwta": {}}),
        (["--kwta=off", "--event-driven=off", "--state-pack=none"], {}),
        (["--event-driven=on", "--event-budget-ms=4", "--event-quorum=0.6", "--event-topk=0.4",
          "--event-delta-theta=0.01", "--event-gap-tol=0.03", "--event-target=both"],
         {"event": {"budget_ms": 4, "quorum": 0.6, "topk": 0.4, "delta_theta": 0.01, "gap_tol": 0.03,
                    "target": "both"}}),
        (["--state-pack=ternary", "--state-pack-eps=2e-4", "--state-pack-popcnt"],
         {"state_pack_mlp": {"mode": "ternary", "eps": 2e-4}}),
        (["--state-pack", "binary", "--no-state-pack-popcnt", "--state-pack-target", "attn"],
         {"state_pack_mlp": {"popcnt": False, "target": "attn"}}),
        (["--state-pack=binary", "--state-pack-target=kv", "--state-pack-eps=1", "--state-pack-popcnt"],
         {"state_pack_kv": {"mode": "binary", "eps": 1, "popcount": True}}),
        (["--state-pack", "exact", "--state-pack-kv-budget", "64"], {"state_pack_kv": {"mode": "exact", "budget": 64}}),
        (["--seeddelta", "--statecells", "--proc-sparse=on"], {"statecells": True}),
        (["--set", "event.delta_theta=0.3", "--set", "kwta.k={ffn_down: 0.5}"],
         {"event": {"delta_theta": 0.3}, "kwta": {"k": {"ffn_down": 0.5}}}),
    ],
)  # fmt: skip
def test_spellings_of_the_seeds(spelled: list[str], means: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = handed("run", [*RUN, *spelled], monkeypatch).runtime
    assert found == type(found)(**means)


def test_features_that_compose_can_be_on_together(monkeypatch: pytest.MonkeyPatch) -> None:
    three = handed("run", [*RUN, "--columns", "f16", "--kwta", "--state-pack-mlp=ternary", "--state-pack-kv=binary"],
                   monkeypatch).runtime  # fmt: skip
    assert all((three.kwta, three.state_pack_mlp, three.state_pack_kv))
    assert three.event is None
    three = handed(
        "run", [*RUN, "--columns", "f16", "--kwta", "--event-driven", "--state-pack-kv"], monkeypatch
    ).runtime
    assert all((three.kwta, three.event, three.state_pack_kv))


def test_a_file_the_environment_and_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("n_predict: 7\nkwta: {k: 0.5, duty: 3}\nstate_pack_kv.budget: 0.125\ntop_k: 3\n")
    monkeypatch.setenv("SEEDDELTA_KWTA_K", "0.25")
    found = handed("run", [*RUN, "--config", str(config), "--top-k", "9"], monkeypatch)
    assert (found.n_predict, found.top_k, found.runtime.state_pack_kv.budget) == (7, 9, 0.125)
    assert (found.runtime.kwta.k, found.runtime.kwta.duty) == (0.25, 3)
    found = handed("run", [*RUN, "--config", str(config), "--kwta-k", "0.75", "--set", "kwta.duty=1"], monkeypatch)
    assert (found.runtime.kwta.k, found.runtime.kwta.duty) == (0.75, 1)


RUNTIME = [s for s in settings_of(TREES["run"]) if s.names and s.path[0] == "runtime"]


@pytest.mark.parametrize("setting", [pytest.param(s, id=environment_of(s)) for s in RUNTIME])
def test_cli_env(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """`CLI/env`: what a flag sets at run time its variable SEEDDELTA_… does, too."""
    text, wanted = ("off", False) if setting.field.default is True else ("on", True)
    if setting.kind is not bool:
        text, wanted = example(setting)
    monkeypatch.setenv(environment_of(setting), text)
    assert at(handed("run", [*RUN, *BESIDE.get(setting.name, [])], monkeypatch), setting.path) == wanted


def test_every_run_time_flag_has_its_own_variable() -> None:
    names = [environment_of(s) for s in RUNTIME]
    assert len(set(names)) == len(names)
    assert {"SEEDDELTA_KWTA", "SEEDDELTA_FALLBACK", "SEEDDELTA_GAP"} < set(names)


@pytest.mark.parametrize(("arguments", "message"), [
    ([*RUN, "--kwta", "maybe"], "unexpected extra argument"), ([*RUN, "--kwta=off", "--kwta-k=0.5"], "contradicts"),
    ([*RUN, "--state-pack-mlp=none", "--state-pack-mlp-eps=0.5"], "contradicts"), ([*RUN, "--kwta=x"], "on or off"),
    ([*RUN, "--kwta-k", "half"], "k: 'half' is no number"), ([*RUN, "--kwta-k", "2"], "must be at most 1"),
    ([*RUN, "--set", "gap_every=3"], "event.gap_every, runtime.state_pack_kv.gap_every"),
    ([*RUN, "--set", "kwtak=3"], "'kwtak' is not known; did you mean kwta.k?"),
    ([*RUN, "--set", "xyzzy=3"], "'xyzzy' is not known; `seeddelta schema COMMAND` lists"),
    ([*RUN, "--set", "kwta.k"], "NAME=VALUE"),
    ([*RUN, "--config", "none.yaml"], "none.yaml: cannot be read"),
    (["-p", "x"], "MODEL must be given, for example: seeddelta run model.seeddelta.gguf -p"),
    ([*RUN, "-t", "two"], "threads"), ([*RUN, "--state-pack-kv=odd"], "--state-pack-kv 'odd'"),
])  # fmt: skip
def test_what_is_wrong_is_said_in_a_line(arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    code = main(["run", *arguments])
    error = capfd.readouterr().err
    if code == 2:  # usage, drawn in a box
        assert message in " ".join(error.split())
        return
    assert code == 1
    assert message in error
    assert error.count("\n") == 1
    assert error.startswith("seeddelta: error: ")


def test_the_first_of_several_models_is_the_reference(smollm2_quantized: Path) -> None:
    from seeddelta.cli._options import model_options
    from seeddelta.settings import RuntimeConfig

    config = {"columns": "f16", "kwta": {"k": 0.5}, "state_pack_kv": {"mode": "exact"}}
    assert model_options([smollm2_quantized], RuntimeConfig(**config)) == [{"config": config}]
    both = model_options([smollm2_quantized] * 2, RuntimeConfig(**config, fallback="x"))
    assert both == [{}, {"config": config}]
    assert model_options([smollm2_quantized] * 2, RuntimeConfig()) == [{}, {}]


BUILD = ["-i", "in.gguf", "-o", "out.gguf"]


@pytest.mark.parametrize(("arguments", "message"), [
    (["--set", "base_kind=odd"], "odd"), (["--set", "base.kind=lanes"], "did you mean base_kind?"),
    (["--size", "1M", "--bpw", "4"], "contradict each other"), (["--size", "1MiB"], "no size"),
])  # fmt: skip
def test_what_is_wrong_with_a_build(arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["build", *BUILD, *arguments]) == 1
    assert message in capfd.readouterr().err


def test_a_size_is_in_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = handed("build", [*BUILD, "--size", "90M"], monkeypatch).recipe()
    assert recipe.size == "90M"
    recipe.to_yaml(tmp_path / "recipe.yaml")
    assert type(recipe).from_yaml(tmp_path / "recipe.yaml") == recipe


def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "build"]) == 0
    found = json.loads(capsys.readouterr().out)
    properties = found["properties"]
    assert set(properties["base_kind"]["enum"]) == {"lanes", "none", *BASE_OF}
    assert set(properties["scheme"]["anyOf"][0]["enum"]) == {"none", *RESIDUAL_OF}
    assert properties["effort"]["enum"] == ["fast", "normal", "high"]
    assert main(["schema"]) == 0
    every = json.loads(capsys.readouterr().out)
    assert set(every) == set(TREES)
    kwta = every["run"]["$defs"]["Kwta"]["properties"]["duty"]
    assert (kwta["default"], kwta["minimum"]) == (1, 1)
    assert main(["schema", "nothing"]) == 1


def test_yaml_may_be_long_but_not_deep() -> None:
    assert load_yaml("[" * 32 + "]" * 32)
    with pytest.raises(ValueError, match="more than 32 deep"):
        load_yaml("[" * 33 + "]" * 33)
    text = "\n".join(f"- {{a: [{number}], b: {{}}}}" for number in range(40))
    assert load_yaml(text) == [{"a": [number], "b": {}} for number in range(40)]
