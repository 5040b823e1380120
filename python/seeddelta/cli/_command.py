"""Commands from settings: every setting of a tree is a flag, and the command gets one checked object.

@from_settings(RunSettings)
def command(settings: RunSettings) -> None: ...
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
import shlex
import shutil
import sys
import tempfile
import textwrap
import threading
import typing
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from tqdm import tqdm

from ..errors import SeedDeltaError
from ..settings import Setting, Settings, settings_of
from ..settings.assign import Assignment
from ..settings.tree import COMMON, guarded, paths_of
from ._help import Command, names_of
from ._interrupt import interrupts
from ._spelling import Spelling

S = TypeVar("S", bound=Settings)
_SHORT = 90  # characters: a longer help is cut to its first sentence, but for --help-all
_NO_DEFAULT = (None, False, (), "")
_EVERYWHERE = ("set_values", "config_file", "verbose", "help_all", "help")  # the options of every command
ENVIRONMENT = "SEEDDELTA_"  # before the name of a run-time flag: SEEDDELTA_KWTA_K


_arguments: ContextVar[list[str]] = ContextVar("arguments")  # as the program got them
_outputs: ContextVar[bool] = ContextVar("outputs", default=False)  # the command has files to write


def wrote_files() -> bool:
    """True when the command that ran had files to write."""
    return _outputs.get()


def command_line() -> str:
    """The command that runs, as it was written."""
    return shlex.join(["seeddelta", *_arguments.get()])


def from_settings(tree: type[S]) -> Callable[[Callable[[S], None]], Callable[..., None]]:
    """Make a typer command of a function of one Settings object; its docstring is the help."""
    given_here = [one for one in settings_of(tree) if one.names or one.flag.argument]
    flags = sorted(given_here, key=lambda one: not one.field.is_required())

    def decorate(command: Callable[[S], None]) -> Callable[..., None]:
        example = first_example(command)

        @functools.wraps(command)
        def wrapper(**given: Any) -> None:
            config, assignments = given.pop("config_file"), given.pop("set_values")
            set_up_logging(given.pop("verbose"))
            given.pop("help_all"), given.pop("seeddelta_format")
            with ExitStack() as stack:
                run(collect(tree, flags, _spooled(flags, given, stack), config, assignments, example=example), config)

        def run(settings: S, config: Path | None) -> None:
            # tqdm's own lock is one of processes, for which Python starts an interpreter in the working folder
            tqdm.set_lock(threading.RLock())
            _outputs.set(bool(paths_of(settings)[1]))
            try:
                with interrupts(), guarded(settings, () if config is None else [config]):
                    wrapper.run(settings)  # type: ignore[attr-defined]
            except KeyboardInterrupt:  # typer would end without a word
                resumes = getattr(settings, "resume", None) is True
                print("seeddelta: interrupted" + "; the same command continues" * resumes, file=sys.stderr)
                raise SystemExit(130) from None

        parameters = [_parameter(setting) for setting in flags] + _common(flags)
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del wrapper.__wrapped__  # typer would read its annotations
        wrapper.run, wrapper.tree = command, tree  # type: ignore[attr-defined]
        wrapper.options = {  # type: ignore[attr-defined]
            "cls": _command_class(flags, _without_flags(tree)),
            "no_args_is_help": any(setting.field.is_required() for setting in flags),
        }
        return wrapper

    return decorate


def _without_flags(tree: type[Settings]) -> list[Setting]:
    return [one for one in settings_of(tree) if one.group is None and not one.names and not one.flag.argument]


def first_example(command: Callable[..., Any]) -> str:
    """The first example in the docstring of a command."""
    found = re.search(r"Example: (.+?)(?:\n\n|\n? *$)", inspect.getdoc(command) or "", re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def collect(
    tree: type[S],
    flags: list[Setting],
    given: dict[str, Any],
    config: Path | None = None,
    assignments: Any = (),
    example: str = "",
) -> S:
    """The settings object from what was given: a file, then flags (and the environment), then --set."""
    values = Assignment(tree)
    if config is not None:
        values.file(config)
    chosen = {setting.path: given[_name(setting)] for setting in flags if given[_name(setting)] not in (None, [], ())}
    for setting in flags:
        if setting.path in chosen:
            _put(values, setting, chosen)
    for text in assignments or ():
        values.text(text)
    missing = [usage_of(setting) if setting.flag.argument else setting.names[-1] for setting in values.missing()]
    if missing:
        how = f", for example: {example}" if example else "; see --help"
        raise tree.error(f"{' and '.join(missing)} must be given{how}")
    try:
        return typing.cast(S, values.make())
    except SeedDeltaError as error:  # says the name of a setting, which is a flag here
        found = re.match(r"((?:\w+: )*)(\w+)(?=:| ['\d\[{-])", str(error))
        name = "" if found is None else ".".join([*found[1].replace(":", "").split(), found[2]])
        flag = next((one.names[0] for one in flags if one.names and one.name == name), None)
        if found is None or flag is None:
            raise
        raise type(error)(flag + str(error)[found.end() :]) from error


def _spooled(flags: list[Setting], given: dict[str, Any], stack: ExitStack) -> dict[str, Any]:
    """What was given, with files in place of pipes to read from (`<(command)`): most are read more than once."""
    found = dict(given)
    for setting in flags:
        value = given[_name(setting)]
        kind = setting.kind
        if setting.flag.output is None and Path in (kind, *typing.get_args(kind)) and value:
            several = [_spool(one, stack) for one in (value if isinstance(value, list) else [value])]
            found[_name(setting)] = several if isinstance(value, list) else several[0]
    return found


def _spool(value: Any, stack: ExitStack) -> Any:
    path = Path(value)
    if not path.is_fifo():
        return value
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="seeddelta-pipe-"))
    copy = Path(folder) / path.name
    with path.open("rb") as pipe, copy.open("wb") as file:
        shutil.copyfileobj(pipe, file)
    return str(copy)


def _put(values: Assignment, setting: Setting, chosen: dict[tuple[str, ...], Any]) -> None:
    value = chosen[setting.path]
    group = setting.path if setting.group is not None else setting.path[:-1]
    off = setting.flag.off or ("off" if setting.group is not None else None)
    if off is None:
        values.put(setting.path, value)
        return
    if setting.group is not None and value not in ("on", "off"):
        raise type_of_error(setting)(f"{setting.names[0]}={value}: write on or off")
    others = [path for path in chosen if path[: len(group)] == group and path != setting.path]
    if value == off:
        if others:
            raise type_of_error(setting)(f"{setting.names[0]}={off} contradicts an option that it would turn on")
        values.put(group, None)
    elif setting.group is not None:
        values.put(group, {})
    else:
        values.put(setting.path, value)


def type_of_error(setting: Setting) -> Any:
    """The exception class of the setting's group, or ConfigError."""
    return (setting.group or Settings).error


