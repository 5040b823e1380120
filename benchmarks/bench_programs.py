"""Speed of llama.cpp's own programs with SeedΔ models beside llama.cpp's types: `llama-bench`, run by `seeddelta exec`.

    python benchmarks/bench_programs.py --bin llama.cpp/build/bin --model seeddelta-4=model.seeddelta.gguf \\
        --model F16=f16.gguf --model Q4_0=q4_0.gguf --model Q4_K_M=q4km.gguf

Models take turns, each in a process of its own; medians are told. The first ordinary model is also run without `exec`,
as NAME, no exec: what the preloaded library costs a model that is not ours.

With --depth all is measured behind that many tokens; with --attentions each model is run with our attention and, as
NAME, llama.cpp's attention, with that of the program.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import common
from seeddelta.gguf.reader import is_seeddelta

EXEC = (sys.executable, "-m", "seeddelta", "exec")


def speeds(command: list[str], path: Path, threads: int, given: Any) -> dict[str, float]:
    """Tokens per second of a prompt and of generation, of one run of llama-bench."""
    sizes = {"-t": threads, "-p": given.prompt, "-n": given.tokens, "-d": given.depth, "-r": 1, "-o": "json"}
    arguments = ["-m", str(path), *(str(word) for pair in sizes.items() for word in pair)]
    told = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if told.returncode:
        raise SystemExit(f"llama-bench ended with {told.returncode}:\n{told.stderr[-2000:]}")
    found = json.loads(told.stdout)
    return {"prompt" if one["n_prompt"] else "generation": float(one["avg_ts"]) for one in found}


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--bin", type=Path, required=True, help="folder of llama.cpp's programs")
    options.add_argument("--model", action="append", required=True, metavar="NAME=FILE", help="may be given often")
    options.add_argument("--threads", type=common.parse_threads, default=[1, 2])
    options.add_argument("--prompt", type=int, default=512, help="tokens of the prompt (default: %(default)s)")
    options.add_argument("--tokens", type=int, default=64, help="tokens generated (default: %(default)s)")
    options.add_argument("--depth", type=int, default=0, help="tokens before (default: %(default)s)")
    options.add_argument("--attentions", action="store_true", help="also with llama.cpp's attention")
    options.add_argument("--reps", type=int, default=5)
    given = options.parse_args()
    models = {name: Path(file) for name, _, file in (text.partition("=") for text in given.model)}
    runs = {name: (path, [*EXEC, "--"]) for name, path in models.items()}
    if given.attentions:
        llama = [*EXEC, "--attention", "llama", "--"]
        runs |= {f"{name}, llama.cpp's attention": (path, llama) for name, path in models.items()}
    ordinary = next((name for name, path in models.items() if not is_seeddelta(path)), None)
    if ordinary is not None and not given.attentions:
        runs[f"{ordinary}, no exec"] = (models[ordinary], [])
    samples: dict[str, dict[int, list[dict[str, float]]]] = {name: {t: [] for t in given.threads} for name in runs}
    for rep in range(given.reps + 1):  # the first turn brings the files into memory
        for threads in given.threads:
            for name, (path, before) in runs.items():
                one = speeds([*before, str(given.bin / "llama-bench")], path, threads, given)
                if rep:
                    samples[name][threads].append(one)
                    print(rep, threads, name, one, file=sys.stderr)
    found: dict[str, Any] = {}
    for name, (path, before) in runs.items():
        found[name] = {"file": path.name, "file_bytes": os.path.getsize(path), "exec": bool(before), "threads": {}}
        for threads, of in samples[name].items():
            found[name]["threads"][str(threads)] = {
                kind: {
                    "median": round(statistics.median(one[kind] for one in of), 2),
                    "range": [round(f(one[kind] for one in of), 2) for f in (min, max)],
                }
                for kind in ("prompt", "generation")
            }
    settings = {name: getattr(given, name) for name in ("threads", "prompt", "tokens", "depth", "reps")}
    common.save(given.name or "programs", {"settings": settings, "models": found}, given.results)
    for name, of_model in found.items():
        print(name, {t: {k: v["median"] for k, v in one.items()} for t, one in of_model["threads"].items()})


if __name__ == "__main__":
    main()
