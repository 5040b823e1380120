"""Numbers of a report as text: of settings and of where a file comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..evaluate.measurements import Series


def provenance_of(series: Sequence[Series], summaries: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Blocks of settings, machines and SeedΔ files: a title and rows of key and value each."""
    blocks: list[dict[str, Any]] = []
    for one in series:
        rows = [("compared with", Path(one.base["path"]).name)]
        rows += [(str(key), _text(value)) for key, value in one.settings.items() if value is not None]
        blocks.append({"title": f"Settings: {one.title}", "rows": rows})
    machines: list[Mapping[str, Any]] = []
    for one in series:
        if one.machine and one.machine not in machines:
            machines.append(one.machine)
    for machine in machines:
        blocks.append({"title": "Machine", "rows": [(key, _text(value)) for key, value in machine.items() if value]})
    for name, summary in summaries.items():
        rows = [("file", Path(summary["path"]).name)]
        rows += [
            (key.removeprefix("seeddelta."), _text(value))
            for key, value in summary["keys"].items()
            if key.startswith(("seeddelta.source", "seeddelta.imatrix", "seeddelta.hessian", "seeddelta.generator"))
        ]
        rows += [("recipe", ", ".join(f"{key}={_text(value)}" for key, value in summary["recipe"].items()))]
        blocks.append({"title": name, "rows": rows})
    return blocks


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(one)}" for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