def _name(setting: Setting) -> str:
    return "__".join(setting.path)


def help_of(setting: Setting, *, short: bool = False) -> str:
    """The description, or the first sentence of a long one, and the default where it says something."""
    text, default = setting.field.description or "", setting.field.default
    sentences = re.split(r"(?<=\.) (?=[A-Z])", text)
    if short and len(text) > _SHORT:
        text = " ".join([sentences[0], *(one for one in sentences[1:] if one.startswith("Default:"))])
    if "Default:" in text or setting.field.is_required() or default in _NO_DEFAULT:
        return text
    if default is True:
        return f"{text} Default: on."
    if setting.group is not None or setting.flag.off is not None:
        return text
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    return f"{text} Default: {shown:g}." if isinstance(shown, float) else f"{text} Default: {shown}."


def environment_of(setting: Setting) -> str:
    """The environment variable of a run-time setting."""
    return ENVIRONMENT + setting.names[0].removeprefix("--").removeprefix("seeddelta-").replace("-", "_").upper()


def _parameter(setting: Setting) -> inspect.Parameter:
    kind: Any = str | None
    names, metavar = setting.names, setting.metavar
    if setting.kind is bool:
        kind, metavar = bool | None, ""
        if setting.field.default:  # a switch that is off is switched on, no more; --no-… is for --set and files
            names = (f"{names[0]}/--no-{names[0].removeprefix('--')}", *names[1:])
    elif setting.flag.repeat:
        kind = list[str] | None
    more: dict[str, Any] = {"help": help_of(setting, short=True), "metavar": metavar, "show_default": False}
    if setting.flag.argument:
        same = f" Or: {names[-1]}." if names else ""
        option: Any = typer.Argument(**more | {"metavar": usage_of(setting), "help": more["help"] + same})
    else:
        environment = None
        if setting.path[0] == "runtime":
            environment = environment_of(setting)
        hidden = not (setting.flag.shown or setting.field.is_required())
        option = typer.Option(
            *names, hidden=hidden, rich_help_panel=setting.panel, envvar=environment, show_envvar=False, **more
        )
    return _keyword(_name(setting), Annotated[kind, option], None)


