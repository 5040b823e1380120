"""Calibration of skipping: profiles of the inputs, how much their loss harms, and the largest saving within a limit."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import ConfigError
from ..evaluate.base_file import BaseWriter
from ..evaluate.kl import DivergenceObserver
from ..evaluate.perplexity import PerplexityResult, paired_difference, perplexity
from ..gguf import names
from ..gguf.reader import is_seeddelta
from ..session import plan_chunks, read_text, tokenize
from ..session.decoder import Tokens
from ..settings.runtime import RuntimeConfig
from ..settings.skip_file import Skip, SkipFile
from ..settings.skipping import Kwta
from .allocate import Profile, allocate

if TYPE_CHECKING:
    from ..runtime.model import SeedDeltaLlama

PROBE_KEEP = 0.5  # what is left of an input whose harm is measured
_LAYER_LIMIT = 4.0  # a layer's harm counts as at most this many times the average, and at least its inverse
_STEPS = 6  # halvings of the range of shares
Say = Callable[[str], object]


@dataclass(frozen=True)
class Calibration:
    """What was found. `share` of the weights is read for a token; `percent` is the change of the perplexity on the
    calibration text, None when a share was asked for and nothing was evaluated. `tried` are the pairs on the way."""

    file: SkipFile
    share: float
    percent: float | None
    tried: tuple[tuple[float, float], ...] = field(default=())


def sparsify(
    model: str | os.PathLike[str],
    text: str | os.PathLike[str],
    *,
    keep: float | None = None,
    max_percent: float | None = None,
    score: Literal["magnitude", "wina"] = "wina",
    target: Literal["mlp", "attn", "both"] = "both",
    chunks: int = 8,
    probe_chunks: int = 2,
    n_ctx: int = 512,
    threads: int | None = None,
    per_layer: bool = True,
    say: Say = lambda line: None,
) -> Calibration:
    """Find which fraction of each input of a model can be left out.

    Args:
        model: ordinary GGUF model, stored by columns of float16 meanwhile, or a SeedΔ file with matrices in column
            layout, which alone can skip.
        text: calibration text, never the one that is evaluated on.
        keep: share of the weights that is to be read; nothing is evaluated then but the probes.
        max_percent: or the largest rise of the perplexity, in percent (default 2); the smallest share within it is
            looked for by halving.
        score, target: as in Kwta.
        chunks, probe_chunks: chunks of `n_ctx` tokens for the perplexities, and for the profile and each probe.
        per_layer: probe every layer, too (as many evaluations); else layers count alike.
    Raises:
        ConfigError for options out of range, EvaluationError for a text that is too short, and what loading raises.
    """
    from ..session import open_model

    if keep is not None and max_percent is not None:
        raise ConfigError("keep and max_percent both set the limit; give one of them")
    kwta = Kwta(k=1.0, score=score, target=target)
    config = RuntimeConfig(columns=None if is_seeddelta(model) else "f16", kwta=kwta, skip_prompt=True)
    llm: Any = open_model(model, n_ctx=n_ctx, threads=threads, config=config)
    try:
        tokens = tokenize(llm, read_text(text))
        tuner = _Tuner(llm, tokens, n_ctx)
        profiles = tuner.profile(probe_chunks)
        say(f"profiled {len(profiles)} inputs on {probe_chunks} chunks{_zeros_line(profiles)}")
        harm = tuner.harm(profiles, probe_chunks, per_layer, say)
        percent: float | None = None
        tried: list[tuple[float, float]] = []
        if keep is not None:
            share = keep
        else:
            limit = 2.0 if max_percent is None else max_percent
            share, percent, tried = tuner.smallest(profiles, harm, limit, chunks, say)
        fractions = allocate(profiles, harm, share)
    finally:
        llm.close()
    inputs = {
        profile.name: Skip(keep=round(fraction, 4), threshold=float(f"{profile.threshold_at(fraction):.6g}"))
        for profile, fraction in zip(profiles, fractions, strict=True)
    }
    scored = max(chunks if keep is None else 0, probe_chunks) * n_ctx
    file = SkipFile(score=score, model=Path(model).name, text=Path(text).name, tokens=scored, inputs=inputs)
    return Calibration(file, share, percent, tuple(tried))


def by_kind(profiles: Sequence[Profile]) -> dict[str, float]:
    """The mean share of zeros of each kind."""
    kinds = dict.fromkeys(profile.kind for profile in profiles)
    return {kind: float(np.mean([one.zeros for one in profiles if one.kind == kind])) for kind in kinds}


def _zeros_line(profiles: Sequence[Profile]) -> str:
    some = {kind: share for kind, share in by_kind(profiles).items() if share > 0}
    return "".join(f"; {share:.1%} of the inputs of {kind} are exactly 0" for kind, share in some.items())


class _Tuner:
    """One open model whose gates are changed between evaluations."""

    def __init__(self, llm: SeedDeltaLlama, tokens: Tokens, n_ctx: int) -> None:
        hook = llm.seeddelta.hook
        assert hook is not None
        self._llm, self._hook, self._tokens, self._n_ctx = llm, hook, tokens, n_ctx

    def _keep(self, fractions: Sequence[float]) -> None:
        for number, fraction in enumerate(fractions):
            self._hook.tune_gate(number, fraction)

    def _perplexity(self, chunks: int, observers: Sequence[Any] = ()) -> PerplexityResult:
        return perplexity(self._llm, self._tokens, n_ctx=self._n_ctx, chunks=chunks, observers=observers)

    def profile(self, chunks: int) -> list[Profile]:
        self._hook.profile_gates(True)
        self._perplexity(chunks)
        found, shapes = self._hook.profiles(), self._hook.column_shapes()
        self._hook.profile_gates(False)
        profiles = []
        for group, (_, threshold, dropped, zeros) in zip(self._llm.seeddelta.gate_groups, found, strict=True):
            split = names.split_name(group[0])
            assert split is not None
            cost = sum(int(np.prod(shapes[name])) for name in group)
            levels = np.arange(1, len(threshold) + 1) / len(threshold)
            found_there = np.asarray(threshold), np.asarray(dropped)
            profiles.append(Profile(group[0], *split, cost, levels, *found_there, zeros))
        return profiles

    def harm(self, profiles: Sequence[Profile], chunks: int, per_layer: bool, say: Say) -> list[float]:
        """Divergence a unit of energy left out: measured for each kind of input, times a factor for each layer."""
        with tempfile.TemporaryDirectory(prefix="seeddelta-sparsify-") as folder:
            base = Path(folder) / "base"
            scored = self._tokens[: plan_chunks(len(self._tokens), self._n_ctx, chunks) * self._n_ctx]
            self._keep([1.0] * len(profiles))
            with BaseWriter(base, scored, self._n_ctx, self._llm.n_vocab()) as writer:
                self._perplexity(chunks, [writer])

            def divergence(chosen: Sequence[bool]) -> float:
                self._keep([PROBE_KEEP if one else 1.0 for one in chosen])
                observer = DivergenceObserver(base)
                self._perplexity(chunks, [observer])
                return max(observer.result().mean, 1e-9)

            dropped = [profile.dropped_at(PROBE_KEEP) for profile in profiles]
            harm = [0.0] * len(profiles)
            for kind in dict.fromkeys(profile.kind for profile in profiles):
                chosen = [profile.kind == kind for profile in profiles]
                found = divergence(chosen)
                energy = sum(part for part, one in zip(dropped, chosen, strict=True) if one)
                for index, one in enumerate(chosen):
                    harm[index] = found / max(energy, 1e-12) if one else harm[index]
                say(f"{kind}: half of its inputs cost {found:.4f} nats")
            if per_layer:
                harm = self._by_layer(profiles, harm, dropped, divergence, say)
            return harm

    def _by_layer(
        self,
        profiles: Sequence[Profile],
        harm: Sequence[float],
        dropped: Sequence[float],
        divergence: Callable[[Sequence[bool]], float],
        say: Say,
    ) -> list[float]:
        layers = list(dict.fromkeys(profile.layer for profile in profiles))
        ratio = {}
        for layer in layers:
            chosen = [profile.layer == layer for profile in profiles]
            expected = sum(h * part for h, part, one in zip(harm, dropped, chosen, strict=True) if one)
            ratio[layer] = divergence(chosen) / max(expected, 1e-12)
            say(f"layer {layer}: {ratio[layer]:.2f} of what was expected")
        middle = float(np.median(list(ratio.values())))
        return [
            h * float(np.clip(ratio[profile.layer] / middle, 1 / _LAYER_LIMIT, _LAYER_LIMIT))
            for h, profile in zip(harm, profiles, strict=True)
        ]

    def smallest(
        self, profiles: Sequence[Profile], harm: Sequence[float], limit: float, chunks: int, say: Say
    ) -> tuple[float, float, list[tuple[float, float]]]:
        """Smallest share of the weights whose perplexity is within `limit` percent."""
        self._keep([1.0] * len(profiles))
        base = self._perplexity(chunks)
        low, high, percent = float(profiles[0].keep[0]), 1.0, 0.0
        tried = []
        for _ in range(_STEPS):
            share = (low + high) / 2
            self._keep(allocate(profiles, harm, share))
            found = paired_difference(self._perplexity(chunks), base).percent
            tried.append((share, found))
            say(f"{share:.3f} of the weights: {found:+.2f}%")
            if found <= limit:
                high, percent = share, found
            else:
                low = share
        return high, percent, tried
