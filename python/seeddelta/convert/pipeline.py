"""build(recipe): plan, encode tensor after tensor into parts, then write the file.

The descriptions of all tensors come before any data in a GGUF, so encoded payloads wait on disk (parts.py); so do
they when the build is killed. A job holds one dense matrix in memory.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Set
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gguf import GGUFValueType

from ..errors import CalibrationWarning, OutputError, some
from ..gguf import payload, schema, targets
from ..gguf.header import KEY_ALIGNMENT, TensorInfo
from ..gguf.schema import TensorDescription
from ..gguf.writer import PlannedTensor, Typed, Value, copied_metadata, crc32, write_split
from ..settings.tree import guarded
from ..storage.checkpoint import Store, stored_bytes
from .describe import compute_estimate
from .executors import Pool, map_in_order, open_pool
from .jobs import Job, encoder_identity, forget, run_job, tensor_sha256
from .metadata import own_metadata
from .parts import Part, load_part, open_parts, save_part
from .plan import Plan, experts_of, importance_of, make_plan, matrix_shape
from .recipe import Recipe, parse_size
from .report import BuildReport, TensorReport
from .rest import kept_chunks, kept_tensor

# key/value pairs and tensor tables are small; what may not fit is data
_SPARE_BYTES = 1 << 20
_CACHE_LINE = 64  # alignment of tensors: no load of codes reads from two lines


def build(recipe: Recipe, *, executor: Executor | None = None, progress: bool = True) -> BuildReport:
    """Convert a model and return the report; with `recipe.dry_run` only plan.

    Tensors are encoded by `executor`, any of `concurrent.futures` (it stays open), or what `recipe.executor` names; the
    bytes of the output are the same. Finished tensors are kept in `recipe.parts_folder` until the output is complete.
    On any failure they stay, for the same build to go on from there, and an existing output stays as it was.
    Raises the errors of `make_plan`, SourceModelError for NaN in the source, OutputError when the disk refuses,
    ExecutorError when workers die or cannot be reached.
    """
    started = time.perf_counter()
    with ExitStack() as stack:
        recipe = stack.enter_context(recipe.with_dense_input(progress=progress))
        plan = make_plan(recipe)
        _warn_uncalibrated(plan)
        if recipe.dry_run:
            return planned_report(recipe, plan, started)
        stack.enter_context(guarded(recipe))
        check_space(recipe, plan)
        stack.callback(forget)
        hashed = hash_in_background(plan, stack)
        checkpoint = stack.enter_context(open_parts(recipe.output, recipe.parts_folder, resume=recipe.resume))
        checkpoint.keep_only(set(plan.targets))
        with open_pool(recipe.executor, recipe.threads, executor) as pool:
            parts, restored = encode_all(recipe, plan, checkpoint, pool, progress)
        return finish(recipe, plan, parts, hashed, checkpoint, started=started, restored=restored)


def planned_report(recipe: Recipe, plan: Plan, started: float) -> BuildReport:
    """What a build would make."""
    rows = [_planned(plan.source.tensors[name], description) for name, description in plan.targets.items()]
    return _report(recipe, plan, rows, sha256="", file_bytes=plan.file_bytes, started=started)


def hash_in_background(plan: Plan, stack: ExitStack) -> Future[str]:
    """SHA-256 of the source, computed while the rest goes on; the stack ends it."""
    background = stack.enter_context(ThreadPoolExecutor(1))
    stack.callback(background.shutdown, cancel_futures=True)
    return background.submit(plan.source.sha256)


def finish(
    recipe: Recipe,
    plan: Plan,
    parts: Mapping[str, Part],
    hashed: Future[str],
    checkpoint: Store,
    *,
    started: float,
    restored: int,
    more: Mapping[str, Value] | None = None,
) -> BuildReport:
    """Write the output from the parts of all targets, with `more` metadata; the parts go. Raises OutputError."""
    rows = [_row(recipe, plan.source.tensors[name], parts[name]) for name in plan.targets]
    converted = {row.name: parts[row.name] for row in rows if row.status != "dense"}
    unsafe = {row.name for row in rows if row.status == "unsafe"}
    sha256 = hashed.result()
    files, file_bytes = _write(recipe, plan, converted, unsafe, sha256, more or {})
    checkpoint.finish()
    report = _report(recipe, plan, rows, sha256=sha256, file_bytes=file_bytes, started=started, restored=restored)
    report = report.model_copy(update={"files": tuple(map(str, files))})
    if recipe.report_json is not None:
        report.save(recipe.report_json)
    return report


def _warn_uncalibrated(plan: Plan) -> None:
    if plan.uncalibrated:
        given = [str(one.path) for one in (plan.imatrix, plan.covariance) if one is not None]
        warnings.warn(
            f"{' and '.join(given)}: nothing is known of the inputs of {some(plan.uncalibrated)}; "
            "all their columns count alike",
            CalibrationWarning,
            stacklevel=3,
        )


def encode_all(
    recipe: Recipe, plan: Plan, checkpoint: Store, pool: Pool, progress: bool = True
) -> tuple[dict[str, Part], int]:
    """Parts of all targets, and how many of them an earlier run had made."""
    from ..progress import tqdm

    encoder = encoder_identity()
    parts = _restored(recipe, plan, checkpoint, encoder)
    restored = len(parts)
    missing = [name for name in plan.targets if name not in parts]
    sizes = {name: description.weights for name, description in plan.targets.items()}
    done = sum(sizes[name] for name in parts)
    # smoothing 0: the rate of the whole run, as jobs end in bursts; `initial` weights do not count as fast ones
    with tqdm(
        total=sum(sizes.values()), initial=done, unit="w", unit_scale=True, desc="encode", disable=not progress,
        smoothing=0,
    ) as bar:  # fmt: skip
        if parts and progress:
            bar.write(f"{len(parts)} of {len(plan.targets)} tensors are taken from {checkpoint.folder}", sys.stderr)
        lock = threading.Lock()

        def finished(job: Job) -> None:
            with lock:
                bar.update(sizes[job.name])
                bar.set_postfix_str(job.name.removesuffix(".weight"), refresh=False)

        jobs = (job_of(recipe, plan, name, pool.threads) for name in missing)
        for job, result in map_in_order(pool, run_job, jobs, finished):
            encoded = result.encoded
            seed = int(encoded.arrays[schema.BASE_SEED].view(np.uint64)[0])
            parts[job.name] = save_part(checkpoint, job.key(encoder), encoded, seed, result.seconds)
    return parts, restored


def _restored(recipe: Recipe, plan: Plan, checkpoint: Store, encoder: str) -> dict[str, Part]:
    parts = {}
    for name in plan.targets:
        if checkpoint.has(name):  # only then is the tensor hashed twice
            part = load_part(checkpoint, name, job_of(recipe, plan, name, recipe.threads).key(encoder))
            if part is not None:
                parts[name] = part
    return parts


def job_of(recipe: Recipe, plan: Plan, name: str, threads: int) -> Job:
    """The job of a target."""
    info = plan.source.tensors[name]
    hessian = None if recipe.hessian is None else recipe.hessian.absolute()
    gradient = None if recipe.gradient is None else recipe.gradient.absolute()
    changes = {"threads": threads, "input": recipe.input.absolute(), "hessian": hessian, "gradient": gradient}
    return Job(
        name=name,
        shape=matrix_shape(info),
        source_type=plan.targets[name].source_type,
        sha256=tensor_sha256(plan.source, name),
        recipe=plan.recipes[name].model_copy(update=changes),
        importance=importance_of(recipe, plan.imatrix, info),
        covariance_sha256=None if plan.covariance is None else plan.covariance.sha256,
        gradient_sha256=None if plan.gradient is None else plan.gradient.sha256,
        experts=experts_of(info),
        fine=plan.fine.get(name),
    )


def _write(
    recipe: Recipe, plan: Plan, parts: dict[str, Part], unsafe: Set[str], sha256: str, more: Mapping[str, Value]
) -> tuple[list[Path], int]:
    source = plan.source
    tensors: list[PlannedTensor] = []
    owner: dict[str, Part] = {}
    for name in source.tensors:
        if name in parts:
            payloads = parts[name].payloads
            owner |= {payload.name: parts[name] for payload in payloads}
            tensors += payloads
        else:
            tensors.append(kept_tensor(source, name, plan.rest))
    descriptions = [
        parts[name].header.description.model_copy(update={"unsafe": name in unsafe})
        for name in source.tensors
        if name in parts
    ]
    hessian_sha256 = None if plan.covariance is None else plan.covariance.sha256
    metadata: dict[str, Value] = copied_metadata(source.header, without=schema.PREFIX)
    gradient_sha256 = None if plan.gradient is None else plan.gradient.sha256
    metadata |= own_metadata(recipe, source, descriptions, sha256, hessian_sha256, gradient_sha256) | dict(more)

    def chunks(tensor: PlannedTensor) -> Iterator[np.ndarray[Any, Any]]:
        if tensor.name in owner:
            yield from owner[tensor.name].read(tensor)
        else:
            yield from kept_chunks(source, tensor)

    checksums = [crc32(chunks(tensor)) for tensor in tensors]
    metadata[schema.KEY_CRC32] = Typed(checksums, GGUFValueType.ARRAY, GGUFValueType.UINT32)
    limit = sys.maxsize if recipe.split_max_size is None else parse_size(recipe.split_max_size)
    metadata[KEY_ALIGNMENT] = Typed(max(_CACHE_LINE, source.header.alignment), GGUFValueType.UINT32)
    return write_split(recipe.output, metadata, tensors, chunks, limit)


def check_space(recipe: Recipe, plan: Plan) -> None:
    """Raise OutputError when the output does not fit the disk."""
    # payloads are there twice for a moment: as parts and in the file
    left = max(0, plan.payload_bytes - stored_bytes(recipe.parts_folder))
    needed = {recipe.output.parent: plan.dense_bytes + plan.payload_bytes + plan.source.header.data_offset}
    parts = _existing(recipe.parts_folder or recipe.output)
    same = parts.stat().st_dev == recipe.output.parent.stat().st_dev
    place = recipe.output.parent if same else parts
    needed[place] = needed.get(place, 0) + left
    for folder, size in needed.items():
        size += _SPARE_BYTES
        free = shutil.disk_usage(folder).free
        if free < size:
            raise OutputError(
                f"{recipe.output}: needs {size / 1e6:.0f} MB in {folder}, {free / 1e6:.0f} MB are free; "
                "free some space or choose another folder"
            )


def _existing(path: Path) -> Path:
    """The nearest folder above a path that is there already."""
    return next((folder for folder in path.absolute().parents if folder.is_dir()), Path.cwd())


def _row(recipe: Recipe, info: TensorInfo, part: Part) -> TensorReport:
    description, metrics = part.header.description, part.header.metrics
    size = payload.payload_bytes(description)
    error = description.norms.error
    status: Literal["converted", "unsafe", "dense"] = "converted"
    reason = ""
    if error > recipe.seeddelta_gap:
        status = "unsafe" if recipe.beyond_gap == "fallback" else "dense"
        words = "unsafe, needs the fallback" if status == "unsafe" else "kept dense"
        reason = f"{words}: error {error:.4f} > gap {recipe.seeddelta_gap:g}"
    near = status != "dense"
    return TensorReport(
        name=info.name,
        shape=info.shape,
        source_type=info.type.name,
        status=status,
        reason=reason,
        method=part.header.method,
        base_seed=part.header.base_seed,
        bytes_before=info.nbytes,
        bytes_after=size if near else info.nbytes,
        bits_per_weight=8 * (size if near else info.nbytes) / description.weights,
        metrics=metrics,
        norms=description.norms if near else None,
        compute=compute_estimate(description, info.nbytes),
        trims=description.trims,
        seconds=round(part.header.seconds, 3),
    )


def _planned(info: TensorInfo, description: TensorDescription) -> TensorReport:
    size = payload.payload_bytes(description)
    return TensorReport(
        name=info.name,
        shape=info.shape,
        source_type=info.type.name,
        status="planned",
        bytes_before=info.nbytes,
        bytes_after=size,
        bits_per_weight=8 * size / description.weights,
        compute=compute_estimate(description, info.nbytes),
    )


def _report(
    recipe: Recipe,
    plan: Plan,
    rows: list[TensorReport],
    *,
    sha256: str,
    file_bytes: int,
    started: float,
    restored: int = 0,
) -> BuildReport:
    before = sum(row.bytes_before for row in rows)
    after = sum(row.bytes_after for row in rows)
    converted = [row for row in rows if row.status != "dense"]
    weights = sum(prod(row.shape) for row in converted)
    idle = targets.idle_tensors(plan.source.header)
    model_before = sum(info.nbytes for info in plan.source.tensors.values())
    saved = sum(plan.source.tensors[n].nbytes - kept_tensor(plan.source, n, plan.rest).nbytes for n in plan.rest)
    return BuildReport(
        recipe=recipe.model_dump(mode="json"),
        source_sha256=sha256,
        tensors=tuple(rows),
        weights_converted=weights,
        bits_per_weight=8 * sum(row.bytes_after for row in converted) / weights if weights else 0.0,
        target_bytes_before=before,
        target_bytes_after=after,
        source_bytes=plan.source.header.file_size,
        model_bytes_before=model_before,
        model_bytes_after=model_before - before + after - saved,
        model_weights=sum(prod(info.shape) for info in plan.source.tensors.values()),
        model_tensors=len(plan.source.tensors),
        file_bytes=file_bytes,
        tensors_restored=restored,
        uncalibrated=plan.uncalibrated,
        idle=idle,
        idle_weights=sum(prod(plan.source.tensors[name].shape) for name in idle),
        predicted_divergence=plan.predicted_divergence,
        seconds=round(time.perf_counter() - started, 3),
    )
