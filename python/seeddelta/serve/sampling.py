"""How the next token is chosen: llama.cpp's samplers, one chain a request."""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from llama_cpp import _internals as internals
from llama_cpp import llama_cpp as native

from ..errors import RequestError

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data
_REPEAT_WINDOW = 64  # tokens that the penalties look back; `last_n_tokens_size` of llama_cpp.Llama
_MIROSTAT_M = 100  # as llama_cpp.Llama has it


@dataclass(frozen=True)
class Sampling:
    """Options of a request, with the defaults of `llama_cpp.Llama.create_completion`.

    Attributes:
        temperature: 0 takes the likeliest token, whatever the options below it say.
        grammar: GBNF text that the reply must follow.
        logit_bias: token -> what is added to its logit.
        min_tokens: the reply does not end before so many tokens.
        seed: None takes a new one.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    mirostat_mode: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    grammar: str | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    seed: int | None = None


class Sampler:
    """The chain of one request. Call `close` when it is done.

    Raises RequestError for a grammar that llama.cpp cannot read.
    """

    def __init__(self, llm: Any, options: Sampling) -> None:
        self._stack = ExitStack()
        self._n_vocab = llm.n_vocab()
        self._chosen = 0
        self._min_tokens = options.min_tokens
        self._ends = _end_tokens(llm) if options.min_tokens else []
        self._grammar = None
        if options.grammar is not None:
            # beside the chain: it is asked about one token first, and about all only when that one is not allowed
            self._grammar = native.llama_sampler_init_grammar(llm._model.vocab, options.grammar.encode(), b"root")
            if not self._grammar:
                raise RequestError("grammar: llama.cpp cannot read it; give GBNF with a rule named root")
            self._stack.callback(native.llama_sampler_free, self._grammar)
        self._chain = self._stack.enter_context(closing(_chain(self._n_vocab, options)))

    def sample(self, context: Any, index: int) -> int:
        """The next token from row `index` of the last decode's batch."""
        suppressed = self._chosen < self._min_tokens
        self._chosen += 1
        if self._grammar is None and not suppressed:
            return int(self._chain.sample(context, index))
        logits = np.ctypeslib.as_array(context.get_logits_ith(index), shape=(self._n_vocab,))
        token = self._pick(logits, suppressed, False)
        if self._grammar is not None and not self._allowed(token):
            token = self._pick(logits, suppressed, True)
        if self._grammar is not None:
            native.llama_sampler_accept(self._grammar, token)
        self._chain.accept(token)
        return token

    def close(self) -> None:
        self._stack.close()

    def _pick(self, logits: np.ndarray[Any, Any], suppressed: bool, constrained: bool) -> int:
        candidates = np.empty(len(logits), _CANDIDATE)
        candidates["id"] = np.arange(len(logits), dtype=np.int32)
        candidates["logit"] = logits
        if suppressed:
            candidates["logit"][self._ends] = -np.inf
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


def _chain(n_vocab: int, options: Sampling) -> Any:
    """The samplers in the order of `llama_cpp.Llama`."""
    chain = internals.LlamaSampler()
    if options.logit_bias:
        chain.add_logit_bias(n_vocab, dict(options.logit_bias))
    penalties = options.repeat_penalty, options.frequency_penalty, options.presence_penalty
    if penalties != (1.0, 0.0, 0.0):
        chain.add_penalties(n_vocab, _REPEAT_WINDOW, *penalties)
    seed = secrets.randbits(32) if options.seed is None else options.seed & 0xFFFFFFFF
    if options.temperature <= 0:
        chain.add_greedy()
    elif options.mirostat_mode == 1:
        chain.add_mirostat(n_vocab, seed, options.mirostat_tau, options.mirostat_eta, _MIROSTAT_M)
    elif options.mirostat_mode == 2:
        chain.add_mirostat_v2(seed, options.mirostat_tau, options.mirostat_eta)
    else:
        chain.add_top_k(options.top_k)
        chain.add_typical(options.typical_p, 1)
        chain.add_top_p(options.top_p, 1)
        chain.add_min_p(options.min_p, 1)
        chain.add_temp(options.temperature)
        chain.add_dist(seed)
    return chain


def _token_array(candidates: np.ndarray[Any, Any]) -> Any:
    """A view of the candidates; it is valid as long as they live."""
    data = ctypes.cast(candidates.ctypes.data, ctypes.POINTER(native.llama_token_data))
    return native.llama_token_data_array(data=data, size=len(candidates), selected=-1, sorted=False)


def _end_tokens(llm: Any) -> list[int]:
    vocabulary = llm._model.vocab
    return [token for token in range(llm.n_vocab()) if native.llama_vocab_is_eog(vocabulary, token)]
