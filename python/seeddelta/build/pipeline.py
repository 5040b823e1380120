"""build(recipe): plan, encode tensor after tensor into a spool, then write the file.

The descriptions of all tensors come before any data in a GGUF, so encoded payloads wait in an unnamed temporary file
beside the output (the size of the payloads); one dense matrix is in memory at a time.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from gguf import GGUFValueType

from ..errors import ImatrixError, OutputError, SourceModelError
from ..gguf import names, schema
from ..gguf.header import TensorInfo
from ..gguf.imatrix import Imatrix, read_imatrix
from ..gguf.schema import TensorDescription
from ..gguf.source import SourceModel, can_dequantize, file_sha256, open_source
from ..gguf.writer import (
    TYPE_OF_DTYPE,
    PlannedTensor,
    Typed,
    Value,
    check_writable,
    copied_metadata,
    output_error,
    write_gguf,
)
from ..imatrix.covariance import Covariance, open_covariance
from .encode import EncodedTensor, compute_estimate, describe, encode_tensor
from .feedback import Feedback, make_feedback
from .recipe import Recipe
from .report import BuildReport, TensorReport

# key/value pairs and tensor tables are small; what may not fit is data
_SPARE_BYTES = 1 << 20


@dataclass(frozen=True)
class Plan:
    """What a recipe means for a model: target tensors in file order with their future descriptions.

    `recipes` has the recipe of each target: that of the build, with the tensor's own rate.
    """

    source: SourceModel
    imatrix: Imatrix | None
    covariance: Covariance | None
    targets: dict[str, TensorDescription]
    recipes: dict[str, Recipe]

    @property
    def dense_bytes(self) -> int:
        return sum(info.nbytes for name, info in self.source.tensors.items() if name not in self.targets)

    @property
    def payload_bytes(self) -> int:
        return sum(schema.payload_bytes(description) for description in self.targets.values())


def make_plan(recipe: Recipe) -> Plan:
    """Open the inputs and choose the tensors.

    Raises SourceModelError (no target, or one that is no matrix of a known type), ImatrixError (unreadable, or lacks a
    target) or RecipeError (layers beyond the model, a rotation that does not fit).
    """
    source = open_source(recipe.input)
    layers = names.parse_layers(recipe.layers, source.n_layers)
    rates = {
        name: recipe.rate_of(name, source.n_layers)
        for name in source.tensors
        if names.is_target(name, recipe.targets, layers)
    }
    chosen = [source.tensors[name] for name, rate in rates.items() if rate != "dense"]
    if not chosen:
        raise SourceModelError(
            f"{source.path}: has no tensor blk.N.{{{','.join(recipe.targets)}}}.weight in the layers asked for; "
            "choose others with --layers and --targets (llama-family models have them)"
        )
    for info in chosen:
        if len(info.shape) != 2:
            raise SourceModelError(f"{source.path}: tensor {info.name!r} is no matrix but {list(info.shape)}")
        if not can_dequantize(info.type):
            raise SourceModelError(
                f"{source.path}: tensor {info.name!r} has the type {info.type.name}, which gguf-py cannot dequantise; "
                "start from an F16 or BF16 model"
            )
    recipes = {info.name: recipe.model_copy(update={"bits": rates[info.name]}) for info in chosen}
    targets = {
        info.name: describe(recipes[info.name], info.name, _matrix_shape(info), info.type.name) for info in chosen
    }
    covariance = None if recipe.hessian is None else open_covariance(recipe.hessian)
    if covariance is not None and not any(covariance.has(name) for name in targets):
        raise ImatrixError(f"{covariance.path}: has no covariance for any of the tensors; make it with this model")
    imatrix = None if recipe.imatrix is None else read_imatrix(recipe.imatrix)
    if imatrix is not None:
        for info in chosen:
            _importance(recipe, imatrix, info)  # all of them are checked before hours of work
    return Plan(source, imatrix, covariance, targets, recipes)


def build(recipe: Recipe, *, progress: bool = True) -> BuildReport:
    """Convert a model and return the report; with `recipe.dry_run` only plan.

    The output appears when it is complete; on any failure an existing file stays as it was and nothing is left behind.
    Raises the errors of `make_plan`, SourceModelError for NaN in the source, OutputError when the disk refuses.
    """
    started = time.perf_counter()
    plan = make_plan(recipe)
    if recipe.dry_run:
        rows = [_planned(plan.source.tensors[name], description) for name, description in plan.targets.items()]
        return _report(recipe, plan, rows, sha256="", file_bytes=0, started=started)
    check_writable(recipe.output)
    if recipe.report_json is not None:
        check_writable(recipe.report_json)
    _check_space(recipe, plan)

    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(1))
        stack.callback(pool.shutdown, cancel_futures=True)
        hashed = pool.submit(plan.source.sha256)
        spool = stack.enter_context(_Spool(recipe))
        rows = []
        for info, encoded, seconds in _encode_all(recipe, plan, progress):
            rows.append(_row(recipe, info, encoded, seconds))
            if rows[-1].status == "converted":
                spool.add(encoded)
        sha256 = hashed.result()
        file_bytes = _write(recipe, plan, spool, sha256)
    report = _report(recipe, plan, rows, sha256=sha256, file_bytes=file_bytes, started=started)
    if recipe.report_json is not None:
        report.save(recipe.report_json)
    return report


def _matrix_shape(info: TensorInfo) -> tuple[int, int]:
    n_out, n_in = info.shape
    return n_out, n_in


class _FeedbackOf:
    """Feedback of a tensor, or None. The last ones are kept: tensors that share an input are near each other."""

    _KEPT = 2

    def __init__(self, recipe: Recipe, covariance: Covariance | None) -> None:
        self.recipe = recipe
        self.covariance = covariance
        self.last: dict[str, Feedback] = {}

    def __call__(self, description: TensorDescription) -> Feedback | None:
        name, base = description.name, description.base
        if self.covariance is None or not isinstance(base, schema.TrellisBase) or not self.covariance.has(name):
            return None
        same = self.covariance.representative(name)
        if same not in self.last:
            matrix = self.covariance.matrix(name)
            if matrix.shape[0] != description.shape[1]:
                raise ImatrixError(
                    f"{self.covariance.path}: the covariance of the input of {name!r} has {matrix.shape[0]} columns, "
                    f"the tensor {description.shape[1]}; make it with this model"
                )
            feedback = make_feedback(
                name, matrix, rotation_block=base.rotation_block, seed=self.recipe.seed, damp=self.recipe.hessian_damp
            )
            while len(self.last) >= self._KEPT:
                del self.last[next(iter(self.last))]
            self.last[same] = feedback
        return self.last[same]


def _importance(recipe: Recipe, imatrix: Imatrix | None, info: TensorInfo) -> np.ndarray[Any, Any] | None:
    if imatrix is None:
        return None
    return imatrix.importance(info.name, info.shape[1], power=recipe.imatrix_power, eps=recipe.imatrix_eps)


def _encode_all(recipe: Recipe, plan: Plan, progress: bool) -> Iterator[tuple[TensorInfo, EncodedTensor, float]]:
    from tqdm.auto import tqdm

    total = sum(n_out * n_in for n_out, n_in in (d.shape for d in plan.targets.values()))
    feedback_of = _FeedbackOf(recipe, plan.covariance)
    with tqdm(total=total, unit="w", unit_scale=True, desc="encode", disable=not progress) as bar:
        for name, description in plan.targets.items():
            bar.set_postfix_str(name.removesuffix(".weight"))
            info, begin = plan.source.tensors[name], time.perf_counter()
            weights = plan.source.matrix(name)
            importance = _importance(recipe, plan.imatrix, info)
            feedback = feedback_of(description)
            if importance is None and feedback is not None and plan.covariance is not None:
                importance = plan.covariance.importance(name)
            encoded = encode_tensor(name, weights, description.source_type, plan.recipes[name], importance, feedback)
            bar.update(weights.size)
            yield info, encoded, time.perf_counter() - begin


class _Spool:
    """Payloads on disk until the header can be written."""

    def __init__(self, recipe: Recipe) -> None:
        self.path = recipe.output
        self.descriptions: dict[str, TensorDescription] = {}
        self.places: dict[str, tuple[int, np.dtype[Any], tuple[int, ...]]] = {}

    def __enter__(self) -> _Spool:
        try:
            self.file: IO[bytes] = tempfile.TemporaryFile(dir=self.path.parent)
        except OSError as error:
            raise output_error(self.path, error) from error
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def add(self, encoded: EncodedTensor) -> None:
        try:
            for suffix, array in encoded.arrays.items():
                name = f"{encoded.description.stem}.{suffix}"
                self.places[name] = (self.file.tell(), array.dtype, array.shape)
                self.file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            self.file.flush()
        except OSError as error:
            raise output_error(self.path, error) from error
        self.descriptions[encoded.description.name] = encoded.description

    def payloads(self, name: str) -> list[PlannedTensor]:
        description = self.descriptions[name]
        keys = (f"{description.stem}.{suffix}" for suffix in schema.payload_layout(description))
        return [PlannedTensor(key, self.places[key][2], TYPE_OF_DTYPE[self.places[key][1]]) for key in keys]

    def read(self, tensor: PlannedTensor) -> Iterator[np.ndarray[Any, Any]]:
        self.file.seek(self.places[tensor.name][0])
        left = tensor.nbytes
        while left:
            piece = self.file.read(min(left, 1 << 24))
            if not piece:
                raise OutputError(f"{self.path}: the temporary file beside it became shorter; free some space")
            left -= len(piece)
            yield np.frombuffer(piece, np.uint8)


def _write(recipe: Recipe, plan: Plan, spool: _Spool, sha256: str) -> int:
    source = plan.source
    tensors: list[PlannedTensor] = []
    for name, info in source.tensors.items():
        if name in spool.descriptions:
            tensors += spool.payloads(name)
        else:
            tensors.append(PlannedTensor(name, info.shape, info.type))
    metadata: dict[str, Value] = copied_metadata(source.header, without=schema.PREFIX)
    metadata |= _own_metadata(recipe, source, list(spool.descriptions.values()), sha256)

    def chunks(tensor: PlannedTensor) -> Iterator[np.ndarray[Any, Any]]:
        if tensor.name in spool.places:
            yield from spool.read(tensor)
        else:
            yield source.raw(tensor.name)

    return write_gguf(recipe.output, metadata, tensors, chunks, alignment=source.header.alignment)


def _own_metadata(
    recipe: Recipe, source: SourceModel, descriptions: list[TensorDescription], sha256: str
) -> dict[str, Value]:
    """Keys `seeddelta.*`. Nothing here may depend on the time, the folder or the number of threads."""
    import json

    from .. import __version__

    def text(value: str) -> Value:
        return Typed(value, GGUFValueType.STRING)

    def u32(value: int) -> Value:
        return Typed(value, GGUFValueType.UINT32)

    def f32(value: float) -> Value:
        return Typed(value, GGUFValueType.FLOAT32)

    values: dict[str, Value] = {
        schema.KEY_ENABLED: Typed(True, GGUFValueType.BOOL),
        schema.KEY_VERSION: u32(schema.VERSION),
        schema.KEY_SCHEME: u32(schema.SCHEMES[recipe.residual_scheme]),
        schema.KEY_BASE_KIND: u32(schema.BASE_KINDS[recipe.base_kind]),
        schema.KEY_BASE_SEED: Typed(recipe.seed, GGUFValueType.UINT64),
        schema.KEY_BASE_SCALE: f32(recipe.base_scale or 0.0),
        schema.KEY_ROW_SCALE: Typed(True, GGUFValueType.BOOL),
        schema.KEY_ROW_SCALE_TYPE: text(recipe.row_scale),
        schema.KEY_GAP: f32(recipe.seeddelta_gap),
        schema.KEY_SOURCE_FILE: text(source.path.name),
        schema.KEY_SOURCE_SHA256: text(sha256),
        schema.KEY_RECIPE: text(json.dumps(recipe.provenance(), sort_keys=True)),
        schema.KEY_GENERATOR: text(f"seeddelta {__version__}"),
    }
    if recipe.residual_scheme == "coo" and recipe.K != "auto":
        values[schema.KEY_RESID_K] = u32(recipe.K)
    if recipe.imatrix is not None:
        values[schema.KEY_IMATRIX_FILE] = text(recipe.imatrix.name)
        values[schema.KEY_IMATRIX_SHA256] = text(file_sha256(recipe.imatrix))
        values[schema.KEY_IMATRIX_POWER] = f32(recipe.imatrix_power)
        values[schema.KEY_IMATRIX_EPS] = f32(recipe.imatrix_eps)
    if recipe.hessian is not None:
        values[schema.KEY_HESSIAN_FILE] = text(recipe.hessian.name)
        values[schema.KEY_HESSIAN_SHA256] = text(file_sha256(recipe.hessian))
        values[schema.KEY_HESSIAN_DAMP] = f32(recipe.hessian_damp)
    if descriptions:
        texts = [description.model_dump_json() for description in descriptions]
        values[schema.KEY_TENSORS] = Typed(texts, GGUFValueType.ARRAY, GGUFValueType.STRING)
    return values


def _check_space(recipe: Recipe, plan: Plan) -> None:
    # payloads are there twice for a moment: in the spool and in the file
    needed = plan.dense_bytes + 2 * plan.payload_bytes + plan.source.header.data_offset + _SPARE_BYTES
    free = shutil.disk_usage(recipe.output.parent).free
    if free < needed:
        raise OutputError(
            f"{recipe.output}: needs {needed / 2**20:.0f} MiB, {free / 2**20:.0f} MiB are free; "
            "free some space or choose another folder"
        )


def _row(recipe: Recipe, info: TensorInfo, encoded: EncodedTensor, seconds: float) -> TensorReport:
    size = schema.payload_bytes(encoded.description)
    error = encoded.metrics.rel_l2_w if recipe.imatrix is not None else encoded.metrics.rel_l2
    near = error <= recipe.seeddelta_gap
    shape = _matrix_shape(info)
    return TensorReport(
        name=info.name,
        shape=shape,
        source_type=info.type.name,
        status="converted" if near else "dense",
        reason="" if near else f"kept dense: error {error:.4f} > gap {recipe.seeddelta_gap:g}",
        method=encoded.method,
        base_seed=int(encoded.arrays[schema.BASE_SEED].view(np.uint64)[0]),
        bytes_before=info.nbytes,
        bytes_after=size if near else info.nbytes,
        bits_per_weight=8 * (size if near else info.nbytes) / (shape[0] * shape[1]),
        metrics=encoded.metrics,
        compute=compute_estimate(encoded.description, info.nbytes),
        seconds=round(seconds, 3),
    )


def _planned(info: TensorInfo, description: TensorDescription) -> TensorReport:
    size = schema.payload_bytes(description)
    return TensorReport(
        name=info.name,
        shape=description.shape,
        source_type=info.type.name,
        status="planned",
        bytes_before=info.nbytes,
        bytes_after=size,
        bits_per_weight=8 * size / (description.shape[0] * description.shape[1]),
        compute=compute_estimate(description, info.nbytes),
    )


def _report(
    recipe: Recipe, plan: Plan, rows: list[TensorReport], *, sha256: str, file_bytes: int, started: float
) -> BuildReport:
    before = sum(row.bytes_before for row in rows)
    after = sum(row.bytes_after for row in rows)
    converted = [row for row in rows if row.status != "dense"]
    weights = sum(row.shape[0] * row.shape[1] for row in converted)
    model_before = sum(info.nbytes for info in plan.source.tensors.values())
    return BuildReport(
        recipe=recipe.model_dump(mode="json"),
        source_sha256=sha256,
        tensors=tuple(rows),
        weights_converted=weights,
        bits_per_weight=8 * sum(row.bytes_after for row in converted) / weights if weights else 0.0,
        target_bytes_before=before,
        target_bytes_after=after,
        model_bytes_before=model_before,
        model_bytes_after=model_before - before + after,
        file_bytes=file_bytes,
        seconds=round(time.perf_counter() - started, 3),
    )
