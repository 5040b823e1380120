"""Damage to files: seeded edits of bytes, of the fields of a GGUF header, of its arrays and of tensor data."""

from __future__ import annotations

import json
import struct
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of the scalar GGUF value types
_STRING, _ARRAY = 8, 9
_NUMBERS = [0, 1, 2, 3, 4, 7, 8, 9, 16, 31, 32, 33, 127, 128, 255]
_NUMBERS += [(1 << bits) + delta for bits in (15, 16, 28, 31, 32, 40, 48, 61, 63, 64) for delta in (-1, 0, 1)]
_REALS = [struct.unpack("<I", struct.pack("<f", x))[0] for x in (0.0, -1.0, 1e-40, 3e38, float("nan"), float("inf"))]
_REALS += [struct.unpack("<Q", struct.pack("<d", x))[0] for x in (-1.0, 1e308, float("nan"), float("inf"))]
_WORDS = ["lanes", "prng_block", "fht_struct", "none", "coo", "block", "codebook_resid", "proc_sparse", "row", "f16",
          "f32", "fp16", "int8", "kind", "scheme", "experts", "column_scale", "seed_per", "multipliers"]  # fmt: skip
_JSON: list[Any] = [None, True, False, -1, 1.5, 1e308, -1e308, 1e-320, "", "x" * 300, [], {}, [1, 2], [[]] * 3, "\0"]
_KEYS = (b"general.alignment", b"general.alignment", b"general.type", b"split.count", b"seeddelta.enabled",
         b"seeddelta.crc32", b"imatrix.datasets", b"imatrix.chunk_count", b"seeddelta.covariance.tokens",
         b"seeddelta.tensors.later", b"seeddelta.tensors.experts", b"seeddelta.tensors.rel_out")  # fmt: skip
# what text formats trip over: depth, references, numbers and times that do not exist, bytes that are no text
TEXTS = [
    b"[" * 3000, b"{a: " * 400, b"&a [*a]", b"a: &a [1,1]\nb: &b [*a,*a]\n", b"!!bool x", b"!!int ''",
    b"2001-99-99", b"0b", b"1:99:99", b"!!int 'x'", b"!!python/name:os.system",
    b"\x00", b"\xff\xfe", b"\xc3", b"9" * 5000, b"1e999", b".nan", b".inf", b"null", b"[]", b"{}", b"[[1, 2], 3]",
    b"!!binary 'a'", b"!!timestamp x", b"? [a]\n: b\n", b"<<: 1\n", b": ", b"- ", b"\n", b"---\n", b"'", b'"', b"-1",
    b"bits: [3]\n", b"targets: 5\n", b"tensor_type: 5\n", b"preset: [a]\n", b"preset: {}\n", b"layers: 0-999999999\n",
    b"input: \"a\\0b\"\n", b"scheme: {a: b}\n", b"0x_", b"1_", b"!!float 'x'", b"!!set {a, b}", b"!!omap [a: b]",
]  # fmt: skip


@dataclass(frozen=True)
class Numbers:
    """An array of numbers in the header."""

    begin: int  # of the value, the type word
    at: int  # of the first element
    count: int
    size: int  # of an element


@dataclass
class Layout:
    """Where things are in a well-formed GGUF file."""

    fields: list[tuple[int, int]] = field(default_factory=list)  # offset and size of numbers
    strings: list[tuple[int, int]] = field(default_factory=list)  # offset of the length, and bytes
    values: list[tuple[int, int]] = field(default_factory=list)  # begin (the type word) and end
    arrays: list[Numbers] = field(default_factory=list)  # of numbers, one element at least
    tensors: list[tuple[int, int]] = field(default_factory=list)  # begin and end of data
    values_end: int = 0
    header_end: int = 0
    alignment: int = 32


