"""Event-driven inputs: y = W x̂ with x̂ the values last sent, whatever the budget."""

from __future__ import annotations

import numpy as np
import pytest
from seeddelta import _core


@pytest.fixture(autouse=True)
def _restore_isa():
    active = _core.isa_active()
    yield
    _core.isa_select(active)


N_OUT, N_IN, TOKENS = 130, 96, 40
NEVER = {"gap_every": 0, "age_max": 100000, "stale_lambda": 0.0}


def gate_of(event, **settings):
    """Events by their own names, other settings by their groups."""
    return _core.Gate(N_IN, {f"event.{name}": value for name, value in event.items()} | settings)


def weight_of():
    half = np.random.default_rng(0).standard_normal((N_IN, N_OUT)).astype(np.float16)
    return _core.ColumnWeight("w", half.T), half


def walk(seed=1):
    """Inputs that change slowly."""
    steps = np.random.default_rng(seed).standard_normal((TOKENS, N_IN)) * 0.3
    return np.cumsum(steps, axis=0).astype(np.float32)


def simulate(
    x, *, delta_theta, topk=1.0, quorum=1.0, stale_beta=1.0, stale_lambda=0.0, age_max=100000, gap_every=0
):  # fmt: skip
    """x̂ of every token, and how many units were sent: the definition."""
    sent, age, rows, counts, since = x[0].copy(), np.zeros(N_IN, int), [x[0].copy()], [N_IN], 0
    for row in x[1:]:
        change = np.abs(row - sent)
        rms = np.sqrt(np.mean(np.square(row.astype(np.float64))))
        old = (age >= age_max) & (change > 0)
        limit = delta_theta * rms * stale_beta * np.exp(-stale_lambda * np.minimum(age, age_max))
        passes = old | (change > limit)
        order = sorted(np.flatnonzero(passes), key=lambda j: (not old[j], -change[j], j))
        k = min(len(order), round(topk * N_IN))
        if quorum < 1 and not old.any():
            energy = np.cumsum(np.square(np.sort(np.where(passes, change, 0))[::-1].astype(np.float64)))
            k = min(k, int(np.searchsorted(energy, quorum * np.square(change.astype(np.float64)).sum()) + 1))
        chosen = order[:k]
        age += 1
        sent[chosen], age[chosen] = row[chosen], 0
        rows.append(sent.copy())
        counts.append(len(chosen))
        since += 1
        if gap_every and since == gap_every:
            since, sent, age[:] = 0, row.copy(), 0
    return np.stack(rows), counts


@pytest.mark.parametrize("options", [
    {"delta_theta": 0.3}, {"delta_theta": 0.0, "topk": 0.2}, {"delta_theta": 0.05, "quorum": 0.6},
    {"delta_theta": 1.5, "age_max": 5}, {"delta_theta": 0.8, "stale_lambda": 0.2, "stale_beta": 0.9},
])  # fmt: skip
def test_the_product_is_that_of_what_was_sent(options):
    weight, matrix = weight_of()
    x = walk()
    rows, counts = simulate(x, **options)
    assert 0 < np.mean(counts[1:]) < N_IN
    gate = gate_of(NEVER | options)
    expected = rows @ matrix.astype(np.float32)
    results = []
    for isa in _core.isa_available():
        _core.isa_select(isa)
        for threads in (1, 3):
            y = weight.matmul(x, gate, threads=threads, batch=1)
            np.testing.assert_allclose(y, expected, rtol=1e-3, atol=2e-2 if options.get("quorum") else 2e-3)
            results.append(y)
            prompt = weight.matmul(x, gate, threads=threads)  # the same inputs, as one product
            np.testing.assert_allclose(prompt, expected, rtol=1e-3, atol=2e-2 if options.get("quorum") else 2e-3)
    for y in results:
        np.testing.assert_array_equal(y, results[0])


@pytest.mark.parametrize("threads", [1, 2])
def test_a_budget_for_nothing_leaves_the_product_as_it_was(threads):
    weight, _ = weight_of()
    gate = gate_of(NEVER | {"delta_theta": 0.0, "budget_ms": 1e-12})
    y = weight.matmul(walk(), gate, batch=1, threads=threads)
    np.testing.assert_array_equal(y, np.broadcast_to(y[0], y.shape))


