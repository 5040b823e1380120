"""What every group of settings shares: checked when it is made, never changed, and errors that name the setting."""

from __future__ import annotations

import os
import types
import typing
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from ..errors import ConfigError, SeedDeltaError, needs_extra
from ..storage.output import check_outputs, reading

with needs_extra("cli"):
    from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
    from pydantic.fields import FieldInfo


_METAVARS = {int: "N", float: "X", Path: "FILE", str: "TEXT"}


@dataclass(frozen=True)
class Flag:
    """How a setting is called on the command line; stands beside `Field` in `Annotated`.

    Attributes:
        names: the flags, the long one first. None given: --its-name, after the prefix of its group.
        old: the seeds' spellings, which are understood and not shown.
        shown: in `--help`; the others are in `--help-all`. All can be given by --set and --config, too.
        panel: heading under which the help has it; None: that of the group.
        metavar: what stands for the value in the help; None: from the type.
        bare: value of the flag when none is given.
        fits: pattern of a word behind such a flag that is its value; None: the choices of `metavar`.
        off: value that leaves the whole group out.
        repeat: the flag may be given often.
        argument: it is given by its place; names, if there are any, are another way to give it.
        file_only: it has no flag; files and --set give it.
        prefix: of a group: what the flags of its settings begin with. A group that may be None is a switch, on or off.
        output: it names what is written: a `file`, or a `folder`. A path without it is read.
        decides: of a build, what the setting decides: the bytes of a `tensor`, the `choice` of tensors and rates, or
            `nothing` of the file.
    """

    names: tuple[str, ...] = ()
    old: tuple[str, ...] = ()
    shown: bool = False
    panel: str | None = None
    metavar: str | None = None
    bare: str | None = None
    fits: str | None = None
    off: str | None = None
    repeat: bool = False
    argument: bool = False
    file_only: bool = False
    prefix: str | None = None
    output: Literal["file", "folder"] | None = None
    decides: str = "tensor"


STDOUT = Path("-")
COMMON = "For every command"  # heading of the options that all commands have
JSON = Flag(names=("--json",), shown=True, output="file", metavar="[FILE.json]", bare=str(STDOUT), fits="*.json")
JSON_HELP = "Print JSON in place of tables; with a name the JSON goes to that file."
MODEL = Flag(argument=True, names=("--model", "-m"), metavar="MODEL")  # as all programs of llama.cpp have -m, too
MODELS = replace(MODEL, repeat=True, metavar="MODEL…")


