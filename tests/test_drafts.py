"""Guessed tokens of llama-cpp-python's own loop: greedy text stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import seeddelta

pytest.importorskip("llama_cpp")

from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

PROMPT = b"the city the city the city the"


def test_lookup_of_llama_cpp_python_with_load(tiny_dense: Path, model_dir: Path) -> None:
    """`draft_model=`, over our weights."""
    path = model_dir / "tiny-drafts.seeddelta.gguf"
    recipe = seeddelta.Recipe(input=tiny_dense, output=path, bits=4, effort="fast", targets="full")
    seeddelta.build(recipe, progress=False)

    def generate(count: int, **options: Any) -> tuple[list[int], int]:
        llm = seeddelta.load(
            path, n_ctx=256, n_batch=32, n_threads=2, n_threads_batch=2, flash_attn=True, verbose=False, **options
        )
        tokens: list[int] = []
        for token in llm.generate(llm.tokenize(PROMPT), temp=0):
            tokens.append(token)
            if len(tokens) == count:
                break
        used = max(one["calls"] for one in llm.seeddelta.counters().values())
        llm.close()
        return tokens, used

    alone, passes = generate(60)
    drafted, fewer = generate(60, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=4), logits_all=True)
    assert drafted == alone
    assert fewer < passes
