"""`SeedDeltaLlama`: a `llama_cpp.Llama` that computes the converted weights from the SeedΔ file."""

from __future__ import annotations

import difflib
import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import llama_cpp

from .. import _core
from ..errors import ConfigError, FormatError, OutOfMemoryError, SeedDeltaError
from ..gguf.header import Header
from ..gguf.hub import fetch, located
from ..gguf.model_file import read_header
from ..gguf.positions import position_limit
from ..gguf.reader import has_statecells, is_seeddelta
from ..processors import MAX_THREADS
from ..settings.runtime import RuntimeConfig
from .attention import attention_if_possible, own_attention, takes_attention
from .contexts import handle_of, new_model
from .handle import RuntimeHandle
from .library import loaded_ggml, unsupported
from .llama_log import install, native_path, refusals
from .locking import lock_memory
from .lora import add_adapters
from .options import core_options

install()
_NUMBERS = {"n_ctx", "n_batch", "n_ubatch", "n_threads", "n_threads_batch"}
MAX_CONTEXT = 1 << 24  # tokens: far beyond any model; llama.cpp keeps lists of them
# what llama.cpp gets: the weights are computed here, and it would lock the placeholders, too
_OURS = {"n_gpu_layers": 0, "op_offload": False, "use_mlock": False}


def _prepared(
    header: Header, model_path: str, config: RuntimeConfig, options: _core.Options
) -> tuple[_core.ServedModel, _core.StubFile] | None:
    """What llama.cpp is given in place of the file; None for an ordinary model that it computes itself."""
    if config.statecells and not has_statecells(header):
        raise FormatError(
            f"{model_path}: has no StateCells weights; make some with `seeddelta build --statecells`, "
            "or leave statecells out"
        )
    if config.columns is None and not is_seeddelta(header):
        if config.skips:
            raise ConfigError(
                f"{model_path}: kwta, state-pack of the MLP and events skip inputs of matrices stored by columns; "
                "give --columns f16 (RuntimeConfig.columns)"
            )
        return None
    try:
        model = _core.ServedModel(header.path, loaded_ggml(), options)
        return model, model.stub_file()
    except MemoryError as error:
        raise OutOfMemoryError(f"{model_path}: no memory to load the model; free some") from error


def _new_handle(
    model: _core.ServedModel | None, config: RuntimeConfig, options: _core.Options, attention: bool
) -> RuntimeHandle:
    """What one more context of a model gets: hook, counters and attention of its own, the weights of all."""
    registry = _core.WeightRegistry(loaded_ggml()) if model is None else model.registry
    hook, own = _core.GraphHook(registry), None
    if attention:
        must = config.attention == "exact" or config.chosen_keys is not None
        own = own_attention(options) if must else attention_if_possible(options)
    if own is not None:
        own.take_over(hook)
    return RuntimeHandle(model, hook, config, own)


