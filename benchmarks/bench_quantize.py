"""Memory and time of `seeddelta.quantize` on a large shape, from one block of random weights.

    python benchmarks/bench_quantize.py --shape 8b --chunks 8 --ram 6G

The model has one block: one more is as much again, for memory does not grow with their number. Seconds are those of
each stage; memory is the highest of this process, anonymous and shared (the block of llama.cpp lies in a memfd).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command does

import common
import seeddelta
import synthetic
from seeddelta.calibrate.block_run import BlockRun
from seeddelta.convert import jobs, quantize


class Stages:
    """Seconds and highest memory in bytes (anonymous, shared) of named stages; what is nested counts for the inner."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.memory: dict[str, tuple[int, int]] = {}
        self._now = "other"
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self._look(self._now)
            time.sleep(0.05)

    def _look(self, stage: str) -> None:
        lines = Path("/proc/self/status").read_text().splitlines()
        found = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if line.startswith("Rss")}
        before = self.memory.get(stage, (0, 0))
        self.memory[stage] = max(before[0], found["RssAnon"]), max(before[1], found["RssShmem"])

    def wrap(self, owner: Any, name: str, stage: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            outer, self._now, begun = self._now, stage, time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self._look(stage)  # of a stage shorter than the pause between two looks, too
                self._now = outer
                self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - begun

        setattr(owner, name, timed)


def measure(model: Path, output: Path, **options: Any) -> Stages:
    stages = Stages()
    stages.wrap(quantize, "find_groups", "which blocks go together")
    stages.wrap(BlockRun, "run", "forward and covariance")
    stages.wrap(quantize, "write_covariance", "write the covariance")
    stages.wrap(jobs, "make_feedback", "factor")
    stages.wrap(jobs, "encode_tensor", "encode")
    seeddelta.quantize(model, output, targets="all", progress=False, resume=False, **options)
    return stages


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=synthetic.SHAPES, default="8b", help="default: %(default)s")
    parser.add_argument("--chunks", type=int, default=8, help="of 512 tokens (default: %(default)s)")
    parser.add_argument("--bits", type=float, default=4, help="default: %(default)s")
    parser.add_argument("--ram", default="6G", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=0, help="default: all")
    parser.add_argument("--work", type=Path, default=common.WORK, help="folder of the model (default: %(default)s)")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        model = Path(folder) / "model.gguf"
        synthetic.write_layer(replace(synthetic.SHAPES[options.shape], n_layers=1), model)
        stages = measure(
            model, Path(folder) / "out.gguf", chunks=options.chunks, bits=options.bits, ram=options.ram,
            threads=options.threads,
        )  # fmt: skip
    for name in dict.fromkeys([*stages.seconds, *stages.memory]):
        seconds = stages.seconds.get(name)
        anonymous, shared = stages.memory[name]
        shown = "" if seconds is None else f"{seconds:8.1f} s"
        print(f"{name:26} {shown:>10}  {anonymous / 1e6:8.0f} MB anonymous  {shared / 1e6:8.0f} MB shared")
    return 0


if __name__ == "__main__":
    sys.exit(main())
