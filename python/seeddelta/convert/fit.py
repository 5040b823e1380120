"""`seeddelta.fit`: a SeedΔ file with row scales and norms that are fitted to the original model's predictions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType
from pydantic import BaseModel

from seeddelta import _core

from ..calibrate.block_shape import model_shape
from ..calibrate.head import read_head
from ..calibrate.text import Windows, bundled_text, read_windows
from ..errors import RecipeError
from ..gguf import schema
from ..gguf.descriptions import description_arrays
from ..gguf.hub import located
from ..gguf.reader import SeedDeltaFile, open_seeddelta, weight_arguments
from ..gguf.source import SourceModel, file_stamp, open_source
from ..gguf.writer import PlannedTensor, Typed, Value, copied_metadata, crc32, write_gguf
from ..numeric import one_blas_thread
from ..processors import processors
from ..settings.fitting import FIT_CHUNKS, LEAST_CHUNKS
from ..storage.checkpoint import discard_record
from ..storage.output import check_writable, reading
from .fit_scales import BATCH, Adam, Fit, Student
from .measure import measure


class FitReport(BaseModel):
    """Mean divergence from the original model in nats on held-out chunks, before and after; `tensors` were changed."""

    path: str
    tensors: int
    factors: int
    chunks: int
    held_out: int
    before: float
    after: float


def fit(
    model: str | os.PathLike[str],
    dense: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    text: str | os.PathLike[str] | None = None,
    ctx: int = 512,
    chunks: int = FIT_CHUNKS,
    threads: int = 0,
    resume: bool = True,
    progress: bool = True,
) -> FitReport:
    """Write a SeedΔ file whose row scales and norms are fitted to the predictions of the original it was made from.

    Needs no more bytes and no more time at run time. For ARCHITECTURES of calibrate/families.py. `chunks` of
    `ctx` tokens are taken from all over the text (None: that of the package), each once: a second time fits the text
    and not the model. One of eight is held out to measure. A run that was stopped goes on from OUTPUT.fit. The result
    does not depend on `threads` (0: all).

    Raises NotAvailableError for another kind of model, SourceModelError for an original of other shapes, RecipeError
    when nothing can be fitted or nothing was gained, EvaluationError for a text that is too short, OutputError.
    """
    model, dense, output = located(model), located(dense), Path(output)
    text = bundled_text() if text is None else Path(text)
    with reading([model, dense, text]):
        check_writable(output)
        return _fit(model, dense, output, text, ctx, chunks, threads, resume, progress)


def _fit(
    model: Path,
    dense: Path,
    output: Path,
    text: Path,
    ctx: int,
    chunks: int,
    threads: int,
    resume: bool,
    progress: bool,
) -> FitReport:
    source = open_source(dense)
    shape = model_shape(source, ctx)
    state = output.with_name(output.name + ".fit")
    with open_seeddelta(model) as file:
        for tensor in file.tensors.values():
            tensor.dense_copy(source.header, f"give the original model that {file.path} was made from")
        windows = read_windows(source.path, text, text.name, ctx, chunks)
        held = np.arange(chunks) % LEAST_CHUNKS == LEAST_CHUNKS - 1
        if not held.any():
            raise RecipeError(f"{chunks} chunks are too few to hold one out; give {LEAST_CHUNKS} or more")
        teacher = read_head(source, shape)
        student = Student(file, shape, teacher)
        if not student.places:
            raise RecipeError(f"{model}: has neither row scales nor norms that can be fitted")
        identity = _identity(model, dense, windows)
        with (
            one_blas_thread(),
            ThreadPoolExecutor(threads or processors()) as pool,
            _bar(shape.layers, int((~held).sum()), int(held.sum()), progress) as bar,
        ):
            job = Fit(source, student, windows.tokens[~held], windows.tokens[held], pool, teacher, bar.update)
            before, after = _descend(job, state if resume else None, identity, bar)
        if not after < before:
            discard_record(state)
            raise RecipeError(
                f"{model}: nothing was gained: the divergence on text that was held out is {before:.4f} and was "
                f"{after:.4f} after fitting; give more or other --text"
            )
        _write(file, source, student, output, windows)
        discard_record(state)
    return FitReport(
        path=str(output), tensors=len(student.places), factors=len(student.theta), chunks=chunks,
        held_out=int(held.sum()), before=before, after=after,
    )  # fmt: skip


def _identity(model: Path, dense: Path, windows: Windows) -> list[Any]:
    return [file_stamp(model), file_stamp(dense), windows.identity()]


def _bar(layers: int, train: int, held: int, progress: bool) -> Any:
    from ..progress import tqdm

    total = layers * (train + held + 2 * held + 3 * train)
    return tqdm(desc="fit", total=total, unit="block", smoothing=0, disable=not progress)


def _descend(job: Fit, state: Path | None, identity: list[Any], bar: Any) -> tuple[float, float]:
    """Fit; the divergence on held-out text before and after."""
    student, count = job.student, len(job.tokens)
    order = np.random.default_rng(1).permutation(count).tolist()
    batches = [order[at : at + BATCH] for at in range(0, count, BATCH)]
    adam = Adam(len(student.theta), len(batches))
    before = adam.load(state, student.theta, identity) if state is not None else None
    if before is not None:
        passed = 3 * sum(map(len, batches[: adam.step])) + len(job.held)
        bar.initial = bar.n = student.shape.layers * passed
    job.prepare()
    if before is None:
        before = job.divergence()
    for batch in batches[adam.step :]:
        loss, gradient = job.gradient(batch)
        adam.move(student.theta, gradient)
        bar.set_postfix_str(f"KL {loss:.4f}", refresh=False)
        if state is not None:
            adam.save(state, student.theta, identity, before)
    return before, job.divergence()


def _write(file: SeedDeltaFile, source: SourceModel, student: Student, output: Path, windows: Windows) -> None:
    stored = SourceModel(file.header)
    changed: dict[str, np.ndarray[Any, Any]] = {}
    descriptions = []
    for name, tensor in file.tensors.items():
        description = tensor.description
        if name in student.places:
            scale = tensor.arrays[schema.ROW_SCALE]
            changed[f"{description.stem}.{schema.ROW_SCALE}"] = (scale * student.factor(name)).astype(scale.dtype)
            arrays = dict(tensor.arrays) | {schema.ROW_SCALE: changed[f"{description.stem}.{schema.ROW_SCALE}"]}
            weight = _core.Weight(name, *description.shape, **weight_arguments(description, arrays))
            norms, _ = measure(source.matrix(name), weight, None, None)
            description = description.model_copy(update={"norms": norms})
        descriptions.append(description)
    for name in student.places:
        if name not in file.tensors:
            changed[name] = student.matrix(name).astype(np.float32)
    plan = [PlannedTensor(info.name, info.shape, info.type) for info in file.header.tensors.values()]

    def chunks(tensor: PlannedTensor) -> Iterator[np.ndarray[Any, Any]]:
        yield changed.get(tensor.name, stored.raw(tensor.name))

    metadata: dict[str, Value] = copied_metadata(file.header, without=schema.TENSORS)
    metadata |= _metadata(windows) | description_arrays(descriptions)
    checksums = [crc32(chunks(tensor)) for tensor in plan]
    metadata[schema.KEY_CRC32] = Typed(checksums, GGUFValueType.ARRAY, GGUFValueType.UINT32)
    write_gguf(output, metadata, plan, chunks)


def _metadata(windows: Windows) -> dict[str, Value]:
    return {
        schema.KEY_FIT_TEXT: Typed(windows.name, GGUFValueType.STRING),
        schema.KEY_FIT_SHA256: Typed(windows.sha256, GGUFValueType.STRING),
        schema.KEY_FIT_CHUNKS: Typed(windows.chunks, GGUFValueType.UINT32),
    }
