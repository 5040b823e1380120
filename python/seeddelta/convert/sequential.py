"""Encoding on what the encoded blocks before really give: a dense and an encoded stream through each group of blocks.

The matrices of a group are encoded in the order of the graph, those that share an input together. Each input is
measured in both models, the encoded one with everything before it already encoded; see calibrate/alignment.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFValueType

from ..calibrate.alignment import Moments, Target, sums_bytes
from ..calibrate.capture import Capture
from ..calibrate.engine import BlockEngine
from ..calibrate.groups import Group
from ..calibrate.kept_inputs import KeptInputs
from ..gguf import names
from ..gguf.writer import PlannedTensor, Typed, write_gguf
from ..numeric import one_blas_thread
from .parts import Part

F32 = npt.NDArray[np.float32]
_FED = "l_out--1"  # the stream before the first block of a group, which is what the group is fed with
_SAME = 0.01  # relative: products in half precision differ by 0.001, and what is not the stream by 1
# encodes matrices of a covariance file, from the source or (by the path) from a file of targets
Encode = Callable[[list[str], Capture, Path | None], dict[str, Part]]


@dataclass
class _Sums:
    """Moments of one input in the form of a capture's sums."""

    moments: Moments

    def tokens(self, name: str) -> int:
        return self.moments.tokens

    def nonfinite_tokens(self, name: str) -> int:
        return 0

    def counts(self, name: str) -> npt.NDArray[np.int64]:
        return np.array([self.moments.tokens])

    def square(self, name: str) -> npt.NDArray[np.float64]:
        return self.norm_square(name)

    def norm_square(self, name: str) -> npt.NDArray[np.float64]:
        return self.moments.diagonal.astype(np.float64)[None]

    def covariance(self, name: str) -> F32:
        return self.moments.covariance

    def covariance_rows(self, name: str, begin: int, end: int) -> F32:
        return self.moments.covariance_rows(begin, end)