class SeedDeltaLlama(llama_cpp.Llama):  # type: ignore[misc]
    """A `llama_cpp.Llama` for SeedΔ and ordinary GGUF files; everything of `Llama` works unchanged.

    `seeddelta` is the RuntimeHandle: what is served, counters, metrics. See `seeddelta.load` for arguments and errors.
    """

    def __repr__(self) -> str:
        return f"SeedDeltaLlama({getattr(self, 'model_path', None)!r}, {getattr(self, 'seeddelta', None)!r})"

    def _repr_html_(self) -> str:
        return self.seeddelta.html(self.model_path)

    def __init__(
        self,
        model_path: str,
        *,
        fallback: str | os.PathLike[str] | None = None,
        config: RuntimeConfig | Mapping[str, Any] | None = None,
        statecells: bool = False,
        parallel: int = 1,
        lora: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
        **kwargs: Any,
    ) -> None:
        _refuse_unknown(kwargs)
        config = _config_of(config)
        self._seeddelta_options: dict[str, Any] = {"fallback": fallback, "config": config, "statecells": statecells}
        self._seeddelta_options |= {"parallel": parallel, "lora": lora}
        self.parallel = parallel
        self._llama_chooses_flash = _flash(kwargs)
        fallback = fallback if fallback is not None else config.fallback
        model_path, fallback = str(located(model_path)), None if fallback is None else located(fallback)
        config = config.model_copy(update={"fallback": fallback, "statecells": statecells or config.statecells})
        self.seeddelta = RuntimeHandle()
        check_parallel(parallel, config)
        given = [lora] if isinstance(lora, (str, os.PathLike)) else lora
        adapters = [*config.lora, *(os.fspath(one) for one in given)]
        attention, options = takes_attention(config, kwargs), core_options(config)
        header = read_header(model_path)
        self._position_limit = position_limit(header)
        prepared = _prepared(header, model_path, config, options)
        if prepared is None:
            _core.check_loadable(header.path)
            make = partial(_new_handle, None, config, options, True) if attention else None
            self._init_plain(str(header.path), make, kwargs)
            self._finish(adapters, kwargs)
            return
        served, stub_file = prepared
        _check_arguments(kwargs)
        lock = bool(kwargs.get("use_mlock"))
        if lock and config.columns is not None:
            raise ConfigError(
                "use_mlock: matrices stored by columns at loading lie in memory of their own, which is not locked; "
                "leave use_mlock or columns out, or build a SeedΔ file with --layout column"
            )
        self._seeddelta_options["use_mlock"] = lock
        try:
            make = partial(_new_handle, served, config, options, attention)
            with new_model(make, parallel, _flash(kwargs)), _opening(model_path, kwargs):
                super().__init__(stub_file.path, **(kwargs | _OURS))
            self._attach()
            if not stub_file.seal():
                raise unsupported("it did not map the model into memory")
            self.seeddelta.raise_error()
            if lock:
                self.seeddelta.locked_bytes = lock_memory([*served.payload, *stub_file.kept()])
        except SeedDeltaError:
            self.close()
            raise
        finally:
            stub_file.close()
        self.model_path = model_path
        self._finish(adapters, kwargs)

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None = None,
        additional_files: Sequence[str] | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> SeedDeltaLlama:
        """A model of the Hugging Face hub, by llama-cpp-python's arguments; `kwargs` are those of `seeddelta.load`.

        `filename` may be the name of a file, a pattern, or a type such as Q4_K_M; None where the repository has one
        model. All parts of a split model are downloaded, and with them `additional_files`. `local_dir_use_symlinks` is
        of no effect, as in today's huggingface_hub. Raises HubError, and what `seeddelta.load` raises.
        """
        for name in additional_files or ():
            fetch(repo_id, name, local_dir=local_dir, cache_dir=cache_dir)
        return cls(str(fetch(repo_id, filename, local_dir=local_dir, cache_dir=cache_dir)[0]), **kwargs)

    def _init_plain(self, model_path: str, make: Callable[[], RuntimeHandle] | None, kwargs: dict[str, Any]) -> None:
        """A model without weights of ours: it has a hook only when attention may be ours."""
        opening = _opening(model_path, kwargs)
        with new_model(make, self.parallel, _flash(kwargs)), native_path(model_path) as name, opening:
            super().__init__(name, **kwargs)
        if make is not None:
            self._attach()
        self.model_path = model_path

    def _finish(self, adapters: Sequence[str], kwargs: Mapping[str, Any]) -> None:
        try:
            self._warn_of_context(kwargs)
            if adapters:
                add_adapters(self, adapters)
        except (SeedDeltaError, Warning):  # a warning that the caller makes an error
            self.close()
            raise

    def _warn_of_context(self, kwargs: Mapping[str, Any]) -> None:
        trained = int(llama_cpp.llama_model_n_ctx_train(self.model))
        longest = self.n_ctx() // int(llama_cpp.llama_n_seq_max(self._ctx.ctx))
        if 0 < trained < longest and not any(name.startswith(("rope_", "yarn_")) for name in kwargs):
            warnings.warn(
                f"n_ctx is {longest}, but the model was trained on contexts of at most {trained} tokens: text beyond "
                "that gets worse; use a smaller n_ctx, or rope_freq_scale",
                RuntimeWarning,
                stacklevel=5,  # of the caller of seeddelta.load
            )

    def _attach(self) -> None:
        handle = handle_of(self._ctx.ctx)
        if handle is None:
            raise unsupported("llama_cpp.Llama does not make its context through llama_init_from_model")
        self.seeddelta = handle

    def n_ctx(self) -> int:
        """Tokens of the context, at most those that the model has positions for: llama.cpp ends the process beyond."""
        context = int(super().n_ctx())
        return context if self._position_limit is None else min(context, self._position_limit)

    def close(self) -> None:
        """Free the model and its context."""
        if hasattr(self, "_stack"):  # not there when the constructor failed early
            super().close()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__()) | self._seeddelta_options
        if self._llama_chooses_flash:  # Llama has what llama.cpp chose
            del state["flash_attn"]
        return state


