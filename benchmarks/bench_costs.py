"""What `seeddelta quantize` takes for models of known shapes at each `--quality`, by its own estimate (`--dry-run`).

    python benchmarks/bench_costs.py

Some blocks of random weights are written for each shape; a chunk of text is measured and some rows are encoded, as by
the command. What belongs to the layers is then multiplied by their number. Gradients of `--quality best` are not in the
estimate. Run it on an idle machine: the times are those of its processors.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command does

import common
import real_shapes
import seeddelta
from seeddelta.convert.quantize import estimate_quantize

SHAPES = ("llama-3.2-1b", "qwen3-4b", "llama-3.1-8b", "qwen3-30b-a3b")
QUALITIES = ("fast", "normal", "best")


def _parts(model: Path, quality: Any, targets: str) -> dict[str, float]:
    """Of a model of some blocks: seconds, bytes of memory and of temporary files, and of what is encoded."""
    options: dict[str, Any] = {"bits": 4, "targets": targets}
    found = estimate_quantize(model, model.with_name("out.gguf"), quality=quality, **options)
    report = seeddelta.quantize(
        model, model.with_name("out.gguf"), quality=quality, dry_run=True, progress=False, **options
    )
    encoded = sum(tensor.bytes_after for tensor in report.tensors)
    return {"seconds": found.seconds, "memory": found.memory, "disk": found.disk, "encoded": encoded}


def measure(shape: real_shapes.RealShape, blocks: int, folder: Path) -> dict[str, dict[str, float]]:
    """For each quality what the whole model takes."""
    model = folder / "model.gguf"
    real_shapes.write_model(shape, blocks, model)
    result = {}
    for quality in QUALITIES:
        layers, whole = (_parts(model, quality, targets) for targets in ("all", "full"))
        times = shape.n_layers / blocks
        result[quality] = {
            "seconds": whole["seconds"] + (times - 1) * layers["seconds"],
            "memory": whole["memory"],
            "disk": whole["disk"] + (times - 1) * layers["encoded"],
            "file": whole["encoded"] + (times - 1) * layers["encoded"],
        }
        print(quality, {name: f"{value:.3g}" for name, value in result[quality].items()}, flush=True)
    model.unlink()
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="default: %(default)s")
    parser.add_argument("--blocks", type=int, default=4, help="of each model that are written (default: %(default)s)")
    parser.add_argument("--work", type=Path, default=common.WORK, help="folder of the models (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=common.RESULTS, help="of the result (default: %(default)s)")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    result = {}
    for name in options.shapes.split(","):
        print(name, flush=True)
        with tempfile.TemporaryDirectory(dir=options.work) as folder:
            result[name] = measure(real_shapes.SHAPES[name], options.blocks, Path(folder))
    settings = {"bits": 4, "blocks": options.blocks, "ram": "8G", "chunks": 48}
    common.save("costs", {"benchmark": "costs", "settings": settings, "shapes": result}, options.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