@dataclass
class SequentialGroups:
    """Two streams through the model; `encode` is called for the matrices of one input after the other."""

    dense: BlockEngine
    encoded: BlockEngine
    encode: Encode
    threads: int
    limit: int  # bytes of an input's sums that are in memory; what is more lies in files
    chosen: dict[str, Target] = field(default_factory=dict)

    def run(self, group: Group, targets: list[str]) -> dict[str, Part]:
        """Encode the targets of a group, and take both streams through it."""
        parts: dict[str, Part] = {}
        replaced: dict[str, F32] = {}
        inputs, writers = self._probe(group, targets) if targets else ({}, {})
        plain = [same for same in inputs if not names.is_stacked(same)]
        nodes = dict.fromkeys(node for node in writers.values() if node != _FED)
        with closing(KeptInputs(self.dense, group, plain, nodes)) as kept:
            kept.measure()
            for same, members in inputs.items():
                if same in plain:
                    made = self._input(group, same, members, kept, replaced, writers.get(same))
                else:
                    made = self._experts(group, members, replaced)
                parts |= made
                replaced |= {name: part.decoded() for name, part in made.items()}
        if group != self.dense.groups[-1]:
            with self.encoded.run(group, [], replaced=replaced):
                pass
        return parts

    def _probe(self, group: Group, targets: list[str]) -> tuple[dict[str, list[str]], dict[str, str]]:
        """Matrices by their common input, in the order of the graph; and of those that write to the residual stream the
        node of the stream before them. Which ones do is tried: stream + W x must be the stream after them.
        """
        nodes = [f"{node}-{i}" for i in range(group.last - group.first) for node in ("l_out", "ffn_inp")]
        with self.dense.open(group, summed=targets, covariance=False) as run:
            run.advance(self.dense.fed(group, 0))
            shared = run.representatives
            inputs = {same: [n for n in targets if shared.get(n) == same] for same in run.order}
        plain = [same for same in inputs if not names.is_stacked(same)]
        writers: dict[str, str] = {}
        with self.dense.open(group, taken=plain, nodes=nodes) as run:
            run.advance(self.dense.fed(group, 0))
            for same in plain:
                place = names.split_name(same)
                if place is None or len(inputs[same]) > 1:
                    continue
                block = place[0] - group.first
                added = run.inputs(same) @ self.dense.source.matrix(same).T
                for before, after in (
                    (f"l_out-{block - 1}", f"ffn_inp-{block}"),
                    (f"ffn_inp-{block}", f"l_out-{block}"),
                ):
                    stream = self._fed(self.dense, group, 0) if before == _FED else run.values(before)
                    following = run.values(after)
                    if stream is None or following is None or following.shape != added.shape:
                        continue
                    if np.linalg.norm(following - stream - added) < _SAME * np.linalg.norm(added):
                        writers[same] = before
        return inputs, writers

    @staticmethod
    def _fed(engine: BlockEngine, group: Group, chunk: int) -> F32 | None:
        """The stream before the first block of a group (None: embeddings)."""
        return None if group.first == 0 else engine.states_before(group.first).read(chunk)

    def _input(
        self,
        group: Group,
        same: str,
        members: list[str],
        kept: KeptInputs,
        replaced: Mapping[str, F32],
        writer: str | None,
    ) -> dict[str, Part]:
        """Measure one input in the encoded stream, too, and encode the targets of the matrices that read it."""
        source = self.dense.source
        weights = {name: source.matrix(name) for name in members if name not in names.MODEL_TENSORS}
        n_out = weights[same].shape[0] if writer is not None else 0
        n_in = source.tensors[same].shape[-1]
        folder = self.dense.folder if sums_bytes(n_in, n_out) > self.limit else None
        with closing(Moments(n_in, n_out, self.threads, folder)) as moments, one_blas_thread():
            self._measure(group, same, moments, kept, replaced, writer, weights.get(same))
            aligned = {}
            if weights and (group.first > 0 or replaced):  # before that both streams are the same
                aligned = moments.targets(weights)
            self.chosen |= aligned
            path = self._write_targets(aligned)
            return self.encode(members, self._capture(same, members, moments), path)

    def _measure(
        self,
        group: Group,
        same: str,
        moments: Moments,
        kept: KeptInputs,
        replaced: Mapping[str, F32],
        writer: str | None,
        weights: F32 | None,
    ) -> None:
        """Add an input in both streams over the text; of a writer, `weights` too."""
        nodes = [] if writer in (None, _FED) else [str(writer)]
        with self.encoded.open(group, taken=[same], nodes=nodes, stop=same, replaced=replaced) as run:
            for chunk in range(self.encoded.windows.chunks):
                run.advance(self.encoded.fed(group, chunk))
                x = kept.inputs(same, chunk)
                outputs = drift = None
                if writer is not None:
                    assert weights is not None
                    if writer == _FED:
                        before, after = (self._fed(one, group, chunk) for one in (self.dense, self.encoded))
                    else:
                        before, after = kept.values(writer, chunk), run.values(writer)
                    # Of a block whose MLP does not wait for attention the graph has not come to the node yet.
                    if before is not None and after is not None:
                        outputs, drift = x @ weights.T, after - before
                moments.add(chunk, x, run.inputs(same), outputs, drift)

    def _experts(self, group: Group, members: list[str], replaced: Mapping[str, F32]) -> dict[str, Part]:
        """Experts see few tokens each: they are encoded as they are, on the inputs of the encoded stream."""
        with self.encoded.open(group, summed=members, replaced=replaced) as run:
            for chunk in range(self.encoded.windows.chunks):
                run.advance(self.encoded.fed(group, chunk))
            return self.encode(members, self.encoded.capture(run, ""), None)

    def _capture(self, same: str, members: list[str], moments: Moments) -> Capture:
        windows = self.dense.windows
        return Capture(
            hook=_Sums(moments), representatives=dict.fromkeys(members, same), tokens=moments.tokens,
            chunks=windows.chunks, ctx=windows.ctx, model_name=self.dense.source.path.name,
            model_sha256="", text_name=windows.name, text_sha256=windows.sha256, covariance=True,
        )  # fmt: skip

    def _write_targets(self, aligned: Mapping[str, Target]) -> Path | None:
        """A GGUF with the targets that differ from the model's matrices, in float32; None when none does."""
        changed = {name: target.weights for name, target in aligned.items() if target.damping is not None}
        if not changed:
            return None
        path = self.dense.folder / "targets.gguf"
        metadata: dict[str, Any] = {"general.architecture": Typed("targets", GGUFValueType.STRING)}
        plan = [PlannedTensor(name, w.shape, GGMLQuantizationType.F32) for name, w in changed.items()]
        write_gguf(path, metadata, plan, lambda tensor: [changed[tensor.name]])
        return path
