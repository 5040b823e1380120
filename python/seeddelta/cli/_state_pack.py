"""Options of our attention and of StatePack-KV, which run, eval and bench share."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Optional

import typer

from ..errors import ConfigError

_Text: Any = Optional[str]  # noqa: UP045 (typer before 0.15 cannot read `X | None` on Python 3.10)
_Int: Any = Optional[int]  # noqa: UP045
_Float: Any = Optional[float]  # noqa: UP045
_Flag: Any = Optional[bool]  # noqa: UP045

# name -> type, flag, metavar, help
_OPTIONS: dict[str, tuple[Any, str, str | None, str]] = {
    "state_pack": (
        _Text, "--state-pack", "none|exact|binary|ternary",
        "Attention of single tokens by our kernels: over all keys (exact), or over those that bits of the keys choose.",
    ),
    "state_pack_target": (_Text, "--state-pack-target", "kv", "What is packed: the keys of the KV cache."),
    "state_pack_eps": (
        _Text, "--state-pack-eps", "EPS", "Ternary: channels below EPS times the key's mean magnitude have no bit."
    ),
    "state_pack_popcnt": (
        _Flag, "--state-pack-popcnt/--no-state-pack-popcnt", None, "Score with signs of the query and popcount."
    ),
    "state_pack_budget": (
        _Float, "--state-pack-budget", "SHARE|N", "Positions that are attended to: a share up to 1, or a number."
    ),
    "state_pack_mass": (
        _Float, "--state-pack-mass", "P", "No more of them than have this share of the estimated softmax mass."
    ),
    "state_pack_refine": (
        _Flag, "--state-pack-refine/--no-state-pack-refine", None,
        "Exact scores for the chosen keys, or those by bits.",
    ),
    "state_pack_sinks": (_Int, "--state-pack-sinks", "N", "First positions, always attended to."),
    "state_pack_recent": (_Int, "--state-pack-recent", "N", "Last positions, always attended to."),
    "state_pack_layers": (
        _Text, "--state-pack-layers", "A-B[.HEADS]=MODE[:BUDGET],…",
        "Layers that differ, or KV heads of them: 12.0=exact,13-15.1-2=ternary:0.5. Default: 0-1=exact.",
    ),
    "state_pack_min_context": (_Int, "--state-pack-min-context", "N", "Attention is exact up to so many positions."),
    "state_pack_density": (_Float, "--state-pack-density", "RHO", "Above this share, all positions are attended to."),
    "state_pack_gap": (
        _Float, "--state-pack-gap", "ERROR", "A layer with a larger relative error becomes exact for good."
    ),
    "state_pack_gap_every": (_Int, "--state-pack-gap-every", "N", "Operations between measurements of that error."),
    "state_pack_negligible": (
        _Float, "--state-pack-negligible", "SHARE",
        "Values of a weight below this share of the largest near them are left out."
    ),
}  # fmt: skip
# those that another group of options may bring along, for another target
_SHARED = ("state_pack", "state_pack_target", "state_pack_eps", "state_pack_popcnt")
_FIELDS = {"state_pack": "mode", "state_pack_popcnt": "popcount"}


def state_pack(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options above; it gets them as `state_pack_kv`, fields of StatePackKV, or None.

    Options of the first four names that the command has already are for it unless the target is `kv`.
    """
    hints = typing.get_type_hints(command, include_extras=True)
    parameters = {
        name: parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "state_pack_kv"
    }
    theirs = [name for name in _SHARED if name in parameters]
    for name, (kind, flags, metavar, text) in _OPTIONS.items():
        if name not in theirs:
            option: Any = typer.Option(flags, metavar=metavar, help=text, show_default=False)
            parameters[name] = inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
            )

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        target = given.get("state_pack_target") or ("mlp" if theirs else "kv")
        options = {name: given.pop(name, None) for name in _OPTIONS if name not in theirs or target == "kv"}
        command(**given, **dict.fromkeys(theirs if target == "kv" else ()), state_pack_kv=fields_of(options, target))

    wrapper.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    wrapper.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return wrapper


def fields_of(options: Mapping[str, Any], target: str) -> dict[str, Any] | None:
    """Fields of StatePackKV from the options above (None: not given); None when it is off.

    Raises ConfigError for options that contradict each other or are out of range.
    """
    given = {name: value for name, value in options.items() if value is not None and name != "state_pack_target"}
    if target != "kv":
        if given:
            raise ConfigError(f"{_flag(next(iter(given)))} needs --state-pack-target=kv")
        return None
    if given.get("state_pack", "none") == "none":
        given.pop("state_pack", None)
        if given:
            raise ConfigError(f"{_flag(next(iter(given)))} needs --state-pack=exact, binary or ternary")
        return None
    fields = {_FIELDS.get(name, name.removeprefix("state_pack_")): value for name, value in given.items()}
    if "eps" in fields:
        try:
            fields["eps"] = float(fields["eps"])
        except ValueError:
            raise ConfigError(f"--state-pack-eps={fields['eps']} is no number") from None
    from ..runtime.state_pack import StatePackKV

    StatePackKV(**fields)
    return fields


def with_state_pack(options: Sequence[Mapping[str, Any]], fields: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Keywords of `seeddelta.load` for each model: attention is ours in all but the first of several, which the others
    are compared with."""
    found = [dict(one) for one in options]
    for one in [] if fields is None else found[min(1, len(found) - 1) :]:
        one["config"] = dict(one.get("config", {})) | {"state_pack_kv": dict(fields or {})}
    return found


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
