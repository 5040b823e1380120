"""A view of some consecutive blocks of a model: a GGUF in memory that llama.cpp loads as a model of that many blocks.

Blocks `first` to `last` - 1 are named blk.0, blk.1, … in it. It has no tokenizer and a small vocabulary: the rows of
the embedding that are asked for. Its blocks are fed with token numbers (which count those rows) or with hidden states.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFValueType

from .. import _core
from ..errors import SourceModelError
from ..gguf import names
from ..gguf.header import Header
from ..gguf.source import SourceModel

SMALLEST = 32  # rows of the vocabulary of a view that is fed with hidden states
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
# arrays of the hyperparameters whose length is not the number of blocks, though it may be equal to it
_NO_LAYER_ARRAYS = ("rope.dimension_sections", "rope.scaling.short_factor", "rope.scaling.long_factor")
# numbers of blocks from the first on, or from the last on, that are of another kind
_FROM_FIRST = ("leading_dense_block_count",)
_FROM_LAST = ("nextn_predict_layers",)


def block_view(
    source: SourceModel,
    first: int,
    last: int,
    *,
    tokens: npt.NDArray[np.int32] | None = None,
    replaced: Mapping[str, npt.NDArray[np.float32]] | None = None,
) -> _core.StubFile:
    """StubFile of the blocks `first` to `last` - 1 of a model.

    `tokens` int32[n] are the tokens whose embeddings are its vocabulary, in this order; without them it is for hidden
    states. `replaced` has matrices float32[n_out, n_in] that stand in the place of the model's, by their names in it.
    Raises SourceModelError for a model without an embedding, FormatError for one that llama.cpp does not survive, and
    OutputError when there is no room for it.
    """
    header = source.header
    if names.EMBEDDING not in header.tensors:
        raise SourceModelError(f"{source.path}: has no {names.EMBEDDING}; is it a language model?")
    rows = np.arange(min(SMALLEST, header.tensors[names.EMBEDDING].shape[0]), dtype=np.int32)
    rows = rows if tokens is None else tokens
    kept: dict[str, str] = {}
    given: dict[str, tuple[int, tuple[int, ...], npt.NDArray[Any]]] = {}
    for name, info in header.tensors.items():
        if (name in names.MODEL_TENSORS or name == "output.bias") and info.shape[0] == _n_vocab(header):
            given[name] = int(info.type), (len(rows), *info.shape[1:]), _rows(source, name, rows)
            continue
        renamed = view_name(name, first, last)
        if renamed is None:
            continue
        if replaced is not None and name in replaced:
            given[renamed] = 0, info.shape, np.ascontiguousarray(replaced[name], np.float32)
        else:
            kept[renamed] = name
    changed = _changed_metadata(header, first, last, len(rows), tokens is not None)
    return _core.StubFile(header.path, kept, given, changed)


def view_name(name: str, first: int, last: int) -> str | None:
    """Name of a tensor in the view of the blocks `first` to `last` - 1, or None for one of another block."""
    match = _BLOCK.fullmatch(name)
    if match is None:
        return name
    layer = int(match[1])
    return f"blk.{layer - first}.{match[2]}" if first <= layer < last else None


def model_name(name: str, first: int) -> str:
    """Name in the model of a tensor of the view whose first block is `first`."""
    match = _BLOCK.fullmatch(name)
    return name if match is None else f"blk.{int(match[1]) + first}.{match[2]}"


def _n_vocab(header: Header) -> int:
    return header.tensors[names.EMBEDDING].shape[0]


def _rows(source: SourceModel, name: str, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    info = source.tensors[name]
    raw = source.raw(name).reshape(info.shape[0], -1)
    return np.ascontiguousarray(raw[rows])


def _u32(value: int) -> bytes:
    return struct.pack("<II", GGUFValueType.UINT32, value)


def _changed_metadata(
    header: Header, first: int, last: int, n_vocab: int, from_tokens: bool
) -> dict[str, bytes | None]:
    metadata = header.metadata
    architecture = metadata.scalar("general.architecture", str, "")
    n_layers = metadata.get(f"{architecture}.block_count")
    changed: dict[str, bytes | None] = {key: None for key in metadata if key.startswith("tokenizer.")}
    tokenizer = b"no_vocab"
    changed["tokenizer.ggml.model"] = struct.pack("<IQ", GGUFValueType.STRING, len(tokenizer)) + tokenizer
    changed[f"{architecture}.vocab_size"] = _u32(n_vocab)
    changed[f"{architecture}.block_count"] = _u32(last - first)
    for key in metadata:
        if not key.startswith(architecture + "."):
            continue
        short = key.removeprefix(architecture + ".")
        if metadata.type(key) == GGUFValueType.ARRAY:
            value: Any = metadata[key]
            if isinstance(value, np.ndarray) and len(value) == n_layers and short not in _NO_LAYER_ARRAYS:
                changed[key] = _cut(metadata.raw(key), first, last, len(value))
        elif short in _FROM_FIRST:
            changed[key] = _u32(min(last - first, max(0, metadata[key] - first)))
        elif short in _FROM_LAST:
            changed[key] = _u32(0)
    if not from_tokens and f"{architecture}.embedding_scale" in metadata:  # hidden states have been scaled already
        changed[f"{architecture}.embedding_scale"] = struct.pack("<If", GGUFValueType.FLOAT32, 1.0)
    return changed


def _cut(raw: bytes, first: int, last: int, count: int) -> bytes:
    """An array of numbers (type, type of the items, count, items) with the items of some blocks only."""
    size = (len(raw) - 16) // count
    return raw[:8] + struct.pack("<Q", last - first) + raw[16 + first * size : 16 + last * size]
