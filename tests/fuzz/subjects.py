"""What is damaged and who reads it: a subject is well-formed files and the code that opens a file of the kind."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))  # for the command line; pytest has it there already

from gguf import GGMLQuantizationType, GGUFValueType  # noqa: E402
from legacy_imatrix import write_imatrix  # noqa: E402
from seeddelta import Recipe  # noqa: E402
from seeddelta.calibrate.covariance import open_covariance  # noqa: E402
from seeddelta.evaluate.base_file import BaseWriter  # noqa: E402
from seeddelta.evaluate.kl import DivergenceObserver  # noqa: E402
from seeddelta.evaluate.scoring import Scored  # noqa: E402
from seeddelta.gguf.dequantize import dequantize  # noqa: E402
from seeddelta.gguf.imatrix import Imatrix, ImatrixEntry, read_imatrix  # noqa: E402
from seeddelta.gguf.reader import SeedDeltaFile, has_statecells, is_seeddelta, open_seeddelta  # noqa: E402
from seeddelta.gguf.source import open_source  # noqa: E402
from seeddelta.gguf.writer import PlannedTensor, Typed, write_gguf  # noqa: E402
from seeddelta.inspection.summary import summarize  # noqa: E402
from seeddelta.inspection.verify import verify  # noqa: E402
from seeddelta.settings.skip_file import read_skip_file  # noqa: E402
from tiny_models import tiny_weights, write_model  # noqa: E402

MATRICES = ("blk.0.ffn_up.weight", "blk.0.ffn_down.weight")
N_VOCAB, N_CTX = 11, 8  # of the log-probabilities: three positions of a chunk are scored
TOKENS = np.arange(2 * N_CTX, dtype=np.int32) % N_VOCAB


@dataclass(frozen=True)
class Subject:
    """`read` opens the file at a path and uses all of it; exceptions of seeddelta.errors are its right."""

    name: str
    files: tuple[bytes, ...]
    read: Callable[[Path], object]


def compute(file: SeedDeltaFile) -> None:
    """Everything the core does with a weight."""
    for tensor in file.tensors.values():
        weight = tensor.to_weight()
        weight.dequantize()
        x = np.linspace(-1, 1, 2 * weight.n_in, dtype=np.float32).reshape(2, -1)
        for expert in range(weight.n_experts):
            weight.matmul(x, expert=expert)
            weight.matmul(x[:1], expert=expert)


def read_seeddelta(path: Path) -> None:
    is_seeddelta(path)
    has_statecells(path)
    with open_seeddelta(path) as file:
        compute(file)
        summarize(file)


def read_unchecked(path: Path) -> None:
    """Without the reader's look at the payload: the core refuses what would lead it out of an array."""
    with open_seeddelta(path, check_data=False) as file:
        compute(file)


def read_tools(path: Path) -> None:
    """The commands verify and dequantize."""
    verify(path)
    dequantize(path, path.with_name("dense.gguf"), progress=False)


def read_source(path: Path) -> None:
    source = open_source(path)
    _ = source.n_layers
    for name in source.tensors:
        for _ in source.chunks(name):
            pass


def read_importance(path: Path) -> None:
    imatrix = read_imatrix(path)
    for name in MATRICES:
        imatrix.importance(name, 96 if "down" in name else 64, eps=1e-3)


def read_covariance(path: Path) -> None:
    covariance = open_covariance(path)
    for name in covariance.tensors:
        covariance.matrix(name)
        covariance.importance(name)


def read_recipe(path: Path) -> None:
    Recipe.from_yaml(path, input="a.gguf", output="b.gguf").provenance()


