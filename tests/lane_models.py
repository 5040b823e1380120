"""SeedΔ files with random codes of base kind lanes: valid, but what they say has nothing to do with the original."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType
from seeddelta.gguf import payload, schema
from seeddelta.gguf.descriptions import description_arrays
from seeddelta.gguf.schema import LanesBase, NoResidual, Norms, TensorDescription
from seeddelta.gguf.source import open_source
from seeddelta.gguf.writer import TYPE_OF_DTYPE, PlannedTensor, Typed, copied_metadata, write_gguf

SEED = 5


def describe(name: str, shape: tuple[int, ...], code: int, rotation: int, column_scale: bool) -> TensorDescription:
    return TensorDescription(
        name=name,
        shape=shape[-2:],
        experts=shape[0] if len(shape) == 3 else None,
        source_type="F16",
        base=LanesBase(
            kind="lanes",
            scale=1 / schema.lane_code(code).deviation,
            code=code,
            rotation_block=rotation,
            column_scale=column_scale,
        ),
        residual=NoResidual(scheme="none"),
        row_scale="f16",
        norms=Norms(w=1, w_hat=1, err=1, w_w=1, w_hat_w=1, err_w=1),
        unsafe=False,
    )


def random_payload(one: TensorDescription, rng: np.random.Generator, rms: float) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays by suffix, as stored."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for suffix, (shape, dtype) in payload.payload_layout(one).items():
        if suffix == schema.BASE_SEED:
            arrays[suffix] = np.array([SEED], dtype)
        elif suffix == schema.ROW_SCALE:
            arrays[suffix] = (rms * rng.uniform(0.8, 1.2, shape)).astype(dtype)
        elif suffix == schema.COLUMN_SCALE:
            arrays[suffix] = rng.integers(-8, 9, shape).astype(dtype)
        else:
            arrays[suffix] = rng.integers(-128, 128, shape).astype(dtype)
    return arrays


def write_lanes(source: Path, target: Path, codes: Mapping[str, int], *, scaled: bool = False) -> Path:
    """Copy of an original model in which each tensor of `codes` has random codes of that number."""
    model = open_source(source)
    rng = np.random.default_rng(1)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    descriptions = []
    plan = []
    for name, info in model.tensors.items():
        if name not in codes:
            plan.append(PlannedTensor(name, info.shape, info.type))
            arrays[name] = model.raw(name)
            continue
        n_in = info.shape[-1]
        one = describe(name, info.shape, codes[name], n_in & -n_in, scaled)
        descriptions.append(one)
        for suffix, array in random_payload(one, rng, 0.05).items():
            arrays[f"{one.stem}.{suffix}"] = array
            plan.append(PlannedTensor(f"{one.stem}.{suffix}", array.shape, TYPE_OF_DTYPE[array.dtype]))
    keys: dict[str, Any] = dict(copied_metadata(model.header))
    keys[schema.KEY_ENABLED] = Typed(True, GGUFValueType.BOOL)
    keys[schema.KEY_VERSION] = Typed(schema.VERSION, GGUFValueType.UINT32)
    keys |= description_arrays(descriptions)
    write_gguf(target, keys, plan, lambda tensor: [arrays[tensor.name]])
    return target
