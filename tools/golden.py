"""Make tests/golden: small files and what they decode to.

    python tools/golden.py [FOLDER]

tests/test_golden.py only reads what is there: a builder may change, the meaning of a file that exists may not. Files
that are in the folder are left alone, so that a new kind can be added without touching the old ones.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import seeddelta
from seeddelta import _core
from seeddelta.convert import pipeline
from seeddelta.convert.describe import with_fine
from seeddelta.convert.frequent import FineTiles
from seeddelta.gguf.imatrix import Imatrix, ImatrixEntry, write_imatrix

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))
from golden_digests import digests  # noqa: E402
from tiny_models import write_model  # noqa: E402

# row counts that 16 does not divide, column counts that 64, 32 and 16 do not divide
SHAPES = {"attn_q": (40, 96), "attn_k": (16, 72), "attn_v": (17, 64), "attn_output": (33, 104),
          "ffn_gate": (24, 96)}  # fmt: skip
# by columns: wide strips and narrow ones, whole and not
LAYOUT_SHAPES = {"attn_q": (576, 6), "attn_k": (64, 12), "attn_v": (333, 8), "attn_output": (200, 10),
                 "ffn_gate": (512, 5)}  # fmt: skip
LANE_RATES = {"attn_q": 4, "attn_k": 2, "attn_v": 3, "attn_output": 3.5, "ffn_gate": 2.5}
PLANE_RATES = {"attn_k": 6, "attn_v": 5}
LOW_RATES = {"attn_k": 1, "attn_v": 1.5}
HALF_RATES = {"attn_k": 4.5, "attn_v": 4.5}
THREE_RATES = {"attn_v": 3}  # in lanes.gguf, which is older, 3 bits are of code 22
LANES: dict[str, Any] = {
    "targets": tuple(LANE_RATES),
    "tensor_type": tuple(f"0.{name}={bits:g}" for name, bits in LANE_RATES.items()),
}  # fmt: skip
PLANES: dict[str, Any] = {
    "targets": tuple(PLANE_RATES),
    "tensor_type": tuple(f"0.{name}={bits:g}" for name, bits in PLANE_RATES.items()),
}  # fmt: skip
LOW: dict[str, Any] = {
    "targets": tuple(LOW_RATES),
    "tensor_type": tuple(f"0.{name}={bits:g}" for name, bits in LOW_RATES.items()),
}  # fmt: skip
RATES = {"lanes": LANE_RATES, "planes": PLANE_RATES, "low": LOW_RATES, "three": THREE_RATES, "half": HALF_RATES}
HALF: dict[str, Any] = {"targets": tuple(HALF_RATES), "bits": 4.5}
THREE: dict[str, Any] = {"targets": tuple(THREE_RATES), "bits": 3}
FEW: dict[str, Any] = {"targets": ("attn_output", "attn_v")}  # tensors of the blocks and residuals
PROC: dict[str, Any] = FEW | {"proc_sparse": True, "proc_target": "attn"}
EXPERTS: dict[str, Any] = {"targets": ("ffn_up_exps",), "bits": 3}
COLUMNS: dict[str, Any] = {"imatrix": True, "column_power": 0.25}

FILES: dict[str, dict[str, Any]] = {
    "lanes-coo": FEW | {"bits": 2, "scheme": "coo", "K": 5, "vals": "int8"},
    "lanes-block": FEW | {"bits": 1, "scheme": "block", "vals": "int8", "block": 32},
    "lanes-codebook": FEW | {"bits": 2, "scheme": "codebook_resid", "K": 2, "codebook_size": 6},
    "prng-coo": FEW | {"base_kind": "prng_block", "scheme": "coo", "K": 7},
    "prng-block": FEW | {"base_kind": "prng_block", "scheme": "block", "block": 32},
    "prng-rows": FEW | {"base_kind": "prng_block", "seed_per": "row", "seed_search": 40, "block": 8, "K": 3},
    "prng-gains": FEW | {"base_kind": "prng_block", "seed_per": "block", "seed_search": 40, "block": 16, "K": 3},
    "fht": FEW | {"base_kind": "fht_struct", "scheme": "coo", "K": 6, "vals": "int8"},
    "statecells": FEW | {"base_kind": "none", "scheme": "codebook_resid", "K": 3, "codebook_size": 12},
    "none-block": FEW | {"base_kind": "none", "scheme": "block", "block": 64, "vals": "int8"},
    "proc-32": PROC | {"proc_fanout": 2},
    "proc-64": PROC | {"proc_fanout": 1, "proc_block": 64, "proc_base_scale": 0},
    "experts-coo": EXPERTS | {"scheme": "coo", "K": 4},
    "lanes": LANES,
    "lanes-columns": LANES | COLUMNS | {"row_scale": "f32"},
    "planes": PLANES,
    "planes-columns": PLANES | COLUMNS,
    "low": LOW,
    "low-columns": LOW | COLUMNS,
    "three": THREE,
    "three-columns": THREE | COLUMNS,
    "half": HALF,
    "half-columns": HALF | COLUMNS,
    "layout-half": HALF | {"layout": "column"},
    "layout-lanes": LANES | {"layout": "column"},
    "layout-planes": PLANES | {"layout": "column"},
    "fine": {"targets": ("attn_q", "attn_output"), "bits": 3.5, "fine": 6},
    "fine-columns": {"targets": ("attn_q", "attn_output"), "bits": 4, "fine": 4.5} | COLUMNS,
    "experts-lanes": EXPERTS | {"bits": 3.5},
    "experts-columns": EXPERTS | COLUMNS | {"scheme": "block", "vals": "int8", "block": 32},
}


def model(name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Weights whose columns are of unlike size, so that scales and importances have something to do."""
    rng = np.random.default_rng(7)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (4, 64)}
    if name.startswith("experts"):
        shapes["blk.0.ffn_up_exps"] = (3, 20, 72)
    elif name.startswith("layout"):
        shapes |= {f"blk.0.{target}": LAYOUT_SHAPES[target] for target in RATES[name.removeprefix("layout-")]}
    elif name.startswith("fine"):
        shapes |= {f"blk.0.{target}": SHAPES[target] for target in FILES[name]["targets"]}
    elif (rates := name.removesuffix("-columns")) in RATES:
        shapes |= {f"blk.0.{target}": SHAPES[target] for target in RATES[rates]}
    else:
        shapes |= {f"blk.0.{target}": SHAPES[target] for target in FEW["targets"]}
    return {
        f"{tensor}.weight": rng.normal(0, 0.05, shape).astype(np.float32) * rng.uniform(0.2, 2, shape[-1:])
        for tensor, shape in shapes.items()
    }


