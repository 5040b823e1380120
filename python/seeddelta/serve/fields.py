"""What the objects of requests are made of."""

from __future__ import annotations

from typing import Annotated, Any

from ..errors import RequestError, needs_extra
from .schema import DEPTH

with needs_extra("serve"):
    from pydantic import (
        AfterValidator,
        BaseModel,
        BeforeValidator,
        ConfigDict,
        Field,
        Strict,
        WithJsonSchema,
        model_validator,
    )

Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Flag = Annotated[bool, Strict()]
MOST = 2**31 - 1  # of llama.cpp's numbers


class FieldError(RequestError):
    """A field of a request asks for what is not served. `param` is its name."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class Fields(BaseModel):
    """An object of a request. Null is as good as absent: OpenAI's clients send replies back with all their fields."""

    model_config = ConfigDict(protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        if isinstance(values, dict):
            return {name: value for name, value in values.items() if value is not None}
        return values

    def plain(self) -> dict[str, Any]:
        """The fields that were given or have a value, as llama-cpp-python's chat formats take them."""
        return self.model_dump(exclude_none=True)


def not_deeper(value: Any, most: int) -> Any:
    """A value of any form. Raises ValueError for one that is nested deeper than `most` levels."""
    level = [value]
    for _ in range(most + 2):
        level = [
            inner
            for one in level
            if isinstance(one, (dict, list))
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return value
    raise ValueError(f"it is nested more than {most} deep")


def shallow(value: Any) -> Any:
    """A value that may be a schema, which has two levels for each of a value. Raises ValueError for deeper ones."""
    return not_deeper(value, 2 * DEPTH)


Anything = Annotated[Any, AfterValidator(shallow)]


def _stops(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        raise ValueError("give a text, or a list of texts")
    if len(stops) > 32 or any(len(one) > 1000 for one in stops):
        raise ValueError("give at most 32 texts of at most 1000 characters")
    return stops


_STOPS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": 32}]}
Stops = Annotated[Any, BeforeValidator(_stops), WithJsonSchema(_STOPS)]


def few(most: int) -> Any:
    """For a list: what is wrong with a longer one is told once, and not for each of its items."""

    def check(value: Any) -> Any:
        if isinstance(value, list) and len(value) > most:
            raise ValueError(f"give at most {most} of them")
        return value

    return BeforeValidator(check)


def _biases(value: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        raise ValueError("give an object of numbers of tokens and what is added to their logits")
    found: dict[int, float] = {}
    for token, bias in value.items():
        try:
            number = int(token)
        except ValueError:
            raise ValueError("its names are numbers of tokens") from None
        if type(bias) not in (int, float) or not -100 <= bias <= 100:
            raise ValueError("its values are numbers from -100 to 100")
        found[number] = float(bias)
    return found


_BIASES = {"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}}
Biases = Annotated[Any, BeforeValidator(_biases), WithJsonSchema(_BIASES)]


def is_tokens(value: Any) -> bool:
    """Whether a value is a list of whole numbers, perhaps none."""
    return isinstance(value, list) and all(type(one) is int for one in value)