def _common(flags: list[Setting]) -> list[inspect.Parameter]:
    numbers = (one for one in flags if len(one.path) == 1 and type(one.field.default) in (int, float))
    such = next((f", such as {one.name}={one.field.default}" for one in numbers if one.field.default), "")
    return [
        _keyword("set_values", Annotated[list[str] | None, typer.Option(
            "--set", metavar="NAME=VALUE", rich_help_panel=COMMON,
            help=f"Any setting by its name{such}; repeat it for several.",
        )], None),
        _keyword("config_file", Annotated[Path | None, typer.Option(
            "--config", metavar="FILE", rich_help_panel=COMMON, help="YAML file of settings; flags win over it.",
        )], None),
        _keyword("verbose", Annotated[int, typer.Option(
            "--verbose", "-v", count=True, rich_help_panel=COMMON, show_default=False, metavar="",
            help="Say on stderr what is done.",
        )], 0),
        _keyword("seeddelta_format", Annotated[bool, typer.Option(
            "--seeddelta", hidden=True, help="Taken for granted: SeedΔ files are recognized."
        )], False),
        _keyword("help_all", Annotated[bool, typer.Option(
            "--help-all", is_eager=True, callback=_help_all, rich_help_panel=COMMON, show_default=False, metavar="",
            help="Show all options, also the rare ones.",
        )], False),
    ]  # fmt: skip


def _help_all(call: typer.Context, value: bool) -> None:
    if value:
        typer.echo(call.command.help)
        command: Any = call.command
        common = [option for option in command.get_params(call) if option.name in _EVERYWHERE and option.help]
        typer.echo(full_help(command.settings, command.unflagged, [(names_of(one), one.help) for one in common]))
        raise typer.Exit


def full_help(flags: list[Setting], unflagged: list[Setting], common: Iterable[tuple[str, str]] = ()) -> str:
    """All flags with their names for --set and all that there is to say of them, then the settings without a flag, and
    the options of every command."""
    panels: dict[str, list[tuple[str, Setting]]] = {}
    for setting in flags:
        same = [f"or {name}" for name in reversed(setting.names)] if setting.flag.argument else []
        usage = ", ".join([usage_of(setting), *same])
        panels.setdefault(setting.panel, []).append((f"{usage}  ({setting.name})", setting))
    for setting in unflagged:
        text = f"--set {setting.name}={setting.metavar}"
        panels.setdefault("Settings without a flag", []).append((text, setting))
    lines: list[str] = []
    for panel, entries in sorted(panels.items(), key=lambda one: one[0] == COMMON):
        lines += ["", panel]
        for usage, setting in entries:
            lines += ["", f"  {usage}"]
            lines += _wrapped(help_of(setting))
    if COMMON not in panels:
        lines += ["", COMMON]
    for usage, text in common:
        lines += ["", f"  {usage}", *_wrapped(text)]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 92, initial_indent="      ", subsequent_indent="      ")


def usage_of(setting: Setting) -> str:
    """The flags of a setting and what stands for its value."""
    if setting.flag.argument:
        name = setting.flag.metavar or setting.path[-1].upper()
        return name if setting.field.is_required() else f"[{name}]"
    names = ", ".join(reversed(setting.names))
    if setting.kind is bool:
        return f"{names}, --no-{setting.names[0].removeprefix('--')}" if setting.field.default else names
    return f"{names} {setting.metavar}"


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _command_class(flags: list[Setting], without: list[Setting]) -> type[Command]:
    spelling = Spelling.of(flags)

    class SettingsCommand(Command):
        """Understands old spellings, `--flag=on`, and flags that may stand without their value."""

        settings, unflagged = flags, without

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            _arguments.set(ctx.obj or sys.argv[1:])
            return super().parse_args(ctx, spelling.expand(args, interspersed=ctx.allow_interspersed_args))

    return SettingsCommand


class _ToStderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Of a command, until the next one of this process."""


def set_up_logging(verbose: int) -> None:
    """Records of seeddelta's loggers go to stderr: with 1 the steps, with 2 all of them, with 0 none."""
    logger = logging.getLogger("seeddelta")
    logger.handlers[:] = [one for one in logger.handlers if not isinstance(one, _ToStderr)]
    if not verbose:
        logger.setLevel(logging.NOTSET)
        return
    logger.setLevel(logging.INFO if verbose == 1 else logging.DEBUG)
    handler = _ToStderr(sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logger.addHandler(handler)
