"""Settings by name from texts: NAME=VALUE of --set, YAML files, and flags; all become one tree of plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .tree import Setting, Settings, settings_of
from .yaml import load_mapping, load_yaml

Path_ = tuple[str, ...]


def texts_of(settings: Settings) -> dict[str, str]:
    """The settings that are not their defaults, by name with dots, each as the text that --set takes for it."""
    found: dict[str, str] = {}
    values = settings.model_dump(mode="json", exclude_defaults=True)
    for setting in settings_of(type(settings)):
        value: Any = values
        for part in setting.path:
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None and (setting.group is None or not value):
            found[setting.name] = _text_of(value)
    return found


def _text_of(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return ",".join(f"{pattern}={one}" for pattern, one in value.items()) or "{}"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


class Assignment:
    """Values given for a tree of settings; later ones replace earlier ones."""

    def __init__(self, tree: type[Settings]) -> None:
        self._tree = tree
        self._settings = list(settings_of(tree))
        self._values: dict[str, Any] = {}

    def file(self, path: Path) -> None:
        """The settings of a YAML file: a mapping of names to values, groups as mappings or with dots.

        Raises ConfigError.
        """
        self._mapping(load_mapping(path, ConfigError), (), str(path))

    def text(self, text: str) -> None:
        """NAME=VALUE, where the name may leave out the groups that it does not need. Raises ConfigError."""
        name, found, value = text.partition("=")
        if not found or not name:
            raise ConfigError(f"--set {text}: write NAME=VALUE, for example --set event.delta_theta=0.3")
        plain = load_yaml(value) if value[:1] in ("[", "{") or value in ("null", "") else value
        self.put(self.find(name, f"--set {text}").path, plain)

    def put(self, path: Path_, value: Any) -> None:
        """A value, or for a group None (without it) or {} (with it)."""
        at = self._values
        for part in path[:-1]:
            if not isinstance(at.get(part), dict):
                at[part] = {}
            at = at[part]
        keep = value == {} and isinstance(at.get(path[-1]), dict)
        if not keep:
            at[path[-1]] = value

    def has(self, path: Path_) -> bool:
        at: Any = self._values
        for part in path:
            if not isinstance(at, dict) or part not in at:
                return False
            at = at[part]
        return True

    def find(self, name: str, where: str, below: Path_ = ()) -> Setting:
        """The one setting whose path ends with the name. Raises ConfigError for none, and for several."""
        parts = tuple(name.replace("-", "_").split("."))
        named = [s for s in self._settings if s.path[: len(below)] == below and s.path[-len(parts) :] == parts]
        shortest = min((len(s.path) for s in named), default=0)
        nearest = [s for s in named if len(s.path) == shortest]
        if len(nearest) == 1:
            return nearest[0]
        if nearest:
            raise ConfigError(f"{where}: {name} is one of {', '.join(s.name for s in nearest)}; say which")
        raise ConfigError(f"{where}: setting {name!r} is not known; {self._remedy(parts, below)}")

    def _remedy(self, parts: Path_, below: Path_) -> str:
        """What the writer of a name that is not known may have meant."""
        paths = [s.path for s in self._settings if s.path[: len(below)] == below]
        names = {".".join(path[start:]) for path in paths for start in range(len(below), len(path))}
        near = get_close_matches(".".join(parts), sorted(names), 1)
        return f"did you mean {near[0]}?" if near else "`seeddelta schema COMMAND` lists those of a command"

    def _mapping(self, values: Mapping[str, Any], below: Path_, where: str) -> None:
        for name, value in values.items():
            setting = self.find(name, where, below)
            if setting.group is not None and isinstance(value, Mapping):
                self.put(setting.path, {})
                self._mapping(value, setting.path, where)
            else:
                self.put(setting.path, value)

    def missing(self) -> Iterable[Setting]:
        """Settings of the outermost group that must be given, and are not."""
        return [
            s for s in self._settings if len(s.path) == 1 and s.field.is_required() and s.path[0] not in self._values
        ]

    def make(self) -> Settings:
        """The settings. Raises what they raise for values out of range."""
        return self._tree(**self._values)
