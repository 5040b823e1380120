"""Memory and disk of `seeddelta quantize` for models of known shapes at each `--quality`, by its own estimate.

    python benchmarks/bench_costs.py

Some blocks of random weights are written for each shape, and `quantize --dry-run` is asked what they take; what belongs
to the layers is then multiplied by their number. Times are measured by bench_quantize.py, on an idle machine.
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
BITS = 4


def _encoded(model: Path, quality: Any, targets: str) -> int:
    """Bytes of all matrices that would be encoded."""
    output = model.with_name("out.gguf")
    options: dict[str, Any] = {"bits": BITS, "targets": targets, "quality": quality}
    report = seeddelta.quantize(model, output, dry_run=True, progress=False, **options)
    return sum(tensor.bytes_after for tensor in report.tensors)


def measure(shape: real_shapes.RealShape, blocks: int, folder: Path) -> dict[str, dict[str, float]]:
    """For each quality bytes of memory, of temporary files and of the file, of the whole model."""
    model = folder / "model.gguf"
    real_shapes.write_model(shape, blocks, model)
    result = {}
    for quality in QUALITIES:
        found = estimate_quantize(model, model.with_name("out.gguf"), bits=BITS, quality=quality)
        more = (shape.n_layers / blocks - 1) * _encoded(model, quality, "all")
        file = _encoded(model, quality, "full") + more
        result[quality] = {"memory": found.memory, "disk": found.disk + more, "file": file}
        print(quality, {name: f"{value / 1e9:.2f} GB" for name, value in result[quality].items()}, flush=True)
    model.unlink()
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="default: %(default)s")
    parser.add_argument("--blocks", type=int, default=2, help="of each model that are written (default: %(default)s)")
    parser.add_argument("--work", type=Path, default=common.WORK, help="folder of the models (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=common.RESULTS, help="of the result (default: %(default)s)")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    result = {}
    for name in options.shapes.split(","):
        print(name, flush=True)
        with tempfile.TemporaryDirectory(dir=options.work) as folder:
            result[name] = measure(real_shapes.SHAPES[name], options.blocks, Path(folder))
    settings = {"bits": BITS, "blocks": options.blocks, "ram": "8G", "chunks": 48}
    common.save("costs", {"benchmark": "costs", "settings": settings, "shapes": result}, options.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
