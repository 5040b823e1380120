"""Event-driven attention: windows that have not changed are reused, as the definition in NumPy says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from seeddelta import _core

Array = np.ndarray[Any, Any]
WINDOW = 128
TOKENS, POSITIONS, N_HEAD, N_KV_HEAD, DIM_K, DIM_V = 24, 1300, 6, 3, 32, 48
GROUP = N_HEAD // N_KV_HEAD
NEVER = {"gap_every": 0, "age_max": 100000, "stale_lambda": 0.0}


@pytest.fixture(autouse=True)
def restore_isa() -> Iterator[None]:
    active = _core.isa_active()
    yield
    _core.isa_select(active)


def walk(seed: int = 0, step: float = 0.3) -> tuple[Array, Array, Array]:
    """Queries [TOKENS, N_HEAD, DIM_K] that change slowly, keys and values."""
    rng = np.random.default_rng(seed)
    q = np.cumsum(rng.normal(size=(TOKENS, N_HEAD, DIM_K)) * step, axis=0).astype(np.float32)
    k = (rng.normal(size=(POSITIONS, N_KV_HEAD, DIM_K)) + rng.normal(size=DIM_K)).astype(np.float16)
    v = rng.normal(size=(POSITIONS, N_KV_HEAD, DIM_V)).astype(np.float16)
    return q, k, v


def mask_of(token: int) -> Array:
    """The last position is written with the token, and there is nothing behind it."""
    return np.where(np.arange(POSITIONS) <= last_of(token), 0, -np.inf).astype(np.float16)


def last_of(token: int) -> int:
    return POSITIONS - 40 - TOKENS + token


def attend(q: Array, k: Array, v: Array, event: dict[str, float], threads: int = 1) -> tuple[Array, dict[str, float]]:
    """All tokens, one after the other; what was done in all."""
    run, rows, done = _core.AttentionRun(), [], {}
    for token in range(TOKENS):
        out, done = run(
            q[token], k, v, mask_of(token), scale=0.3, threads=threads, event=event, written=[last_of(token)]
        )
        rows.append(out)
    return np.stack(rows), done


def exact(q: Array, k: Array, v: Array) -> Array:
    return np.stack([_core.AttentionRun()(q[t], k, v, mask_of(t), scale=0.3)[0] for t in range(TOKENS)])


class Window:
    """The definition, in float64: one KV head and window, as its query saw it."""

    def __init__(self, q: Array, k: Array, v: Array) -> None:
        """q [group, dim_k], k [n, dim_k], v [n, dim_v], only what is visible."""
        self.q, k, v = q.astype(np.float64), k.astype(np.float64), v.astype(np.float64)
        score = 0.3 * self.q @ k.T
        weight = np.exp(score - score.max(1, keepdims=True))
        self.mass = score.max(1) + np.log(weight.sum(1))  # logarithm of its part of the softmax's sum
        weight /= weight.sum(1, keepdims=True)
        self.value, self.key, self.age = weight @ v, weight @ k, 0
        self.variance = k.var(0)

    def seen_by(self, q: Array) -> Array:
        return np.asarray(self.mass + 0.3 * ((q - self.q) * self.key).sum(1))

    def reach(self, q: Array) -> Array:
        return np.asarray(0.5 * 0.3**2 * (np.square(q - self.q) * self.variance).sum(1))

    def distance(self, q: Array) -> float:
        return float(np.linalg.norm(q - self.q) / np.linalg.norm(self.q))


def simulate(
    q: Array, k: Array, v: Array, *, delta_theta: float = 0.01, topk: float = 1.0, quorum: float = 1.0,
    stale_beta: float = 1.0, stale_lambda: float = 0.0, age_max: int = 100000, gap_every: int = 0,
) -> tuple[Array, int, int]:  # fmt: skip
    """Outputs, windows that could have been reused and those of them that were computed."""
    windows: dict[tuple[int, int], Window] = {}
    rows, seen, computed, since, after = [], 0, 0, 0, 1
    for token in range(TOKENS):
        last = last_of(token)
        at = [(w, h) for w in range(last // WINDOW + 1) for h in range(N_KV_HEAD)]
        mine = {(w, h): q[token, h * GROUP : (h + 1) * GROUP].astype(np.float64) for w, h in at}

        def make(w: int, h: int, mine: Any = mine, last: int = last) -> Window:
            span = slice(w * WINDOW, min((w + 1) * WINDOW, last + 1))
            return Window(mine[w, h], k[span, h], v[span, h])

        recent = {row // WINDOW for row in range(last_of(0), last + 1)}
        given = [one for one in at if token == 0 or one[0] in {0, last // WINDOW} | recent]
        ranked = [one for one in at if one not in given]
        windows |= {one: make(*one) for one in given}
        mass = {one: windows[one].seen_by(mine[one]) for one in at}
        most = {one: mass[one] + windows[one].reach(mine[one]) for one in at}
        total = {h: np.logaddexp.reduce([most[one] for one in at if one[1] == h]) for h in range(N_KV_HEAD)}
        change = {one: np.exp(most[one] - total[one[1]]).max() * windows[one].distance(mine[one]) for one in ranked}
        old = [one for one in ranked if windows[one].age >= age_max]
        ages = {one: min(windows[one].age, age_max) for one in ranked}
        limit = {one: delta_theta * stale_beta * np.exp(-stale_lambda * ages[one]) for one in ranked}
        passing = [one for one in ranked if one in old or change[one] > limit[one]]
        count = min(len(passing), round(topk * len(ranked)))
        if quorum < 1 and not old:
            energy = np.cumsum(np.square(sorted((change[one] for one in passing), reverse=True)))
            count = min(count, int(np.searchsorted(energy, quorum * sum(np.square(list(change.values()))))) + 1)
        chosen = sorted(passing, key=lambda one: (one not in old, -change[one]))[:count]
        for one in ranked:
            windows[one].age += 1
        windows |= {one: make(*one) for one in chosen}
        mass |= {one: windows[one].mass for one in chosen}
        since += token > 0
        if gap_every and since == after:
            since, after = 0, min(2 * after, gap_every)
            windows |= {one: make(*one) for one in ranked}
            mass = {one: windows[one].mass for one in at}
        rows.append(np.zeros((N_HEAD, DIM_V)))
        for h in range(N_KV_HEAD):
            of_head = [one for one in at if one[1] == h]
            share = np.exp([mass[one] - np.logaddexp.reduce([mass[a] for a in of_head]) for one in of_head])
            rows[-1][h * GROUP : (h + 1) * GROUP] = sum(
                part[:, None] * windows[one].value for part, one in zip(share, of_head, strict=True)
            )
        seen, computed = seen + len(ranked), computed + len(chosen)
    return np.stack(rows), seen, computed


@pytest.mark.parametrize("options", [
    {"delta_theta": 0.06}, {"delta_theta": 0.0, "topk": 0.2}, {"delta_theta": 0.005, "quorum": 0.6},
    {"delta_theta": 1.5, "age_max": 5}, {"delta_theta": 0.05, "stale_lambda": 0.2, "stale_beta": 0.9},
    {"delta_theta": 0.1, "gap_every": 4, "gap_tol": 100.0},
])  # fmt: skip
def test_what_is_reused_is_as_defined(options: dict[str, float]) -> None:
    q, k, v = walk()
    known: dict[str, Any] = {name: value for name, value in options.items() if name != "gap_tol"}
    expected, seen, computed = simulate(q, k, v, **known)
    results = []
    for isa in _core.isa_available():
        _core.isa_select(isa)
        for threads in (1, 3):
            out, done = attend(q, k, v, NEVER | options, threads)
            np.testing.assert_allclose(out, expected, atol=2e-5)
            assert (done["seen"], done["sent"]) == (seen, computed)
            assert done["full"] == 1
            assert done["wrong"] == 0
            results.append(out)
    for out in results:
        np.testing.assert_array_equal(out, results[0])
    assert 0 < computed < 0.8 * seen
    assert np.abs(results[0] - exact(q, k, v)).max() > 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {"delta_theta": 0.0},
        {"delta_theta": 10.0, "age_max": 0},
        {"delta_theta": 10.0, "gap_every": 1, "gap_tol": 100.0},
    ],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_everything_computed_is_exact(options: dict[str, float], threads: int) -> None:
    q, k, v = walk()
    q[5] = q[4]  # a token without any change
    out, done = attend(q, k, v, NEVER | options, threads)
    np.testing.assert_array_equal(out, exact(q, k, v))
    assert done["operations"] == TOKENS
    assert done["seen"] > 0
    if "gap_every" in options:
        assert done["checks"] == TOKENS - 1
        assert done["sent"] == 0
    else:
        assert done["sent"] > 0.9 * done["seen"]


def test_keys_of_q8_0_and_sinks() -> None:
    """The mean keys of a window are those of its bytes; scores without a value take part in the shares."""
    import gguf
    import gguf.quants

    q, k, v = walk()
    stored = gguf.quants.quantize(k.astype(np.float32).reshape(-1, DIM_K), gguf.GGMLQuantizationType.Q8_0)
    meant = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType.Q8_0).astype(np.float16).reshape(k.shape)
    event, sinks = NEVER | {"delta_theta": 0.02}, np.linspace(-3, 8, N_HEAD).astype(np.float32)
    for options in ({}, {"sinks": sinks}):
        first, second = _core.AttentionRun(), _core.AttentionRun()
        for token in range(TOKENS):
            mask, written = mask_of(token), [last_of(token)]
            a, of_bytes = first(
                q[token], stored.reshape(POSITIONS, N_KV_HEAD, -1), v, mask, event=event, written=written, **options
            )
            b, of_halves = second(q[token], meant, v, mask, event=event, written=written, **options)
            np.testing.assert_allclose(a, b, atol=2e-2)
        assert 0 < of_bytes["sent"] < of_bytes["seen"]
        assert abs(of_bytes["sent"] - of_halves["sent"]) <= 0.05 * of_bytes["seen"]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_gap_turns_events_off_for_a_while(threads: int) -> None:
    q, k, v = walk(step=1.0)
    out, done = attend(q, k, v, NEVER | {"delta_theta": 9.0, "gap_every": 8, "gap_tol": 1e-6, "rearm": 6}, threads)
    # the first; the check of the first change and six whole tokens, the last of which is remembered; a check, ...
    np.testing.assert_array_equal(out, exact(q, k, v))
    assert done["failed"] == done["checks"] == 4
    assert done["operations"] == TOKENS
    assert done["full"] == TOKENS - 4


def test_a_budget_limits_what_is_computed() -> None:
    q, k, v = walk()
    _, everything = attend(q, k, v, NEVER | {"delta_theta": 0.0, "budget_ms": 1e6})
    out, little = attend(q, k, v, NEVER | {"delta_theta": 0.0, "budget_ms": 1e-6})
    assert everything["sent"] == everything["seen"]
    assert everything["budget"] == 0
    assert little["budget"] >= TOKENS - 2  # not the first, and not the one whose time is measured
    assert little["sent"] < 0.2 * little["seen"]
    assert np.isfinite(out).all()


def test_changed_keys_and_masks_are_computed_again() -> None:
    """Keys or values that are written, and what a mask begins to hide: only the windows concerned."""
    q, k, v = walk()
    run, event = _core.AttentionRun(), NEVER | {"delta_theta": 9.0}
    q[:] = q[0]  # so that what is reused is exact
    for token in range(3):
        run(q[token], k, v, mask_of(token), scale=0.3, event=event, written=[last_of(token)])
    k[300:310] = 3
    v[700] = -2
    rows = [*range(300, 310), 700, last_of(3)]
    out, done = run(q[3], k, v, mask_of(3), scale=0.3, event=event, written=rows)
    expected = _core.AttentionRun()(q[3], k, v, mask_of(3), scale=0.3)[0]
    np.testing.assert_allclose(out, expected, atol=1e-6)
    assert done["wrong"] == 0
    before = done["given"]
    mask = mask_of(4)
    mask[400:500] = -np.inf
    out, done = run(q[4], k, v, mask, scale=0.3, event=event, written=[last_of(4)])
    np.testing.assert_allclose(out, _core.AttentionRun()(q[4], k, v, mask, scale=0.3)[0], atol=1e-6)
    assert done["given"] - before == N_KV_HEAD * (2 + 1 + 2)  # the ends, the windows written last, those of the mask


def test_values_written_secretly_are_found() -> None:
    q, k, v = walk()
    run, event = _core.AttentionRun(), NEVER | {"delta_theta": 9.0}
    for token in range(3):
        run(q[token], k, v, mask_of(token), scale=0.3, event=event, written=[last_of(token)])
    v[:] = v[::-1].copy()
    out, done = run(q[3], k, v, mask_of(3), scale=0.3, event=event, written=[last_of(3)])
    assert done["wrong"] == 1
    np.testing.assert_array_equal(out, _core.AttentionRun()(q[3], k, v, mask_of(3), scale=0.3)[0])


@pytest.mark.parametrize("size", [np.nan, np.inf])
def test_queries_without_a_distance(size: float) -> None:
    """They are computed whole, and so is the next token."""
    q, k, v = walk()
    q[4] = size
    run, event = _core.AttentionRun(), NEVER | {"delta_theta": 9.0}
    for token in range(6):
        mask = mask_of(token)
        out, done = run(q[token], k, v, mask, scale=0.3, event=event, written=[last_of(token)])
        if token >= 4:
            np.testing.assert_array_equal(out, _core.AttentionRun()(q[token], k, v, mask, scale=0.3)[0])
    assert done["full"] == 3


def test_bad_arguments() -> None:
    q, k, v = walk()
    run = _core.AttentionRun()
    for options in ({"pack": {"mode": "binary"}}, {"max_bias": 8.0}):
        with pytest.raises(ValueError, match="events are for"):
            run(q[0], k, v, mask_of(0), event={"delta_theta": 0.1}, **options)
    with pytest.raises(ValueError, match="no setting thetas"):
        run(q[0], k, v, mask_of(0), event={"thetas": 0.1})
    with pytest.raises(ValueError, match="not there"):
        run(q[0], k, v, mask_of(0), event={"delta_theta": 0.1}, written=[POSITIONS])
