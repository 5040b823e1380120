"""Lines `Key value` in a text are asked for, with the text in the cache: what each setting of attention says.

The text ends with some of the lines once more; the question is the key of another line, decoded token by token as the
answer is: every step of the look-up is computed by the setting's attention. (In a prompt, llama.cpp would compute the
question.)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from attention_models import QUALITY, fill, opened, restore
from cache_state import sequence_state
from seeddelta.evaluate.scoring import log_norm
from seeddelta.session import bos_token, read_text

DEPTHS = 10  # lines asked for a text, evenly spread
EXAMPLES = (3, 6, 9)  # lines among them that are said again at the end of the text, to show what is wanted
KEYS = """
Abbott Ashdown Barlow Beckett Carmody Castell Dragan Dunmore Eastwick Fairfax Garrick Halloran Ingram Jansson
Kessler Kowalski Lindqvist Lockhart Marlowe Moreau Nakamura Norwood Okafor Osborne Petrov Pickford Quinlan
Radcliffe Rosetti Sandoval Sheridan Tanaka Thornton Underhill Vasquez Voss Wexford Whitfield Yamada Zimmer
"""
VALUES = """
anchor apple basket blanket bottle bridge bucket butter camera candle carpet castle cheese chicken circle
coffee copper dragon engine feather flower garden guitar hammer helmet honey jacket ladder lemon letter mirror
monkey needle onion orange pencil pepper pillow potato rabbit ribbon rocket saddle salmon shadow silver spider
sugar table tiger tomato turtle violin wagon window
"""


@dataclass(frozen=True)
class Haystack:
    """Tokens of a text, the state of a cache that holds them, and questions with the tokens of their answers."""

    tokens: Any
    state: bytes
    questions: list[tuple[Any, Any]]


def haystack(llm: Any, decoder: Any, words: list[int], length: int, number: int) -> Haystack:
    """`length` tokens of `words`, another stretch for each `number`, with a line in the midst of each of its parts."""
    rng = np.random.default_rng([length, number])
    n_lines = DEPTHS + len(EXAMPLES)
    pairs = list(zip(*(rng.permutation(of.split())[:n_lines] for of in (KEYS, VALUES)), strict=True))

    def tokens_of(text: str) -> list[int]:
        return list(llm.tokenize(text.encode(), add_bos=False))

    lines = [tokens_of(f"\n{key} {value}\n") for key, value in pairs]
    end = tokens_of("\n" + "".join(f"{pairs[i][0]} {pairs[i][1]}\n" for i in EXAMPLES))
    bos = bos_token(llm)
    tokens = [] if bos is None else [bos]
    count = length - len(tokens) - sum(map(len, lines)) - len(end)
    at = number * count
    if at + count > len(words):
        raise SystemExit(f"the text has {len(words)} tokens, too few for {number + 1} times {length}; use a longer one")
    for i, line in enumerate(lines):
        begin, after = at + count * i // n_lines, at + count * (i + 1) // n_lines
        middle = (begin + after) // 2
        tokens += words[begin:middle] + line + words[middle:after]
    tokens += end
    array = np.asarray(tokens, np.int32)
    decoder.clear()
    fill(decoder, array)
    asked = [pair for i, pair in enumerate(pairs) if i not in EXAMPLES]
    questions = [(np.asarray(tokens_of(key)), np.asarray(tokens_of(f" {value}"))) for key, value in asked]
    return Haystack(array, sequence_state(llm), questions)


def ask(decoder: Any, begin: int, question: Any, answer: Any) -> tuple[bool, float]:
    """Whether the answer is what is most likely, token by token, and its negative log-likelihood in nats."""
    decoder.truncate(begin)
    tokens = np.concatenate([question, answer]).astype(np.int32)
    right, cost = True, 0.0
    for i in range(len(tokens) - 1):
        logits = decoder.decode(tokens[i : i + 1], begin + i)
        if i >= len(question) - 1:
            right = right and int(logits[0].argmax()) == tokens[i + 1]
            cost += float(log_norm(logits)[0] - logits[0, tokens[i + 1]])
    return right, cost


def needles(
    dense: Path, options: Any, text: Path, threads: int, result: Path, wanted: list[str]
) -> dict[str, dict[str, Any]]:
    """All settings of `wanted` and exact, for `options.lengths`; other lengths of `result` are kept."""
    results: dict[str, dict[str, Any]] = json.loads(result.read_bytes())["models"] if result.exists() else {}
    for length in (int(n) for n in options.lengths.split(",")):
        n_ctx = -(-(length + 32) // 256) * 256
        with opened(dense, None, threads, n_ctx) as (llm, decoder):
            words = list(llm.tokenize(read_text(text), add_bos=False, special=False))
            stacks = [haystack(llm, decoder, words, length, number) for number in range(options.haystacks)]
        exact: Any = None
        for name in dict.fromkeys(["exact", *wanted]):
            answers, density = [], None
            with opened(dense, name, threads, n_ctx) as (llm, decoder):
                for stack in stacks:
                    decoder.clear()
                    restore(llm, stack.state, name)
                    answers.append([ask(decoder, len(stack.tokens), *one) for one in stack.questions])
                if QUALITY[name] is not None:
                    density = llm.seeddelta.metrics()["pack.density"]
            said = np.array([[right for right, _ in of] for of in answers])
            nll = np.array([[cost for _, cost in of] for of in answers])
            exact = said if exact is None else exact
            results.setdefault(name, {})[str(length)] = {
                "said": said.tolist(), "nll": nll.tolist(), "density": density, "right": int(said.sum()),
                "of": said.size, "as_exact": [int((said & exact).sum()), int(exact.sum())],
                "mean_nll": float(nll.mean()),
            }  # fmt: skip
            print(
                f"{name:20} {length:5} tokens: {said.sum()} of {said.size} right, {(said & exact).sum()} of the "
                f"{exact.sum()} of exact; by depth {said.sum(0)}; mean nll {nll.mean():.3f}; density {density}",
                flush=True,
            )
    return {"models": results}
