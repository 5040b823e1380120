"""What the parts of bench_attention.py share: settings of attention, models with one of them, and a filled cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import seeddelta
from cache_state import load_sequence, sequence_state, transposed
from seeddelta import RuntimeConfig, StatePackKV
from seeddelta.runtime import EventDriven
from seeddelta.session import read_text, tokenize
from seeddelta.session.decoder import Decoder

# name -> fields of StatePackKV; None: llama.cpp's attention
SPEED: dict[str, dict[str, Any] | None] = {
    "llama.cpp": None,
    "exact": {"mode": "exact"},
    "binary 1/4": {"mode": "binary"},
    "binary 1/8": {"mode": "binary", "budget": 0.125},
    "binary 1/16": {"mode": "binary", "budget": 0.0625},
    "ternary 1/4": {"mode": "ternary"},
    "ternary 1/8": {"mode": "ternary", "budget": 0.125},
    "ternary 1/16": {"mode": "ternary", "budget": 0.0625},
    "popcount 1/16": {"mode": "binary", "popcount": True, "budget": 0.0625},
    "binary 1/16, p=0.9": {"mode": "binary", "budget": 0.0625, "mass": 0.9},
}
NO_FLASH = ", no flash attention"  # at the end of a name: the graph has matrix products and a softmax instead
# the six KV heads of SmolLM2 with the largest errors (bench_attention.py --parts heads, on another text)
HEADS = "0.0=exact,5.0=exact,7.1=exact,9.2=exact,10.1=exact,19.0=exact"
QUALITY = SPEED | {
    "llama.cpp" + NO_FLASH: None,
    "exact" + NO_FLASH: {"mode": "exact"},
    "binary 1/4, a gamma for each key": {"mode": "binary", "gamma_chunk": 1},
    "ternary 1/4, all layers": {"mode": "ternary", "layers": ""},
    "ternary 1/4, six exact heads": {"mode": "ternary", "layers": HEADS},
    "ternary 1/4, p=0.95": {"mode": "ternary", "mass": 0.95},
    "binary 1/16, no exact layers": {"mode": "binary", "budget": 0.0625, "layers": ""},
    "binary 1/16, values above 1%": {"mode": "binary", "budget": 0.0625, "negligible": 0.01},
    "score by bits, 1/16": {"mode": "binary", "budget": 0.0625, "refine": False},
    "seed's score, 1/16": {"mode": "binary", "budget": 0.0625, "refine": False, "popcount": True},
}
# fields of EventDriven, of attention over all keys; without checks unless said
CHECKS = {"gap_every": 32}
EVENTS: dict[str, dict[str, Any]] = {
    "events 0.003": {"delta_theta": 0.003},
    "events 0.01": {"delta_theta": 0.01},
    "events 0.03": {"delta_theta": 0.03},
    "events 0.1": {"delta_theta": 0.1},
    "events 0.1, 8 tokens": {"delta_theta": 0.1, "age_max": 8},
    "events, quarter": {"delta_theta": 0.0, "topk": 0.25},
    "events 0.003, gap 0.05": {"delta_theta": 0.003} | CHECKS,
    "events 0.01, gap 0.05": CHECKS,
    "events 0.03, gap 0.05": {"delta_theta": 0.03} | CHECKS,
    "events 0.003, gap 0.1": {"delta_theta": 0.003, "gap_tol": 0.1} | CHECKS,
    "events 0.01, gap 0.1": {"gap_tol": 0.1} | CHECKS,
    "events 0.03, gap 0.1": {"delta_theta": 0.03, "gap_tol": 0.1} | CHECKS,
}
SPEED_EVENTS = ("events 0.003, gap 0.05", "events 0.01, gap 0.05", "events 0.01, gap 0.1", "events 0.01", "events 0.1")
NO_GATES = {"gap": 1e9, "gap_every": 0, "density": 1.0}  # quality is that of the setting, not of its way out


def config_of(event: dict[str, Any]) -> RuntimeConfig:
    """Event-driven attention with these fields of EventDriven."""
    return RuntimeConfig(state_pack_kv=StatePackKV("exact"), event=EventDriven(target="kv", **event), force=True)


def runtime_of(fields: dict[str, Any] | None, gates: dict[str, Any]) -> dict[str, Any]:
    """Fields of RuntimeConfig for a value of SPEED."""
    return {"attention": "llama"} if fields is None else {"state_pack_kv": gates | fields}


@contextmanager
def opened(
    dense: Path, name: str | dict[str, Any] | None, threads: int, n_ctx: int, gates: dict[str, Any] = NO_GATES
) -> Iterator[tuple[Any, Decoder]]:
    """A model with the setting of that name, or with these fields of StatePackKV."""
    flash_attn = not (isinstance(name, str) and name.endswith(NO_FLASH))
    if isinstance(name, str) and name.removesuffix(NO_FLASH) in EVENTS:
        config = config_of({"gap_every": 0} | EVENTS[name.removesuffix(NO_FLASH)])
    else:
        fields = QUALITY[name.removesuffix(NO_FLASH)] if isinstance(name, str) else name
        config = RuntimeConfig(**runtime_of(fields, gates), force=True)
    llm = seeddelta.load(
        dense, config=config, n_ctx=n_ctx, n_batch=512, n_threads=threads,
        n_threads_batch=threads, flash_attn=flash_attn, verbose=False,
    )  # fmt: skip
    try:
        yield llm, Decoder(llm)
    finally:
        llm.close()


def fill(decoder: Decoder, tokens: Any) -> None:
    for at in range(0, len(tokens), decoder.n_batch):
        decoder.decode(tokens[at : at + decoder.n_batch], at, slice(0, 0))


def restore(llm: Any, state: bytes, name: str | None = None) -> None:
    """Load the state of a sequence with flash attention into a model with the setting `name`: the same numbers."""
    load_sequence(llm, transposed(state) if name is not None and name.endswith(NO_FLASH) else state)


class Prefix:
    """Tokens of a text from `start` on, and the cache after the first of them as llama.cpp computes it.

    It is computed once and kept in `work`.
    """

    def __init__(
        self, dense: Path, text: Path, work: Path, *, start: int, length: int, count: int, threads: int
    ) -> None:
        self.n_ctx = -(-(length + count + 1) // 256) * 256
        with opened(dense, None, threads, 256) as (llm, _):
            self.tokens = tokenize(llm, read_text(text))[start : start + length + count + 1]
        if len(self.tokens) <= length + count:
            raise SystemExit(f"{text} has {len(self.tokens)} tokens only; use a smaller --prefix")
        names = f"{dense.resolve()} {dense.stat().st_size} {dense.stat().st_mtime_ns}".encode()
        digest = hashlib.sha256(names + self.tokens[:length].tobytes()).hexdigest()[:16]
        self.path = work / f"attention-{digest}-{length}.state"
        if not self.path.exists():
            with opened(dense, None, threads, self.n_ctx) as (llm, decoder):
                fill(decoder, self.tokens[:length])
                work.mkdir(parents=True, exist_ok=True)
                self.path.write_bytes(sequence_state(llm))
        self.state = self.path.read_bytes()

    def logits_path(self, name: str, count: int) -> Path:
        """A file for the logits of the tokens behind the prefix."""
        return self.path.with_name(f"{self.path.stem}-{count}-{name.replace(', ', '-').replace(' ', '-')}.npy")
