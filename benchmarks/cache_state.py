"""The KV cache as llama.cpp saves it: what is in it, and a full one without a prompt.

`fill_cache` loads random keys and values: for speed only, which does not depend on them. (A prompt of 32768 tokens
takes an hour on two cores.)
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import gguf
import gguf.quants
import numpy as np
from llama_cpp import llama_cpp
from seeddelta.session.decoder import Decoder

PREFIX = 4  # numbers: magic, sequence, streams, tokens
CELL = 12  # bytes: position, number of sequences, sequence
SEED = 1


def sequence_state(llm: Any) -> bytes:
    """The state of sequence 0."""
    size = llama_cpp.llama_state_seq_get_size(llm.ctx, 0)
    buffer = (ctypes.c_uint8 * size)()
    return bytes(buffer[: llama_cpp.llama_state_seq_get_data(llm.ctx, buffer, size, 0)])


def load_sequence(llm: Any, state: bytes) -> None:
    """Let sequence 0 be that of a state. Raises SystemExit when llama.cpp does not take it."""
    data = ctypes.cast(ctypes.c_char_p(state), ctypes.POINTER(ctypes.c_uint8))
    if not llama_cpp.llama_state_seq_set_data(llm.ctx, data, len(state), 0):
        raise SystemExit("llama.cpp did not take the state of the cache")


@dataclass(frozen=True)
class Rows:
    """Keys or values of a layer as they are stored: uint8 [tokens, bytes of a row]."""

    kind: gguf.GGMLQuantizationType
    data: np.ndarray[Any, Any]

    def header(self) -> bytes:
        return np.int32(self.kind).tobytes() + np.int64(self.data.shape[1]).tobytes()


def is_transposed(state: bytes) -> bool:
    """Whether the values are those of a cache without flash attention: channel by channel."""
    count = np.frombuffer(state, np.int32, PREFIX)[3]
    return int.from_bytes(state[4 * PREFIX + CELL * count :][:4], "little") == 1


def read_rows(state: bytes) -> list[Rows]:
    """Keys of all layers, then values of all layers, token by token. The layout is that of llama.cpp's
    llama_kv_cache::state_write.

    Raises SystemExit when it is another one.
    """
    head = np.frombuffer(state, np.int32, PREFIX)
    streams, count = head[2:4]
    at = head.nbytes + CELL * count
    cells = np.frombuffer(state, np.int32, CELL // 4 * count, head.nbytes).reshape(count, -1)
    by_channel, layers = np.frombuffer(state, np.int32, 2, at)
    if streams != 1 or by_channel not in (0, 1) or not (cells == [[i, 1, 0] for i in range(count)]).all():
        raise SystemExit("the state of a sequence has an unknown layout")
    at += 8
    rows = []
    for number in range(2 * layers):
        if by_channel and number >= layers:
            kind, size, channels = np.frombuffer(state, np.int32, 3, at)
            data = np.frombuffer(state, np.uint8, channels * count * size, at + 12).reshape(channels, count, size)
            rows.append(Rows(gguf.GGMLQuantizationType(kind), data.swapaxes(0, 1).reshape(count, -1)))
            at += 12 + data.nbytes
            continue
        kind, nbytes = int.from_bytes(state[at : at + 4], "little"), int.from_bytes(state[at + 4 : at + 12], "little")
        data = np.frombuffer(state, np.uint8, count * nbytes, at + 12).reshape(count, nbytes)
        rows.append(Rows(gguf.GGMLQuantizationType(kind), data))
        at += 12 + data.nbytes
    return rows


def transposed(state: bytes) -> bytes:
    """The state with its values transposed, as they are in a cache without flash attention."""
    rows = read_rows(state)
    layers = len(rows) // 2
    parts = [state[: 4 * PREFIX + CELL * len(rows[0].data)], np.array([1, layers], np.int32).tobytes()]
    parts += [part for one in rows[:layers] for part in (one.header(), one.data.tobytes())]
    for one in rows[layers:]:
        size = gguf.GGML_QUANT_SIZES[one.kind][1]
        values = one.data.reshape(len(one.data), -1, size).swapaxes(0, 1)
        parts += [np.array([one.kind, size, len(values)], np.int32).tobytes(), values.tobytes()]
    return b"".join(parts)


def fill_cache(llm: Any, count: int) -> None:
    """Let the cache of a `Llama` hold `count` tokens. Raises SystemExit when its state has an unknown layout."""
    decoder = Decoder(llm)
    decoder.decode(np.zeros(1, np.int32), 0)
    state = sequence_state(llm)
    longer = _repeated(state, count)
    if is_transposed(state):
        longer = transposed(longer)
    decoder.clear()
    load_sequence(llm, longer)


def _repeated(state: bytes, count: int) -> bytes:
    """The state of one token as that of `count`, with random rows."""
    rows = read_rows(state)
    cells = np.zeros((count, CELL // 4), np.int32)
    cells[:, 0], cells[:, 1] = np.arange(count), 1
    parts = [state[:8], np.array([1, count], np.int32).tobytes(), cells.tobytes()]
    parts.append(np.array([0, len(rows) // 2], np.int32).tobytes())
    drawn: dict[bytes, np.ndarray[Any, Any]] = {}
    for number, one in enumerate(rows):
        if one.header() not in drawn:
            drawn[one.header()] = _random_rows(count, one.data.shape[1], one.kind)
        parts += [one.header(), np.roll(drawn[one.header()], 31 * number, axis=0).tobytes()]
    return b"".join(parts)


def _random_rows(count: int, nbytes: int, kind: gguf.GGMLQuantizationType) -> np.ndarray[Any, Any]:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    values = np.random.default_rng(SEED).standard_normal((count, nbytes // size * block), dtype=np.float32)
    return gguf.quants.quantize(values, kind).view(np.uint8).reshape(count, nbytes)
