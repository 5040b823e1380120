"""The settings of skipping for the extension, which knows what chooses the inputs of which matrices."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .. import _core
from ..errors import ConfigError
from ..gguf.header import Header
from ..settings.assign import texts_of
from ..settings.runtime import RuntimeConfig

_GROUPS = ("kwta", "state_pack_mlp", "event", "zeros", "force", "skip_prompt")
Groups = list[tuple[str, ...]]


def _told(path: str | os.PathLike[str]) -> str:
    """A path as messages have it: a file name may be any bytes, and text for the extension is UTF-8."""
    return os.fsencode(path).decode(errors="replace")


def skip_settings(config: RuntimeConfig) -> _core.SkipSettings:
    """What a config says of KWTA, StatePack of the MLP, events and zeros. Raises ConfigError for its kwta file."""
    values = {name: text for name, text in texts_of(config).items() if name.partition(".")[0] in _GROUPS}
    path = values.pop("kwta.file", "")
    try:
        if not path:
            return _core.SkipSettings(values)
        from .skip_file import read_skip_file

        return _core.SkipSettings({"kwta": "on"} | values, _told(path), read_skip_file(path).model_dump_json())
    except ValueError as error:
        raise ConfigError(str(error)) from error


def add_weights(
    registry: _core.WeightRegistry,
    weights: Sequence[_core.Weight | _core.ColumnWeight],
    skipping: _core.SkipSettings,
    header: Header,
    tensors: Sequence[str],
) -> Groups:
    """Fill the registry; returns the names of the matrices that share each gate. `tensors` are all names of the model.

    Raises ConfigError for a model in which nothing can be skipped, and for a kwta file of another one.
    """
    architecture = header.metadata.scalar("general.architecture", str, "")
    try:
        groups = registry.add_all(weights, skipping, _told(header.path), architecture, tensors)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return [tuple(group) for group in groups]