@contextmanager
def fine_tiles(bits: float | None) -> Iterator[None]:
    """Every second tile of a matrix has so many bits, as frequent rows of an embedding have."""
    original = pipeline.make_plan

    def changed(recipe: Any) -> Any:
        plan = original(recipe)
        fine = {}
        for name, description in plan.targets.items():
            mask = np.arange(-(-description.shape[0] // 16)) % 2 == 1
            fine[name] = FineTiles(bits, np.packbits(mask, bitorder="little").tobytes(), 0.5)
        targets = {name: with_fine(plan.targets[name], tiles) for name, tiles in fine.items()}
        return replace(plan, targets=targets, fine=fine)

    pipeline.make_plan = original if bits is None else changed
    yield
    pipeline.make_plan = original


def importance(weights: dict[str, np.ndarray[Any, Any]], path: Path) -> Path:
    rng = np.random.default_rng(8)
    entries = {}
    for name, tensor in weights.items():
        matrices = tensor.shape[0] if tensor.ndim == 3 else 1
        sums = rng.uniform(0.01, 1, (matrices, tensor.shape[-1])).astype(np.float32) ** 4
        entries[name] = ImatrixEntry(sums, np.ones(matrices, np.float32))
    write_imatrix(path, Imatrix(entries))
    return path


def main(folder: Path) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    expected = folder / "expected.json"
    known: dict[str, Any] = json.loads(expected.read_text()) if expected.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, options in FILES.items():
            output = folder / f"{name}.gguf"
            if output.exists():
                continue
            weights = model(name)
            source = write_model(Path(temporary) / "tiny.gguf", weights)
            given = {"bits": 6} | options if "tensor_type" in options else dict(options)
            if given.pop("imatrix", False):
                given["imatrix"] = importance(weights, Path(temporary) / "imatrix.gguf")
            with fine_tiles(given.pop("fine", None)):
                recipe = seeddelta.Recipe(input=source, output=output, seeddelta_gap=100, seed=12345, **given)
                seeddelta.build(recipe, progress=False)
            _core.isa_select("scalar")  # the definition
            known[output.name] = digests(output)
            _core.isa_select(_core.isa_available()[-1])
    expected.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TESTS / "golden")
