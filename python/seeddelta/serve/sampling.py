"""How the next token is chosen: llama.cpp's samplers, one chain a request."""

from __future__ import annotations

import ctypes
import secrets
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import _internals as internals
from llama_cpp import llama_cpp as native

from ..errors import RequestError
from .vocabulary import Vocabulary

Row = npt.NDArray[np.float32]
_NO_PENALTIES = (1.0, 0.0, 0.0)
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data
_REPEAT_WINDOW = 64  # tokens that the penalties look back; `last_n_tokens_size` of llama_cpp.Llama
_COLD = 1e-6  # a temperature from which on logits divided by it are no numbers any more; the likeliest token is taken
_SLOW = 0.1  # seconds of one token: a grammar in which the reply can be read in thousands of ways


@dataclass(frozen=True)
class Sampling:
    """Options of a request, with the defaults of `llama_cpp.Llama.create_completion`.

    Attributes:
        temperature: 0 takes the likeliest token, whatever the options below it say.
        grammar: GBNF text that the reply must follow, as `schema.json_grammar` makes it: llama.cpp ends the process for
            some others.
        logit_bias: token -> what is added to its logit.
        seed: None takes a new one.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    grammar: str | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None


class Sampler:
    """The chain of one request. Call `close` when it is done.

    Raises RequestError for a grammar that llama.cpp cannot read, and for a bias of what is no token.
    """

    def __init__(self, vocabulary: Vocabulary, options: Sampling) -> None:
        self._stack = ExitStack()
        self._grammar = None
        # The likeliest token needs no chain, which would write out all candidates first.
        self._plain = options.temperature < _COLD and options.grammar is None and not _changes_logits(options)
        vocabulary.check(options.logit_bias, "logit_bias")
        if options.grammar is not None:
            # beside the chain: it is asked about one token first, and about all only when that one is not allowed
            self._grammar = native.llama_sampler_init_grammar(
                vocabulary.llm._model.vocab, options.grammar.encode(), b"root"
            )
            if not self._grammar:
                raise RequestError("grammar: llama.cpp cannot read it; give GBNF with a rule named root")
            self._stack.callback(native.llama_sampler_free, self._grammar)
        self._chain = self._stack.enter_context(closing(_chain(vocabulary.size, options)))

    def sample(self, context: Any, index: int, logits: Row) -> int | None:
        """The next token from row `index` of the last decode's batch, whose logits are f32[n_vocab]; None when the
        grammar takes none. Raises RequestError for a grammar that takes too long."""
        if self._plain:
            return int(logits.argmax())
        if self._grammar is None:
            return int(self._chain.sample(context, index))
        token = self._pick(logits, False)
        begin = time.thread_time()
        allowed = self._allowed(token)
        spent = time.thread_time() - begin
        if not allowed:
            token = self._pick(logits, True)
            if not self._allowed(token):  # llama.cpp would end the process
                return None
        begin = time.thread_time()
        native.llama_sampler_accept(self._grammar, token)
        if spent + time.thread_time() - begin > _SLOW:
            raise RequestError("grammar: the reply can be read in too many ways; make its rules begin differently")
        self._chain.accept(token)
        return token

    def close(self) -> None:
        self._stack.close()

    def _pick(self, logits: Row, constrained: bool) -> int:
        candidates = np.empty(len(logits), _CANDIDATE)
        candidates["id"] = np.arange(len(logits), dtype=np.int32)
        candidates["logit"] = logits
        array = _token_array(candidates)
        if constrained:
            native.llama_sampler_apply(self._grammar, ctypes.byref(array))
        native.llama_sampler_apply(self._chain.sampler, ctypes.byref(array))
        return int(array.data[array.selected].id)

    def _allowed(self, token: int) -> bool:
        one = np.array([(token, 0.0, 0.0)], _CANDIDATE)
        array = _token_array(one)
        native.llama_sampler_apply(self._grammar, ctypes.byref(array))
        return bool(np.isfinite(one["logit"][0]))


def _penalties(options: Sampling) -> tuple[float, float, float]:
    return options.repeat_penalty, options.frequency_penalty, options.presence_penalty


def _changes_logits(options: Sampling) -> bool:
    return bool(options.logit_bias) or _penalties(options) != _NO_PENALTIES


def _chain(n_vocab: int, options: Sampling) -> Any:
    """The samplers in the order of `llama_cpp.Llama`."""
    chain = internals.LlamaSampler()
    if options.logit_bias:
        chain.add_logit_bias(n_vocab, dict(options.logit_bias))
    if _penalties(options) != _NO_PENALTIES:
        chain.add_penalties(n_vocab, _REPEAT_WINDOW, *_penalties(options))
    seed = secrets.randbits(32) if options.seed is None else options.seed & 0xFFFFFFFF
    if options.temperature < _COLD:
        chain.add_greedy()
    else:
        chain.add_top_k(options.top_k)
        chain.add_top_p(options.top_p, 1)
        chain.add_min_p(options.min_p, 1)
        chain.add_temp(options.temperature)
        chain.add_dist(seed)
    return chain


def _token_array(candidates: np.ndarray[Any, Any]) -> Any:
    """A view of the candidates; it is valid as long as they live."""
    data = ctypes.cast(candidates.ctypes.data, ctypes.POINTER(native.llama_token_data))
    return native.llama_token_data_array(data=data, size=len(candidates), selected=-1, sorted=False)