def scored(chunk: int) -> Scored:
    logits = np.linspace(-3, 3 + chunk, 3 * N_VOCAB, dtype=np.float32).reshape(3, -1)
    targets = TOKENS.reshape(2, -1)[chunk, N_CTX // 2 + 1 :]
    return Scored(chunk, logits, np.log(np.exp(logits.astype(np.float64)).sum(axis=1)), targets)


def read_divergence(path: Path) -> None:
    observer = DivergenceObserver(path)
    for chunk in range(2):
        observer.base.nll(chunk)
        observer.update(scored(chunk))
    numbers = observer.result().to_dict().values()
    assert np.isfinite(list(numbers)).all()


def _imatrices(folder: Path) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    rng = np.random.default_rng(3)
    entries = {}
    for name, n_in in zip(MATRICES, (64, 96), strict=True):
        entries[name] = ImatrixEntry(rng.uniform(0.1, 1, (1, n_in)).astype(np.float32), np.full(1, 8, np.float32))
    found = []
    for legacy in (False, True):
        write_imatrix(folder / "imatrix", Imatrix(entries, ("text",), 4, 512), legacy=legacy)
        found.append(((folder / "imatrix").read_bytes(),))
    return found[0], found[1]


def _covariance(folder: Path) -> bytes:
    root = np.random.default_rng(4).standard_normal((16, 16)).astype(np.float32)
    arrays: dict[str, np.ndarray[Any, Any]] = {"a.weight.cov": root @ root.T}
    arrays["a.weight.in_norm2"] = np.diagonal(arrays["a.weight.cov"]).copy()
    keys = {
        "general.type": Typed("seeddelta.covariance", GGUFValueType.STRING),
        "seeddelta.covariance.version": Typed(1, GGUFValueType.UINT32),
        "seeddelta.covariance.normalized": Typed(True, GGUFValueType.BOOL),
        "seeddelta.covariance.tokens": Typed(4096, GGUFValueType.UINT64),
        "seeddelta.covariance.shared": Typed(["a.weight=a.weight", "b.weight=a.weight"], GGUFValueType.ARRAY,
                                             GGUFValueType.STRING),
    }  # fmt: skip
    plan = [PlannedTensor(name, array.shape, GGMLQuantizationType.F32) for name, array in arrays.items()]
    write_gguf(folder / "covariance", keys, plan, lambda tensor: [arrays[tensor.name]])
    return (folder / "covariance").read_bytes()


def _divergence(folder: Path) -> bytes:
    with BaseWriter(folder / "base", TOKENS, N_CTX, N_VOCAB) as writer:
        for chunk in range(2):
            writer.update(scored(chunk))
    return (folder / "base").read_bytes()


RECIPES = (
    b"bits: 2.5\ntargets: [ffn_up, attn_q]\nlayers: 0-1\ntensor_type: ['ffn_down=4', 'attn_v=dense']\nseed: 7\n",
    b"base_kind: prng_block\nscheme: coo\nK: auto\nvals: int8\nblock: 32\nseed_search: 40\nseed_per: row\n",
    b"preset: balanced\nimatrix: i.dat\nimatrix_power: 0.5\nexecutor: processes:2\nsize: 90M\nno_checkpoint: false\n",
    b"proc_sparse: true\nproc_target: both\nproc_fanout: 0.5\nproc_block: 64\nproc_head: 64\nrow_scale: f32\n",
)
SKIPS = (
    b"format: 1\nscore: wina\nmodel: m\ntokens: 100\ninputs:\n  blk.0.ffn_down: {keep: 0.25, threshold: 0.5}\n",
    b'{"format": 1, "score": "magnitude", "inputs": {"blk.0.ffn_up": {"keep": 1, "threshold": null}}}\n',
)


def all_subjects() -> tuple[Subject, ...]:
    """Every kind of file that seeddelta reads, made from tests/golden and on the spot."""
    golden = tuple(path.read_bytes() for path in sorted((TESTS / "golden").glob("*.gguf")))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        weights = {
            name: tensor for name, tensor in tiny_weights().items() if name.startswith(("blk.0.attn_k", "output"))
        }
        sources = [
            write_model(folder / "source", weights, kind).read_bytes()
            for kind in (GGMLQuantizationType.F16, GGMLQuantizationType.Q4_0, GGMLQuantizationType.BF16)
        ]
        gguf_imatrix, legacy_imatrix = _imatrices(folder)
        return (
            Subject("seeddelta", golden, read_seeddelta),
            Subject("unchecked", golden, read_unchecked),
            Subject("tools", golden, read_tools),
            Subject("source", tuple(sources), read_source),
            Subject("imatrix", gguf_imatrix, read_importance),
            Subject("legacy", legacy_imatrix, read_importance),
            Subject("covariance", (_covariance(folder),), read_covariance),
            Subject("recipe", RECIPES, read_recipe),
            Subject("skip", SKIPS, read_skip_file),
            Subject("divergence", (_divergence(folder),), read_divergence),
        )
