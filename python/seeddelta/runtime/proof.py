"""Whether skipping pays: each kind of gate is measured while a model generates, and switched off when it does not.

Tokens with and without the gate alternate until there are 32 of each; then one in 256 is computed without it. What is
timed is `llama_decode` of a single token. A prompt and a batch of several sequences are neither measured nor changed.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .. import _core
    from .attention import OwnAttention
    from .gates import MadeGate

_log = logging.getLogger(__name__)

LEAST_SAVING = 0.02  # of the time of a token
_SAMPLES = 32  # of each kind in the first decision
_WATCH_EVERY = 256  # tokens between those without the gate, later
_WATCHED = 15  # pairs of which the median decides, later
_EVENT_RUN = 8  # tokens of one kind in a row for events: the first one after a pause is computed whole

# `X.off` of the metrics
ON, NO_SAVING, GAP = 0, 1, 2


@dataclass
class Proven:
    """One kind of gate, of all matrices or layers together.

    `count` is of what it has chosen for and `given_up` of the places whose errors have switched them off, both since
    loading; `pause` leaves it out, or not, from the next token on. `key` begins its metrics; `name` and, for
    those places, `remedy` are told to people.
    """

    key: str
    name: str
    count: Callable[[], int]
    pause: Callable[[bool], None]
    given_up: Callable[[], int]
    places: Callable[[], int]
    run: int = 1
    remedy: str = "--force keeps it on"


class Trial:
    """Times of tokens with and without one gate, and what they say. Times in seconds."""

    def __init__(self, run: int = 1) -> None:
        """`run` tokens of one kind follow each other."""
        self._run = run
        self._with: list[float] = []
        self._without: list[float] = []
        self._pairs: deque[float] = deque(maxlen=_WATCHED)
        self._since = 0
        self._last: float | None = None
        self.saving: float | None = None

    @property
    def without(self) -> bool:
        """Whether the next token is to be computed without the gate."""
        if self.saving is None:
            return len(self._with) // self._run > len(self._without) // self._run
        return self._since >= _WATCH_EVERY and self._last is not None

    def add(self, seconds: float, without: bool, worked: bool) -> bool:
        """One token, and whether the gate chose for it. Returns whether there is a new decision: see `saving`."""
        if self.saving is None:
            if without:
                self._without.append(seconds)
            elif worked:
                self._with.append(seconds)
            if min(len(self._with), len(self._without)) < _SAMPLES:
                return False
            self.saving = 1 - statistics.median(self._with) / statistics.median(self._without)
            return True
        self._since += 1
        if not without:
            self._last = seconds if worked else self._last
            return False
        assert self._last is not None
        self._pairs.append(self._last / seconds)
        self._since = 0
        if len(self._pairs) < _WATCHED:
            return False
        self.saving = 1 - statistics.median(self._pairs)
        return True

    @property
    def pays(self) -> bool:
        """Whether it saves enough, or nothing is known yet."""
        return self.saving is None or self.saving >= LEAST_SAVING

    @property
    def medians(self) -> tuple[float, float]:
        """Of the first decision: with and without the gate."""
        return statistics.median(self._with), statistics.median(self._without)

    @property
    def tokens(self) -> int:
        """Tokens of the first decision so far."""
        return len(self._with) + len(self._without)


class Proof:
    """The trials of a context's gates, one after the other: those that are on meanwhile stay on."""

    def __init__(self, gates: Iterable[Proven]) -> None:
        self._all = [(gate, Trial(gate.run)) for gate in gates]
        self._on = list(self._all)
        self._counts = {gate.key: 0 for gate, _ in self._all}
        self._worked = dict.fromkeys(self._counts, False)
        self._given_up = dict.fromkeys(self._counts, 0)
        self.reasons: dict[str, str] = {}
        self._codes = dict.fromkeys(self._counts, ON)

    def timed(self, compute: Callable[[], Any]) -> Any:
        """The result of `compute`, which decodes one token; its time counts."""
        if not self._on:
            return compute()
        paused = next((one for one in self._on if self._may_pause(one) and one[1].without), None)
        if paused is not None:
            paused[0].pause(True)
        begin = time.perf_counter()
        try:
            result = compute()
        finally:
            seconds = time.perf_counter() - begin
            if paused is not None:
                paused[0].pause(False)
        self._settle(seconds, paused)
        return result

    def _may_pause(self, one: tuple[Proven, Trial]) -> bool:
        """A gate's first trial begins when it works, and waits for that of the gate before it."""
        first = self._first()
        return first is one or (first is None and one[1].saving is not None)

    def _settle(self, seconds: float, paused: tuple[Proven, Trial] | None) -> None:
        for one in list(self._on):
            gate, trial = one
            count = gate.count()
            worked = count > self._counts[gate.key]
            self._counts[gate.key] = count
            self._worked[gate.key] = worked or self._worked[gate.key]
            given_up = gate.given_up()
            if given_up != self._given_up[gate.key]:
                self._give_up(one, given_up)
                if one not in self._on:
                    continue
            measured = trial.saving is not None or self._first() is one
            if measured and (paused is None or paused is one):
                self._decide(one, trial.add(seconds, paused is one, worked))

    def _first(self) -> tuple[Proven, Trial] | None:
        """The gate whose first trial is under way."""
        return next((one for one in self._on if one[1].saving is None and self._worked[one[0].key]), None)

    def _decide(self, one: tuple[Proven, Trial], decision: bool) -> None:
        gate, trial = one
        if not decision or trial.pays:
            return
        assert trial.saving is not None
        with_it, without = trial.medians
        verb = "saves" if trial.saving >= 0 else "costs"
        medians = f"first medians: {1000 * with_it:.3g} ms with it, {1000 * without:.3g} ms without"
        self._stop(
            one,
            NO_SAVING,
            f"{gate.name}: switched off, since it {verb} {100 * abs(trial.saving):.1f}% of a token's time and should "
            f"save {LEAST_SAVING:.0%} ({medians}); --force keeps it on",
        )

    def _give_up(self, one: tuple[Proven, Trial], given_up: int) -> None:
        gate, _ = one
        places, known = gate.places(), self._given_up[gate.key]
        self._given_up[gate.key] = given_up
        text = f"{gate.name}: switched off in {given_up} of {places} places, whose error is beyond the tolerance"
        if given_up >= places:
            self._stop(one, GAP, f"{text}; {gate.remedy}")
            return
        self.reasons[gate.key] = text
        if not known:
            _log.warning("%s (so far); %s", text, gate.remedy)

    def _stop(self, one: tuple[Proven, Trial], code: int, reason: str) -> None:
        gate, _ = one
        gate.pause(True)
        self._on.remove(one)
        self._codes[gate.key] = code
        self.reasons[gate.key] = reason
        _log.warning("%s", reason)

    def metrics(self) -> dict[str, int | float]:
        """Of each gate `X.off` (0: on, 1: it saves too little, 2: its errors are too large), `X.off_places` (where its
        error was too large), `X.saving` (share of a token's time, 0 until it is known) and `X.trial_tokens`."""
        found: dict[str, int | float] = {}
        for gate, trial in self._all:
            found |= {
                f"{gate.key}.off": self._codes[gate.key],
                f"{gate.key}.off_places": gate.given_up(),
                f"{gate.key}.saving": trial.saving or 0.0,
                f"{gate.key}.trial_tokens": trial.tokens,
            }
        return found


