"""Damaged SeedΔ files and the preloaded library: each is served, or ends in one clear line. None ends the process."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import seeddelta
from native_helpers import BATCHES, tell
from seeddelta.gguf.model_file import read_header
from tiny_llama import write_llama

pytest.importorskip("llama_cpp")

RECIPES: dict[str, dict[str, Any]] = {
    "lanes": {"bits": 4, "targets": "full", "column_tensor": ["ffn_down"]},
    "coo": {"base_kind": "prng_block", "scheme": "coo", "K": 8, "seed_per": "row", "seed_search": 32, "block": 8},
    "codebook": {"base_kind": "lanes", "scheme": "codebook_resid", "K": 2, "codebook_size": 8, "bits": 2},
    "proc": {"proc_sparse": True, "proc_target": "both", "proc_fanout": 2, "proc_base_scale": 0.05},
}
INTERESTING = (0, 1, 2, 3, 8, 127, 128, 255)


@pytest.fixture(scope="module", params=RECIPES)
def model(request: pytest.FixtureRequest, smollm2_quantized: Path, model_dir: Path) -> Path:
    dense = write_llama(model_dir / "native-mutations.gguf", smollm2_quantized)
    path = model_dir / f"native-mutations-{request.param}.seeddelta.gguf"
    recipe = seeddelta.Recipe(input=dense, output=path, no_checkpoint=True, **RECIPES[request.param])
    seeddelta.build(recipe, progress=False)
    return path


def places(path: Path) -> list[range]:
    """Where the file says what its tensors are: the table of the converted ones, and that of all. And their data.

    Other metadata is llama.cpp's, which ends the process for some values (docs/guide/llama-programs.md).
    """
    header = read_header(path)
    data = path.read_bytes()
    first = min(data.index(key.encode()) for key in header.metadata if key.startswith("seeddelta."))
    names = min(data.rindex(name.encode(), first, header.data_offset) for name in header.tensors)
    return [range(first, names), range(names - 8, header.data_offset), range(header.data_offset, len(data))]


def damaged(path: Path, target: Path, rng: random.Random) -> Path:
    data = bytearray(path.read_bytes())
    if rng.random() < 0.1:
        target.write_bytes(data[: rng.randrange(len(data))])
        return target
    where = rng.choices(places(path), weights=(5, 4, 1))[0]
    for _ in range(rng.choice((1, 1, 2, 4))):
        data[rng.choice(where)] = rng.choice(INTERESTING) if rng.random() < 0.5 else rng.randrange(256)
    target.write_bytes(data)
    return target


def check(model: Path, folder: Path, seed: int, count: int) -> None:
    rng = random.Random(seed)
    jobs: list[dict[str, Any]] = []
    for number in range(count):
        path = damaged(model, folder / f"damaged-{number}.gguf", rng)
        jobs += [{"load": "m", "path": path, "n_ctx": 64, "n_batch": 32}]
        jobs += [{"eval": "m", "tokens": BATCHES}, {"close": "m"}]
    told = tell(jobs, folder)
    assert told.code == 0, f"job {len(told.results)}: {jobs[len(told.results)]}\n{told.stderr[-3000:]}"
    loaded = 0
    for number in range(0, len(jobs), 3):
        for result, job in zip(told.results[number : number + 2], (number, number + 1), strict=True):
            loaded += result is True
            if not result and told.results[number] is not False:
                assert len(told.lines_of(job)) == 1, (jobs[number], told.lines_of(job))
        if told.results[number] is False:
            lines = told.lines_of(number)
            assert len(lines) == 1, (jobs[number], lines)
            assert "\x1b" not in lines[0]
    assert 0 < loaded < count


def test_damaged_files(model: Path, tmp_path: Path) -> None:
    check(model, tmp_path, 1, 50)


@pytest.mark.slow
def test_many_damaged_files(model: Path, tmp_path: Path) -> None:
    for seed in range(2, 7):
        check(model, tmp_path, seed, 100)