@pytest.mark.parametrize("budget_ns", [30.0, 300.0, 3000.0])
def test_whatever_a_budget_leaves_out_is_an_earlier_input(budget_ns):
    """How much is sent depends on the clock; that y is W x̂ with earlier values in x̂ does not."""
    weight, matrix = weight_of()
    x = walk()
    y = weight.matmul(x, gate_of(NEVER | {"delta_theta": 0.0, "budget_ms": budget_ns / 1e6}), batch=1)
    sent = np.linalg.lstsq(matrix.T.astype(np.float64), y.T.astype(np.float64), rcond=None)[0].T
    for token in range(TOKENS):
        nearest = np.abs(x[: token + 1] - sent[token]).min(axis=0)
        np.testing.assert_allclose(nearest, 0, atol=1e-3)


def test_everything_sent_is_the_product():
    weight, _ = weight_of()
    x = walk()
    y = weight.matmul(x, gate_of({"delta_theta": 0.0, "gap_every": 0}), batch=1)
    np.testing.assert_allclose(y, weight.matmul(x), rtol=1e-4, atol=1e-3)


def test_a_budget_that_no_integer_holds_limits_nothing():
    weight, _ = weight_of()
    products = [
        weight.matmul(walk(), gate_of(NEVER | {"delta_theta": 0.1} | budget), batch=1)
        for budget in ({}, {"budget_ms": 1e294})
    ]
    np.testing.assert_array_equal(*products)


def test_a_check_puts_the_state_right():
    """Every fifth token is compared with the full product, which it gives."""
    weight, matrix = weight_of()
    x = walk()
    options = {"delta_theta": 2.0, "gap_every": 5, "gap_tol": 100.0, "age_max": 100000, "stale_lambda": 0.0}
    full = weight.matmul(x)
    for threads in (1, 3):
        y = weight.matmul(x, gate_of(options), batch=1, threads=threads)
        np.testing.assert_array_equal(y[5::5], full[5::5])
        rows, _ = simulate(x, delta_theta=2.0, gap_every=5)
        others = np.arange(TOKENS) % 5 != 0
        np.testing.assert_allclose(y[others], (rows @ matrix.astype(np.float32))[others], rtol=1e-3, atol=2e-3)


def test_a_gap_turns_events_off_for_a_while():
    weight, _ = weight_of()
    x = walk()
    options = {"delta_theta": 3.0, "gap_every": 4, "gap_tol": 1e-6, "rearm": 6, "age_max": 100000, "stale_lambda": 0.0}
    y = weight.matmul(x, gate_of(options), batch=1)
    full = weight.matmul(x)
    exact = (y == full).all(axis=1)
    # the first; the check of the fourth change and six whole tokens; three changes, a check, six whole tokens, ...
    pattern = [True] + ([False] * 3 + [True] * 7) * 4
    assert exact.tolist() == pattern[:TOKENS]


def test_kwta_limits_what_is_sent():
    weight, matrix = weight_of()
    x = walk()
    gate = gate_of(NEVER | {"delta_theta": 0.0}, **{"kwta.k": 0.25})
    rows, counts = simulate(x, delta_theta=0.0, topk=0.25)
    assert set(counts[1:]) == {N_IN // 4}
    np.testing.assert_allclose(weight.matmul(x, gate, batch=1), rows @ matrix.astype(np.float32), rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("block", [16, 64])
def test_calcular_delta_por_bloque(block):
    """`dividir proyección/FFN en bloques (32/64 cols). Calcular Δ por bloque`: the norm of a block's changes counts."""
    weight, matrix = weight_of()
    x, theta, units = walk(), 0.5, -(-N_IN // block)
    sent, rows = x[0].copy(), [x[0].copy()]
    skipped = 0
    for row in x[1:]:
        unit = np.sqrt(np.square(row.astype(np.float64)).sum() / units)
        for first in range(0, N_IN, block):
            own = slice(first, first + block)
            if np.linalg.norm(row[own] - sent[own]) > theta * unit:
                sent[own] = row[own]
            else:
                skipped += 1
        rows.append(sent.copy())
    assert 0 < skipped < units * (TOKENS - 1)
    gate = gate_of(NEVER | {"delta_theta": theta, "block": block})
    for threads in (1, 3):
        y = weight.matmul(x, gate, threads=threads, batch=1)
        np.testing.assert_allclose(y, np.stack(rows) @ matrix.astype(np.float32), rtol=1e-3, atol=2e-3)
