"""One tensor as a job: a small description that any process can carry out, and what comes back.

A job depends on nothing but itself and the files that it names, so that it may run anywhere and run again. NumPy's
linear algebra rounds differently with other numbers of threads; a job therefore runs it with one.
"""

from __future__ import annotations

import hashlib
import json
import platform
import threading
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..calibrate import passes
from ..calibrate.covariance import Covariance, open_covariance
from ..calibrate.gradient_file import Gradient, open_gradient
from ..calibrate.passes import PassJob
from ..errors import ExecutorError, ImatrixError, SourceModelError
from ..gguf import schema
from ..gguf.source import SourceModel, open_source
from ..numeric import one_blas_thread
from ..settings.tree import deciding
from ..storage.checkpoint import Record
from .describe import describe
from .encode import EncodedTensor, encode_tensor, join_experts
from .feedback import ColumnFeedback, Feedback, make_column_feedback, make_feedback
from .frequent import FineTiles
from .proc_sparse import encode_proc_sparse
from .recipe import Recipe
from .row_feedback import RowFeedback, make_row_feedback
from .slices import can_be_sliced, join_fine, join_rows, slices_of

_FEEDBACKS_KEPT = 2  # tensors that share an input are near each other in the file


@dataclass(frozen=True)
class Job:
    """What to encode. `recipe` has the tensor's own rate; paths are absolute and must mean the same file everywhere.

    `sha256` is that of the tensor's bytes in the source, `covariance_sha256` and `gradient_sha256` are of whole files.
    `shape` is [n_out, n_in], of each of the `experts` where there are some; the rows of `fine` have another rate.
    `importance` is float32[n_in] with the mean 1 (of experts float32[experts, n_in]), or None.
    """

    name: str
    shape: tuple[int, int]
    source_type: str
    sha256: str
    recipe: Recipe
    importance: npt.NDArray[np.float32] | None = None
    covariance_sha256: str | None = None
    gradient_sha256: str | None = None
    experts: int | None = None
    fine: FineTiles | None = None
    version: str = __version__

    @property
    def label(self) -> str:
        return f"tensor {self.name!r}"

    def key(self, encoder: str) -> str:
        """SHA-256 of everything that decides the payload; `encoder` identifies the code."""
        identity = {
            "encoder": [self.version, encoder],
            "tensor": [self.name, self.shape, self.experts, self.source_type, self.sha256],
            "options": self.recipe.model_dump(mode="json", exclude=deciding(Recipe, "nothing", "choice")),
            "importance": None if self.importance is None else hashlib.sha256(self.importance.tobytes()).hexdigest(),
            "covariance": self.covariance_sha256,
            "gradient": self.gradient_sha256,
            "fine": None if self.fine is None else [self.fine.bits, self.fine.tiles.hex()],
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class JobResult:
    """The encoded tensor, and the seconds that it took where it was encoded."""

    encoded: EncodedTensor
    seconds: float


def run_job(job: Job) -> JobResult:
    """Carry out a job, in any thread of any process.

    Raises SourceModelError (NaN, or not the bytes the job was made for), ImatrixError (a covariance that does not fit)
    or ExecutorError (another release of seeddelta made the job).
    """
    begin = time.perf_counter()
    if job.version != __version__:
        raise ExecutorError(
            f"a worker on {platform.node()} has seeddelta {__version__}, the build {job.version}; install the same"
        )
    with one_blas_thread():
        source = _source(job)
        if job.recipe.proc_sparse:
            return JobResult(_proc_sparse(job, source.matrix(job.name)), time.perf_counter() - begin)
        importance = job.importance
        if importance is None and job.recipe.hessian is not None and _covariance(job).has(job.name):
            importance = _covariance(job).importance(job.name)
            if job.experts is not None:
                importance = np.broadcast_to(importance, (job.experts, importance.size))
        encoded = _encode(job, source, importance) if job.fine is None else _encode_fine(job, source, importance)
    return JobResult(encoded, time.perf_counter() - begin)


def _encode_fine(job: Job, source: SourceModel, importance: npt.NDArray[np.float32] | None) -> EncodedTensor:
    """Rows of two rates, each in slices."""
    assert job.fine is not None
    recipes = [
        job.recipe.model_copy(update={"bits": bits, "gradient": None}) for bits in (job.recipe.bits, job.fine.bits)
    ]
    described = [describe(recipe, job.name, job.shape, job.source_type) for recipe in recipes]
    feedbacks = [_feedback(replace(job, recipe=recipe), one) for recipe, one in zip(recipes, described, strict=True)]
    rows = job.fine.rows(job.shape[0])
    parts: tuple[list[EncodedTensor], list[EncodedTensor]] = ([], [])
    for begin, end in slices_of(described[0]):
        weights = source.matrix(job.name, begin, end)
        for fine, made in enumerate(parts):
            chosen = rows[begin:end] == fine
            if chosen.any():
                own = np.ascontiguousarray(weights[chosen])
                made.append(encode_tensor(job.name, own, job.source_type, recipes[fine], importance, feedbacks[fine]))
    return join_fine(join_rows(parts[0]), join_rows(parts[1]), job.fine)


def _encode(job: Job, source: SourceModel, importance: npt.NDArray[np.float32] | None) -> EncodedTensor:
    """In slices where that gives the same."""
    description = describe(job.recipe, job.name, job.shape, job.source_type, job.experts)
    feedback = _feedback(job, description)
    if not can_be_sliced(description, job.recipe):
        weights = source.matrix(job.name)
        weights = weights if job.experts is None else weights.reshape(job.experts, *job.shape)
        row_feedback = _row_feedback(job) if isinstance(feedback, Feedback) else None
        return encode_tensor(job.name, weights, job.source_type, job.recipe, importance, feedback, row_feedback)
    parts = []
    for number, (begin, end) in enumerate(slices_of(description)):
        own = importance if importance is None or job.experts is None else importance[number]
        weights = source.matrix(job.name, begin, end)
        parts.append(encode_tensor(job.name, weights, job.source_type, job.recipe, own, feedback))
    return join_rows(parts) if job.experts is None else join_experts(parts)


def _proc_sparse(job: Job, weights: npt.NDArray[np.float32]) -> EncodedTensor:
    importance, covariance = job.importance, None
    if job.recipe.hessian is not None and _covariance(job).has(job.name):
        covariance = _covariance_of(job)
        importance = _covariance(job).importance(job.name) if importance is None else importance
    return encode_proc_sparse(job.name, weights, job.source_type, job.recipe, importance, covariance)


def tensor_sha256(source: SourceModel, name: str) -> str:
    """SHA-256 of a tensor's bytes as they are in the file, in hexadecimal."""
    return hashlib.sha256(source.raw(name).data).hexdigest()


def encoder_identity() -> str:
    """SHA-256 of the compiled core, this package's modules and the kinds': other code may give other bytes."""
    from .._core import _core

    digest = hashlib.sha256()
    own = Path(__file__).parent
    for path in (Path(str(_core.__file__)), *sorted(own.glob("*.py")), *sorted((own.parent / "kinds").glob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _source(job: Job) -> SourceModel:
    """The open model. Raises SourceModelError when its tensor is not the one that the job was made for."""
    path = job.recipe.input
    if not path.is_file():
        raise SourceModelError(
            f"{path}: no such file on {platform.node()}, to encode {job.name!r}; workers need the model under this path"
        )
    source = _open_source(path, _stamp(path))
    if job.name not in source.tensors or tensor_sha256(source, job.name) != job.sha256:
        raise SourceModelError(
            f"{path}: tensor {job.name!r} on {platform.node()} is not the one the build began with; "
            "do not change the model during a build, and give all workers the same file"
        )
    return source


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=1)
def _open_source(path: Path, stamp: tuple[int, int]) -> SourceModel:
    return open_source(path)


@lru_cache(maxsize=1)
def _open_covariance(path: Path, stamp: tuple[int, int]) -> Covariance:
    return open_covariance(path)


@lru_cache(maxsize=1)
def _open_gradient(path: Path, stamp: tuple[int, int]) -> Gradient:
    return open_gradient(path)


def _covariance(job: Job) -> Covariance:
    path = job.recipe.hessian
    assert path is not None
    if not path.is_file():
        raise ImatrixError(f"{path}: no such file on {platform.node()}; workers need the covariance under this path")
    covariance = _open_covariance(path, _stamp(path))
    if covariance.sha256 != job.covariance_sha256:
        raise ImatrixError(f"{path}: is another file on {platform.node()}; give all workers the same covariance")
    return covariance


def _row_feedback(job: Job) -> RowFeedback | None:
    """Feedback between the rows of the tensor, or None without gradients of it."""
    path = job.recipe.gradient
    if path is None or job.experts is not None:
        return None
    if not path.is_file():
        raise ImatrixError(f"{path}: no such file on {platform.node()}; workers need the gradients under this path")
    gradient = _open_gradient(path, _stamp(path))
    if gradient.sha256 != job.gradient_sha256:
        raise ImatrixError(f"{path}: is another file on {platform.node()}; give all workers the same gradients")
    if not gradient.has(job.name):
        return None
    matrix = gradient.matrix(job.name)
    if len(matrix) != job.shape[0]:
        raise ImatrixError(
            f"{path}: the gradients of {job.name!r} are those of {len(matrix)} rows, the tensor has {job.shape[0]}; "
            "make them with this model"
        )
    return make_row_feedback(job.name, matrix, damp=job.recipe.gradient_damp, threads=job.recipe.threads)


def _covariance_of(job: Job) -> npt.NDArray[np.float32]:
    """The matrix of the tensor's input. Raises ImatrixError when it does not fit."""
    covariance = _covariance(job)
    matrix = covariance.matrix(job.name)
    if matrix.shape[0] != job.shape[1]:
        raise ImatrixError(
            f"{covariance.path}: the covariance of the input of {job.name!r} has {matrix.shape[0]} columns, "
            f"the tensor {job.shape[1]}; make it with this model"
        )
    return matrix


_feedback_lock = threading.Lock()
_feedbacks: dict[Any, Feedback | ColumnFeedback] = {}


def _feedback(job: Job, description: schema.TensorDescription) -> Feedback | ColumnFeedback | None:
    """Feedback of the tensor's input, or None without a covariance of it. The last ones are kept."""
    base = description.base
    if job.recipe.hessian is None or not isinstance(base, schema.LanesBase):
        return None
    covariance = _covariance(job)
    if not covariance.has(job.name):
        return None
    same, damp, seed = covariance.representative(job.name), job.recipe.hessian_damp, job.recipe.seed
    power = job.recipe.covariance_power
    key: tuple[Any, ...] = (job.covariance_sha256, same, base.rotation_block, seed, damp, power, base.code)
    if description.is_column:
        key = (job.covariance_sha256, same, "column", damp)
    with _feedback_lock:  # jobs that share an input wait for it instead of computing it again
        if key not in _feedbacks:
            others = [other for other in _feedbacks if other[0] != job.covariance_sha256]
            for other in others or list(_feedbacks)[: len(_feedbacks) - _FEEDBACKS_KEPT + 1]:
                del _feedbacks[other]
            matrix = _covariance_of(job)
            made: Feedback | ColumnFeedback
            if description.is_column:
                made = make_column_feedback(job.name, matrix, damp=damp, threads=job.recipe.threads)
            else:
                made = make_feedback(
                    job.name,
                    matrix,
                    rotation_block=base.rotation_block,
                    seed=seed,
                    damp=damp,
                    column_power=power,
                    code=schema.lane_code(base.code),
                    threads=job.recipe.threads,
                )
            _feedbacks[key] = made
        return _feedbacks[key]


def run_pass(job: PassJob) -> Record | None:
    """Carry out a job of measuring, where jobs of encoding may have left what takes much memory."""
    forget()
    return passes.run_pass(job)


def forget(*, gradient: bool = True) -> None:
    """Free what jobs of this process keep for the next one; the gradient file may stay, whose opening reads it all."""
    with _feedback_lock:
        _feedbacks.clear()
    _open_source.cache_clear()
    _open_covariance.cache_clear()
    if gradient:
        _open_gradient.cache_clear()
