"""build(recipe): plan, encode tensor after tensor into parts, then write the file.

The descriptions of all tensors come before any data in a GGUF, so encoded payloads wait on disk (checkpoint.py); so do
they when the build is killed. A job holds one dense matrix in memory.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Set
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType

from ..calibrate.covariance import Covariance, open_covariance
from ..calibrate.gradient_file import Gradient, open_gradient
from ..errors import CalibrationWarning, ImatrixError, OutputError, RecipeError, SourceModelError, some
from ..gguf import names, schema, targets
from ..gguf.header import TensorInfo
from ..gguf.imatrix import Imatrix, read_imatrix
from ..gguf.schema import TensorDescription
from ..gguf.source import SourceModel, can_dequantize, cannot_dequantize, open_source
from ..gguf.split import write_split
from ..gguf.writer import PlannedTensor, Typed, Value, check_writable, copied_metadata, crc32
from .budget import fit_rates
from .checkpoint import Checkpoint, Part, stored_bytes
from .describe import compute_estimate, describe
from .executors import map_in_order, open_pool
from .jobs import Job, encoder_identity, forget, tensor_sha256
from .metadata import own_metadata
from .rates import Proc, Rate, overridden
from .recipe import Recipe, parse_size
from .report import BuildReport, TensorReport
from .rest import kept_chunks, kept_tensor, rest_types

_TABLE_BYTES = 1200  # of a converted tensor in the file beside its payload
# key/value pairs and tensor tables are small; what may not fit is data
_SPARE_BYTES = 1 << 20


@dataclass(frozen=True)
class Plan:
    """What a recipe means for a model: target tensors in file order with their future descriptions.

    `recipes` has the recipe of each target: that of the build, with the tensor's own rate. `uncalibrated` are targets
    that neither the imatrix nor the covariance has; they are encoded without. The gradients may lack any target.
    """

    source: SourceModel
    imatrix: Imatrix | None
    covariance: Covariance | None
    targets: dict[str, TensorDescription]
    recipes: dict[str, Recipe]
    uncalibrated: tuple[str, ...] = ()
    gradient: Gradient | None = None
    rest: dict[str, GGMLQuantizationType] = field(default_factory=dict)  # of kept tensors that get another type

    @property
    def dense_bytes(self) -> int:
        kept = (name for name in self.source.tensors if name not in self.targets)
        return sum(kept_tensor(self.source, name, self.rest).nbytes for name in kept)

    @property
    def payload_bytes(self) -> int:
        return sum(schema.payload_bytes(description) for description in self.targets.values())


def make_plan(recipe: Recipe, *, measured: bool = True) -> Plan:
    """Open the inputs and choose the tensors. Without `measured` the covariances are not there yet.

    Raises SourceModelError (no target, or one of an unknown type), ImatrixError (unreadable, or of another model) or
    RecipeError (layers beyond the model, a rotation that does not fit).
    """
    source = open_source(recipe.input)
    wanted = targets.chosen(source.header, recipe.targets, recipe.layers)
    rates = {info.name: recipe.rate_of(info.name) for info in wanted}
    if recipe.proc_sparse and not any(isinstance(rate, Proc) for rate in rates.values()):
        raise RecipeError(
            f"--proc-sparse: none of the chosen tensors is of --proc-target {recipe.proc_target}; "
            "choose others with --proc-target, --targets and --layers"
        )
    chosen = [info for info in wanted if rates[info.name] != "dense"]
    if not chosen:
        raise SourceModelError(
            f"{source.path}: has no matrix that is one of {','.join(recipe.targets)} in the layers asked for; "
            "choose others with --layers and --targets"
        )
    for info in chosen:
        if not can_dequantize(info.type):
            raise cannot_dequantize(source.path, info)
    if recipe.target_bpw is not None or recipe.target_size is not None:
        rates |= _fitted(recipe, source, {info.name: rates[info.name] for info in chosen})
    recipes = {info.name: _own_recipe(recipe, info.name, rates[info.name]) for info in chosen}
    described = {
        info.name: describe(recipes[info.name], info.name, _matrix_shape(info), info.type.name, _experts(info))
        for info in chosen
    }
    covariance = None if recipe.hessian is None or not measured else open_covariance(recipe.hessian)
    if covariance is not None and not any(covariance.has(name) for name in described):
        raise ImatrixError(f"{covariance.path}: has no covariance for any of the tensors; make it with this model")
    imatrix = None if recipe.imatrix is None else read_imatrix(recipe.imatrix)
    if imatrix is not None:
        for info in chosen:
            _importance(recipe, imatrix, info)  # all of them are checked before hours of work
    uncalibrated = tuple(name for name in described if _lacks_calibration(name, imatrix, covariance))
    rest = rest_types(source.header, recipe.rest)
    return Plan(source, imatrix, covariance, described, recipes, uncalibrated, _gradient(recipe, described), rest)


def _gradient(recipe: Recipe, described: Mapping[str, TensorDescription]) -> Gradient | None:
    if recipe.gradient is None:
        return None
    if recipe.hessian is None:
        raise RecipeError("--gradient is of use with --hessian only; make that with seeddelta imatrix --hessian")
    gradient = open_gradient(recipe.gradient)
    if not any(gradient.has(name) for name in described):
        raise ImatrixError(f"{gradient.path}: has no gradients of any of the tensors; make it with this model")
    return gradient


def _lacks_calibration(name: str, imatrix: Imatrix | None, covariance: Covariance | None) -> bool:
    """True for a matrix that others' calibration leaves out: rarely chosen experts, blocks that were not run."""
    if (imatrix is None and covariance is None) or names.role_of(name) in ("embd", "head"):
        return False  # embeddings are looked up, and llama-imatrix leaves the head out unless told otherwise
    return not (imatrix is not None and imatrix.covers(name)) and not (covariance is not None and covariance.has(name))


