"""Values as text: numbers that differ by matrix, where the last pattern that fits holds, lists and percentages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from ..processors import MAX_THREADS, processors

Values = Mapping[str, float]


def parse_values(given: Any) -> Any:
    """A number, or PATTERN=NUMBER with commas in between, from text; anything else as it is. Raises ValueError."""
    if not isinstance(given, str):
        return given
    try:
        if "=" not in given:
            return float(given)
        parts = (part.partition("=") for part in given.split(","))
        return {pattern.strip() if number else "*": float(number or pattern) for pattern, _, number in parts}
    except ValueError:
        raise ValueError(f"{given!r} is no number, nor for example ffn_down=0.5,ffn_gate=0.7") from None


def parse_list(given: Any) -> Any:
    """Names from text with commas; anything else as it is."""
    return [name.strip() for name in given.split(",") if name.strip()] if isinstance(given, str) else given


def parse_counts(given: Any) -> Any:
    """Numbers from a number, or from text with commas; anything else as it is."""
    if isinstance(given, int):
        return (given,)
    return given.split(",") if isinstance(given, str) else given


def parse_percent(given: Any) -> Any:
    """A number from 2 or 2%; anything but text as it is. Raises ValueError."""
    try:
        return float(given.strip().removesuffix("%")) if isinstance(given, str) else given
    except ValueError:
        raise ValueError(f"{given} is no percentage; write for example 2%") from None


Percent = Annotated[float, BeforeValidator(parse_percent)]
_Count = Annotated[
    int, Field(ge=0, le=MAX_THREADS), AfterValidator(lambda count: count or processors())
]  # 0: all cores
Threads = Annotated[tuple[_Count, ...] | None, BeforeValidator(parse_counts)]
Listed = Annotated[tuple[str, ...], BeforeValidator(parse_list)]