def gates_of(hook: _core.GraphHook, made: Sequence[MadeGate]) -> list[Proven]:
    """What chooses the inputs of the products of a context, by kind."""
    left_out = 0

    def pause(bit: int, out: bool) -> None:
        nonlocal left_out
        left_out = left_out | bit if out else left_out & ~bit
        hook.pause_gates(left_out)

    def activity(at: int) -> int:
        return hook.gate_activity()[at]

    kinds = (
        ("kwta", "KWTA", sum(gate.kwta for gate in made)),
        ("pack", "StatePack of the MLP", sum(gate.pack for gate in made)),
        ("event", "event-driven inputs", sum(gate.event for gate in made)),
        ("zeros", "skipping of zeros", sum(gate.zeros for gate in made)),
    )
    found = []
    for at, (key, name, places) in enumerate(kinds):
        if not places:
            continue
        gate = Proven(key, name, partial(activity, at), partial(pause, 1 << at), _none, partial(int, places))
        found.append(replace(gate, given_up=partial(activity, 4), run=_EVENT_RUN) if key == "event" else gate)
    return found


def gates_of_attention(attention: OwnAttention, pack_key: str) -> list[Proven]:
    """What chooses keys or windows in the attention of a context; none where it is exact. `pack_key`: of StatePack."""
    own = attention.hook
    if attention.has_events:
        return [
            Proven(
                "event",
                "event-driven attention",
                count=lambda: own.activity()[1],
                pause=own.pause,
                given_up=lambda: own.activity()[3],
                places=lambda: int(own.events()["layers"]),
                run=_EVENT_RUN,
            )
        ]
    if attention.options.mode == "exact" and not attention.options.overrides():
        return []
    return [
        Proven(
            pack_key,
            "StatePack of attention",
            count=lambda: own.activity()[0],
            pause=own.pause,
            given_up=lambda: own.activity()[2],
            places=lambda: int(own.counters()["layers"] + own.activity()[2]),
            remedy="see --state-pack-kv-gap-limit",
        )
    ]


def _none() -> int:
    return 0