class Settings(BaseModel):
    """A group of settings. Raises `error` where pydantic raises ValidationError, naming the setting."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    error: ClassVar[type[SeedDeltaError]] = ConfigError
    rare: ClassVar[frozenset[str]] = frozenset()  # settings that other trees show in --help and this one in --help-all

    def __init__(self, *values: Any, **options: Any) -> None:
        """Settings by name; the first ones may be given in their order, too."""
        names = list(type(self).model_fields)
        twice = sorted(set(names[: len(values)]) & set(options))
        if len(values) > len(names) or twice:
            raise self.error(
                f"{twice[0]} is given twice" if twice else f"{len(values)} values for {len(names)} settings"
            )
        try:
            super().__init__(**dict(zip(names, values, strict=False)), **options)
        except ValidationError as error:
            raise self.error(message_of(error, type(self))) from error


# what pydantic says -> the same in fewer words
_PLAIN = {
    "should be greater than or equal to": "must be at least",
    "should be less than or equal to": "must be at most",
    "should be a valid integer, unable to parse string as an integer": "must be a whole number",
    "should be a valid number, unable to parse string as a number": "must be a number",
    "should be": "must be",
}


def message_of(error: ValidationError, settings: type[Settings]) -> str:
    """The first thing that is wrong, in one line: the setting, its value, and what it may be."""
    errors = error.errors()
    same = [one for one in errors if one["loc"][:1] == errors[0]["loc"][:1]]
    first = max(same, key=lambda one: len(one["loc"]))  # of a value with several forms, the form that it nearly has
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not first["loc"]:
        return message
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden" and name not in settings.model_fields:
        known = sorted(settings.model_fields)
        near = get_close_matches(name, known, 1)
        remedy = f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"
        return f"setting {name!r} is not known; {remedy}"
    if first["type"] in ("value_error", "missing"):
        return f"{name}: {message}"
    if first["type"] == "literal_error":
        message = message.replace("'", "")
    for words, plain in _PLAIN.items():
        message = message.replace(words, plain)
    return f"{name} {first['input']!r}: it {message}"


def group_of(field: FieldInfo) -> type[Settings] | None:
    """The settings that a field holds, when it is a group (or a group or None)."""
    candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
    return next((one for one in candidates if isinstance(one, type) and issubclass(one, Settings)), None)


def flag_of(field: FieldInfo) -> Flag:
    """The Flag beside a field."""
    return next((one for one in field.metadata if isinstance(one, Flag)), Flag())


def deciding(settings: type[Settings], *what: str) -> set[str]:
    """Names of the settings that decide one of `what`; see Flag.decides."""
    return {name for name, field in settings.model_fields.items() if flag_of(field).decides in what}


@dataclass(frozen=True)
class Setting:
    """One setting of a tree: where it is, its field, and the flags that it has there.

    `optional` is the path of the innermost group around it that may be None; () without one.
    """

    path: tuple[str, ...]
    field: FieldInfo
    flag: Flag
    names: tuple[str, ...]
    panel: str
    optional: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The path with dots, as --set has it."""
        return ".".join(self.path)

    @property
    def group(self) -> type[Settings] | None:
        """The settings that it holds, when it is a group."""
        return group_of(self.field)

    @property
    def kind(self) -> Any:
        """The type without None; the first of several."""
        kind: Any = self.field.annotation
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            kind = next(one for one in typing.get_args(kind) if one is not type(None))
        return typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind

    @property
    def metavar(self) -> str:
        """What stands for the value in the help."""
        if self.flag.metavar is not None:
            return self.flag.metavar
        if self.group is not None:
            return "on|off"
        if typing.get_origin(self.kind) is Literal:
            return "|".join(map(str, typing.get_args(self.kind)))
        return _METAVARS.get(self.kind, "VALUE")


def settings_of(
    tree: type[Settings],
    at: tuple[str, ...] = (),
    prefix: str = "--",
    panel: str = "Options",
    optional: tuple[str, ...] = (),
) -> Iterator[Setting]:
    """All settings of a tree in their order; a group is followed by its own settings."""
    for name, field in tree.model_fields.items():
        flag, path = flag_of(field), (*at, name)
        if name in tree.rare:
            flag = replace(flag, shown=False)
        title = flag.panel or panel
        inner = group_of(field)
        own = () if inner is not None or flag.file_only or flag.argument else (f"{prefix}{name.replace('_', '-')}",)
        yield Setting(path, field, flag, flag.names or own, title, optional)
        if inner is not None:
            around = path if field.default is None else optional
            yield from settings_of(inner, path, flag.prefix or prefix, title, around)


def paths_of(settings: Settings) -> tuple[list[Path], list[Path]]:
    """The paths that settings and the groups in them have: what is read, and the files that are written."""
    read: list[Path] = []
    written: list[Path] = []
    for name, field in type(settings).model_fields.items():
        value, flag = getattr(settings, name), flag_of(field)
        output = flag.output
        if isinstance(value, Settings):
            inner = paths_of(value)
            read, written = read + inner[0], written + inner[1]
        several = value if isinstance(value, tuple) else (value,)
        found = [one for one in several if isinstance(one, Path) and one != STDOUT]
        if "FILE[:" in (flag.metavar or ""):  # text: a file, and a number behind it
            found += [Path(part) for one in several for part in (one, one.rpartition(":")[0]) if part]
        if output is None:
            read += found
        elif output == "file":
            written += found
    return read, written


@contextmanager
def guarded(settings: Settings, reads: Iterable[str | os.PathLike[str]] = ()) -> Iterator[None]:
    """Until the block ends nothing that the settings write replaces what they, or `reads`, read.

    Raises OutputError, before any work is done, when an output is an input, another output, or cannot be written.
    """
    read, written = paths_of(settings)
    with reading([*read, *reads]):
        check_outputs(written)
        yield


def parse_whole(given: Any) -> Any:
    """A whole number from text; anything else as it is."""
    return int(given) if isinstance(given, str) and given.strip().isdigit() else given


Whole = BeforeValidator(parse_whole)  # for Literal[1, 16, …], which text is not
