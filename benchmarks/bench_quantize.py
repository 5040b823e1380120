"""Memory and time of `seeddelta.quantize` in the shape of a real model, from some blocks of random weights.

    python benchmarks/bench_quantize.py --shape llama-3.1-8b --blocks 8 --ram 6G

Seconds are those of each stage, and of the whole model computed from the blocks; memory is the highest of this process,
anonymous and shared (the block that llama.cpp runs lies in a memfd). The bounds of measuring are llama.cpp's speed on
the same block without any sums, and the covariances' operations at NumPy's speed of float32 products.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command does

import common
import numpy as np
import real_shapes
import seeddelta
from seeddelta.calibrate.block_run import BlockRun
from seeddelta.calibrate.engine import BlockEngine
from seeddelta.calibrate.groups import groups_of
from seeddelta.calibrate.passes import PassSums
from seeddelta.calibrate.text import bundled_text, read_windows
from seeddelta.convert import jobs, quantize
from seeddelta.gguf import names
from seeddelta.gguf.source import open_source

MEASURE = ("text through blocks", "add the sums", "write the covariance")
HEAD = "encode embedding and head"  # once a model; all other stages are of blocks


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

    def wrap(self, owner: Any, name: str, stage: str | Callable[..., str]) -> None:
        """Time the calls of a function; a stage may depend on the arguments."""
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            own = stage if isinstance(stage, str) else stage(*arguments)
            outer, self._now, begun = self._now, own, time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self._look(own)  # of a stage shorter than the pause between two looks, too
                self._now = outer
                self.seconds[own] = self.seconds.get(own, 0.0) + time.perf_counter() - begun

        setattr(owner, name, timed)


def measure(model: Path, output: Path, **options: Any) -> Stages:
    stages = Stages()
    stages.wrap(quantize, "find_groups", "which blocks go together")
    stages.wrap(quantize, "run_pass", MEASURE[0])
    stages.wrap(PassSums, "add", MEASURE[1])
    stages.wrap(quantize, "write_covariance", MEASURE[2])
    stages.wrap(jobs, "make_feedback", "factor")
    stages.wrap(jobs, "encode_tensor", lambda name, *_: HEAD if name in names.MODEL_TENSORS else "encode")
    seeddelta.quantize(model, output, progress=False, resume=False, **options)
    return stages


def bounds(model: Path, chunks: int, threads: int) -> tuple[float, float]:
    """Seconds a block that llama.cpp takes for the chunks, and that the products of the covariances take."""
    source = open_source(model)
    windows = read_windows(model, bundled_text(), "bundled", 512, chunks)
    (group, *_) = groups_of(1, 1)
    with BlockRun(source, 0, 1, ctx=512, vocabulary=windows.vocabulary, threads=threads) as run:
        run.advance(windows.tokens[0])
        begun = time.perf_counter()
        for tokens in windows.tokens:
            run.advance(tokens)
        forward = time.perf_counter() - begun
    with tempfile.TemporaryDirectory() as folder:
        engine = BlockEngine(source, windows, [group], Path(folder), threads=threads)
        matrices = [name for name in engine.matrices(group) if name.startswith("blk.") and name in _matrices(source)]
        with engine.run(group, matrices, covariance=False, keep=False, chunks=1) as run:
            inputs = {same: _rows(run, same) for same in set(run.representatives.values())}
    operations = sum(count * source.tensors[name].shape[-1] ** 2 for name, count in inputs.items())
    size = 2048
    square = np.ones((size, size), np.float32)
    begun = time.perf_counter()
    for _ in range(3):
        square @ square
    speed = 3 * 2 * size**3 / (time.perf_counter() - begun)
    return forward, chunks * operations / speed


def _rows(run: BlockRun, name: str) -> int:
    """Inputs in the covariance: experts have one each in their last product, and share one a token before it."""
    return int(run.counts(name).sum()) if names.is_stacked(name) and "ffn_down" in name else run.tokens(name)


def _matrices(source: Any) -> set[str]:
    return {name for name, info in source.tensors.items() if len(info.shape) > 1}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=real_shapes.SHAPES, default="llama-3.1-8b", help="default: %(default)s")
    parser.add_argument("--blocks", type=int, default=1, help="of the model that is run (default: %(default)s)")
    parser.add_argument("--chunks", type=int, default=48, help="of 512 tokens (default: %(default)s)")
    parser.add_argument("--bits", type=float, default=4, help="default: %(default)s")
    parser.add_argument("--ram", default="6G", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=0, help="default: all")
    parser.add_argument("--targets", default="full", help="all: without embedding and head (default: %(default)s)")
    parser.add_argument("--calibrate", choices=("dense", "sequential"), default="dense", help="default: %(default)s")
    parser.add_argument("--work", type=Path, default=common.WORK, help="folder of the model (default: %(default)s)")
    options = parser.parse_args()
    shape = real_shapes.SHAPES[options.shape]
    options.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        model = Path(folder) / "model.gguf"
        real_shapes.write_model(shape, options.blocks, model)
        forward, products = bounds(model, options.chunks, options.threads)
        stages = measure(
            model, Path(folder) / "out.gguf", chunks=options.chunks, bits=options.bits, ram=options.ram,
            threads=options.threads, targets=options.targets, calibrate=options.calibrate,
        )  # fmt: skip
    for name in dict.fromkeys([*stages.seconds, *stages.memory]):
        seconds = stages.seconds.get(name)
        anonymous, shared = stages.memory.get(name, (0, 0))
        shown = "" if seconds is None else f"{seconds:8.1f} s"
        print(f"{name:26} {shown:>10}  {anonymous / 1e6:8.0f} MB anonymous  {shared / 1e6:8.0f} MB shared")
    measured = sum(stages.seconds.get(name, 0.0) for name in MEASURE) / options.blocks
    bound = forward + products
    print(f"measuring a block {measured:.1f} s, {measured / bound:.2f} of its bounds:")
    print(f"llama.cpp alone {forward:.1f} s, products {products:.1f} s")
    blocks = sum(seconds for name, seconds in stages.seconds.items() if name != HEAD) / options.blocks
    whole = blocks * shape.n_layers + stages.seconds.get(HEAD, 0.0)
    print(f"whole model of {shape.n_layers} blocks, computed: {whole / 3600:.2f} h")
    return 0


if __name__ == "__main__":
    sys.exit(main())
