"""A decoder that follows docs/reference/format.md: its tables, gguf-py's reader, and NumPy."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import reference

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "format.md").read_text(encoding="utf-8")
PREFIX = "seeddelta.tensors."


def table(heading: str) -> list[list[str]]:
    """Cells of the first table below a heading."""
    text = PAGE[PAGE.index(f"\n## {heading}\n") :]
    rows = re.search(r"\n\| key \|.*?\n\n", text + "\n", re.S)
    assert rows is not None
    return [
        [cell.strip() for cell in line.split(" |")] for line in rows[0].strip().replace("\n| ", "\n").split("\n")[2:]
    ]


def _numbers(cell: str) -> list[int]:
    return [int(n) for n in cell.split(", ") if n]


@cache
def codes() -> dict[int, tuple[list[int], np.ndarray[Any, Any], list[int], int]]:
    """By the number of a code: its pattern, its tables [values of the pattern, 2, 16], what its planes add, and to how
    many values of the pattern."""
    numbers = r"((?:\d+(?:, \d+)*)?) ?"
    rows = re.findall(rf"^\| (\d+) \| [\d.]+ \| {numbers}\| {numbers}\| {numbers}\| [\d.]+ \|$", PAGE, re.M)
    found = {}
    for number, pattern, values_with_bits, added in rows:
        emits = _numbers(pattern)
        tables = np.zeros((sum(emits), 2, 16), np.int8)
        for values, which, entries in re.findall(rf"^code {number} values? (\d(?:, \d)*) ([AB]) (.*)$", PAGE, re.M):
            for value in values.split(", "):
                tables[int(value), "AB".index(which)] = [int(n) for n in entries.split()]
        found[int(number)] = (emits, tables, _numbers(added), len(_numbers(values_with_bits)))
    return found


def deviation(number: int) -> float:
    """Of a code."""
    found = re.search(rf"^\| {number} \| [\d.]+ \| .*\| ([\d.]+) \|$", PAGE, re.M)
    assert found is not None
    return float(found[1])


class Decoder:
    """Weights of a file: gguf-py reads it, and reference decodes; the package has no other part in it."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.payloads = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
        self.columns = {key: field.contents() for key, field in reader.fields.items()}
        self.names: list[str] = self.columns[PREFIX + "name"]

    def entry(self, tensor: str, key: str) -> Any:
        """0 for an absent array."""
        values = self.columns.get(PREFIX + key)
        return 0 if values is None else values[self.names.index(tensor)]

    def weights(self, name: str) -> np.ndarray[Any, Any]:
        """float32 [rows of all experts, n_in]."""
        one = {row[0].strip("`"): self.entry(name, row[0].strip("`")) for row in table("The table of tensors")}
        stem = name.removesuffix(".weight")
        data = {
            key.removeprefix(stem + "."): array for key, array in self.payloads.items() if key.startswith(stem + ".")
        }
        experts = max(1, one["experts"])
        parts = [self._matrix(one, data, expert, experts) for expert in range(experts)]
        return np.concatenate(parts)

    def _matrix(self, one: dict[str, Any], data: dict[str, Any], expert: int, experts: int) -> np.ndarray[Any, Any]:
        n_out, n_in = one["n_out"], one["n_in"]
        seed = int(data["base_seed"].view(np.uint64)[0])
        own = {
            key: array
            if key in ("base_seed", "r_dict")
            else array[len(array) * expert // experts :][: len(array) // experts]
            for key, array in data.items()
        }
        delta = _residual(one, own)
        row_scale = own["row_scale"].astype(np.float32)
        if one["fine_tiles"]:
            fine = np.repeat(np.unpackbits(own["fine_map"].view(np.uint8), bitorder="little"), 16)[:n_out] == 1
            row_scale *= np.where(fine, deviation(one["code"]) / deviation(one["fine_code"]), 1).astype(np.float32)
        if one["layout"] == 1:
            pattern = codes()[one["code"]]
            lines = own["codes"].view(np.uint8).reshape(n_in, -1, own["codes"].shape[-1])
            values = reference.column_lanes_values(lines, n_out, *pattern)
            rotated = values * np.float32(one["scale"]) * row_scale[:, None]
            block = one["rotation_block"]
            return (reference.rotate_back(rotated.astype(np.float32), block, seed) if block > 1 else rotated).T
        values = _base(one, own, seed)
        return reference.dequantize(
            values, one["scale"], np.ones(n_out, np.float32), rotation_block=one["rotation_block"], seed=seed,
            column_scale=own["column_scale"] if one["column_scale"] else None,
        ) * row_scale[:, None] + delta * row_scale[:, None]  # fmt: skip


def _base(one: dict[str, Any], data: dict[str, Any], seed: int) -> np.ndarray[Any, Any]:
    n_out, n_in = one["n_out"], one["n_in"]
    if one["base"] == 255:
        return np.zeros((n_out, n_in), np.int8)
    if one["base"] == 1:
        return structured(seed, n_out, n_in)
    if one["base"] == 2 and one["fine_tiles"]:
        fine = np.repeat(np.unpackbits(data["fine_map"].view(np.uint8), bitorder="little"), 16)[:n_out] == 1
        values = np.zeros((n_out, n_in), np.int16)
        for rows, lines, code in ((~fine, "codes", "code"), (fine, "fine_codes", "fine_code")):
            values[rows] = reference.lanes_values(data[lines].view(np.uint8), rows.sum(), n_in, *codes()[one[code]])
        return values
    if one["base"] == 2:
        return reference.lanes_values(data["codes"].view(np.uint8), n_out, n_in, *codes()[one["code"]])
    chosen = data["seed_idx"].view(np.uint16) if one["seed_per"] else None
    gains = data["seed_gain"] if one["seed_per"] == 2 else None
    values = reference.prng_block_values(seed, 0, n_out, n_in, one["base_block"], chosen, gains)
    if one["residual"] == 3:
        blocks = reference.proc_sparse_blocks(data["p_map"], one["resid_k"])
        kept = np.zeros((n_out, -(-n_in // one["resid_block"])), bool)
        np.put_along_axis(kept, blocks, True, axis=1)
        values = values * kept.repeat(one["resid_block"], axis=1)[:, :n_in]
    return values


def structured(seed: int, n_out: int, n_in: int) -> np.ndarray[Any, Any]:
    """W0 = H G Π H B of fht_struct, by its matrices."""
    golden, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1
    first = [-36, -23, -17, -12, -8, -5, -3, -1, 1, 3, 5, 8, 12, 17, 23, 36]
    second = [-19, -14, -11, -8, -6, -4, -2, -1, 1, 2, 4, 6, 8, 11, 14, 19]
    d = max(64, 1 << (n_in - 1).bit_length())
    at = np.arange(d)
    hadamard = np.array([[1 - 2 * ((i & k).bit_count() % 2) for k in range(d)] for i in range(d)])
    rows = []
    for block in range(-(-n_out // d)):
        key = reference.splitmix64_mix((seed + golden * (block + 1)) & mask)
        signs = np.array([1 - 2 * (reference.splitmix64_at(key, i // 64) >> i % 64 & 1) for i in range(d)])
        z = reference.splitmix64_at(key, d // 64)
        a, b, m = z % (1 << 32) | 1, z >> 32 | 1, -(-(d.bit_length() - 1) // 2)
        p = np.array([(k * a + b) % d for k in range(d)])
        p ^= p >> m
        p = np.array([int(k) * b % d for k in p])
        p ^= p >> m
        c = [reference.splitmix64_at(key, d // 64 + 1 + k // 8) >> 8 * (k % 8) & 255 for k in range(d)]
        gains = np.array([first[byte >> 4] + second[byte & 15] for byte in c])
        permutation = np.zeros((d, d), int)
        permutation[at, p] = 1
        rows.append(hadamard @ np.diag(gains) @ permutation @ hadamard @ np.diag(signs))
    return np.concatenate(rows)[:n_out, :n_in]


def _residual(one: dict[str, Any], data: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Δ, float32 [n_out, n_in]."""
    n_out, n_in = one["n_out"], one["n_in"]
    delta = np.zeros((n_out, n_in), np.float32)
    rows = np.arange(n_out)[:, None]
    if one["residual"] == 0:
        index = data["d_idx"].view(np.uint16 if n_in <= 65536 else np.uint32)
        scale = data["d_scale"][:, None] if one["vals"] else np.float32(1)
        np.add.at(delta, (rows, index), data["d_val"].astype(np.float32) * scale)
    elif one["residual"] in (1, 3):
        width = one["resid_block"]
        wide = np.zeros((n_out, -(-n_in // width), width), np.float32)
        if one["residual"] == 1:
            blocks = data["b_map"].view(np.uint16).astype(int)
            scale = data["b_scale"][:, :, None] if one["vals"] else np.float32(1)
            wide[rows, blocks] = data["b_val"].astype(np.float32) * scale
        else:
            blocks = reference.proc_sparse_blocks(data["p_map"], one["resid_k"])
            wide[rows, blocks] = data["p_val"].astype(np.float32) * data["p_scale"][:, None, None]
        delta = wide.reshape(n_out, -1)[:, :n_in]
    elif one["residual"] == 2:
        atoms = data["r_dict"].astype(np.float32)
        for entry in range(one["resid_k"]):
            chosen = data["r_codes"].view(np.uint16)[:, entry]
            delta += data["r_vals"][:, entry, None].astype(np.float32) * atoms[chosen]
    return delta
