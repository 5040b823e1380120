"""Models for lm-evaluation-harness (`lm_eval`): log-likelihoods and greedy replies, SeedΔ or any other GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import needs_extra
from ..session import open_model, require_logits
from ..session.decoder import Decoder
from ..session.long_words import tokens_of
from .continuations import score_continuation

with needs_extra("tasks"):
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model

_CONTEXT = 2048  # tokens; a chunk of 512 is too short for many tasks
_MAX_REPLY = 256  # tokens, where a task does not say


@register_model("seeddelta")  # type: ignore[misc, unused-ignore]
class SeedDeltaLM(LM):  # type: ignore[misc]
    """`lm_eval`'s view of a model.

    Args:
        path: GGUF or SeedΔ file.
        n_ctx: context in tokens; longer prompts lose their beginning.
        threads: default: all cores.
        options: further keywords of `seeddelta.load`.
    """

    def __init__(self, path: str, n_ctx: int = _CONTEXT, threads: int | None = None, **options: Any) -> None:
        super().__init__()
        options = {
            name: value for name, value in options.items() if name not in ("batch_size", "max_batch_size", "device")
        }
        self.llm = open_model(Path(path), n_ctx=int(n_ctx), threads=threads, **options)
        require_logits(self.llm)
        self._decoder = Decoder(self.llm)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-probability of the continuation, whether it is the greedy one) of each (context, continuation)."""
        return [self._score(*request.args) for request in requests]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of each whole text, in windows of the context without overlap."""
        found = []
        for request in requests:
            tokens = self._tokens(request.args[0])
            sums = 0.0
            for begin in range(0, len(tokens), self._decoder.n_ctx - 1):
                window = [self.llm.token_bos(), *tokens[begin : begin + self._decoder.n_ctx - 1]]
                sums += float(score_continuation(self._decoder, window, 1).log_probs.sum())
            found.append(sums)
        return found

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Greedy replies, up to one of the texts `until`."""
        replies = []
        for request in requests:
            prompt, options = request.args
            count = int(options.get("max_gen_toks", _MAX_REPLY))
            until = options.get("until") or []
            tokens = tokens_of(self.llm, prompt.encode(), special=True)[-(self._decoder.n_ctx - count) :]
            self._decoder.clear()
            stop = [until] if isinstance(until, str) else list(until)
            reply = self.llm.create_completion(tokens, max_tokens=count, temperature=0, stop=stop)
            replies.append(str(reply["choices"][0]["text"]))
        return replies

    def _score(self, context: str, continuation: str) -> tuple[float, bool]:
        blanks = len(context) - len(context.rstrip())
        if blanks:  # a blank belongs to the token behind it
            context, continuation = context[:-blanks], context[-blanks:] + continuation
        begin = self._tokens(context)
        tokens = [self.llm.token_bos(), *self._tokens(context + continuation)]
        first = max(1, min(len(begin) + 1, len(tokens) - 1))
        drop = max(0, len(tokens) - self._decoder.n_ctx)
        found = score_continuation(self._decoder, tokens[drop:], max(1, first - drop))
        return float(found.log_probs.sum()), found.greedy

    def _tokens(self, text: str) -> list[int]:
        return tokens_of(self.llm, text.encode(), add_bos=False, special=True)