def _own_recipe(recipe: Recipe, name: str, rate: Rate) -> Recipe:
    changes: dict[str, Any]
    if isinstance(rate, Proc):
        changes = {"proc_sparse": True, "proc_fanout": rate.fanout, "layout": "row", "column_tensor": ()}
        return recipe.model_copy(update=changes)
    changes = {"bits": rate, "proc_sparse": False, "column_tensor": ()}
    changes["layout"] = "column" if recipe.is_column(name) else "row"
    if name == names.EMBEDDING:  # its rows are inputs, too, and lose more than the output gains: KL 0.0175, not 0.0139
        changes["column_power"] = 0.0
    return recipe.model_copy(update=changes)


def _fitted(recipe: Recipe, source: SourceModel, rates: dict[str, Rate]) -> dict[str, Rate]:
    """Rates within --target-bpw or --target-size."""

    fixed = {
        name
        for name, rate in rates.items()
        if isinstance(rate, Proc) or overridden(name, recipe.tensor_type) is not None
    }
    counted = rates.keys() - fixed if recipe.target_of_preset else rates.keys()
    budget = budget_bytes(recipe, source, counted)
    budget += sum(bytes_at(recipe, source, name, rates[name]) for name in rates.keys() - counted)
    weights = {name: prod(source.tensors[name].shape) for name in rates}
    layers = targets.computed_layers(source.header)
    return fit_rates(rates, fixed, budget, weights, partial(bytes_at, recipe, source), layers)


def bytes_at(recipe: Recipe, source: SourceModel, name: str, rate: Rate) -> int:
    """All bytes of a target tensor at a rate."""
    info = source.tensors[name]
    if rate == "dense":
        return info.nbytes
    known = _own_recipe(recipe, name, rate)
    return schema.payload_bytes(describe(known, name, _matrix_shape(info), info.type.name, _experts(info)))


def budget_bytes(recipe: Recipe, source: SourceModel, counted: Iterable[str]) -> int:
    """What --target-bpw or --target-size leaves for the target tensors."""
    if recipe.target_bpw is not None:
        return int(recipe.target_bpw * sum(prod(source.tensors[name].shape) for name in counted) / 8)
    assert recipe.target_size is not None
    chosen = set(counted)
    smaller = rest_types(source.header, recipe.rest)
    rest = sum(kept_tensor(source, name, smaller).nbytes for name in source.tensors if name not in chosen)
    # the table of tensors, their descriptions and the padding of the payloads
    return parse_size(recipe.target_size) - rest - source.header.data_offset - _TABLE_BYTES * len(chosen)


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
        check_outputs(recipe, plan)
        stack.callback(forget)
        hashed = hash_in_background(plan, stack)
        checkpoint = stack.enter_context(Checkpoint(recipe.output, recipe.parts_folder, resume=recipe.resume))
        checkpoint.keep_only(set(plan.targets))
        parts, restored = encode_all(recipe, plan, checkpoint, executor, progress)
        return finish(recipe, plan, parts, hashed, checkpoint, started=started, restored=restored)


def planned_report(recipe: Recipe, plan: Plan, started: float) -> BuildReport:
    """What a build would make."""
    rows = [_planned(plan.source.tensors[name], description) for name, description in plan.targets.items()]
    return _report(recipe, plan, rows, sha256="", file_bytes=0, started=started)


