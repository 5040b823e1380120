"""What a loaded model tells about its SeedΔ weights, and the check after every decode."""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from .. import _core
from ..errors import ChangedFileError, ConfigError, IdleWeightsWarning, NumericalError, OutOfMemoryError, some
from ..html import line, table
from ..settings.runtime import RuntimeConfig
from .library import unsupported

_log = logging.getLogger(__name__)
_ERRORS: Mapping[str, Callable[[str], Exception]] = {
    "not_finite": NumericalError, "dense_not_finite": NumericalError, "no_memory": OutOfMemoryError,
}  # fmt: skip


_handles: weakref.WeakSet[RuntimeHandle] = weakref.WeakSet()


def _renew_locks() -> None:
    """In a child that was forked: the thread that computes, and would open the lock, is not there."""
    for handle in list(_handles):
        handle._computing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


class RuntimeHandle:
    """`llm.seeddelta`: what is served and what it did.

    Attributes:
        hook: the native hook of the context; None when llama.cpp computes everything.
        process: the process that may compute.
        needs_hook: False for an ordinary model, whose attention is computed by llama.cpp without the hook.
        enabled: False for a model of which llama.cpp computes all products; tensors, dense and columns are then empty.
        tensors: names of the weights computed from the SeedΔ file.
        chooses_keys: whether attention leaves keys out.
        skips: whether inputs of products are left out.
        single_tokens: whether single tokens are computed otherwise than those of a prompt, beyond the order of sums.
        dense: names of the converted tensors that are dense from the start.
        locked_bytes: memory that use_mlock has locked.
        gate_groups: matrices of each place where inputs are chosen, in the order of `hook.profiles()`.
        columns: names of the matrices of an ordinary model that were stored by columns at loading. Those of a SeedΔ
            file are in `tensors`.
    """

    def __init__(
        self,
        model: _core.ServedModel | None = None,
        hook: _core.GraphHook | None = None,
        config: RuntimeConfig | None = None,
        attention: _core.OwnAttention | None = None,
    ) -> None:
        self.hook = self._hook = hook
        self.process = os.getpid()
        self._attention = attention
        self.enabled = model is not None
        # an ordinary model without it is computed as well
        self.needs_hook = model is not None or (attention is not None and not attention.automatic)
        self.chooses_keys = attention is not None and attention.chooses
        self._model = model
        self.tensors: tuple[str, ...] = () if model is None else tuple(model.served)
        self.dense: tuple[str, ...] = () if model is None else tuple(model.dense)
        self.gate_groups = [] if model is None else [tuple(group) for group in model.gates]
        by_columns = () if model is None or hook is None else hook.column_shapes()
        self.columns = tuple(name for name in by_columns if name not in self.tensors)
        self._config = config or RuntimeConfig()
        pack = self._config.state_pack_mlp
        self.skips = self._config.skips
        self.single_tokens = (attention is not None and not attention.automatic) or (
            pack is not None and pack.aggressive
        )
        self.locked_bytes = 0
        self._proven = False
        self._proof: _core.Proof | None = None
        self._computing = threading.RLock()  # held while a graph is computed: readings are of whole ones
        _handles.add(self)
        if hook is not None and not self._config.force and not self._config.skip_prompt:
            proof = _core.Proof(hook)
            self._proof = proof if proof else None

    def compute(self, original: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """What `original` (llama_decode or llama_encode) returns. Single tokens are timed where gates are on trial."""
        with self._computing:
            if self._proof is None or getattr(arguments[-1], "n_tokens", 0) != 1:
                return original(*arguments)
            self._proof.begin()
            begin = time.perf_counter()
            try:
                result = original(*arguments)
            except BaseException:
                self._proof.cancel()
                raise
            for line in self._proof.end(time.perf_counter() - begin):
                _log.warning("%s", line)
            return result

    def __repr__(self) -> str:
        counts = {"served": self.tensors, "from the fallback": self.dense, "by columns": self.columns}
        return f"RuntimeHandle({', '.join(f'{len(names)} {what}' for what, names in counts.items())})"

    def _repr_html_(self) -> str:
        return self.html()

    def html(self, path: str = "") -> str:
        """What is served from the SeedΔ file at `path`, and what it did so far, for notebooks."""
        name = f"{path.rpartition('/')[2]}: " if path else ""
        if not self.enabled:
            return line(f"{name}an ordinary GGUF model, without SeedΔ weights")
        text = f"{name}{len(self.tensors)} SeedΔ weights served, {len(self.dense)} dense"
        return line(text) + table(("metric", ""), [(key, str(value)) for key, value in self.metrics().items()])

    @property
    def switched_off(self) -> dict[str, str]:
        """Why gates were switched off while the model generated, by the beginning of their metrics (`kwta`, …)."""
        return {} if self._proof is None else self._proof.reasons()

    def counters(self) -> dict[str, dict[str, int]]:
        """Per weight, since loading: `rewrites` (graph nodes served), `calls` (products), `tokens` (their columns),
        `reused` (products that shared the quantized activations of the one before), `prefetched` (products of one
        token whose first codes the product before asked the memory for), `rows` (looked up by token),
        `experts` (experts computed with, each once a product however many tokens chose it),
        `dense_calls` (from the fallback), `nonfinite_events`, and of matrices by columns `active_inputs` and
        `skipped_inputs` (inputs computed with and left out, of all tokens); `blocks` of proc-sparse ones.

        Like all that is read here it is of whole decodes: while another thread computes, its end is waited for.
        """
        with self._computing:
            return {} if self._hook is None else self._hook.counters()

    @property
    def idle(self) -> list[str]:
        """Weights that no graph has used yet: of blocks that predict further tokens, for one. They take space only."""
        return [name for name, counts in self.counters().items() if counts["rewrites"] == 0]

    def metrics(self) -> dict[str, int | float]:
        """Sums of the counters (`seeddelta.calls`, …), `seeddelta.weights`, `seeddelta.dense_weights`,
        `seeddelta.idle_weights` (used by no graph yet), `seeddelta.self_tests` (operations that were compared with
        ggml's own before), `seeddelta.file_bytes` and `seeddelta.locked_bytes` (by
        use_mlock); when attention is ours, those of attention. Empty when neither is.

        `seeddelta.calls.KIND` are the products of a base kind or a residual scheme (one product counts for both),
        without those from the fallback; `seeddelta.calls.seed_choice` those of prng_block with seeds chosen by row or
        block. Weights that are a codebook alone are not among these but in `statecells.weights` and `statecells.calls`;
        what is in column layout counts for `seeddelta.calls.columns_lanes` only. All are in
        `seeddelta.weights` and `seeddelta.calls`.

        Of proc-sparse weights (docs/guide/proc-sparse.md): `proc.enabled` (0 or 1), `proc.weights`, `proc.fanout`
        (blocks a row, the mean over their rows), `proc.trims` (entries shed by the builder), `proc.calls` (products)
        and `proc.blocks` (blocks multiplied: each kept block once a token, with a gate those that it chose, too).

        With KWTA: `kwta.gates` (places where inputs are chosen), `kwta.calls` (tokens chosen for, of all gates),
        `kwta.keep_ratio` (inputs kept, of those that StatePack let pass), `kwta.duty_hits` (tokens left whole by the
        duty), `kwta.passes` (over the scores, to find a threshold), `kwta.temp`.
        With StatePack: `pack.enabled` (gates), `pack.mode` (1 binary, 2 ternary), `pack.calls` (tokens), `pack.popcnt`
        (bits set), `pack.density` (of all bits), `pack.active` (share of the tokens whose bitmap was used),
        `pack.negative` (bits of negative inputs), `pack.aggressive` (products of signs),
        `pack.switches` (times the density turned a bitmap off or on),
        `pack.gamma` (mean magnitude of what passes).
        With events: `event.enabled` (gates), `event.active` (of them not turned off by their gap), `event.calls`
        (tokens, of all gates), `event.full` (of them computed whole), `event.topk_kept` (share of inputs sent by the
        others), `event.stale_pct` (the rest, percent), `event.forced` (inputs sent for their age), `event.quorum_hits`
        and `event.budget_hits` (tokens in which these left changes out), `event.budget_ms_used` (of the last token),
        `event.gap_checks`, `event.gap_failures` (products), `event.quality_gap` (largest of the last checks).
        With skipping of zeros: `zeros.gates`, `zeros.calls` (tokens, of all gates), `zeros.share` (of their inputs).
        Of attention: `attention.nodes` met, `.exact` operations of up to 16 tokens a sequence, `.prompts` of more,
        `.packed`, and `.left`: nodes that llama.cpp computed. Where keys are chosen (`pack.kv.` beside StatePack of the
        MLP): `pack.mode` (0 exact, 1 binary, 2 ternary), `pack.density` (share of the visible positions attended to),
        `pack.active` (layers that choose), `pack.heads` (their KV heads), `.heads_own` (with a setting of their own),
        `.heads_exact`, `pack.popcnt` (scores by popcount), `.disabled` (layers that no longer choose),
        `.scored`, `.kept` and `.values` (positions estimated, attended to, and whose values were read), `.repacks`
        (operations that packed keys first), `.rebuilds` (caches packed anew), `.stale` (of them found by comparing
        bits with keys), `.bytes` (of the bits), and of the operations that were compared with the exact
        result `pack.recall` (softmax mass kept) and `pack.gap` (relative error). With events `attention.events`
        (operations), and `event.*` as above, of layers for gates and operations for tokens: `event.windows` are pairs
        of KV head and window in operations not computed whole, `.windows_reused` those not computed, `.age` their mean
        age in tokens, `.heads_computed` the KV heads (of `.heads`) that computed more than what always is, `.resets`
        how often a layer's memory was dropped, `.wrong` how often because it was found wrong.
        What gates were found to be worth while the model generated, unless forced: those of _core.Proof.metrics;
        `switched_off` says it in words.
        """
        with self._computing:
            if self._hook is None:
                return {}
            found = _core.metrics(self._model, self._hook)
            if self._model is not None:
                found |= {"seeddelta.locked_bytes": self.locked_bytes}
            return found if self._proof is None else found | self._proof.metrics()

    def forget_keys(self) -> None:
        """Something other than a graph wrote to a KV cache: what attention keeps of its keys counts no more."""
        if self._attention is not None:
            self._attention.invalidate()

    def attention_heads(self) -> list[dict[str, float]]:
        """What each KV head that chooses keys did (_core.OwnAttention.heads); empty when attention is not ours."""
        with self._computing:
            return [] if self._attention is None else self._attention.heads()

    def raise_error(self) -> None:
        """Raise the first error that the hook met since the last call. Those who read results do this.

        Raises ChangedFileError, each time, when a file that weights are computed from is no longer what was loaded.
        """
        changed = "" if self._model is None else self._model.changed
        if changed:
            raise ChangedFileError(changed)
        error = None if self._hook is None else self._hook.take_error()
        if error is not None:
            kind, _, text = error
            raise _ERRORS.get(kind, unsupported)(text)

    def check(self) -> None:
        """Raise what the hook met since the last call. Every llama_decode and llama_encode does this.

        Raises ChangedFileError when a file is not what was loaded, NumericalError naming the tensor for NaN or infinity
        without a fallback that helps, UnsupportedLlamaError when llama.cpp used a weight in a way that cannot be served
        or did not use the hook at all.
        """
        if self._hook is None:
            return
        self.raise_error()
        wrong = None if self._attention is None else self._attention.wrong()
        if wrong is not None:
            of_settings, text = wrong
            raise ConfigError(text) if of_settings else unsupported(text)
        if not self._proven:
            counters = self._hook.counters()
            idle = self.idle
            if idle and len(idle) == len(counters):
                raise unsupported(f"the first graph used none of the weights, {idle[0]!r} for one")
            if idle:
                warnings.warn(f"the first graph did not use {some(idle)}", IdleWeightsWarning, stacklevel=4)
            if counters and not any(counts["calls"] + counts["rows"] for counts in counters.values()):
                raise unsupported("it did not run the operations that the hook put into the graph")
            self._proven = True
