"""How likely a model finds one text after another: what multiple-choice tasks are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import EvaluationError
from ..session.decoder import Decoder
from .scoring import log_norm


@dataclass(frozen=True)
class Continuation:
    """log_probs: f64[n], natural logarithm of each token's probability. greedy: each was the likeliest one."""

    log_probs: npt.NDArray[np.float64]
    greedy: bool


def score_continuation(decoder: Decoder, tokens: Sequence[int], first: int, keep: int = 0) -> Continuation:
    """Score `tokens[first:]` after `tokens[:first]`. The first `keep` tokens are in the cache already.

    Raises EvaluationError when nothing comes before `first`, the tokens do not fit the context, or the logits are not
    finite.
    """
    if not 0 < first <= len(tokens) or len(tokens) > decoder.n_ctx:
        raise EvaluationError(
            f"{len(tokens)} tokens, scored from {first} on, do not fit a context of {decoder.n_ctx}; use a larger one"
        )
    keep = min(keep, first - 1)
    decoder.truncate(keep)
    array, log_probs, greedy = np.asarray(tokens, dtype=np.int32), [], True
    for begin in range(keep, len(tokens) - 1, decoder.n_batch):
        end = min(begin + decoder.n_batch, len(tokens) - 1)
        low = max(first - 1, begin)
        logits = decoder.decode(array[begin:end], begin, slice(min(low, end) - begin, end - begin))
        if len(logits):
            targets = array[low + 1 : end + 1]
            rows = np.arange(len(targets))
            log_probs.append(logits[rows, targets].astype(np.float64) - log_norm(logits))
            greedy = greedy and bool((logits.argmax(axis=1) == targets).all())
    found = np.concatenate(log_probs) if log_probs else np.empty(0)
    return Continuation(found, greedy)
