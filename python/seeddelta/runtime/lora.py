"""LoRA adapters (GGUF), added to a context after its model was loaded, so that the model stays mapped."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_cpp import llama_cpp as native

from ..errors import ConfigError, FormatError, MissingFileError


def parse_adapter(text: str) -> tuple[Path, float]:
    """File and scale from `FILE[:SCALE]`. Raises ConfigError."""
    path, colon, scale = text.rpartition(":")
    if not colon or Path(text).exists():
        return Path(text), 1.0
    try:
        return Path(path), float(scale)
    except ValueError:
        raise ConfigError(f"--lora {text}: {scale!r} is no scale; write FILE or FILE:0.5") from None


def add_adapters(llm: Any, adapters: Sequence[str]) -> None:
    """Add adapters to a `Llama`'s context: every product with a matrix W becomes W x + scale (alpha / rank) B (A x).

    llama.cpp computes the second term, so W may be SeedΔ. The adapters are freed with the model.

    Raises MissingFileError when there is no such file, FormatError when llama.cpp refuses one.
    """
    handles, scales = [], []
    for path, scale in map(parse_adapter, adapters):
        if not path.is_file():
            raise MissingFileError(
                f"{path}: no such file; give a LoRA adapter in GGUF (convert_lora_to_gguf.py makes one)"
            )
        # freed with its model, says llama.h; freeing it here, too, would end the process
        handle = native.llama_adapter_lora_init(llm.model, str(path).encode())
        if not handle:
            raise FormatError(f"{path}: llama.cpp cannot use it as a LoRA adapter of {llm.model_path}; do they fit?")
        handles.append(handle)
        scales.append(scale)
    count = len(handles)
    if hasattr(native, "llama_set_adapters_lora"):  # the older name is one adapter a call
        pointers = (native.llama_adapter_lora_p_ctypes * count)(*handles)
        failed = native.llama_set_adapters_lora(llm.ctx, pointers, count, (ctypes.c_float * count)(*scales))
    else:
        failed = any(
            native.llama_set_adapter_lora(llm.ctx, handle, scale) for handle, scale in zip(handles, scales, strict=True)
        )
    if failed:
        raise FormatError(f"{', '.join(adapters)}: llama.cpp cannot add them to the context")
