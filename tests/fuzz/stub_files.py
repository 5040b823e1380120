"""Let stock llama.cpp, without our hook, compute with random stub files: NaN everywhere, or the right numbers.

    python tests/fuzz/stub_files.py --files 2000 [--seed 1]

A stub file is a model of which a random part of the matrices are placeholders and the rest is F16 or Q8_0. Right are
the logits of the whole model: those of a stub file whose placeholders no graph uses. Exit status 1, and a line,
for any other number.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the command line; pytest has it there already

import numpy as np
import seeddelta
from architectures import ARCHITECTURES, write_architecture
from llama_cpp import llama_cpp as native
from models import smollm2
from seeddelta import _core
from seeddelta.gguf import targets
from seeddelta.gguf.header import Header
from seeddelta.gguf.model_file import read_header
from seeddelta.runtime.library import loaded_ggml
from tiny_llama import N_VOCAB

# A ReLU makes 0 of NaN, so a stub file must have another placeholder than those before it (docs/internals/runtime.md).
BEFORE_RELU = {"nemotron": "ffn_up.weight", "arcee": "ffn_up.weight", "gemma3n": "ffn_gate.weight"}
NAMES = tuple(ARCHITECTURES)
STEPS = [list(range(40, 49)), [33]]


@dataclass
class Viewed:
    """`nan` stub files gave nothing but NaN, `right` ones the model's own logits, `refused` ones were not computed."""

    nan: int = 0
    right: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)


def bare(name: str) -> Any:
    """A function of the library itself, as another program would call it."""
    known = getattr(native, name)
    return known.args[0] if hasattr(known, "args") else known


class Model:
    """A loaded file, and its logits."""

    def __init__(self, path: str) -> None:
        params = native.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = bare("llama_model_load_from_file")(path.encode(), params)

    def logits(self, threads: int, flash: bool) -> np.ndarray[Any, Any] | None:
        """float32[2, n_vocab], the last of a prompt and of a single token; None for what llama.cpp refuses."""
        params = native.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 64, 32, 32
        params.n_threads = params.n_threads_batch = threads
        if hasattr(params, "flash_attn_type"):
            params.flash_attn_type = int(flash)
        context = bare("llama_init_from_model")(self.model, params)
        if not context:
            return None
        rows = []
        for tokens in STEPS:
            array = (native.llama_token * len(tokens))(*tokens)
            if bare("llama_decode")(context, native.llama_batch_get_one(array, len(tokens))) != 0:
                break
            rows.append(np.ctypeslib.as_array(bare("llama_get_logits")(context), (N_VOCAB,)).copy())
        bare("llama_free")(context)
        return np.array(rows) if len(rows) == len(STEPS) else None

    def close(self) -> None:
        bare("llama_model_free")(self.model)


def make_stub_file(header: Header, placeholders: Sequence[str]) -> _core.StubFile:
    shapes = {name: header.tensors[name].shape for name in placeholders}
    given = {name: (loaded_ggml().placeholder_type(shape[-1]), shape, None) for name, shape in shapes.items()}
    return _core.StubFile(header.path, {name: name for name in header.tensors if name not in given}, given)


def look(header: Header, rng: Random, viewed: Viewed, whole: dict[tuple[int, bool], Any]) -> None:
    """One random stub file of a model."""
    names = [info.name for info in targets.convertible(header).values()]
    share = rng.choice((0.0, 0.1, 0.5, 1.0))
    placeholders = [name for name in names if rng.random() < share] or [rng.choice(names)]
    before = BEFORE_RELU.get(header.metadata["general.architecture"])
    if before is not None and all(name.endswith(before) for name in placeholders):
        placeholders.append("blk.0.attn_v.weight")
    how = rng.randint(1, 2), rng.random() < 0.5
    stub_file = make_stub_file(header, placeholders)
    model = Model(stub_file.path)
    assert stub_file.seal()
    found = model.logits(*how)
    model.close()
    stub_file.close()
    if found is None:
        viewed.refused += 1
    elif np.isnan(found).all():
        viewed.nan += 1
    elif np.array_equal(found, whole[how]) and set(placeholders) <= set(targets.idle_tensors(header)):
        viewed.right += 1
    else:
        share = np.isnan(found).mean()
        viewed.wrong.append(f"{header.path.name} {how}: {share:.0%} are NaN with the placeholders {placeholders}")


def look_at(
    folder: Path, tokenizer_of: Path, count: int, rng: Random, names: Sequence[str] = NAMES
) -> tuple[Viewed, list[str]]:
    """Random stub files of models of all architectures that the loaded llama.cpp knows, and which these are."""
    viewed, known = Viewed(), []
    files = []
    for name in names:
        path = write_architecture(folder / f"{name}.gguf", tokenizer_of, name)
        model = Model(str(path))
        if model.model:
            model.close()
            known.append(name)
            files += [path, seeddelta.dequantize(path, folder / f"{name}-q8.gguf", type="q8_0", progress=False)]
    each = -(-count // len(files))
    for path in files:
        header = read_header(path)
        model = Model(str(path))
        whole = {(threads, flash): model.logits(threads, flash) for threads in (1, 2) for flash in (False, True)}
        model.close()
        for _ in range(each):
            look(header, rng, viewed, whole)
    return viewed, known


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(NAMES))
    options = parser.parse_args()
    begin = time.monotonic()
    silent = native.llama_log_callback(lambda level, text, data: None)  # kept as long as it is in use
    native.llama_log_set(silent, None)
    with tempfile.TemporaryDirectory(prefix="seeddelta-stub-files-") as temporary:
        names = options.only.split(",")
        viewed, known = look_at(Path(temporary), smollm2(), options.files, Random(options.seed), names)
    for line in viewed.wrong:
        print(line)
    print(
        f"{viewed.nan} stub files gave NaN, {viewed.right} the right numbers, {viewed.refused} nothing; {len(known)} "
        f"architectures; {len(viewed.wrong)} wrong, {time.monotonic() - begin:.0f} s"
    )
    return 1 if viewed.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
