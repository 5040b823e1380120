"""What the matrices of a group read over a text, measured once and read again for one matrix after the other."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .engine import BlockEngine
from .groups import Group
from .states import States, write_states

F32 = npt.NDArray[np.float32]


class KeptInputs:
    """Inputs of matrices of a group and values of nodes of its graph, in files of the engine's folder; has `close`.

    An input is kept divided by its root mean square, in float16: 11 bits of each value, as products of half precision
    use. The root mean squares and the values of nodes, float32[ctx, n_embd], are kept in float32.
    """

    def __init__(self, engine: BlockEngine, group: Group, matrices: Iterable[str], nodes: Iterable[str]) -> None:
        self._engine, self._group = engine, group
        ctx = engine.windows.ctx
        self._inputs, self._sizes = {}, {}
        for number, name in enumerate(matrices):
            columns = engine.source.tensors[name].shape[-1]
            self._inputs[name] = States(self._path(f"input-{number}.f16"), ctx, columns, np.float16)
            self._sizes[name] = States(self._path(f"size-{number}.f32"), ctx, 1)
        self._nodes = {node: States(self._path(f"{node}.f32"), ctx, engine.n_embd) for node in nodes}

    def _path(self, name: str) -> Path:
        return self._engine.folder / f"{self._engine.stream}-{name}"

    def measure(self) -> None:
        """Take the text through the group; the hidden states after it are kept, too, for the next group.

        Raises as BlockRun, and OutputError when a file cannot be written.
        """
        engine, group = self._engine, self._group
        with engine.open(group, taken=self._inputs, nodes=self._nodes) as run, ExitStack() as stack:
            files = [*self._inputs.values(), *self._sizes.values(), *self._nodes.values()]
            if group != engine.groups[-1]:
                files.append(engine.states_before(group.last))
            writers = {states.path: stack.enter_context(write_states(states)) for states in files}
            for chunk in range(engine.windows.chunks):
                after = run.run(engine.fed(group, chunk))
                if group != engine.groups[-1]:
                    writers[engine.states_before(group.last).path].add(after)
                for name, states in self._inputs.items():
                    values = run.inputs(name)
                    size = np.sqrt(np.mean(values.astype(np.float64) ** 2, axis=1, keepdims=True))
                    size = np.maximum(size, 1e-20).astype(np.float32)
                    with np.errstate(invalid="ignore"):  # values that are not finite stay so
                        writers[states.path].add(values / size)
                    writers[self._sizes[name].path].add(size)
                for node, states in self._nodes.items():
                    writers[states.path].add(run.hook.values(node))

    def inputs(self, name: str, chunk: int) -> F32:
        """Inputs of a matrix, float32[ctx, n_in]. Raises OutputError when the file is gone or too short."""
        return np.asarray(self._inputs[name].read(chunk) * self._sizes[name].read(chunk))

    def values(self, node: str, chunk: int) -> F32:
        """Values of a node, float32[ctx, n_embd]. Raises as `inputs`."""
        return self._nodes[node].read(chunk)

    def close(self) -> None:
        """Remove the files."""
        for states in (*self._inputs.values(), *self._sizes.values(), *self._nodes.values()):
            states.remove()


def kept_bytes(tokens: int, columns: int, n_embd: int) -> int:
    """Bytes for inputs of so many columns in all, and one node."""
    return tokens * (2 * columns + 4 * n_embd + 64)
