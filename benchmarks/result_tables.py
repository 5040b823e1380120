"""What the tables of results have in common."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import common


def load(name: str) -> dict[str, Any]:
    """A result of `benchmarks/results`."""
    found: dict[str, Any] = json.loads((common.RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return [_row(heads), _row(["---"] * len(heads)), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def label(name: str, known: Mapping[str, str] = MappingProxyType({})) -> str:
    """What a model of a result is called in a table."""
    text = known.get(name, name if name.startswith("SeedΔ") else f"llama.cpp {name}")
    text = "original, F16" if name == "F16" else text
    return f"**{text}**" if text.startswith("SeedΔ") else text


def divergence(model: dict[str, Any]) -> str:
    """Mean KL divergence and its standard error; nothing for the original."""
    kl = model["divergence"]
    return "" if kl is None else f"{kl['mean']:.4f} ± {kl['stderr']:.4f}"


def medians(speed: Iterable[dict[str, Any]]) -> list[float]:
    """Tokens a second of generation, a number for each measurement."""
    return [row["generation"]["median"] for row in speed]


def over(own: Sequence[float], other: Sequence[float]) -> str:
    """Ratios of what was measured with 1 / 2 threads."""
    return " / ".join(f"{a / b:.2f}" for a, b in zip(own, other, strict=True))


def with_error(value: float, error: float, sign: str = "", digits: int = 2) -> str:
    """Of a broken model, whose perplexity has many digits, the power of ten alone."""
    if abs(value) >= 1e4:
        return f"{value:{sign}.0e}"
    return f"{value:{sign}.{digits}f} ± {error:.{digits}f}"
