"""Our attention inside llama.cpp, where it may be."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import llama_cpp
from gguf import GGMLQuantizationType

from .. import _core
from ..errors import ConfigError, UnsupportedLlamaError
from ..settings.runtime import RuntimeConfig
from .library import loaded_ggml, unsupported

_CACHE_TYPES = (
    llama_cpp.GGML_TYPE_F16,
    GGMLQuantizationType.BF16,
    llama_cpp.GGML_TYPE_Q8_0,
    llama_cpp.GGML_TYPE_Q4_0,
)


def own_attention(options: _core.Options) -> _core.OwnAttention:
    """Attention of one llama context. Raises UnsupportedLlamaError when the loaded ggml cannot be understood."""
    try:
        return _core.OwnAttention(loaded_ggml(), options)
    except RuntimeError as error:
        raise unsupported(f"attention cannot be taken over: {error}") from error


def attention_if_possible(options: _core.Options) -> _core.OwnAttention | None:
    """The same, or None and a warning."""
    try:
        return own_attention(options)
    except UnsupportedLlamaError as error:
        warnings.warn(f"{error}; llama.cpp computes all attention", RuntimeWarning, stacklevel=2)
        return None


def takes_attention(config: RuntimeConfig, kwargs: Mapping[str, Any]) -> bool:
    """Whether attention of a model that `Llama` opens with these keywords is ours, or may be.

    Raises ConfigError for keywords that contradict what was asked for.
    """
    if config.chosen_keys is None and config.attention != "exact":
        alone = kwargs.get("n_gpu_layers", 0) == 0 and not kwargs.get("op_offload")
        return config.attention == "auto" and alone
    check_arguments(kwargs)
    return True


def check_arguments(kwargs: Mapping[str, Any]) -> None:
    """Raises ConfigError for keywords of `Llama` that contradict attention of ours."""
    if kwargs.get("n_gpu_layers", 0) != 0 or kwargs.get("op_offload"):
        raise ConfigError("n_gpu_layers, op_offload: our attention runs on the CPU; leave them out")
    for name in ("type_k", "type_v"):
        if kwargs.get(name) not in (None, *_CACHE_TYPES):
            raise ConfigError(f"{name}: our attention needs a cache of type F16, BF16, Q8_0 or Q4_0")
    if not kwargs.get("flash_attn", True) and kwargs.get("type_v") not in (None, llama_cpp.GGML_TYPE_F16):
        raise ConfigError("type_v: without flash attention our attention needs a cache of values of type F16")