@lru_cache(maxsize=64)
def layout_of(data: bytes) -> Layout:
    """Walk a well-formed file (the ones before the damage)."""
    found, at = Layout(), 4

    def number(size: int) -> int:
        nonlocal at
        found.fields.append((at, size))
        at += size
        return int.from_bytes(data[at - size : at], "little")

    def string() -> bytes:
        nonlocal at
        begin, length = at, number(8)
        found.strings.append((begin, length))
        at += length
        return data[at - length : at]

    def value(kind: int) -> None:
        nonlocal at
        if kind == _STRING:
            string()
        elif kind == _ARRAY:
            item, count = number(4), number(8)
            if item == _STRING:
                for _ in range(count):
                    string()
            else:
                if count:
                    found.arrays.append(Numbers(at - 16, at, count, _SIZES[item]))
                at += _SIZES[item] * count
        else:
            number(_SIZES[kind])

    number(4)
    n_tensors, n_values = number(8), number(8)
    for _ in range(n_values):
        key, begin = string(), at
        value(number(4))
        found.values.append((begin, at))
        if key == b"general.alignment":
            found.alignment = int.from_bytes(data[at - 4 : at], "little")
    found.values_end, offsets = at, []
    for _ in range(n_tensors):
        string()
        for _ in range(number(4)):
            number(8)
        number(4)
        offsets.append(number(8))
    found.header_end = at
    begin = -(-at // found.alignment) * found.alignment
    ends = [*sorted(offsets)[1:], len(data) - begin]
    found.tensors = [(begin + low, begin + high) for low, high in zip(sorted(offsets), ends, strict=True)]
    return found


def _bytes(data: bytearray, rng: Random) -> None:
    """Bits, bytes and stretches, anywhere or near the beginning."""
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(min(len(data), rng.choice((64, 1024, len(data)))))
        how = rng.randrange(4)
        if how == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif how == 2:
            count = rng.choice((2, 4, 8))
            data[at : at + count] = (rng.choice(_NUMBERS) % (1 << 8 * count)).to_bytes(count, "little")
        else:
            other, count = rng.randrange(len(data)), rng.choice((1, 8, 64))
            data[at : at + count] = data[other : other + count]


def _length(data: bytearray, rng: Random) -> None:
    """Truncated, longer, or with a piece less or more in the middle."""
    at, count = rng.randrange(len(data)), rng.choice((1, 4, 32, 1000))
    how = rng.randrange(4)
    if how == 0:
        del data[at:]
    elif how == 1:
        data += bytes(count)
    elif how == 2:
        del data[at : at + count]
    else:
        data[at:at] = data[at : at + count]


def _field(data: bytearray, rng: Random, layout: Layout) -> None:
    """Counts, lengths, types, dimensions, offsets and scalar values of the header."""
    for _ in range(rng.choice((1, 1, 2))):
        at, size = rng.choice(layout.fields)
        old = int.from_bytes(data[at : at + size], "little")
        other, length = rng.choice(layout.fields)
        new = rng.choice((rng.choice(_NUMBERS), old + 1, old - 1, 2 * old, old + 32, rng.getrandbits(64), len(data),
                          old ^ (1 << rng.randrange(8 * size)),
                          int.from_bytes(data[other : other + length], "little")))  # fmt: skip
        data[at : at + size] = (new % (1 << 8 * size)).to_bytes(size, "little")


def _payload(data: bytearray, rng: Random, layout: Layout) -> None:
    """Elements of one tensor: the largest, the smallest, NaN, anything."""
    begin, end = rng.choice(layout.tensors)
    for _ in range(rng.choice((1, 1, 4, 32))):
        at = rng.randrange(begin, max(end, begin + 1)) & ~(rng.choice((1, 2, 4)) - 1)
        new = rng.choice((b"\xff", b"\xff\xff", b"\0\0", b"\x00\x7c", b"\x01\xfe", b"\x00\x80", b"\0\0\xc0\x7f",
                          b"\x80", struct.pack("<H", rng.getrandbits(16)),
                          struct.pack("<H", rng.randrange(300))))  # fmt: skip
        data[at : min(at + len(new), end)] = new[: max(0, end - at)]


def _leaf(node: Any, rng: Random) -> None:
    """Another value somewhere in a JSON object, a key less, or a key more."""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.8:
            node = node[key]
            continue
        how = rng.randrange(6)
        if how == 0 and isinstance(node, dict):
            del node[key]
        elif how == 1 and isinstance(node, dict):
            node[rng.choice(_WORDS)] = deepcopy(rng.choice([*_JSON, *_WORDS, *_NUMBERS]))
        elif how <= 3 and type(node[key]) is int:
            node[key] = rng.choice((node[key] + 1, node[key] - 1, 2 * node[key], rng.choice(_NUMBERS)))
        else:
            node[key] = deepcopy(rng.choice([rng.choice(_JSON), rng.choice(_WORDS), rng.choice(_NUMBERS)]))
        return


def _json(data: bytearray, rng: Random, layout: Layout) -> None:
    """A JSON string, of another length: the file stays whole around it."""
    strings = [(at, size) for at, size in layout.strings if size > 8]  # a vocabulary has `{"`
    candidates = [(at, size) for at, size in strings if data[at + 8 : at + 10] == b'{"']
    if not candidates:
        return _field(data, rng, layout)
    at, size = rng.choice(candidates)
    node = json.loads(data[at + 8 : at + 8 + size])
    for _ in range(rng.choice((1, 1, 2, 3))):
        _leaf(node, rng)
    _replace(data, layout, at, size, json.dumps(node).encode())


def _array(data: bytearray, rng: Random, layout: Layout) -> None:
    """Other elements of an array of the header, of a table of tensors above all; rarely one more, one less or another
    type, with the file whole around it.
    """
    if not layout.arrays:
        return _field(data, rng, layout)
    one = rng.choice(layout.arrays)
    if rng.random() < 0.2:
        item, count, elements = (
            data[one.begin + 4 : one.begin + 8],
            one.count,
            data[one.at : one.at + one.size * one.count],
        )
        how = rng.randrange(3)
        if how == 0:
            item = bytearray(struct.pack("<I", rng.choice([kind for kind in _SIZES if _SIZES[kind] == one.size])))
        elif how == 1:
            count, elements = count - 1, elements[one.size :]
        else:
            count, elements = count + 1, elements + elements[-one.size :]
        value = struct.pack("<I", _ARRAY) + item + struct.pack("<Q", count) + elements
        return _splice(data, layout, one.begin, one.at + one.size * one.count, value, layout.alignment)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = one.at + one.size * rng.randrange(one.count)
        other = one.at + one.size * rng.randrange(one.count)
        old = int.from_bytes(data[at : at + one.size], "little")
        new = rng.choice((rng.choice(_NUMBERS), rng.randrange(8), old + 1, old - 1, 2 * old, rng.getrandbits(64),
                          old ^ (1 << rng.randrange(8)), int.from_bytes(data[other : other + one.size], "little"),
                          *rng.sample(_REALS, 2)))  # fmt: skip
        data[at : at + one.size] = (new % (1 << 8 * one.size)).to_bytes(one.size, "little")
        one = rng.choice((one, rng.choice(layout.arrays)))


def _replace(data: bytearray, layout: Layout, at: int, size: int, new: bytes) -> None:
    """Other bytes for the string at `at`."""
    _splice(data, layout, at, at + 8 + size, struct.pack("<Q", len(new)) + new, layout.alignment)


def _splice(data: bytearray, layout: Layout, begin: int, end: int, new: bytes, alignment: int) -> None:
    """Other bytes in the header; the data follows it as before, at the alignment."""
    old = -(-layout.header_end // layout.alignment) * layout.alignment
    header = data[:begin] + new + data[end : layout.header_end]
    data[:] = header + bytes(-len(header) % alignment) + data[old:]


def _typed(rng: Random) -> bytes:
    """A value of any type, type word first."""
    number = rng.choice(_NUMBERS)
    how = rng.randrange(7)
    if how == 0:
        text = rng.choice((b"", b"imatrix", b"1", b"{}", b"[1]", b'{"a": NaN}', b"[" * 2000, b"\xff"))
        return struct.pack("<IQ", _STRING, len(text)) + text
    if how == 1:
        strings = [b"{}", b"a=b", b"=", b"", b"null"][: rng.randrange(6)]
        joined = b"".join(struct.pack("<Q", len(text)) + text for text in strings)
        return struct.pack("<IIQ", _ARRAY, _STRING, len(strings)) + joined
    if how == 2:
        return struct.pack("<IIQ", _ARRAY, 4, 2) + struct.pack("<II", 1, 1)
    if how == 3:
        return struct.pack("<IIQ", _ARRAY, rng.choice((0, 7, 12, 9)), 0)
    if how == 4:
        return struct.pack("<If", 6, rng.choice((0.0, 1.0, float("nan"), float("inf"), -1e30)))
    if how == 5:
        return struct.pack("<I?", 7, rng.random() < 0.5)
    kind = rng.choice((4, 5, 10, 11))
    size = _SIZES[kind]
    return struct.pack("<I", kind) + (number % (1 << 8 * size)).to_bytes(size, "little")


def _retype(data: bytearray, rng: Random, layout: Layout) -> None:
    """A key with a value of another type, or one key more."""
    if rng.random() < 0.6:
        begin, end = rng.choice(layout.values)
        return _splice(data, layout, begin, end, _typed(rng), layout.alignment)
    data[16:24] = struct.pack("<Q", len(layout.values) + 1)
    key, value, alignment = rng.choice(_KEYS), _typed(rng), layout.alignment
    if key == b"general.alignment" and rng.random() < 0.8:
        alignment = rng.choice((1, 2, 4, 8, 16, 32, 64))
        value = struct.pack("<II", 4, alignment)
    at = layout.values_end
    _splice(data, layout, at, at, struct.pack("<Q", len(key)) + key + value, alignment)


def mutated(original: bytes, rng: Random) -> bytes:
    """A damaged copy. The same generator state gives the same bytes."""
    data = bytearray(original)
    if original[:4] == b"GGUF":
        layout = layout_of(original)
        rng.choices((_field, _payload, _array, _json, _retype), (4, 3, 3, 1, 2))[0](data, rng, layout)
        if rng.random() < 0.25 and data:
            rng.choice((_bytes, _length))(data, rng)
        return bytes(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        how = rng.randrange(5 if _is_text(original) else 2)
        if data and how < 2:
            (_bytes, _length)[how](data, rng)
        elif how >= 2:
            at = rng.choice((0, len(data), rng.randrange(len(data) + 1)))
            data[at:at] = rng.choice(TEXTS)
    return bytes(data)


def _is_text(data: bytes) -> bool:
    return b"\0" not in data
