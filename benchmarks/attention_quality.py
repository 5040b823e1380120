"""Perplexity of tokens behind a prefix, decoded one by one, for settings of attention on the same cache.

Settings are added to those that the result file has already. Logits of the settings that others are compared with are
kept in the work folder (4 bytes per token and entry of the vocabulary).
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from attention_models import Prefix, opened, restore
from seeddelta.evaluate.scoring import log_norm

PART = 512  # scored tokens whose perplexity is also given alone


def scored(dense: Path, name: str, prefix: Prefix, count: int, threads: int, against: list[str]) -> dict[str, Any]:
    """Measures of one setting, against the settings in `against` whose logits lie in the work folder."""
    length = len(prefix.tokens) - count - 1
    bases = {base: np.load(prefix.logits_path(base, count), mmap_mode="r") for base in against if base != name}
    compared: dict[str, Any] = {base: {"change": [], "kl": [], "logits": []} for base in bases}
    begin = time.process_time()
    nll = np.empty(count)
    with opened(dense, name, threads, prefix.n_ctx) as (llm, decoder):
        restore(llm, prefix.state, name)
        kept: Any = None
        if name in against:
            path = prefix.logits_path(name, count)
            partial = path.with_suffix(".part")
            kept = np.lib.format.open_memmap(partial, "w+", np.float32, (count, decoder.n_vocab))
        for i in range(count):
            logits = decoder.decode(prefix.tokens[length + i : length + i + 1], length + i)[0]
            target = prefix.tokens[length + i + 1]
            likely = logits - log_norm(logits[None])[0]
            nll[i] = -likely[target]
            if kept is not None:
                kept[i] = logits
            for base, others in bases.items():
                other = others[i] - log_norm(others[i][None])[0]
                compared[base]["change"].append(float(other[target] - likely[target]))
                compared[base]["kl"].append(float(np.sum(np.exp(other) * (other - likely))))
                compared[base]["logits"].append(float(np.abs(logits - others[i]).mean()))
        found = llm.seeddelta.metrics()
    if kept is not None:
        kept.flush()
        partial.rename(path)
    return {
        "ppl": float(np.exp(nll.mean())),
        "ppl_of_parts": [float(np.exp(nll[at : at + PART].mean())) for at in range(0, count, PART)],
        "density": found.get("pack.density"), "stale": found.get("event.stale_pct"), "age": found.get("event.age"),
        "exact_share": found["event.full"] / found["event.calls"] if "event.calls" in found else None,
        "packed": found.get("attention.packed"),
        "processor_seconds": time.process_time() - begin,
        "against": {
            base: {
                "change": float(np.expm1(np.mean(of["change"]))),
                "change_stderr": float(np.std(of["change"]) / count**0.5),
                "kl": float(np.mean(of["kl"])),
                "logits": float(np.mean(of["logits"])),
            }
            for base, of in compared.items()
        },
    }  # fmt: skip


def quality(dense: Path, options: Any, text: Path, threads: int, result: Path, wanted: list[str]) -> dict[str, Any]:
    """All settings of `wanted` that `result` has not, and those to compare with (`options.against`)."""
    runs: list[dict[str, Any]] = json.loads(result.read_bytes()).get("runs", []) if result.exists() else []
    against = options.against.split(";")
    key = {"model": dense.name, "text": text.name, "start": options.start, "prefix": options.prefix}
    key |= {"scored": options.scored}
    run = next((run for run in runs if key.items() <= run.items()), None)
    if run is None:
        run = key | {"models": {}}
        runs.append(run)
    prefix = Prefix(
        dense, text, options.work, start=options.start, length=options.prefix, count=options.scored, threads=threads
    )
    for name in dict.fromkeys([*against, *wanted]):
        missing = name in against and not prefix.logits_path(name, options.scored).exists()
        if name in run["models"] and not missing:
            continue
        ready = [base for base in against if base == name or prefix.logits_path(base, options.scored).exists()]
        found = scored(dense, name, prefix, options.scored, threads, ready)
        run["models"][name] = found
        result.parent.mkdir(parents=True, exist_ok=True)
        result.write_text(json.dumps({"runs": runs}, ensure_ascii=False), encoding="utf-8")  # to go on from here
        print(
            f"{name:30} ppl {found['ppl']:.4f}, {found['density']}, reused {found['stale']}",
            flush=True,
        )
        for base, of in found["against"].items():
            print(
                f"    against {base}: {of['change']:+.3%} ± {of['change_stderr']:.3%}, KL {of['kl']:.6f}, "
                f"mean |difference| of logits {of['logits']:.5f}",
                flush=True,
            )
    return {"runs": runs}
