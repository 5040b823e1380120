"""Memory and time of `seeddelta.quantize` in the shape of a real model, from some blocks of random weights.

    python benchmarks/bench_quantize.py --shape llama-3.1-8b --blocks 8 --ram 6G

Seconds are those of each stage, and of the whole model computed from the blocks; memory is the highest of this process,
anonymous and shared (the block that llama.cpp runs lies in a memfd); disk the highest of what lies beside the model:
what is measured, and what is finished. The bounds of measuring are llama.cpp's speed on the same block without any
sums, and the covariances' operations at NumPy's speed of float32 products. One job at a time, with all threads: stages
that run side by side have no seconds of their own. The result, its blocks repeated until it has
as many as the real model, is then loaded twice, each time by a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
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
from seeddelta.calibrate.sums import PassSums
from seeddelta.calibrate.text import bundled_text, read_windows
from seeddelta.convert import jobs, quantize
from seeddelta.gguf import names
from seeddelta.gguf.source import open_source

MEASURE = ("text through blocks", "add the sums", "write the covariance")
MODEL = "model.gguf"
HEAD = "encode embedding and head"  # once a model; all other stages are of blocks


LOADED = """
import json, sys, time
import seeddelta
from seeddelta.evaluate.memory import read_memory
begun = time.perf_counter()
llm = seeddelta.load(sys.argv[1], n_ctx=512, verbose=False)
seconds = time.perf_counter() - begun
llm.eval(llm.tokenize(b"Once upon a time"))
print(json.dumps({"seconds": seconds} | read_memory().to_dict()))
"""


class Stages:
    """Seconds and highest memory in bytes (anonymous, shared) of named stages; what is nested counts for the inner."""

    def __init__(self, folder: Path) -> None:
        self.seconds: dict[str, float] = {}
        self.memory: dict[str, tuple[int, int]] = {}
        self.disk = {"measured": 0, "finished": 0}  # highest bytes
        self._now = "other"
        self._folder = folder
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        for turn in itertools.count():
            self._look(self._now)
            if turn % 20 == 0:
                self._look_at_disk()
            time.sleep(0.05)

    def _look(self, stage: str) -> None:
        lines = Path("/proc/self/status").read_text().splitlines()
        found = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if line.startswith("Rss")}
        before = self.memory.get(stage, (0, 0))
        self.memory[stage] = max(before[0], found["RssAnon"]), max(before[1], found["RssShmem"])

    def _look_at_disk(self) -> None:
        found = dict.fromkeys(self.disk, 0)
        for path in self._folder.rglob("*"):
            with contextlib.suppress(OSError):  # removed meanwhile
                if path.is_file() and path.name != MODEL:
                    found["measured" if "blocks" in path.parts else "finished"] += path.stat().st_size
        self.disk = {name: max(size, found[name]) for name, size in self.disk.items()}

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
    stages = Stages(model.parent)
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
    parser.add_argument("--name", help="name of the result file (default: quantize-<shape>)")
    parser.add_argument("--results", type=Path, default=common.RESULTS, help="its folder (default: %(default)s)")
    options = parser.parse_args()
    shape = real_shapes.SHAPES[options.shape]
    options.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        model, output = Path(folder) / MODEL, Path(folder) / "out.gguf"
        real_shapes.write_model(shape, options.blocks, model)
        forward, products = bounds(model, options.chunks, options.threads)
        stages = measure(
            model, output, chunks=options.chunks, bits=options.bits, ram=options.ram,
            threads=options.threads, targets=options.targets, calibrate=options.calibrate, executor="threads:1",
        )  # fmt: skip
        found = _result(stages, shape, options, forward, products)
        name = options.name or f"quantize-{options.shape}"
        common.save(name, found, options.results)
        if options.targets == "full":
            model.unlink()
            whole = Path(folder) / "whole.gguf"
            real_shapes.repeat_blocks(output, shape.n_layers, whole)
            found["loaded"] = [{"file": whole.stat().st_size} | _loaded(whole) for _ in range(2)]
            common.save(name, found, options.results)
    _show(found)
    return 0


def _result(
    stages: Stages, shape: real_shapes.RealShape, options: argparse.Namespace, forward: float, products: float
) -> dict[str, Any]:
    measured = sum(stages.seconds.get(name, 0.0) for name in MEASURE) / options.blocks
    block = sum(seconds for name, seconds in stages.seconds.items() if name != HEAD) / options.blocks
    shown = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    return {
        "options": {key: value for key, value in shown.items() if key not in ("work", "results", "name")},
        "stages": {
            name: {
                "seconds": stages.seconds.get(name),
                "anonymous": stages.memory.get(name, (0, 0))[0],
                "shared": stages.memory.get(name, (0, 0))[1],
            }
            for name in dict.fromkeys([*stages.seconds, *stages.memory])
        },
        "disk": stages.disk,
        "measure_block_seconds": measured,
        "bounds": {"llama.cpp": forward, "products": products},
        "over_bounds": measured / (forward + products),
        "whole_hours": (block * shape.n_layers + stages.seconds.get(HEAD, 0.0)) / 3600,
    }


def _loaded(path: Path) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", LOADED, str(path)], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _show(found: dict[str, Any]) -> None:
    for name, stage in found["stages"].items():
        shown = "" if stage["seconds"] is None else f"{stage['seconds']:8.1f} s"
        memory = f"{stage['anonymous'] / 1e6:8.0f} MB anonymous  {stage['shared'] / 1e6:8.0f} MB shared"
        print(f"{name:26} {shown:>10}  {memory}")
    disk = found["disk"]
    print(f"disk: {disk['measured'] / 1e9:.2f} GB measured, {disk['finished'] / 1e9:.2f} GB finished")
    print(f"measuring a block {found['measure_block_seconds']:.1f} s, {found['over_bounds']:.2f} of its bounds:")
    print(f"llama.cpp alone {found['bounds']['llama.cpp']:.1f} s, products {found['bounds']['products']:.1f} s")
    print(f"whole model, computed: {found['whole_hours']:.2f} h")
    for loaded in found.get("loaded", []):
        print(f"loaded in {loaded['seconds']:.2f} s, {loaded['anon'] / 1e6:.0f} MB anonymous")


if __name__ == "__main__":
    sys.exit(main())
