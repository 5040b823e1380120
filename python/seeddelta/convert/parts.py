"""Finished tensors of an unfinished build, a record (checkpoint.py) each, so that a killed build can go on.

The key of a part is the digest of all that decided it (jobs.py): parts of another model or recipe are not used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from ..errors import OutputError
from ..gguf.payload import payload_bytes, payload_layout
from ..gguf.reader import StoredTensor
from ..gguf.schema import TensorDescription, as_unsigned
from ..gguf.writer import TYPE_OF_DTYPE, PlannedTensor
from ..storage.checkpoint import Array, Record, Store
from .encode import EncodedTensor
from .report import Method, Metrics


class PartHeader(BaseModel):
    """All of an encoded tensor but its payload."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    description: TensorDescription
    metrics: Metrics
    method: Method
    base_seed: int
    seconds: float


@dataclass(frozen=True)
class Part:
    """A finished tensor on disk."""

    header: PartHeader
    record: Record

    @property
    def payloads(self) -> list[PlannedTensor]:
        """The tensors of the file that the payload becomes."""
        description = self.header.description
        return [
            PlannedTensor(f"{description.stem}.{suffix}", shape, TYPE_OF_DTYPE[dtype])
            for suffix, (shape, dtype) in payload_layout(description).items()
        ]

    def read(self, tensor: PlannedTensor) -> Iterator[Array]:
        """Bytes of one of `payloads` in pieces. Raises OutputError when the part is no longer whole."""
        try:
            yield from self.record.pieces(tensor.name.removeprefix(f"{self.header.description.stem}."))
        except EOFError as error:
            raise OutputError(f"{self.record.path}: became shorter during the build; build again") from error
        except FileNotFoundError as error:
            raise OutputError(f"{self.record.path}: was removed during the build; build again") from error

    def decoded(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """What the tensor stands for, float32[rows, n_in]."""
        description = self.header.description
        arrays = {suffix: as_unsigned(suffix, self.record.array(suffix)) for suffix in payload_layout(description)}
        stored = StoredTensor(description.name, description, arrays, payload_bytes(description))
        return stored.to_weight().dequantize(0, description.rows)


def open_parts(output: Path, folder: Path | None, *, resume: bool = True) -> Store:
    """Where the parts of a build of `output` are; None is a temporary folder beside it."""
    busy = f"another build of {output.name} is running; wait for it, or give --checkpoint"
    return Store.beside(output, busy=busy) if folder is None else Store(folder, busy=busy, resume=resume)


def load_part(store: Store, name: str, key: str) -> Part | None:
    """The part of a tensor if it is whole and has this key; any other part is removed."""
    record = store.load(name, key)
    with contextlib.suppress(ValidationError):
        return None if record is None else Part(PartHeader.model_validate(record.state), record)
    return None


def save_part(store: Store, key: str, encoded: EncodedTensor, base_seed: int, seconds: float) -> Part:
    """Store a tensor atomically. Raises OutputError."""
    description = encoded.description
    header = PartHeader(
        description=description, metrics=encoded.metrics, method=encoded.method, base_seed=base_seed, seconds=seconds
    )

    def arrays() -> Iterator[tuple[str, Array]]:
        for suffix, (shape, dtype) in payload_layout(description).items():
            array = np.ascontiguousarray(encoded.arrays[suffix], dtype)
            if array.shape != shape:  # it would be read as something else
                raise RuntimeError(f"{description.stem}.{suffix}: shape {array.shape} encoded, {shape} described")
            yield suffix, array

    return Part(header, store.save(description.name, key, header.model_dump(mode="json"), arrays()))