def _flash(kwargs: Mapping[str, Any]) -> bool:
    """Whether llama.cpp may choose flash attention: nobody else did, and it is no embedding model."""
    return "flash_attn" not in kwargs and not kwargs.get("embedding")


def _opening(path: str, kwargs: Mapping[str, Any]) -> AbstractContextManager[None]:
    return refusals(path, quiet=not kwargs.get("verbose", True))


def _config_of(given: RuntimeConfig | Mapping[str, Any] | None) -> RuntimeConfig:
    if given is None or isinstance(given, RuntimeConfig):
        return given or RuntimeConfig()
    if isinstance(given, Mapping):
        return RuntimeConfig.from_dict(given)
    raise ConfigError(f"config={given!r}: give a seeddelta.RuntimeConfig, or its options as a dict")


def _refuse_unknown(kwargs: Mapping[str, Any]) -> None:
    """Raise ConfigError for a keyword that `Llama` does not have: it would drop it without a word."""
    known = {name for name, one in inspect.signature(llama_cpp.Llama).parameters.items() if one.kind != one.VAR_KEYWORD}
    for name in _NUMBERS & kwargs.keys():
        if not isinstance(kwargs[name], int) and not (kwargs[name] is None and name.startswith("n_threads")):
            raise ConfigError(f"{name}={kwargs[name]!r}: give a whole number")
    for name in ("n_threads", "n_threads_batch"):
        if (kwargs.get(name) or 0) > MAX_THREADS:
            raise ConfigError(f"{name} {kwargs[name]}: ggml takes {MAX_THREADS} threads at most")
    if (kwargs.get("n_ctx") or 0) > MAX_CONTEXT:
        raise ConfigError(f"n_ctx {kwargs['n_ctx']}: at most {MAX_CONTEXT} tokens; give what the memory holds")
    for name in kwargs:
        if name in known:
            continue
        options = set(RuntimeConfig.model_fields)
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
    if parallel > 1 and (config.chosen_keys is not None or config.event is not None):
        raise ConfigError(
            f"parallel {parallel}: events and keys chosen by their bits follow the tokens of one sequence; leave them "
            "out, or serve one sequence"
        )


def _check_arguments(kwargs: dict[str, Any]) -> None:
    """Refuse what would take the weights away from the hook or make the placeholders resident."""
    if kwargs.get("n_gpu_layers", 0) != 0:
        raise ConfigError("n_gpu_layers: SeedΔ weights are computed on the CPU; leave it at 0")
    if kwargs.get("op_offload"):
        raise ConfigError("op_offload: SeedΔ weights are computed on the CPU; leave it off")
    if not kwargs.get("use_mmap", True):
        raise ConfigError("use_mmap=False would give the placeholders memory of their own; leave it at True")
    if kwargs.get("lora_path"):
        raise ConfigError("lora_path switches llama.cpp's mapping off; give lora=FILE, which is added after loading")
