"""From a model to what llama.cpp loads (the stub file) and what the hook computes with (the registry)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import _core
from ..errors import ConfigError, FormatError, OutOfMemoryError
from ..gguf.header import Header
from ..gguf.reader import descriptions_of
from ..gguf.schema import TensorDescription
from ..settings.assign import texts_of
from ..settings.runtime import RuntimeConfig
from .library import ggml_abi

_SKIPPING = ("kwta", "state_pack_mlp", "event", "zeros", "force", "skip_prompt")


@dataclass(frozen=True)
class PreparedModel:
    """A model made ready: `served` weights are computed from the file, `dense` ones are dense from the start.

    `columns` are the matrices of an ordinary model that were transposed, with their kind. `model` counts and watches.
    """

    model: _core.ServedModel
    registry: _core.WeightRegistry
    stub_file: _core.StubFile
    served: dict[str, TensorDescription]
    dense: dict[str, TensorDescription]
    columns: dict[str, str]


def prepare(
    header: Header,
    fallback: str | os.PathLike[str] | None,
    config: RuntimeConfig,
    columns: Sequence[_core.ColumnWeight] = (),
) -> PreparedModel:
    """Check the file of a header, write the stub file, fill the registry: of a SeedΔ file, or of `columns` of another.
    Payload and fallback are mapped, not read. Raises FormatError, SourceModelError, ConfigError, OutOfMemoryError."""
    abi = ggml_abi()
    descriptions = {} if columns else {one.name: one for one in descriptions_of(header)}
    path = None if fallback is None else Path(fallback)
    dense = [_told(pattern) for pattern in config.dense]
    try:
        model = _core.ServedModel(
            header.path, abi, skip_settings(config), path, config.gap, dense, config.proc_sparse, columns
        )
        if model.file_bytes != header.file_size or not descriptions.keys() >= {*model.served, *model.dense}:
            raise FormatError(f"{header.path}: the file changed while it was opened; try again")
        stub_file = model.stub_file()
    except MemoryError as error:
        raise OutOfMemoryError(f"{header.path}: no memory to load the model; free some") from error
    return PreparedModel(
        model=model,
        registry=model.registry,
        stub_file=stub_file,
        served={name: descriptions[name] for name in model.served},
        dense={name: descriptions[name] for name in model.dense},
        columns={weight.name: "f16" for weight in columns},
    )


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
