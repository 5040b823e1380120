"""Models that were measured together, from `evaluate` or from its JSON: what tables and reports are made of."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import EvaluationError, one_line
from .speed import Speed

if TYPE_CHECKING:
    from .compare import Comparison

_REMEDY = "give what `seeddelta eval --json` printed"
_SUFFIXES = (".gguf", ".seeddelta")


@dataclass(frozen=True)
class Series:
    """Models measured together, the first one being what the others are compared with.

    `models` are dictionaries as of `ModelReport.to_dict`, with a `name` each; `machine` is where it was, if known.
    """

    title: str
    settings: Mapping[str, Any]
    models: tuple[Mapping[str, Any], ...]
    machine: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def base(self) -> Mapping[str, Any]:
        return self.models[0]


def of_comparison(
    comparison: Comparison, *, names: Sequence[str] | None = None, machine: Mapping[str, Any] | None = None
) -> Series:
    """The result of `evaluate`; `names` of the models default to what tells their files apart."""
    return _series(comparison.to_dict(), names, machine)


def read_measurements(path: str | os.PathLike[str]) -> list[Series]:
    """Measurements from the JSON of `seeddelta eval --json`, of a report (data.json), or of a benchmark's result.

    Raises EvaluationError when the file cannot be read or has none of these.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{path}: cannot be read as JSON ({error}); {_REMEDY}") from error
    try:
        if "series" in data:
            return [Series(**series | {"models": tuple(map(_checked, series["models"]))}) for series in data["series"]]
        parts = data["texts"].values() if "texts" in data else [data]
        return [_series(part, None, data.get("machine")) for part in parts]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise EvaluationError(f"{path}: has no measurements of models ({error}); {_REMEDY}") from error


def _series(data: Mapping[str, Any], names: Sequence[str] | None, machine: Mapping[str, Any] | None) -> Series:
    models = data["models"]
    if isinstance(models, Mapping):
        names, models = list(models), list(models.values())
    if not models:
        raise ValueError("no model")
    names = short_labels([str(model["path"]) for model in models]) if names is None else names
    settings = data["settings"]
    text = settings.get("text")
    title = one_line(Path(text).name) if text else "speed and memory"
    named = tuple(_checked(dict(model) | {"name": one_line(name)}) for name, model in zip(names, models, strict=True))
    return Series(title, settings, named, machine)


def _checked(model: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in ("name", "path", "kind", "file_bytes", "bits_per_weight"):
        if key not in model:
            raise KeyError(f"a model without {key}")
    return model


def short_labels(paths: Sequence[str]) -> list[str]:
    """What tells files apart: their names without suffixes and without the words that all begin with.

    `a/smol-f16.gguf`, `a/smol-4bit.seeddelta.gguf` → `f16`, `4bit`.
    """
    names = [Path(path).name for path in paths]
    for suffix in _SUFFIXES:
        names = [name.removesuffix(suffix) for name in names]
    if len(set(names)) < len(names):
        return list(paths)
    if len(names) > 1:
        words = [name.split("-") for name in names]
        shared = 0
        while all(len(own) > shared + 1 and own[shared] == words[0][shared] for own in words):
            shared += 1
        names = ["-".join(own[shared:]) for own in words]
        if all(name.startswith(f"{names[0]}-") for name in names[1:]):  # made of the first, and named after it
            names[1:] = [name[len(names[0]) + 1 :] for name in names[1:]]
    return names


def family(model: Mapping[str, Any]) -> str:
    """What a model's weights are: `SeedΔ`, `llama.cpp` (a quantized type) or `dense`."""
    kind = str(model["kind"])
    if kind.startswith("SeedΔ"):
        return "SeedΔ"
    return "dense" if kind in ("F32", "F16", "BF16") else "llama.cpp"


def speeds_of(model: Mapping[str, Any]) -> tuple[Speed, ...]:
    """Measurements of speed of a model, as they were before they became JSON."""
    return tuple(
        Speed(
            threads=speed["threads"],
            n_prompt=speed["n_prompt"],
            n_gen=speed["n_gen"],
            prompt=tuple((speed["prompt"] or {}).get("samples", ())),
            generation=tuple((speed["generation"] or {}).get("samples", ())),
            depth=speed.get("depth", 0),
        )
        for speed in model.get("speed") or ()
    )


def number(model: Mapping[str, Any], *keys: str) -> float | None:
    """A number somewhere in a model's dictionary, None where a part was not measured."""
    found: Any = model
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return None if found is None else float(found)
