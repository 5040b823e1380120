"""What a token could reuse of the attention of an earlier one, for real queries, keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np
from seeddelta import _core

Array = np.ndarray[Any, Any]
WINDOW = 128
AGES = (1, 2, 4, 8)
THETAS = (0.001, 0.003, 0.01, 0.03, 0.1)
BEFORE = 8  # tokens before those that are measured
LIMITS = {"gap_every": 0, "age_max": 64}


def windows_of(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Of one KV head: logarithm of each window's part of the softmax's sum [windows, group], its mean value and key
    (by weight) [windows, group, dim]. q [group, dim], k and v [n, dim]."""
    count = -(-len(k) // WINDOW)
    score = np.full((len(q), count * WINDOW), -np.inf, np.float32)
    score[:, : len(k)] = q @ k.T
    score = score.reshape(len(q), count, WINDOW)
    top = score.max(2)
    weight = np.exp(score - top[..., None])
    total = weight.sum(2)
    rows = []
    for of in (v, k):
        padded = np.concatenate([of, np.zeros((count * WINDOW - len(of), of.shape[1]), np.float32)])
        sums = np.einsum("gwi,wid->wgd", weight, padded.reshape(count, WINDOW, -1))
        rows.append(sums / total.T[..., None])
    return (top + np.log(total)).T, rows[0], rows[1]


def merged(mass: Array, value: Array) -> Array:
    weight = np.exp(mass - mass.max(0))
    return np.asarray((weight[..., None] * value).sum(0) / weight.sum(0)[:, None])


def reuse(q: Array, k: Array, v: Array) -> dict[str, dict[str, Any]]:
    """Relative errors of a KV head's output by what it reuses of a token some tokens before: the output, or the windows
    but for the first and the last two, with the weights that they had or those that the new query gives them."""
    tokens, n_layers, n_head, _ = q.shape
    n_kv_head = k.shape[1]
    group = n_head // n_kv_head
    errors: dict[tuple[str, int], list[float]] = {}
    moved: dict[int, list[float]] = {age: [] for age in AGES}
    share: dict[int, list[float]] = {age: [] for age in AGES}  # of the softmax, in the old windows
    for layer in range(n_layers):
        for head in range(n_kv_head):
            keys, values = (of[layer, head].astype(np.float32) for of in (k, v))
            mine = q[:, layer, head * group : (head + 1) * group]
            length = len(keys) - tokens + 1
            found = [windows_of(mine[t], keys[: length + t], values[: length + t]) for t in range(tokens)]
            for age in AGES:
                for token in range(BEFORE, tokens, 4):
                    (mass, value, _), (mass_then, value_then, key_then) = found[token], found[token - age]
                    true = merged(mass, value)
                    before = mine[token - age]
                    moved[age].append(float(np.linalg.norm(mine[token] - before) / np.linalg.norm(before)))
                    results = {"the output": merged(mass_then, value_then)}
                    old = slice(1, min(len(mass), len(mass_then)) - 2)
                    weight = np.exp(mass - mass.max(0))
                    share[age].append(float((weight[old].sum(0) / weight.sum(0)).mean()))
                    gain = ((mine[token] - before) * key_then).sum(-1)
                    for name, by in (("windows, their weights", 0 * gain), ("windows, new weights", gain)):
                        of_mass, of_value = mass.copy(), value.copy()
                        of_mass[old], of_value[old] = (mass_then + by)[old], value_then[old]
                        results[name] = merged(of_mass, of_value)
                    for name, result in results.items():
                        error = np.linalg.norm(result - true) / np.linalg.norm(true)
                        errors.setdefault((name, age), []).append(float(error))
    rows: dict[str, dict[str, Any]] = {}
    for (name, age), of_name in errors.items():
        row = rows.setdefault(f"{age} tokens", {"query": float(np.mean(moved[age]))})
        by_share = np.array(moved[age]) * np.array(share[age])
        row[name] = spread(of_name) | {
            "rank correlation with the query": ranks(of_name, moved[age]),
            "with it times the share": ranks(of_name, by_share),
        }
        print(f"{age} tokens, query moved by {row['query']:.2f}: {name:24}", text(row[name]))
    return rows


def ranks(a: Any, b: Any) -> float:
    """Spearman's rank correlation."""
    places = [np.argsort(np.argsort(x)) for x in (a, b)]
    return float(np.corrcoef(places)[0, 1])


def spread(errors: list[float]) -> dict[str, float]:
    of = np.array(errors)
    return {
        "mean": float(of.mean()), "median": float(np.median(of)), "below 5%": float((of < 0.05).mean()),
        "below 10%": float((of < 0.1).mean()),
    }  # fmt: skip


def text(row: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in row.items())


def thresholds(q: Array, k: Array, v: Array) -> dict[str, dict[str, Any]]:
    """The same errors of the program's attention by its threshold, and the share of the windows that it computes."""
    tokens, n_layers = q.shape[:2]
    n_kv_head, length = k.shape[1], k.shape[2]
    rows: dict[str, dict[str, Any]] = {}
    layers = [
        (np.ascontiguousarray(q[:, layer]), *(np.ascontiguousarray(of[layer].swapaxes(0, 1)) for of in (k, v)))
        for layer in range(n_layers)
    ]
    masks = [
        np.where(np.arange(length) <= length - tokens + token, 0, -np.inf).astype(np.float16) for token in range(tokens)
    ]
    for theta in THETAS:
        errors: list[float] = []
        of_layers, computed, windows = [], 0.0, 0.0
        for queries, keys, values in layers:
            run, exact = _core.AttentionRun(), _core.AttentionRun()
            here: list[float] = []
            for token, (query, mask) in enumerate(zip(queries, masks, strict=True)):
                event, written = LIMITS | {"delta_theta": theta}, [length - tokens + token]
                out, done = run(query, keys, values, mask, event=event, written=written)
                true, _ = exact(query, keys, values, mask)
                if token >= BEFORE:
                    pairs = zip(out.reshape(n_kv_head, -1), true.reshape(n_kv_head, -1), strict=True)
                    here += [float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs]
            errors += here
            of_layers.append(float(np.mean(here)))
            computed += done["sent"] + done["given"]
            windows += done["seen"] + done["given"]
        rows[str(theta)] = spread(errors) | {"computed": computed / windows, "layers": of_layers}
        worst = np.argsort(of_layers)[::-1][:5]
        print(f"theta {theta}: {computed / windows:.3f} of the windows computed,", text(spread(errors)), end=", worst ")
        print(", ".join(f"layer {layer} {of_layers[layer]:.2f}" for layer in worst))
    return rows
