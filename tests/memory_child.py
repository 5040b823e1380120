"""Quantizes in a process of its own and prints its highest anonymous memory in bytes: before, and in the run.

python memory_child.py MODEL OUTPUT TEXT OPTIONS: OPTIONS are those of seeddelta.quantize as JSON, with `slice` the
weights that are encoded at a time.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import seeddelta
from seeddelta.convert import slices


def anonymous() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def main() -> None:
    model, output, text, given = sys.argv[1:]
    options = json.loads(given)
    slices.SLICE = options.pop("slice")
    import llama_cpp  # noqa: F401 - what it takes by itself
    import scipy.linalg  # noqa: F401

    seen, stop = [anonymous()], threading.Event()

    def watch() -> None:
        while not stop.wait(0.005):
            seen.append(anonymous())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    seeddelta.quantize(model, output, text=text, progress=False, **options)
    stop.set()
    thread.join()
    print(json.dumps([seen[0], max(seen)]))


if __name__ == "__main__":
    main()
