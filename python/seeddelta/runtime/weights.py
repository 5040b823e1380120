"""From a model to what llama.cpp loads (the stub file) and what the hook computes with (the registry)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .. import _core
from ..errors import ConfigError, OutOfMemoryError
from ..settings.assign import texts_of
from ..settings.runtime import RuntimeConfig
from .library import loaded_ggml

_SKIPPING = ("kwta", "state_pack_mlp", "event", "zeros", "force", "skip_prompt")


def prepare(
    path: Path, fallback: Path | None, config: RuntimeConfig, columns: Sequence[_core.ColumnWeight] = ()
) -> tuple[_core.ServedModel, _core.StubFile]:
    """Check a SeedΔ file, write the stub file, fill the registry; or that of `columns` of an ordinary model.

    Payload and fallback are mapped, not read. Raises FormatError, SourceModelError, ConfigError, OutOfMemoryError.
    """
    dense = [_told(pattern) for pattern in config.dense]
    skipping = skip_settings(config)
    try:
        model = _core.ServedModel(
            path, loaded_ggml(), skipping, fallback, config.gap, dense, config.proc_sparse, columns
        )
        return model, model.stub_file()
    except MemoryError as error:
        raise OutOfMemoryError(f"{path}: no memory to load the model; free some") from error


def _told(path: str | os.PathLike[str]) -> str:
    """Text for the extension, which is UTF-8; a file name may be any bytes."""
    return os.fsencode(path).decode(errors="replace")


def skip_settings(config: RuntimeConfig) -> _core.SkipSettings:
    """What a config says of KWTA, StatePack of the MLP, events and zeros. Raises ConfigError for its kwta file."""
    values = {name: text for name, text in texts_of(config).items() if name.partition(".")[0] in _SKIPPING}
    path = values.pop("kwta.file", "")
    try:
        if not path:
            return _core.SkipSettings(values)
        from .skip_file import read_skip_file

        return _core.SkipSettings({"kwta": "on"} | values, _told(path), read_skip_file(path).model_dump_json())
    except ValueError as error:
        raise ConfigError(str(error)) from error
