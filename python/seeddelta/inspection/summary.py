"""Summary of a SeedΔ file, as one dictionary that JSON can hold: totals, provenance, groups and every tensor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

from ..gguf import schema
from ..gguf.header import Header
from ..gguf.reader import SeedDeltaFile
from ..gguf.roles import ratio, role_of, sums_by_role
from ..gguf.schema import LanesBase, TensorDescription

# shown by their own tables, not as values
_TABLES = (schema.TENSORS, schema.KEY_CRC32)


def totals(header: Header) -> dict[str, Any]:
    """Architecture, number of tensors and bytes of any GGUF file."""
    return {
        "architecture": header.metadata.get("general.architecture"),
        "tensors": len(header.tensors),
        "bytes": header.file_size,
    }


def summarize(file: SeedDeltaFile) -> dict[str, Any]:
    """Everything that a SeedΔ file says of itself. Bytes are those of the data, without padding.

    `converted` has a dictionary a converted tensor: its description, `role` and `layer`, `base_seed`, `payload_bytes`,
    `bits_per_weight` (all payload bytes), `rate` (bits per weight of the codes alone) and `rel_l2`, `rel_l2_w`: the
    relative error ‖W−Ŵ‖/‖W‖, plain and weighted by the columns' importance, and `error`, the one that a gap is about.
    `unsafe` ones need the fallback to run. `roles` sums them up by role (ffn_up, …),
    with the errors of all their weights together; `kept` the tensors that were not converted, by type.
    """
    converted = [
        _tensor(tensor.description, tensor.base_seed, tensor.payload_bytes) for tensor in file.tensors.values()
    ]
    kept = [file.header.tensors[name] for name in file.dense_tensors]
    weights, payload = sum(tensor["weights"] for tensor in converted), sum(t["payload_bytes"] for t in converted)
    kept_bytes, model_weights = sum(info.nbytes for info in kept), weights + sum(prod(info.shape) for info in kept)
    by_type: dict[str, dict[str, int]] = {}
    for info in kept:
        sums = by_type.setdefault(info.type.name, {"tensors": 0, "weights": 0, "bytes": 0})
        for key, value in (("tensors", 1), ("weights", prod(info.shape)), ("bytes", info.nbytes)):
            sums[key] += value
    own = [key for key in file.metadata if key.startswith(schema.PREFIX) and not key.startswith(_TABLES)]
    return {
        "path": str(file.path),
        "seeddelta": True,
        **totals(file.header),
        "dense_tensors": len(kept),
        "dense_bytes": kept_bytes,
        "payload_bytes": payload,
        "weights": weights,
        "bits_per_weight": 8 * payload / weights if weights else 0.0,
        "model_weights": model_weights,
        "model_bits_per_weight": 8 * (payload + kept_bytes) / model_weights if model_weights else 0.0,
        "checksums": file.checksums is not None,
        "keys": {key: file.metadata[key] for key in own},
        "recipe": recipe_of(file.metadata),
        "roles": [row.to_dict() for row in sums_by_role(tensor.item for tensor in file.tensors.values())],
        "kept": by_type,
        "converted": converted,
    }


def recipe_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the build that made a file; empty when it does not tell them."""
    try:
        options = json.loads(metadata.get(schema.KEY_RECIPE, "{}"))
    except (ValueError, TypeError, RecursionError):
        options = {}
    return options if isinstance(options, dict) else {}


def describe_base(description: TensorDescription | Mapping[str, Any]) -> str:
    """The base in a few words: `lanes code 8`, `prng_block 8, seed per row`, …."""
    data = description if isinstance(description, Mapping) else description.model_dump(mode="json")
    base = data["base"]
    text = str(base["kind"])
    if base["kind"] == "lanes":
        text += f" code {base['code']}" + (f", {base['fine_code']}" if base["fine_tiles"] else "")
    if base.get("seed_per", "tensor") != "tensor":
        text += f" {base['block']}, seed per {base['seed_per']}"
    if data.get("layout") == "column":
        text += ", column"
    return text


def describe_residual(description: TensorDescription | Mapping[str, Any]) -> str:
    """The residual in a few words: `coo K=5 int8`, `none`."""
    data = description["residual"] if isinstance(description, Mapping) else description.residual.model_dump(mode="json")
    return " ".join(str(value) if key in ("scheme", "vals") else f"{key}={value}" for key, value in data.items())


def _tensor(description: TensorDescription, seed: int, payload_bytes: int) -> dict[str, Any]:
    base, norms = description.base, description.norms
    layer, role = role_of(description.name)
    return description.model_dump(mode="json") | {
        "layer": layer,
        "role": role,
        "weights": description.weights,
        "base_seed": seed,
        "statecells": description.is_statecells,
        "payload_bytes": payload_bytes,
        "bits_per_weight": 8 * payload_bytes / description.weights,
        "rate": base.bits if isinstance(base, LanesBase) else None,
        "fine_rate": base.fine_bits if isinstance(base, LanesBase) else None,
        "rel_l2": ratio(norms.err, norms.w),
        "rel_l2_w": ratio(norms.err_w, norms.w_w),
        "error": norms.error,
    }
