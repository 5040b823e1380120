"""Options of skipping that run, eval and bench share: columns, KWTA, StatePack of the MLP, events."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ..errors import ConfigError
from ..runtime.skipping import parse_values

_Text: Any = Optional[str]  # noqa: UP045 (typer before 0.15 cannot read `X | None` on Python 3.10)
_Int: Any = Optional[int]  # noqa: UP045
_Float: Any = Optional[float]  # noqa: UP045
_Flag: Any = Optional[bool]  # noqa: UP045

# name -> type, flags, metavar, help
_OPTIONS: dict[str, tuple[Any, tuple[str, ...], str | None, str]] = {
    "columns": (
        _Text, ("--columns",), "f16|i8",
        "Store the matrices of an ordinary GGUF model by columns when it is loaded, so that inputs can be skipped. (A "
        "SeedΔ file has them so: seeddelta build --layout column.)",
    ),
    "column_targets": (_Text, ("--column-targets",), "NAMES", "Which ones: ffn, attn, ffn_down, … Default: all."),
    "kwta": (
        _Text, ("--kwta",), "on|off",
        "Compute with the inputs of the largest scores only. Default: on when another --kwta option is given.",
    ),
    "kwta_k": (
        _Text, ("--kwta-k",), "K",
        "Fraction of the inputs that is kept, or ffn_down=0.5,ffn_gate=0.7,blk.0.*=1: targets or shell patterns of "
        "names, the last that fits holds. Default: ffn_down=0.6,ffn_gate=0.8,ffn_up=0.8,attn_output=0.6.",
    ),
    "kwta_k_abs": (_Int, ("--kwta-k-abs",), "N", "Number of units (inputs, or blocks) that is kept, instead."),
    "kwta_temp": (
        _Float, ("--kwta-temp",), "T",
        "Temperature of the softmax that --kwta-renorm divides by; the order of the scores, and so what is kept, does "
        "not depend on it.",
    ),
    "kwta_duty": (_Int, ("--kwta-duty",), "N", "Choose for every N-th token; the others are computed whole."),
    "kwta_target": (_Text, ("--kwta-target",), "mlp|attn|both", "Matrices whose inputs are chosen. Default: both."),
    "kwta_block": (
        _Int, ("--kwta-block",), "1|16|32|64", "Inputs that are kept or skipped together. Default: 1."
    ),
    "kwta_score": (
        _Text, ("--kwta-score",), "magnitude|wina", "|x|, or |x| times the norm of the input's weights. Default: wina."
    ),
    "kwta_select": (
        _Text, ("--kwta-select",), "topk|threshold", "Exactly K, or what is above the thresholds of --kwta-file."
    ),
    "kwta_renorm": (_Flag, ("--kwta-renorm",), None, "Divide by the share that is kept."),
    "kwta_file": (_Text, ("--kwta-file",), "FILE", "Fractions and thresholds a matrix, from seeddelta sparsify."),
    "state_pack": (
        _Text, ("--state-pack",), "binary|ternary|none", "Skip inputs that are nearly zero, by a bitmap."
    ),
    "state_pack_eps": (
        _Text, ("--state-pack-eps",), "EPS", "Inputs of this magnitude or less are. A number, or PATTERN=NUMBER,…"
    ),
    "state_pack_relative": (
        _Float, ("--state-pack-relative",), "R", "And those below this share of the average of what passes."
    ),
    "state_pack_rho": (
        _Text, ("--state-pack-rho",), "RHO",
        "Share of inputs that pass above which the bitmap is not used. A number, or PATTERN=NUMBER,…",
    ),
    "state_pack_popcnt": (
        _Flag, ("--state-pack-popcnt/--no-state-pack-popcnt",), None, "Count bits with vector instructions."
    ),
    "state_pack_aggressive": (
        _Flag, ("--state-pack-aggressive/--no-state-pack-aggressive",), None,
        "Multiply signs by popcount instead (ternary, --columns f16). It costs a model its sense.",
    ),
    "state_pack_target": (
        _Text, ("--state-pack-target",), "mlp|attn|both|kv",
        "Matrices whose inputs are, or (kv) the keys of the KV cache: --state-pack is then exact, binary or ternary. "
        "Default: mlp.",
    ),
    "event_driven": (
        _Text, ("--event-driven",), "on|off",
        "Send only inputs that have changed, or (--event-target kv) attend only to windows of the KV cache that have. "
        "Default: on when another --event option is given.",
    ),
    "event_budget_ms": (
        _Float, ("--event-budget-ms",), "MS", "Time for the products, or attention, of a token. Default: any."
    ),
    "event_quorum": (_Float, ("--event-quorum",), "Q", "Share of the energy of all changes that is sent. Default: 1."),
    "event_topk": (_Float, ("--event-topk",), "K", "Largest fraction of the inputs that is sent. Default: 1."),
    "event_delta_theta": (
        _Float, ("--event-delta-theta",), "T",
        "Change that is sent, in rms of the inputs (kv: change of the query times share of the softmax). Default: 0.3; "
        "kv: 0.01.",
    ),
    "event_gap_tol": (
        _Float, ("--event-gap-tol",), "G",
        "Relative error of a product (kv: of a layer) after which nothing is skipped. Default: 0.3; kv: 0.05.",
    ),
    "event_gap_every": (_Int, ("--event-gap-every",), "N", "Tokens between these comparisons; 0: none. Default: 32."),
    "event_rearm": (_Int, ("--event-rearm",), "N", "How many tokens nothing is skipped then. Default: 128."),
    "event_age_max": (_Int, ("--event-age-max",), "N", "Tokens after which an input is sent anyway. Default: 64."),
    "event_stale_beta": (_Float, ("--event-stale-beta",), "B", "That threshold for an input not sent for a tokens is"),
    "event_stale_lambda": (_Float, ("--event-stale-lambda",), "L", "T · B · exp(-L · a). Default: 1 and 0.02."),
    "event_target": (
        _Text, ("--event-target",), "mlp|attn|both|kv",
        "Matrices whose inputs are events, or (kv) windows of the KV cache in attention. Default: mlp.",
    ),
    "skip_prompt": (
        _Flag, ("--skip-prompt/--no-skip-prompt",), None,
        "Skip in prompts, too: for quality, not for speed. Default: in eval, not in run and bench.",
    ),
}  # fmt: skip


def skipping(*, skip_prompt: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options above; it gets them as `skipping`, a config for RuntimeConfig.from_dict."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(**given: Any) -> None:
            options = {name: given.pop(name) for name in _OPTIONS}
            command(**given, skipping=config_of(options, skip_prompt))

        hints = typing.get_type_hints(command, include_extras=True)
        parameters = [
            parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in inspect.signature(command).parameters.items()
            if name != "skipping"
        ]
        for name, (kind, flags, metavar, text) in _OPTIONS.items():
            option = typer.Option(*flags, metavar=metavar, help=text, show_default=False)
            annotation: Any = Annotated[kind, option]
            parameters.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            )
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


def config_of(options: Mapping[str, Any], skip_prompt: bool) -> dict[str, Any]:
    """Fields of RuntimeConfig from the options above (None: not given). Raises ConfigError for a contradiction."""
    given = {name: value for name, value in options.items() if value is not None}
    config: dict[str, Any] = {}
    if "columns" in given:
        config["columns"] = given.pop("columns")
    if "column_targets" in given:
        config["column_targets"] = given.pop("column_targets").split(",")
    prompt = given.pop("skip_prompt", skip_prompt)
    kwta = _kwta({name.removeprefix("kwta_"): value for name, value in given.items() if name.startswith("kwta")})
    pack = _pack({name: value for name, value in given.items() if name.startswith("state_pack")})
    if kwta is not None:
        config["kwta"] = kwta
    if pack is not None:
        config["state_pack_mlp"] = pack
    event = _switch({name: value for name, value in given.items() if name.startswith("event_")}, "event_driven")
    if event is not None:
        config["event"] = {name.removeprefix("event_"): value for name, value in event.items()}
    if kwta is not None or pack is not None or event is not None:
        config["skip_prompt"] = prompt
    return config


def _switch(given: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Takes the switch out of a feature's options; it is on when there are others. None: off."""
    state = given.pop(name, "on" if given else "off")
    flag = name.replace("_", "-")
    if state not in ("on", "off"):
        raise ConfigError(f"--{flag}={state}: write on or off")
    if state == "off" and given:
        raise ConfigError(f"--{flag}=off contradicts an option that it would turn on; leave one of them out")
    return given if state == "on" else None


