"""Summary of a SeedΔ file, as one dictionary that JSON can hold: totals, provenance, groups and every tensor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite, prod
from typing import Any

import numpy as np

from ..gguf import schema
from ..gguf.header import Header
from ..gguf.reader import SeedDeltaFile
from ..gguf.roles import Item, ratio, role_of, sums_by_role, sums_of
from ..gguf.schema import LanesBase, TensorDescription
from ..settings.recipe import PRESETS, RecipeSettings

# shown by their own tables, not as values
_TABLES = (schema.TENSORS, schema.KEY_CRC32)


def _of_header(header: Header) -> dict[str, Any]:
    """Name, architecture, number of tensors and bytes of any GGUF file."""
    return {
        "path": str(header.path),
        "name": header.metadata.scalar("general.name", str, ""),
        "architecture": header.metadata.scalar("general.architecture", str, ""),
        "tensors": len(header.tensors),
        "bytes": header.file_size,
    }


def _plain(value: Any) -> Any:
    """A value of a key as JSON can hold it: a long array is told by its length."""
    if isinstance(value, (list, np.ndarray)):
        return [_plain(one) for one in value] if len(value) <= 16 else f"array of {len(value)}"
    if isinstance(value, np.generic):
        value = value.item()
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def summarize_plain(header: Header) -> dict[str, Any]:
    """What a GGUF file without SeedΔ weights holds: its keys, its matrices by role, and the vectors together."""
    matrices: list[Item] = []
    vectors: list[Item] = []
    for name, info in header.tensors.items():
        (matrices if len(info.shape) > 1 else vectors).append(Item(name, prod(info.shape), info.nbytes, None))
    whole = sums_of("whole model", [*matrices, *vectors])
    return {
        "seeddelta": False,
        **_of_header(header),
        "model_weights": whole.weights,
        "model_bits_per_weight": whole.bits_per_weight,
        "keys": {key: _plain(value) for key, value in header.metadata.items()},
        "roles": [row.to_dict() for row in sums_by_role(matrices, most=13)],
        "totals": [row.to_dict() for row in (*([sums_of("vectors", vectors)] if vectors else []), whole)],
    }


def summarize(file: SeedDeltaFile) -> dict[str, Any]:
    """Everything that a SeedΔ file says of itself. Bytes are those of the data, without padding.

    `converted` has a dictionary a converted tensor: its description, `role` and `layer`, `base_seed`, `payload_bytes`,
    `bits_per_weight` (all payload bytes), `rate` (bits per weight of the codes alone) and `rel_l2`, `rel_l2_w`: the
    relative error ‖W−Ŵ‖/‖W‖, plain and weighted by the columns' importance, and `error`, the one that a gap is about.
    `unsafe` ones need the fallback to run. `roles` sums them up by role (ffn_up, …),
    with the errors of all their weights together; `totals` has the tensors that were not converted, by type, and last
    the whole model.
    """
    converted = [
        _tensor(tensor.description, tensor.base_seed, tensor.payload_bytes) for tensor in file.tensors.values()
    ]
    sums = sums_of("converted", [tensor.item for tensor in file.tensors.values()])
    rows = file.totals()
    whole = rows[-1]
    own = [key for key in file.metadata if key.startswith(schema.PREFIX) and not key.startswith(_TABLES)]
    return {
        "seeddelta": True,
        **_of_header(file.header),
        "payload_bytes": sums.payload_bytes,
        "weights": sums.weights,
        "bits_per_weight": sums.bits_per_weight,
        "model_weights": whole.weights,
        "model_bits_per_weight": whole.bits_per_weight,
        "checksums": file.checksums is not None,
        "keys": {key: _plain(file.metadata[key]) for key in own},
        "recipe": recipe_of(file.metadata),
        "roles": [row.to_dict() for row in file.roles()],
        "totals": [row.to_dict() for row in rows],
        "converted": converted,
    }


def recipe_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the build that made a file; empty when it does not tell them."""
    try:
        options = json.loads(metadata.get(schema.KEY_RECIPE, "{}"))
    except (ValueError, TypeError, RecursionError):
        options = {}
    return options if isinstance(options, dict) else {}


def origin_of(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Where a file comes from, as names and texts: model, source, calibration, options other than the defaults.

    `summary` is that of `summarize`, or of `summarize_plain`: the model alone.
    """
    architecture, weights = summary["architecture"] or "?", f"{summary['model_weights'] / 1e6:.1f}M weights"
    model = ("model", f"{summary['name'] or '?'} ({architecture}), {weights}")
    if not summary["seeddelta"]:
        return [model]
    keys = {key.removeprefix(schema.PREFIX): value for key, value in summary["keys"].items()}
    calibrated = []
    if "calibration.text" in keys:
        chunks, ctx = keys.get("calibration.chunks", "?"), keys.get("calibration.ctx", "?")
        calibrated.append(f"{keys['calibration.text']}, {chunks} chunks of {ctx} tokens")
        if keys.get("calibration.mode") == "sequential":
            calibrated.append("layer by layer through the encoded model")
    labels = {"imatrix": "imatrix", "hessian": "covariance", "gradient": "gradients in"}
    calibrated += [f"{what} {keys[f'{name}.file']}" for name, what in labels.items() if f"{name}.file" in keys]
    return [
        model,
        ("made from", f"{keys.get('source.file', '?')} by {keys.get('generator', '?')}"),
        ("calibrated on", "; ".join(calibrated) or "nothing"),
        ("options", " ".join(_options_of(summary["recipe"])) or "not in the file"),
        ("checksums", "of every tensor" if summary["checksums"] else "none"),
    ]


def _options_of(recipe: Mapping[str, Any]) -> list[str]:
    """The rate, and the options that differ from the defaults, without the files that were read."""
    if not recipe:
        return []
    average, found = recipe.get("target_bpw"), []
    if average is not None:
        preset = next((name for name, one in PRESETS.items() if one.get("target_bpw") == average), None)
        found.append(f"target_bpw={average}" if preset is None else f"preset={preset}")
    elif recipe.get("size") is None and recipe.get("base_kind") == "lanes":
        found.append(f"bits={recipe.get('bits')}")
    told = ("input", "target_bpw", "bits", "imatrix", "hessian", "gradient")
    defaults = RecipeSettings.model_construct().model_dump(mode="json")
    for name, value in recipe.items():
        if value != defaults.get(name) and name not in told:
            found.append(f"{name}={','.join(map(str, value)) if isinstance(value, list) else value}")
    return found


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
