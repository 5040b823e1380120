"""Settings of the run time, as the core takes them."""

from __future__ import annotations

import os

from .. import _core
from ..errors import ConfigError
from ..settings.assign import texts_of
from ..settings.runtime import RuntimeConfig
from ..settings.skip_file import read_skip_file


def core_options(config: RuntimeConfig) -> _core.Options:
    """Settings for a model and its contexts. Raises ConfigError for those that contradict each other and for a kwta
    file that cannot be read."""
    texts = texts_of(config)
    texts.pop("lora", None)  # llama.cpp adds them
    path = texts.pop("kwta.file", "")
    skip = read_skip_file(path).model_dump_json() if path else ""
    values = {name: os.fsencode(text) for name, text in texts.items()}  # names of files may be any bytes
    try:
        return _core.Options(values, os.fsencode(path).decode(errors="replace"), skip)
    except ValueError as error:
        raise ConfigError(str(error)) from error
