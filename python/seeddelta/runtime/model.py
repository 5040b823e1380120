"""`SeedDeltaLlama`: a `llama_cpp.Llama` that computes the converted weights from the SeedΔ file."""

from __future__ import annotations

import difflib
import inspect
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import llama_cpp
import llama_cpp._internals as internals
from llama_cpp import llama_cpp as native

from .. import _core
from ..errors import ConfigError, FormatError
from ..gguf.reader import has_statecells, is_seeddelta
from .attention import OwnAttention, check_arguments
from .columns import prepare_columns, require_columns
from .config import RuntimeConfig
from .handle import RuntimeHandle
from .library import ggml_abi, unsupported
from .weights import PreparedModel, prepare

_constructor_lock = threading.Lock()


@contextmanager
def evaluation_callback(hook: _core.GraphHook | _core.CaptureHook | None, sequences: int = 1) -> Iterator[None]:
    """Contexts that this thread makes inside call the hook, if there is one, and hold so many sequences, each with its
    own part of the KV cache: `Llama` leaves these fields as the defaults have them."""
    original = native.llama_context_default_params
    owner = threading.get_ident()

    def with_hook() -> Any:
        params = original()
        if threading.get_ident() != owner:  # an ordinary model that another thread loads meanwhile
            return params
        if hook is not None:
            params.cb_eval = native.ggml_backend_sched_eval_callback(hook.callback)
            params.cb_eval_user_data = hook.user_data
        if sequences > 1:
            params.n_seq_max, params.kv_unified = sequences, False
        return params

    with _constructor_lock:
        native.llama_context_default_params = with_hook
        try:
            yield
        finally:
            native.llama_context_default_params = original


class _CheckedContext(internals.LlamaContext):  # type: ignore[misc]
    """A llama context whose decode and encode raise what the hook met."""

    seeddelta: RuntimeHandle

    def decode(self, batch: Any) -> None:
        super().decode(batch)
        self.seeddelta.check()

    def encode(self, batch: Any) -> None:
        super().encode(batch)
        self.seeddelta.check()


class SeedDeltaLlama(llama_cpp.Llama):  # type: ignore[misc]
    """A `llama_cpp.Llama` for SeedΔ and ordinary GGUF files; everything of `Llama` works unchanged.

    `seeddelta` is the RuntimeHandle: what is served, counters, metrics. See `seeddelta.load` for arguments and errors.
    """

    def __init__(
        self,
        model_path: str,
        *,
        fallback: str | os.PathLike[str] | None = None,
        config: RuntimeConfig | None = None,
        statecells: bool = False,
        parallel: int = 1,
        **kwargs: Any,
    ) -> None:
        _refuse_unknown(kwargs)
        options = {"fallback": fallback, "config": config, "statecells": statecells, "parallel": parallel}
        self._seeddelta_options = options
        self.parallel = parallel
        config = config or RuntimeConfig()
        fallback = fallback if fallback is not None else config.fallback
        self.seeddelta = RuntimeHandle()
        if (statecells or config.statecells) and not has_statecells(model_path):
            raise FormatError(
                f"{model_path}: has no StateCells weights; make some with `seeddelta build --statecells`, "
                "or leave statecells out"
            )
        check_parallel(parallel, config)
        attention = None
        if config.attention is not None:
            kwargs = check_arguments(kwargs)
            event = config.event if config.event is not None and config.event.target == "kv" else None
            attention = OwnAttention(config.attention, event)
        if is_seeddelta(model_path):
            if config.columns is not None:
                raise ConfigError(
                    f"{model_path}: --columns stores an ordinary GGUF model by columns; a SeedΔ file has its layout"
                )
            prepared = prepare(model_path, fallback, config)
        elif config.columns is not None:
            prepared = prepare_columns(model_path, config)
        else:
            require_columns(config, model_path)
            self._init_plain(model_path, config, attention, kwargs)
            return
        _check_arguments(kwargs)
        try:
            hook = _core.GraphHook(prepared.registry)
            if attention is not None:
                hook.set_attention(attention.hook)
            with evaluation_callback(hook, parallel):
                super().__init__(prepared.view.path, **(kwargs | {"n_gpu_layers": 0, "op_offload": False}))
            prepared.view.punch()
        except UnicodeDecodeError as error:
            raise FormatError(
                f"{model_path}: a text of its tokenizer or metadata is not UTF-8 ({error}); build the file again"
            ) from error
        finally:
            prepared.view.close()
        self.model_path = model_path
        self._attach(prepared, hook, config, attention)

    def _init_plain(
        self, model_path: str, config: RuntimeConfig, attention: OwnAttention | None, kwargs: dict[str, Any]
    ) -> None:
        """A model without weights of ours: there is a hook only when attention is ours."""
        if attention is None:
            with evaluation_callback(None, self.parallel):
                super().__init__(model_path, **kwargs)
            return
        hook = _core.GraphHook(_core.WeightRegistry(ggml_abi()))
        hook.set_attention(attention.hook)
        with evaluation_callback(hook, self.parallel):
            super().__init__(model_path, **kwargs)
        self._attach(None, hook, config, attention)

    def _attach(
        self,
        prepared: PreparedModel | None,
        hook: _core.GraphHook,
        config: RuntimeConfig,
        attention: OwnAttention | None,
    ) -> None:
        if self._ctx.params.cb_eval_user_data != hook.user_data:
            self.close()
            raise unsupported("llama_cpp.Llama does not pass the evaluation callback on")
        self.seeddelta = RuntimeHandle(prepared, hook, config, attention)
        # The context keeps the hook alive for as long as llama.cpp can call it.
        self._ctx.__class__ = _CheckedContext
        self._ctx.seeddelta = self.seeddelta

    def _repr_html_(self) -> str:
        from .. import _html

        return _html.of_handle(self.seeddelta, self.model_path)

    def close(self) -> None:
        """Free the model and its context."""
        if hasattr(self, "_stack"):  # not there when the constructor failed early
            super().close()

    def __getstate__(self) -> dict[str, Any]:
        return dict(super().__getstate__()) | self._seeddelta_options


