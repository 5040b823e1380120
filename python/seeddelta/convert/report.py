"""What a build did: numbers for each tensor, as JSON and as a table."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from ..gguf.roles import Item, RoleSums, html_table, sums_by_role, sums_of, terminal_table
from ..gguf.schema import Norms
from ..html import folded, line, table
from ..storage.output import atomic_output

if TYPE_CHECKING:
    from rich.table import Table

Method = Literal["", "plain", "weighted", "feedback", "row feedback"]
_FROZEN = ConfigDict(frozen=True)
_ROLES = 13  # rows of the table, which has two of totals


class Metrics(BaseModel):
    """How near Ŵ is to W. `rel_l2` = ‖W−Ŵ‖/‖W‖, `cos` = ⟨W,Ŵ⟩/(‖W‖‖Ŵ‖), `norm_ratio` = ‖Ŵ‖/‖W‖.

    Those with `_w` weigh the columns with the importance; without an imatrix they equal the plain ones. `rel_out` is
    the error of the outputs, sqrt(tr(E H Eᵀ) / tr(W H Wᵀ)) with E = W−Ŵ and H the covariance of the inputs, if known;
    `rel_grad` is the same as the loss sees it, sqrt(tr(G E H Eᵀ) / tr(G W H Wᵀ)), G the covariance of its gradients.
    """

    model_config = _FROZEN
    rel_l2: float
    cos: float
    norm_ratio: float
    rel_l2_w: float
    cos_w: float
    norm_ratio_w: float
    rel_out: float | None = None
    rel_grad: float | None = None

    @property
    def error(self) -> float:
        """What a gap is about; the same as `error` of the norms in the file."""
        return self.rel_l2_w if self.rel_out is None else self.rel_out


class Compute(BaseModel):
    """Work for one token: operations by kind, and bytes of weights read, beside those of the source."""

    model_config = _FROZEN
    integer_macs: int
    float_macs: int
    decode_ops: int
    rotation_ops: int
    bytes_read: int
    dense_macs: int
    dense_bytes_read: int


class TensorReport(BaseModel):
    """One target tensor. `bytes_after` and `bits_per_weight` count all payload bytes. One above the gap is `dense` in
    the file, or `unsafe`: stored in seeds, and run from the fallback.

    `norms` are those in the file, None for what is not converted. `trims` are the entries that were shed (proc-sparse).
    """

    model_config = _FROZEN
    name: str
    shape: tuple[int, ...]
    source_type: str
    status: Literal["converted", "unsafe", "dense", "planned"]
    reason: str = ""
    method: Method = ""
    base_seed: int | None = None
    bytes_before: int
    bytes_after: int
    bits_per_weight: float
    metrics: Metrics | None = None
    norms: Norms | None = None
    compute: Compute | None = None
    trims: int = 0
    seconds: float = 0.0

    @property
    def item(self) -> Item:
        """The tensor for the sums by role."""
        return Item(self.name, prod(self.shape), self.bytes_after, self.norms)


class BuildReport(BaseModel):
    """A whole build. Bytes and weights of the model are those of all its tensors.

    `source_bytes` and `file_bytes` are those of the files, of a dry run as estimated.
    `files` are the output, several when it is split.
    `tensors_restored` counts the tensors that an earlier, unfinished run had encoded. `uncalibrated` are tensors that
    the imatrix or covariance given lacks. `idle` are matrices that llama.cpp's graph does not use, and why; they are
    kept, and `idle_weights` of the model's weights are theirs. `predicted_divergence` is the KL divergence from the
    original model, nats per token, as predicted from the gradients; `losses` are what `seeddelta quantize` found on
    texts.
    """

    model_config = _FROZEN
    recipe: dict[str, Any]
    source_sha256: str
    tensors: tuple[TensorReport, ...]
    weights_converted: int
    bits_per_weight: float
    target_bytes_before: int
    target_bytes_after: int
    source_bytes: int
    model_bytes_before: int
    model_bytes_after: int
    model_weights: int
    model_tensors: int
    file_bytes: int
    files: tuple[str, ...] = ()
    tensors_restored: int = 0
    uncalibrated: tuple[str, ...] = ()
    idle: dict[str, str] = {}
    idle_weights: int = 0
    predicted_divergence: float | None = None
    losses: tuple[dict[str, Any], ...] = ()
    seconds: float

    @property
    def converted_share(self) -> float:
        """Converted weights over all weights that llama.cpp's graph uses."""
        return self.weights_converted / max(1, self.model_weights - self.idle_weights)

    @property
    def model_bits_per_weight(self) -> float:
        """Bits of all tensors over all weights of the model, converted or not."""
        return 8 * self.model_bytes_after / self.model_weights

    @property
    def sizes(self) -> str:
        """The size beside that of the original, and bits per weight."""
        before, after = self.source_bytes, self.file_bytes
        return (
            f"{after / 1e6:.1f} MB, {100 * after / before:.0f}% of the original's {before / 1e6:.1f} MB; "
            f"{self.bits_per_weight:.3f} bits per converted weight, {self.model_bits_per_weight:.3f} over all weights"
        )

    def __repr__(self) -> str:
        return f"BuildReport({self})"

    def __str__(self) -> str:
        return f"{', '.join(self.files) or 'dry run'}: {self.sizes}"

    @property
    def kept_dense(self) -> tuple[TensorReport, ...]:
        """Tensors that were to be converted but exceed the gap."""
        return tuple(tensor for tensor in self.tensors if tensor.status == "dense")

    @property
    def unsafe(self) -> tuple[TensorReport, ...]:
        """Tensors that exceed the gap and are stored all the same, to be run from the fallback."""
        return tuple(tensor for tensor in self.tensors if tensor.status == "unsafe")

    def to_json(self) -> str:
        """The report as indented JSON."""
        return json.dumps(self.model_dump(mode="json"), indent=2) + "\n"

    def save(self, path: Path) -> None:
        """Write the JSON atomically. Raises OutputError."""
        with atomic_output(path) as temporary:
            temporary.write_text(self.to_json(), encoding="utf-8")

    def to_table(self) -> Table:
        """rich table of at most 15 rows: the matrices by role, and totals. Needs the extra `cli`."""
        items = [tensor.item for tensor in self.tensors]
        whole = RoleSums("whole model", self.model_tensors, self.model_weights, self.model_bytes_after, None, None)
        table = terminal_table(sums_by_role(items, most=_ROLES), [sums_of("together", items), whole])
        table.caption = self._caption()
        return table

    def _repr_html_(self) -> str:
        """Totals, the tensors by role, and every tensor."""
        text = f"{len(self.tensors)} tensors: {self.sizes}; {self.seconds:.1f} s"
        rows = []
        for tensor in self.tensors:
            metrics = tensor.metrics
            errors = ("", "") if metrics is None else (f"{100 * metrics.rel_l2:.2f}", f"{100 * metrics.rel_l2_w:.2f}")
            shape = "x".join(map(str, tensor.shape))
            rows.append((tensor.name, tensor.reason or tensor.status, shape, f"{tensor.bits_per_weight:.3f}", *errors))
        columns = ("tensor", "", "shape", "bits", "error, %", "weighted, %")
        roles = html_table(sums_by_role(tensor.item for tensor in self.tensors))
        return line(text) + roles + folded("tensors", table(columns, rows, text_columns=2))

    def _caption(self) -> str:
        remarks = [f"{100 * self.converted_share:.1f}% of the weights that are used are converted"]
        if self.idle:
            remarks.append(f"{len(self.idle)} matrices are used by no graph and kept")
        if self.uncalibrated:
            remarks.append(f"{len(self.uncalibrated)} without an entry in the calibration")
        return "; ".join(remarks)
