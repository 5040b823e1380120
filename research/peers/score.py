"""Divergence of finished files from the dense model, as benchmarks/bench_quality.py has it; the dense model runs once.

    python research/peers/score.py -m dense.gguf --text wiki.test.txt --text pydoc --text code --work scratch \\
        --results scores.json --file "IQ4_KT=iq4_kt.gguf" --file "GPTQ=gptq-4-32.gguf"

Files that are in the results with a text are left out, so that it can be called again with more of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import seeddelta
from common import TEXTS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, required=True, help="dense GGUF model")
    parser.add_argument("--text", action="append", required=True, help="text file, pydoc or code; may be given often")
    parser.add_argument("--file", action="append", required=True, metavar="NAME=FILE", help="may be given often")
    parser.add_argument("--work", type=Path, required=True, help="folder of log-probabilities, 1.6 GB for 64 chunks")
    parser.add_argument("--results", type=Path, required=True, help="JSON file to write, or to add to")
    parser.add_argument("--chunks", type=int, default=64, help="chunks of each text (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads (default: %(default)s)")
    options = parser.parse_args()

    found: dict[str, Any] = json.loads(options.results.read_text("utf-8")) if options.results.exists() else {}
    given = {"chunks": options.chunks, "threads": options.threads, "reps": 0, "progress": True}
    for text in options.text:
        path = TEXTS[text](options.work) if text in TEXTS else Path(text)
        base = options.work / f"{path.name}.logits"
        if not base.exists():
            seeddelta.evaluate([options.model], text=path, save_kl_base=base, **given)
        scores = found.setdefault(path.name, {})
        for name, _, file in (entry.partition("=") for entry in options.file):
            if name in scores:
                continue
            report = seeddelta.evaluate([Path(file)], kl_base=base, **given).models[0]
            kl, change, own = report.divergence, report.difference, report.perplexity
            assert kl is not None
            assert change is not None
            assert own is not None
            scores[name] = {
                "kl": kl.mean, "kl_stderr": kl.stderr, "same_top_percent": kl.same_top_percent,
                "perplexity": own.ppl, "perplexity_stderr": own.stderr,
                "change_percent": change.percent, "change_percent_stderr": change.percent_stderr,
            }  # fmt: skip
            options.results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(f"{path.name}: {name}: {kl.mean:.4f} ± {kl.stderr:.4f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
