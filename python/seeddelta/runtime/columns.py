"""An ordinary GGUF model whose matrices are stored by columns when it is loaded, so that inputs can be skipped."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import ConfigError, SourceModelError
from ..gguf import names, targets
from ..gguf.header import Header
from ..gguf.source import open_source
from ..settings.runtime import RuntimeConfig

_TERNARY_THRESHOLD = 0.7  # of the mean magnitude: Li et al. 2016, Ternary Weight Networks


def target_columns(path: str | os.PathLike[str], config: RuntimeConfig) -> list[_core.ColumnWeight]:
    """The target matrices, transposed into columns; a matrix is in memory once.

    Raises SourceModelError when the model has no target matrix or one cannot be
    dequantized or stored as float16, ConfigError for a kwta file of another model.
    """
    source = open_source(path)
    chosen = column_names(source.header, config.column_targets)
    if not chosen:
        raise SourceModelError(
            f"{path}: no matrix of the layers can be stored by columns for {','.join(config.column_targets)}; "
            "look with seeddelta inspect"
        )
    signs = config.state_pack_mlp is not None and config.state_pack_mlp.aggressive
    return [make_columns(name, source.matrix(name), signs=signs) for name in chosen]


def column_names(header: Header, selected: Iterable[str]) -> list[str]:
    """Matrices that can be stored by columns: those of the layers, without experts, that a target names."""
    wanted = names.parse_targets(selected)
    return [
        info.name
        for info in targets.chosen(header, wanted, None)
        if len(info.shape) == 2 and names.split_name(info.name) is not None
    ]


def ternary_signs(matrix: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[Any]]:
    """float32 [n_out, n_in] as signs: those weights above 0.7 times their row's mean magnitude, and its mean of these.

    `sign_bits` is uint64 [n_out, 2, n_in / 64 rounded up], first the positive ones, `sign_gamma` float32 [n_out].
    """
    magnitude = np.abs(matrix)
    large = magnitude > _TERNARY_THRESHOLD * magnitude.mean(axis=1, keepdims=True)
    gamma = (magnitude * large).sum(axis=1) / np.maximum(large.sum(axis=1), 1)
    both = np.stack([large & (matrix > 0), large & (matrix < 0)], axis=1)
    both = np.pad(both, ((0, 0), (0, 0), (0, -matrix.shape[1] % 64)))
    bits = np.packbits(both, axis=2, bitorder="little").view("<u8")
    return {"sign_bits": bits.astype(np.uint64), "sign_gamma": gamma.astype(np.float32)}


def make_columns(name: str, matrix: npt.NDArray[np.float32], *, signs: bool = False) -> _core.ColumnWeight:
    """float32 [n_out, n_in] as float16 columns, with `ternary_signs` beside them where `signs` says so.

    Raises SourceModelError for weights beyond the range of float16.
    """
    n_out, n_in = matrix.shape
    with np.errstate(over="ignore"):
        half = matrix.T.astype(np.float16, order="C")
    if not np.isfinite(half).all():
        raise SourceModelError(
            f"tensor {name!r} has weights beyond the range of float16; leave it out with --column-targets, or convert "
            "the model (seeddelta build --layout column)"
        )
    return _core.ColumnWeight(name, n_out, n_in, f16=half, **(ternary_signs(matrix) if signs else {}))


def require_columns(config: RuntimeConfig, path: str | os.PathLike[str]) -> None:
    """Raise ConfigError when inputs shall be skipped in an ordinary model whose matrices stay in rows."""
    if config.columns is None and config.skips:
        raise ConfigError(
            f"{path}: kwta, state-pack of the MLP and events skip inputs of matrices stored by columns; "
            "give --columns f16 (RuntimeConfig.columns)"
        )