def check_outputs(recipe: Recipe, plan: Plan) -> None:
    """Raise OutputError when the output or the report cannot be written, or does not fit."""
    check_writable(recipe.output)
    if recipe.report_json is not None:
        check_writable(recipe.report_json)
    _check_space(recipe, plan)


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
    checkpoint: Checkpoint,
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


def _matrix_shape(info: TensorInfo) -> tuple[int, int]:
    n_out, n_in = info.shape[-2:]
    return n_out, n_in


def _experts(info: TensorInfo) -> int | None:
    return info.shape[0] if len(info.shape) == 3 else None


def _importance(recipe: Recipe, imatrix: Imatrix | None, info: TensorInfo) -> np.ndarray[Any, Any] | None:
    if imatrix is None or not imatrix.covers(info.name):
        return None
    power, eps = recipe.imatrix_power, recipe.imatrix_eps
    return imatrix.importance(info.name, info.shape[-1], experts=_experts(info), power=power, eps=eps)


def at_rates(plan: Plan, recipe: Recipe, rates: Mapping[str, float]) -> Plan:
    """The plan of some of the targets, with other rates."""
    recipes = {name: _own_recipe(recipe, name, rate) for name, rate in rates.items()}
    described = {}
    for name in rates:
        info = plan.source.tensors[name]
        described[name] = describe(recipes[name], name, _matrix_shape(info), info.type.name, _experts(info))
    return replace(plan, targets=described, recipes=recipes)


def encode_all(
    recipe: Recipe, plan: Plan, checkpoint: Checkpoint, executor: Executor | None = None, progress: bool = True
) -> tuple[dict[str, Part], int]:
    """Parts of all targets, and how many of them an earlier run had made."""
    from tqdm.auto import tqdm

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

        if missing:
            with open_pool(recipe.executor, recipe.threads, executor) as pool:
                jobs = (job_of(recipe, plan, name, pool.threads) for name in missing)
                for job, result in map_in_order(pool, jobs, finished):
                    encoded = result.encoded
                    seed = int(encoded.arrays[schema.BASE_SEED].view(np.uint64)[0])
                    parts[job.name] = checkpoint.save(job.key(encoder), encoded, seed, result.seconds)
    return parts, restored


def _restored(recipe: Recipe, plan: Plan, checkpoint: Checkpoint, encoder: str) -> dict[str, Part]:
    parts = {}
    for name in plan.targets:
        if checkpoint.has(name):  # only then is the tensor hashed twice
            part = checkpoint.load(name, job_of(recipe, plan, name, recipe.threads).key(encoder))
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
        shape=_matrix_shape(info),
        source_type=plan.targets[name].source_type,
        sha256=tensor_sha256(plan.source, name),
        recipe=plan.recipes[name].model_copy(update=changes),
        importance=_importance(recipe, plan.imatrix, info),
        covariance_sha256=None if plan.covariance is None else plan.covariance.sha256,
        gradient_sha256=None if plan.gradient is None else plan.gradient.sha256,
        experts=_experts(info),
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
    return write_split(recipe.output, metadata, tensors, chunks, limit, alignment=source.header.alignment)


def _check_space(recipe: Recipe, plan: Plan) -> None:
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
                f"{recipe.output}: needs {size / 2**20:.0f} MiB in {folder}, {free / 2**20:.0f} MiB are free; "
                "free some space or choose another folder"
            )


def _existing(path: Path) -> Path:
    """The nearest folder above a path that is there already."""
    return next((folder for folder in path.absolute().parents if folder.is_dir()), Path.cwd())


def _row(recipe: Recipe, info: TensorInfo, part: Part) -> TensorReport:
    description, metrics = part.header.description, part.header.metrics
    size = schema.payload_bytes(description)
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
        compute=compute_estimate(description, info.nbytes),
        trims=description.trims,
        seconds=round(part.header.seconds, 3),
    )


def _planned(info: TensorInfo, description: TensorDescription) -> TensorReport:
    size = schema.payload_bytes(description)
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
        model_bytes_before=model_before,
        model_bytes_after=model_before - before + after - saved,
        model_weights=sum(prod(info.shape) for info in plan.source.tensors.values()),
        file_bytes=file_bytes,
        tensors_restored=restored,
        uncalibrated=plan.uncalibrated,
        idle=idle,
        idle_weights=sum(prod(plan.source.tensors[name].shape) for name in idle),
        seconds=round(time.perf_counter() - started, 3),
    )
