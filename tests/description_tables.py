"""SeedΔ files with another table of converted tensors, or other keys and arrays, than they were made with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType
from seeddelta.gguf.descriptions import COLUMNS
from seeddelta.gguf.header import NUMPY_TYPES, Header
from seeddelta.gguf.model_file import read_header
from seeddelta.gguf.schema import TENSORS
from seeddelta.gguf.writer import TYPE_OF_DTYPE, PlannedTensor, Typed, copied_metadata, write_gguf

Keys = dict[str, Any]
Arrays = dict[str, np.ndarray[Any, Any]]


class Table(dict[str, Any]):
    """Columns of the table by their names; a column is a list of Python values, or Typed to be written as it is."""

    def put(self, tensor: str, column: str, value: Any) -> None:
        """Another entry for a tensor; a column that the file lacks begins with zeros."""
        self.setdefault(column, [0] * len(self["name"]))[self["name"].index(tensor)] = value

    def keys_and_values(self) -> Keys:
        types = {column.name: column.type for column in COLUMNS}
        return {
            TENSORS + name: values if isinstance(values, Typed) else Typed(values, GGUFValueType.ARRAY, types[name])
            for name, values in self.items()
        }


def table_of(header: Header) -> Table:
    """The columns that a file has."""
    there = [column for column in COLUMNS if column.key in header.metadata]
    return Table({column.name: header.metadata.array(column.key, column.type) for column in there})


def changed(good: Path, path: Path, change: Callable[[Keys, Arrays, Table], object]) -> Path:
    """A copy of a file with its keys, arrays and table changed; quantized tensors are not among the arrays."""
    header = read_header(good)
    data = np.fromfile(good, np.uint8)
    arrays, quantized = {}, {}
    for name, info in header.tensors.items():
        stored = data[info.offset : info.offset + info.nbytes]
        if info.type in NUMPY_TYPES:
            arrays[name] = stored.view(NUMPY_TYPES[info.type]).reshape(info.shape).copy()
        else:
            quantized[name] = stored
    keys: Keys = dict(copied_metadata(header, without=TENSORS))
    table = table_of(header)
    change(keys, arrays, table)
    plan = [PlannedTensor(name, array.shape, TYPE_OF_DTYPE[array.dtype]) for name, array in arrays.items()]
    plan += [PlannedTensor(name, header.tensors[name].shape, header.tensors[name].type) for name in quantized]
    order = {name: at for at, name in enumerate(header.tensors)}  # which the checksums have
    plan.sort(key=lambda tensor: order.get(tensor.name, len(order)))
    write_gguf(path, keys | table.keys_and_values(), plan, lambda tensor: [(arrays | quantized)[tensor.name]])
    return path
