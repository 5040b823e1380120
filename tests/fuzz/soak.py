"""Prompts, full contexts that are shifted, other configurations, loads and frees, for as long as you like.

    python tests/fuzz/soak.py --minutes 120 [--seed 1] [--model X.seeddelta.gguf] [--json FILE]

Without a model the tiny ones of models.py and tiny_llama.py take turns in every form. Reported are the resident memory
after every round, its growth from the first quarter to the last, and what was not finite. Exit status 1 for growth of
more than 1% or anything not finite.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import seeddelta
from models import model_files, smollm2
from seeddelta.errors import SeedDeltaError
from seeddelta.settings import EventDriven, Kwta, StatePackKV, StatePackMLP
from tiny_llama import write_llama

N_CTX = 128
MOST_GROWTH = 0.01
_KEPT = 4  # tokens at the beginning that a shift leaves
# of ordinary models by columns; a SeedΔ file has its layout
COLUMNS: tuple[dict[str, Any], ...] = (
    {"columns": "f16", "kwta": Kwta(k=0.5)},
    {"columns": "f16", "kwta": Kwta(k=0.3, block=16)},
    {"columns": "f16", "state_pack_mlp": StatePackMLP()},
    {"columns": "f16", "event": EventDriven()},
)
ATTENTION: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"state_pack_kv": StatePackKV(min_context=0, recent=16, layers="0=exact")},
)


@dataclass
class Soak:
    """`resident` in bytes, one a round."""

    rounds: int = 0
    seconds: float = 0.0
    done: Counter[str] = field(default_factory=Counter)
    nonfinite_logits: int = 0
    nonfinite_events: int = 0
    errors: list[str] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """Median of the last quarter over that of the second, less 1: the first quarter fills caches."""
        quarter = len(self.resident) // 4
        if quarter == 0:
            return 0.0
        early = float(np.median(self.resident[quarter : 2 * quarter]))
        return float(np.median(self.resident[-quarter:])) / early - 1


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def prompt(llm: Any, rng: Random, soak: Soak) -> None:
    """Tokens in batches, then tokens one by one; the context is shifted when it is full."""
    n_vocab = llm.n_vocab()
    llm.reset()
    left = [rng.randrange(3, n_vocab) for _ in range(rng.choice((1, 5, 40, N_CTX)))]
    for _ in range(rng.choice((2, 20, N_CTX))):
        while left:
            step = rng.choice((1, 7, 32))
            make_room(llm, min(step, len(left)), soak)
            llm.eval(left[:step])
            soak.done["tokens"] += min(step, len(left))
            del left[:step]
        logits = llm._ctx.get_logits_ith(-1)
        values = np.ctypeslib.as_array(logits, (n_vocab,))
        soak.nonfinite_logits += int(not np.isfinite(values).all())
        left = [int(values.argmax()) if rng.random() < 0.5 else rng.randrange(3, n_vocab)]


def make_room(llm: Any, count: int, soak: Soak) -> None:
    """Drop half of a full cache, and move the rest to the front."""
    if llm.n_tokens + count <= N_CTX:
        return
    dropped = (llm.n_tokens - _KEPT) // 2
    llm._ctx.kv_cache_seq_rm(-1, _KEPT, _KEPT + dropped)
    llm._ctx.kv_cache_seq_shift(0, _KEPT + dropped, llm.n_tokens, -dropped)
    llm.input_ids[_KEPT : llm.n_tokens - dropped] = llm.input_ids[_KEPT + dropped : llm.n_tokens]
    llm.n_tokens -= dropped
    soak.done["shifts"] += 1


def load(paths: Sequence[Path], dense: Path, rng: Random, soak: Soak) -> Any:
    path, options = rng.choice(list(paths)), dict(rng.choice(ATTENTION))
    if rng.random() < 0.3:
        path, options = dense, options | rng.choice(COLUMNS)
    elif rng.random() < 0.3:
        options |= {"fallback": dense, "dense": ("blk.0.*",)} if path.name.startswith("llama") else {}
    soak.done["loads"] += 1
    config = seeddelta.RuntimeConfig(**options)
    batch = rng.choice((16, 64, 128))
    settings: dict[str, Any] = {"n_threads": 1, "n_threads_batch": 1, "verbose": False}
    return seeddelta.load(path, n_ctx=N_CTX, n_batch=batch, config=config, **settings)


def close(llm: Any, soak: Soak, rng: Random) -> None:
    soak.nonfinite_events += sum(c["nonfinite_events"] for c in llm.seeddelta.counters().values())
    if rng.random() < 0.5:
        llm.close()


def run(paths: Sequence[Path], dense: Path, rng: Random, *, minutes: float, rounds: int | None = None) -> Soak:
    """Until the time is over, or so many rounds are done. Two models are open at a time, freed in any order."""
    soak, begin = Soak(), time.monotonic()
    open_models = [load(paths, dense, rng, soak)]
    while time.monotonic() - begin < 60 * minutes and (rounds is None or soak.rounds < rounds):
        try:
            if len(open_models) < 2:
                open_models.append(load(paths, dense, rng, soak))
            for _ in range(rng.randrange(1, 5)):
                prompt(rng.choice(open_models), rng, soak)
                soak.done["prompts"] += 1
        except SeedDeltaError as error:
            soak.errors.append(f"{type(error).__name__}: {error}")
        close(open_models.pop(rng.randrange(len(open_models))), soak, rng)
        gc.collect()
        soak.rounds += 1
        soak.resident.append(resident())
    for llm in open_models:
        close(llm, soak, rng)
    soak.seconds = time.monotonic() - begin
    return soak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=Path, default=None, help="a SeedΔ file; --dense is the model it was made from")
    parser.add_argument("--dense", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    if (options.model is None) != (options.dense is None):
        parser.error("--model and --dense go together")
    with tempfile.TemporaryDirectory(prefix="seeddelta-soak-") as temporary:
        folder = Path(temporary)
        dense, paths = options.dense, [options.model]
        if options.model is None:
            dense, paths = write_llama(folder / "dense.gguf", smollm2()), model_files(folder, smollm2())
        soak = run(paths, dense, Random(options.seed), minutes=options.minutes)
    if options.json:
        options.json.write_text(json.dumps(vars(soak) | {"growth": soak.growth}))
    print(
        f"{soak.seconds / 60:.1f} minutes, {soak.rounds} rounds, " + ", ".join(f"{n} {k}" for k, n in soak.done.items())
    )
    print(
        f"resident {soak.resident[0] / 1e6:.1f} MB first, {soak.resident[-1] / 1e6:.1f} last; growth {soak.growth:.2%}"
    )
    print(f"not finite: {soak.nonfinite_logits} logits, {soak.nonfinite_events} products; {len(soak.errors)} errors")
    for error in soak.errors[:10]:
        print(error)
    return int(soak.growth > MOST_GROWTH or bool(soak.nonfinite_logits or soak.nonfinite_events or soak.errors))


if __name__ == "__main__":
    sys.exit(main())
