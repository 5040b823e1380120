"""The file of `seeddelta sparsify`: what is kept of the inputs of each matrix, measured on a calibration text."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import ConfigError
from .yaml import load_yaml


class Skip(BaseModel):
    """One input of a layer: the fraction that is kept, and the score above which that fraction was, on average."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    keep: float = Field(gt=0, le=1)
    threshold: float | None = Field(default=None, ge=0)


class SkipFile(BaseModel):
    """Keys of `inputs` are names of matrices; of those that read one input (gate and up) the first has the entry."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    format: Literal[1] = 1
    score: Literal["magnitude", "wina"]
    model: str = ""
    text: str = ""
    tokens: Annotated[int, Field(ge=0)] = 0
    inputs: dict[str, Skip]


def read_skip_file(path: str | os.PathLike[str]) -> SkipFile:
    """Read a YAML or JSON file. Raises ConfigError naming the file and what is wrong."""
    path = Path(path)
    try:
        text = path.read_bytes().decode()
        data: Any = json.loads(text) if text.lstrip().startswith("{") else load_yaml(text)
        return SkipFile.model_validate(data)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); make it with seeddelta sparsify") from error
    except (ValueError, ValidationError, RecursionError) as error:
        what = str(error).splitlines()
        raise ConfigError(f"{path}: no file of seeddelta sparsify: {' '.join(what[:4])}") from error
