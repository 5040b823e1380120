"""Where the time of a generated token goes, by parts of the program, sampled by Linux' perf.

    python benchmarks/profile_token.py --threads 1,2
    python benchmarks/profile_token.py --shape 1b --tokens 100

The extension needs its symbols: `pip install --config-settings=cmake.build-type=RelWithDebInfo .`. Samples are of all
threads: with two of them a part's milliseconds are its share of the time between two tokens, and so are those of
waiting.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import numpy as np
import seeddelta
import synthetic
from seeddelta.report.tables import make_console
from seeddelta.runtime.decoder import Decoder

MODELS = ("seeddelta-4",)
PRODUCTS = "products with SeedΔ weights"
# By library and function; the first that fits.
PARTS: dict[str, str] = {
    "waiting": r"libgomp|SpinBarrier|spin_barrier|ggml_barrier",
    PRODUCTS: r"_core.*(LaneTile|LaneColumns|LanePanel|_compute|multiply)",
    "rotation and rounding of activations": r"_core.*(rotate|hadamard|Hadamard|flip_signs|quanti[sz]e)",
    "asking for the next weights": r"_core.*prefetch",
    "rest of SeedΔ": r"_core",
    "attention": r"ggml.*(flash_attn|soft_max|rope|vec_dot_f16|vec_mad)",
    "products of llama.cpp": r"ggml.*(vec_dot|mul_mat|gemv|gemm|tinyBLAS|quantize_row|repack)",
    "norms, activation functions and sums": r"ggml.*(norm|glu|silu|unary|binary|add|mul|vec_)",
    "rest of llama.cpp": r"ggml|llama",
}


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--shape", choices=synthetic.SHAPES, help="random weights of this shape, not an original model")
    parser.add_argument("--models", default=",".join(MODELS), help="SeedΔ models, with commas (default: %(default)s)")
    parser.add_argument("--threads", default="1,2", help="numbers of threads (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=200, help="generated while perf looks (default: %(default)s)")
    options = parser.parse_args()
    if shutil.which("perf") is None:
        parser.error("there is no program perf; on Debian it is in the package linux-perf")
    models = synthetic.chosen_models(options.models.split(","), options)
    rows = [
        {"model": name, "threads": threads, **profile(path, threads, options.tokens)}
        for name, path in models.items()
        for threads in common.parse_threads(options.threads)
    ]
    _print(rows)
    result = {"benchmark": "profile", "settings": {"tokens": options.tokens, "shape": options.shape}, "rows": rows}
    name = options.name or ("profile" if options.shape is None else f"profile-{options.shape}")
    common.save(name, result, options.results)
    return 0


def profile(model: Path, threads: int, tokens: int) -> dict[str, Any]:
    """Milliseconds a token, all and by part."""
    llm = seeddelta.load(model, n_ctx=tokens + 64, n_batch=64, n_threads=threads, verbose=False)
    try:
        decoder = Decoder(llm)
        decoder.set_threads(threads)
        for at in range(32):
            decoder.decode(np.array([100 + at], np.int32), at)
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "perf.data"
            command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "1999", "-p", str(os.getpid()), "-o", str(data)]
            recorder = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            time.sleep(1)
            begin = time.perf_counter()
            for at in range(32, 32 + tokens):
                decoder.decode(np.array([100 + at], np.int32), at)
            each = (time.perf_counter() - begin) / tokens * 1e3
            recorder.send_signal(signal.SIGINT)
            recorder.wait()
            shares = _shares(data)
    finally:
        llm.close()
    return {"ms": each, "parts": {part: share * each for part, share in shares.items()}}


def _shares(data: Path) -> dict[str, float]:
    """Share of the samples of each part."""
    fields = ["perf", "report", "--stdio", "-q", "-F", "sample,dso,sym", "-t", ";", "-i", str(data)]
    report = subprocess.run(fields, capture_output=True, text=True, check=True).stdout
    counts = dict.fromkeys(PARTS, 0)
    rest = 0
    for line in report.splitlines():
        cells = [cell.strip() for cell in line.split(";", 2)]
        if len(cells) < 3 or not cells[0].isdigit():
            continue
        part = next((part for part, pattern in PARTS.items() if re.search(pattern, f"{cells[1]} {cells[2]}")), None)
        if part is None:
            rest += int(cells[0])
        else:
            counts[part] += int(cells[0])
    if counts[PRODUCTS] == 0:
        raise SystemExit("perf sees no products of seeddelta: its extension has no symbols (see --help)")
    everything = sum(counts.values()) + rest
    return {part: count / everything for part, count in (counts | {"Python and the system": rest}).items()}


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("ms a token", *(f"{row['model']}, {row['threads']}" for row in rows))
    table.add_row("all", *(f"{row['ms']:.2f}" for row in rows))
    for part in rows[0]["parts"]:
        table.add_row(part, *(f"{row['parts'][part]:.2f}" for row in rows))
    make_console().print(table)


if __name__ == "__main__":
    sys.exit(main())
