"""YAML of files that people write: one exception for all that can be wrong, and nothing that can explode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import SeedDeltaError, needs_extra

_MAX_DEPTH = 32


def load_yaml(text: str) -> Any:
    """Value of a YAML document of plain types. Raises ValueError saying what is wrong.

    References (`*name`) are refused: a few lines of them make a value too large for any memory, and no file of ours
    needs them.
    """
    with needs_extra("cli"):
        import yaml

    try:
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.events.CollectionStartEvent)
            depth -= isinstance(event, yaml.events.CollectionEndEvent)
            if depth > _MAX_DEPTH:  # the time that PyYAML takes is quadratic in it
                raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
            if isinstance(event, yaml.events.AliasEvent):
                raise ValueError(f"a reference (*{event.anchor}) is not allowed here; write the value out")
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(str(error)) from error
    except (LookupError, AttributeError, TypeError, OverflowError) as error:  # what PyYAML's tags raise: `!!bool x`
        raise ValueError(f"a value is not of its tag ({type(error).__name__}: {error})") from error


def load_mapping(path: Path, wrong: type[SeedDeltaError]) -> dict[str, Any]:
    """A YAML file of names and values. Raises `wrong`, naming the file."""
    try:
        found = load_yaml(path.read_bytes().decode())
    except OSError as error:
        raise wrong(f"{path}: cannot be read ({error.strerror}); check its path") from error
    except ValueError as error:
        raise wrong(f"{path}: not YAML ({error})") from error
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise wrong(f"{path}: settings are a mapping of name to value, for example `bits: 3`")
    return found
