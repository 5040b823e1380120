"""What gates at their defaults do to speed and text, alone and together: they must pay or switch themselves off.

    python benchmarks/bench_gates.py --text wiki.test.txt --tokens 512 --threads 2

Tokens of a text are decoded one by one, by a context with the gates and by one without, in turns of one token. Speeds
are of the tokens after the trials; the perplexity is of all of them. Gates of attention follow a prompt, since they do
nothing in short contexts.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import common
import numpy as np
import seeddelta
from seeddelta.runtime import EventDriven, Kwta, RuntimeConfig, StatePackKV, StatePackMLP
from seeddelta.session import read_text, tokenize
from seeddelta.session.decoder import Decoder

WARM = 32  # tokens that are not timed, beside those of the trials
COLUMNS: dict[str, Any] = {"columns": "f16"}
PACK_KV: dict[str, Any] = {"state_pack_kv": StatePackKV("binary")}
GATES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": (COLUMNS, COLUMNS),
    "KWTA": (COLUMNS | {"kwta": Kwta()}, COLUMNS),
    "StatePack of the MLP": (COLUMNS | {"state_pack_mlp": StatePackMLP()}, COLUMNS),
    "events": (COLUMNS | {"event": EventDriven()}, COLUMNS),
    "StatePack of attention": (PACK_KV, {"state_pack_kv": StatePackKV("exact")}),
    "KWTA of keys": ({"kwta": Kwta(target="kv")}, {"state_pack_kv": StatePackKV("exact")}),
    "events of attention": ({"event": EventDriven(target="kv")}, {"state_pack_kv": StatePackKV("exact")}),
    "all together": (
        COLUMNS | PACK_KV | {"kwta": Kwta(), "state_pack_mlp": StatePackMLP()},
        COLUMNS | {"state_pack_kv": StatePackKV("exact")},
    ),
}


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--text", type=Path, required=True, help="text whose tokens are decoded")
    parser.add_argument("--tokens", type=int, default=512, help="default: %(default)s")
    parser.add_argument(
        "--depth", type=int, default=2048, help="tokens of a prompt before gates of attention (default: %(default)s)"
    )
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--only", default="", help="part of the names of the gates")
    options = parser.parse_args()
    dense = common.dense_model(options.dense, options.work)
    rows: dict[str, Any] = {}
    settings = {"tokens": options.tokens, "depth": options.depth, "threads": options.threads}
    for name, (gates, without) in GATES.items():
        if options.only in name:
            depth = options.depth if "state_pack_kv" in without else 0
            rows[name] = compare(dense, gates, without, depth, options)
            print(name, rows[name], flush=True)
            found = {"benchmark": "gates", "settings": settings, "rows": rows}
            common.save(options.name or "gates", found, options.results)
    return 0


def compare(dense: Path, gates: dict[str, Any], without: dict[str, Any], depth: int, options: Any) -> dict[str, Any]:
    llms = [
        seeddelta.load(
            dense, config=RuntimeConfig(**config), n_ctx=depth + options.tokens, n_batch=512,
            n_threads=options.threads, n_threads_batch=options.threads, flash_attn=True, verbose=False,
        )
        for config in (gates, without)
    ]  # fmt: skip
    try:
        tokens = tokenize(llms[0], read_text(options.text))[: depth + options.tokens]
        decoders = [Decoder(llm) for llm in llms]
        times: list[list[float]] = [[], []]
        loss: list[list[float]] = [[], []]
        for decoder in decoders:
            for at in range(0, depth, 512):
                decoder.decode(tokens[at : min(at + 512, depth)], at, slice(0, 0))
        for at in range(depth, len(tokens) - 1):
            for which, decoder in enumerate(decoders):
                begin = time.perf_counter()
                logits = decoder.decode(tokens[at : at + 1], at)[0].astype(np.float64)
                times[which].append(time.perf_counter() - begin)
                loss[which].append(float(np.logaddexp.reduce(logits) - logits[tokens[at + 1]]))
        trials = sum(value for key, value in llms[0].seeddelta.metrics().items() if key.endswith("trial_tokens"))
        late = [one[int(trials) + WARM :] for one in times]
        return {
            "tokens_timed": len(late[0]),
            "speed": statistics.median(late[1]) / statistics.median(late[0]) if late[0] else None,
            "ppl_change_percent": 100 * (math.exp(statistics.mean(loss[0]) - statistics.mean(loss[1])) - 1),
            "reasons": llms[0].seeddelta.switched_off,
        }
    finally:
        for llm in llms:
            llm.close()


if __name__ == "__main__":
    sys.exit(main())