def _kwta(given: dict[str, Any]) -> dict[str, Any] | None:
    if _switch(given, "kwta") is None:
        return None
    if "k" in given:
        given["k"] = parse_values(given["k"], "--kwta-k")
    renamed = {"temp": "temperature", "renorm": "renormalise"}
    return {renamed.get(name, name): value for name, value in given.items()}


def _pack(given: dict[str, Any]) -> dict[str, Any] | None:
    mode = given.pop("state_pack", "none")
    if mode == "none":
        if given:
            flag = next(iter(given)).replace("_", "-")
            raise ConfigError(f"--{flag} needs --state-pack=binary or ternary")
        return None
    options = {name.removeprefix("state_pack_"): value for name, value in given.items()}
    for name in ("eps", "rho"):
        if name in options:
            options[name] = parse_values(options[name], f"--state-pack-{name}")
    return {"mode": mode} | options


def model_options(
    models: Sequence[Path], options: Mapping[str, Any], skipping: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Keywords of `seeddelta.load` for each model: `options` for SeedΔ files, and `skipping` for all but the first of
    several, which the others are compared with."""
    from ..gguf.reader import is_seeddelta

    found = []
    for index, model in enumerate(models):
        converted = model.is_file() and is_seeddelta(model)
        mine = dict(options) if converted else {}
        if skipping and (index > 0 or len(models) == 1):
            layout = ("columns", "column_targets") if converted else ()
            config = {name: value for name, value in skipping.items() if name not in layout}
            mine["config"] = dict(mine.get("config", {})) | config
        found.append(mine)
    return found
