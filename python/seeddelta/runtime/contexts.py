"""Every llama context of one of our models has a hook, whoever makes it, and who reads its results gets its errors.

llama_cpp's functions are wrapped, once, where contexts are made and freed, where graphs are computed, where results are
read, and where caches are written. What does not go through them (a C library that makes a context of its own) has no
hook: it computes with the placeholders of the stub file, which are NaN.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import llama_cpp
from llama_cpp import llama_cpp as native

from ..errors import ConfigError, ForkedProcessError, OutOfMemoryError
from .handle import RuntimeHandle


class Hook(Protocol):
    """A native cb_eval: its function and its data, as addresses."""

    @property
    def callback(self) -> int: ...
    @property
    def user_data(self) -> Any: ...


MakeHandle = Callable[[], RuntimeHandle]

_COMPUTES = ("llama_decode", "llama_encode")
# Also what other libraries computed (mtmd's images) is read through these. The context is the first argument, or the
# second.
_READS = ("llama_get_logits", "llama_get_logits_ith", "llama_get_embeddings", "llama_get_embeddings_ith",
          "llama_get_embeddings_seq", "llama_sampler_sample", "llama_state_get_data", "llama_state_seq_get_data",
          "llama_state_save_file", "llama_state_seq_save_file")  # fmt: skip
# These write to a KV cache without a graph, which the hook would see.
_WRITES = ("llama_state_set_data", "llama_set_state_data", "llama_state_load_file", "llama_load_session_file",
           "llama_state_seq_set_data", "llama_state_seq_set_data_ext", "llama_state_seq_load_file",
           "llama_memory_seq_cp")  # which copies when sequences have their own caches  # fmt: skip

_models: dict[int, MakeHandle] = {}  # by address of a llama_model with placeholders
_contexts: dict[int, RuntimeHandle] = {}  # by address of a llama_context; keeps the hook alive until it is freed
_NO_DEVICES = (ctypes.c_void_p * 1)()  # a list that ends at once
_local = threading.local()  # what the context that this thread makes next gets


@contextmanager
def evaluation_callback(hook: Hook) -> Iterator[None]:
    """Contexts that this thread makes inside call the hook."""
    _wrap()
    _local.hook = hook
    try:
        yield
    finally:
        _local.hook = None


@contextmanager
def new_model(make: MakeHandle | None, sequences: int = 1, flash: bool = False) -> Iterator[None]:
    """All contexts of a model get a handle (None: they need none): of that whose context this thread makes first
    inside. That context holds so many sequences, each with its own part of the KV cache; `flash`: llama.cpp chooses
    whether it has flash attention, as its own programs do."""
    _wrap()
    _local.make, _local.sequences, _local.flash = make, sequences, flash
    try:
        yield
    finally:
        _local.make, _local.sequences, _local.flash = None, 1, False


def handle_of(context: int | None) -> RuntimeHandle | None:
    """The handle of a llama_context; None for one that has no hook."""
    return None if context is None else _contexts.get(context)


def _load(original: Callable[..., Any], path: Any, params: Any) -> Any:
    """A model of ours is loaded without devices: a build of llama.cpp for GPUs computes it as one for the CPU does, for
    its scheduler then knows the CPU only. (n_gpu_layers=0 alone leaves the GPU in the scheduler.)"""
    if getattr(_local, "make", None) is None:
        return original(path, params)
    own = type(params).from_buffer_copy(params)
    own.devices = ctypes.cast(_NO_DEVICES, ctypes.c_void_p)
    return original(path, own)


def _init(original: Callable[..., Any], model: Any, params: Any) -> Any:
    address = _address(model)
    make, _local.make = getattr(_local, "make", None), None
    sequences, _local.sequences = getattr(_local, "sequences", 1), 1
    flash, _local.flash = getattr(_local, "flash", False), False
    if flash and hasattr(params, "flash_attn_type"):
        params.flash_attn_type = native.LLAMA_FLASH_ATTN_TYPE_AUTO
    if sequences > 1:
        params.n_seq_max, params.kv_unified = sequences, False
    if make is not None:
        _models[address] = make
    make = _models.get(address)
    try:
        handle = None if make is None else make()
    except MemoryError as error:
        raise OutOfMemoryError("no memory for another context of the model; free some, or load fewer") from error
    hook = getattr(_local, "hook", None) if handle is None else handle.hook
    if hook is None:
        return original(model, params)
    if ctypes.cast(params.cb_eval, ctypes.c_void_p).value not in (None, hook.callback):
        if handle is not None and not handle.needs_hook:
            return original(model, params)
        raise ConfigError("cb_eval: a context of this model has the evaluation callback of seeddelta; leave it out")
    own = type(params).from_buffer_copy(params)
    own.cb_eval = native.ggml_backend_sched_eval_callback(hook.callback)
    own.cb_eval_user_data = hook.user_data
    context = original(model, own)
    if handle is not None and context is not None:
        _contexts[_address(context)] = handle
    return context


def _free(original: Callable[..., Any], context: Any) -> Any:
    try:
        return original(context)
    finally:
        _contexts.pop(_address(context), None)


def _free_model(original: Callable[..., Any], model: Any) -> Any:
    _models.pop(_address(model), None)
    return original(model)


def _compute(original: Callable[..., Any], *arguments: Any) -> Any:
    handle = _handle_in(arguments)
    if handle is not None and handle.needs_hook and os.getpid() != handle.process:
        raise ForkedProcessError(
            "this process was forked after the model was loaded and lacks the threads that compute; "
            "load the model in the child"
        )
    result = handle.compute(original, arguments) if handle is not None else original(*arguments)
    if handle is not None:
        if result == 0:
            handle.check()
        else:  # nothing was computed, or not all
            handle.raise_error()
    return result


def _read(original: Callable[..., Any], *arguments: Any) -> Any:
    handle = _handle_in(arguments)
    if handle is not None:
        handle.raise_error()
    return original(*arguments)


def _write(original: Callable[..., Any], *arguments: Any) -> Any:
    """A cache is not known to be of one of our contexts: all of them forget what they keep of theirs."""
    try:
        return original(*arguments)
    finally:
        for handle in list(_contexts.values()):
            handle.forget_keys()


def _handle_in(arguments: tuple[Any, ...]) -> RuntimeHandle | None:
    for argument in arguments[:2]:
        handle = _contexts.get(_address(argument)) if isinstance(argument, (int, ctypes.c_void_p)) else None
        if handle is not None:
            return handle
    return None


def _address(pointer: Any) -> int:
    return int(getattr(pointer, "value", pointer) or 0)


@functools.cache
def _wrap() -> None:
    wrappers: dict[str, Callable[..., Any]] = {
        "llama_model_load_from_file": _load,
        "llama_load_model_from_file": _load,
        "llama_init_from_model": _init,
        "llama_new_context_with_model": _init,
        "llama_free": _free,
        "llama_model_free": _free_model,
        "llama_free_model": _free_model,
    }
    wrappers |= dict.fromkeys(_COMPUTES, _compute) | dict.fromkeys(_READS, _read) | dict.fromkeys(_WRITES, _write)
    for name, wrapper in wrappers.items():
        for module in (native, llama_cpp):
            original = getattr(module, name, None)
            if original is not None and not isinstance(original, functools.partial):
                setattr(module, name, functools.partial(wrapper, original))