def _refuse_unknown(kwargs: Mapping[str, Any]) -> None:
    """Raise ConfigError for a keyword that `Llama` does not have: it would drop it without a word."""
    known = {name for name, one in inspect.signature(llama_cpp.Llama).parameters.items() if one.kind != one.VAR_KEYWORD}
    for name in kwargs:
        if name in known:
            continue
        options = {field.name for field in fields(RuntimeConfig)}
        near = difflib.get_close_matches(name, sorted(known | options), 3)
        if name in options:
            hint = f"it is an option of the run time: config=seeddelta.RuntimeConfig({name}=…)"
        else:
            hint = f"did you mean {' or '.join(near)}?" if near else "see llama_cpp.Llama and seeddelta.RuntimeConfig"
        raise ConfigError(f"keyword {name!r} is not known; {hint}")


def check_parallel(parallel: int, config: RuntimeConfig) -> None:
    """Raises ConfigError for a number of sequences that cannot be, or for options that follow one sequence."""
    if parallel < 1:
        raise ConfigError(f"parallel {parallel}: give a number of sequences from 1 on")
    if parallel > 1 and (config.attention is not None or config.event is not None):
        raise ConfigError(
            f"parallel {parallel}: events and attention by our kernels follow the tokens of one sequence; leave them "
            "out, or serve one sequence"
        )


def _check_arguments(kwargs: dict[str, Any]) -> None:
    """Refuse what would take the weights away from the hook or make the holes resident."""
    if kwargs.get("n_gpu_layers", 0) != 0:
        raise ConfigError("n_gpu_layers: SeedΔ weights are computed on the CPU; leave it at 0")
    if kwargs.get("op_offload"):
        raise ConfigError("op_offload: SeedΔ weights are computed on the CPU; leave it off")
    if not kwargs.get("use_mmap", True):
        raise ConfigError("use_mmap=False would copy the holes of the dense matrices into memory; leave it at True")
    if kwargs.get("use_mlock"):
        raise ConfigError("use_mlock would lock the holes of the dense matrices in memory; leave it off")
    if kwargs.get("lora_path"):
        raise ConfigError("lora_path switches llama.cpp's mapping off; merge the adapter, then build again")
