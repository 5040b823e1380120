"""What measuring takes of the memory, and how it is divided when not all covariances of a group fit."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from ..calibrate.engine import BlockEngine
from ..calibrate.groups import Group
from ..errors import ImatrixError, MemoryWarning, RecipeError, some
from ..gguf import names
from ..gguf.source import SourceModel
from .plan import Plan
from .recipe import parse_size
from .slices import can_be_sliced, slices_of

PROCESS_BYTES = 400_000_000  # Python, NumPy, llama.cpp, its buffers for 512 tokens of a small model
_FLOAT, _BLOCK = 4, 64
_COPIES = 5  # of a matrix or a slice of it in float32 while it is encoded: source, scaled, rotated, decoded, error
_FACTOR_BYTES = 4 + 8 + 4 + 4  # an entry: the covariance rotated, its factor in double precision, the feedback; a spare


def ram_bytes(ram: str) -> int:
    """Bytes of `--ram`. Raises RecipeError."""
    try:
        return parse_size(ram)
    except ValueError as error:
        raise RecipeError(f"ram: {error}") from error


def group_bytes(source: SourceModel, group: Group | None) -> int:
    """Bytes of the tensors of a group's view. A whole model is mapped, which costs nothing that is not given back."""
    if group is None:
        return 0
    blocks = tuple(f"blk.{block}." for block in range(group.first, group.last))
    return sum(info.nbytes for name, info in source.tensors.items() if name.startswith(blocks))


def sums_limit(source: SourceModel, group: Group | None, ram: int) -> int:
    """Bytes that covariances may take beside a group."""
    return ram - PROCESS_BYTES - group_bytes(source, group)


def sums_bytes(source: SourceModel, inputs: Sequence[str]) -> int:
    """Bytes of the covariances of inputs while they are summed: triangles with blocks of rows on the diagonal."""
    sizes = [source.tensors[name].shape[-1] for name in inputs]
    return _FLOAT * sum(n * (n + _BLOCK) // 2 for n in sizes)


def wanted_inputs(engine: BlockEngine, group: Group, targets: list[str], limit: int) -> list[list[str]]:
    """The targets of a group in turns whose covariances fit `limit` bytes; matrices that share an input stay together.

    One empty turn without targets: the hidden states after the group are needed all the same. Raises ImatrixError when
    a single covariance does not fit.
    """
    source = engine.source
    if not targets or sums_bytes(source, targets) <= limit:  # even if none shared an input
        return [targets]
    with engine.of_range(0).run(group, targets, covariance=False, keep=False, chunks=1) as run:
        shared = run.representatives
    turns: list[list[str]] = []
    for same in dict.fromkeys(shared.get(name, name) for name in targets):
        inputs = {shared.get(name, name) for name in turns[-1]} if turns else set()
        if turns and sums_bytes(source, [*inputs, same]) <= limit:
            turns[-1] += [name for name in targets if shared.get(name, name) == same]
            continue
        if (needed := sums_bytes(source, [same])) > limit:
            missing = (needed - limit) / 1e9
            raise ImatrixError(
                f"{source.path}: the covariance of the input of {same!r} does not fit the memory; "
                f"give {missing:.1f}G more with --ram"
            )
        turns.append([name for name in targets if shared.get(name, name) == same])
    return turns


def jobs_within(plan: Plan, ram: int, most: int) -> int:
    """How many jobs, `most` at most, may run at a time: each takes its share of `ram` bytes for a block and the sums of
    its inputs, or for the matrix that it encodes."""
    blocks: dict[int, list[str]] = {}
    for name in plan.targets:
        if (place := names.split_name(name)) is not None:
            blocks.setdefault(place[0], []).append(name)
    sizes = [encoding_bytes(plan, name) for name in plan.targets]
    sizes += [
        group_bytes(plan.source, Group(block, block + 1)) + sums_bytes(plan.source, inputs)
        for block, inputs in blocks.items()
    ]
    return max(1, min(most, ram // (PROCESS_BYTES + max(sizes, default=0))))


def warn_too_large(plan: Plan, ram: int) -> None:
    """Warn of matrices that are encoded as a whole and do not fit, as the embedding of a large vocabulary."""
    large = {name: size for name in plan.targets if (size := PROCESS_BYTES + encoding_bytes(plan, name)) > ram}
    if large:
        most = max(large.values()) / 1e9
        warnings.warn(
            f"{plan.source.path}: to encode {some(list(large))} takes up to {most:.1f} GB, more than --ram; "
            "give more, or leave it out with --targets",
            MemoryWarning,
            stacklevel=3,
        )


def encoding_bytes(plan: Plan, name: str) -> int:
    """Bytes that encoding a matrix takes beside the process."""
    description = plan.targets[name]
    n_in = description.shape[1]
    weights = description.weights
    if can_be_sliced(description, plan.recipes[name]):
        weights = max(end - begin for begin, end in slices_of(description)) * n_in
    return 4 * _COPIES * weights + _FACTOR_BYTES * n_in * n_in
