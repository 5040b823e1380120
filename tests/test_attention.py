"""Attention of one token: against float64, the same bits everywhere, and keys chosen by their bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gguf
import gguf.quants
import numpy as np
import pytest
from seeddelta import _core

Array = np.ndarray[Any, Any]
ISAS = _core.isa_available()
SHAPES = [(300, 9, 3, 64, 64), (1, 4, 4, 16, 32), (128, 8, 1, 128, 80), (1000, 5, 5, 48, 16), (513, 7, 1, 96, 96)]


@pytest.fixture(autouse=True)
def restore_isa() -> Iterator[None]:
    active = _core.isa_active()
    yield
    _core.isa_select(active)


def problem(n_kv: int, n_head: int, n_kv_head: int, dim_k: int, dim_v: int, seed: int = 0) -> tuple[Array, ...]:
    """q, k, v and a mask that hides a third of the positions."""
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(n_head, dim_k)).astype(np.float32)
    k = (rng.normal(size=(n_kv, n_kv_head, dim_k)) + rng.normal(size=dim_k)).astype(np.float16)
    v = rng.normal(size=(n_kv, n_kv_head, dim_v)).astype(np.float16)
    mask = np.where(rng.random(n_kv) < 0.33, -np.inf, 0).astype(np.float16)
    mask[0] = 0
    return q, k, v, mask


def q8_0(x: Array) -> tuple[Array, Array]:
    """Rows as ggml's Q8_0 bytes, and what these stand for as float64."""
    stored = gguf.quants.quantize(x.astype(np.float32).reshape(-1, x.shape[-1]), gguf.GGMLQuantizationType.Q8_0)
    stored = stored.reshape(*x.shape[:-1], -1)
    return stored, gguf.quants.dequantize(stored, gguf.GGMLQuantizationType.Q8_0).astype(np.float64)


def oracle(
    q: Array,
    k: Array,
    v: Array,
    mask: Array,
    *,
    scale: float,
    max_bias: float = 0.0,
    softcap: float = 0.0,
    sinks: Array | None = None,
) -> Array:
    """float64, in the words of the definition."""
    n_head, group = len(q), len(q) // k.shape[1]
    power = 2 ** int(np.log2(n_head))
    out = np.zeros((n_head, v.shape[2]))
    for head in range(n_head):
        scores = k[:, head // group].astype(np.float64) @ q[head].astype(np.float64) * scale
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        slope = 1.0
        if max_bias:
            slope = 2 ** (-max_bias / power * (head + 1))
            if head >= power:
                slope = 2 ** (-max_bias / 2 / power * (2 * (head - power) + 1))
        scores = scores + slope * mask.astype(np.float64)
        extra = [] if sinks is None else [float(sinks[head])]
        top = max([scores.max(), *extra])
        weights = np.exp(scores - top)
        out[head] = (
            weights @ v[:, head // group].astype(np.float64) / (weights.sum() + sum(np.exp(np.array(extra) - top)))
        )
    return out


def problem_with(
    shape: tuple[int, ...], options: dict[str, Any]
) -> tuple[tuple[Array, Array, Array, Array], dict[str, Any]]:
    """A problem and its keywords: with `sinks` some for each head, with `max_bias` distances in the mask."""
    q, k, v, mask = problem(*shape)
    given = {"scale": shape[3] ** -0.5} | options
    if "sinks" in given:
        given["sinks"] = np.linspace(-1, 3, len(q)).astype(np.float32)
    if "max_bias" in given:
        mask = np.where(np.isinf(mask), mask, -np.arange(len(mask))[::-1] / 8).astype(np.float16)
    return (q, k, v, mask), given


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}, {"sinks": True}, {"max_bias": 8.0}], ids=str)
def test_exact(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    (q, k, v, mask), given = problem_with(shape, options)
    results = []
    for isa in ISAS:
        _core.isa_select(isa)
        results += [_core.AttentionRun()(q, k, v, mask, threads=threads, **given)[0] for threads in (1, 2, 3)]
    np.testing.assert_allclose(results[0], oracle(q, k, v, mask, **given), atol=2e-6)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def by_channel(v: Array) -> Array:
    """Values as a cache has them without flash attention: float16 [n_kv_head, dim_v, n_kv]."""
    return np.ascontiguousarray(v.transpose(1, 2, 0))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", [{}, {"softcap": 3.0, "sinks": True}, {"max_bias": 8.0}], ids=str)
def test_values_by_channel(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    """With the mask in float32, as llama.cpp has both together; lengths that are no whole blocks among them."""
    (q, k, v, mask), given = problem_with(shape, options)
    results = []
    for isa in ISAS:
        _core.isa_select(isa)
        for threads in (1, 2, 3):
            run = _core.AttentionRun()
            found, _ = run(q, k, by_channel(v), mask.astype(np.float32), threads=threads, v_by_channel=True, **given)
            results.append(found)
    np.testing.assert_allclose(results[0], oracle(q, k, v, mask, **given), atol=2e-6)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("shape", SHAPES)
def test_chosen_values_by_channel(shape: tuple[int, ...]) -> None:
    """The same choice as with values by position, and nearly the same sums; everything kept gives the exact bits."""
    q, k, v, mask = problem(*shape)
    some = {"mode": "ternary", "budget": 0.05, "recent": 2, "density": 0.9, "negligible": 0.01}
    wanted, chosen = _core.AttentionRun()(q, k, v, mask, scale=0.125, pack=some)
    for isa in ISAS:
        _core.isa_select(isa)
        exact, _ = _core.AttentionRun()(q, k, by_channel(v), mask, scale=0.125, v_by_channel=True)
        for threads in (1, 2, 3):
            given: dict[str, Any] = {"scale": 0.125, "threads": threads, "v_by_channel": True}
            found, done = _core.AttentionRun()(q, k, by_channel(v), mask, pack=some, **given)
            np.testing.assert_allclose(found, wanted, atol=2e-6)
            assert done == chosen
            everything = {"mode": "ternary", "budget": 1.0}
            kept, _ = _core.AttentionRun()(q, k, by_channel(v), mask, pack=everything, **given)
            np.testing.assert_array_equal(kept, exact)
            if isa == ISAS[0] and threads == 1:
                first = found
            np.testing.assert_array_equal(found, first)


def test_hidden_values_may_be_anything() -> None:
    """Values that do not count share a vector with some that do: what they are must not matter."""
    q, k, v, mask = problem(300, 9, 3, 64, 64)
    for isa in ISAS:
        _core.isa_select(isa)
        clean, _ = _core.AttentionRun()(q, k, by_channel(v), mask, v_by_channel=True)
        dirty = v.copy()
        dirty[np.isinf(mask)] = np.array([np.nan, np.inf, -np.inf, np.nan] * 16, np.float16)
        found, _ = _core.AttentionRun()(q, k, by_channel(dirty), mask, v_by_channel=True)
        assert np.isfinite(found).all()
        np.testing.assert_array_equal(found, clean)


@pytest.mark.parametrize("shape", [(300, 9, 3, 64, 64), (1, 4, 4, 32, 32), (513, 7, 1, 96, 96)])
def test_exact_with_q8_0(shape: tuple[int, ...]) -> None:
    """Keys, values or both as ggml's Q8_0: exactly attention over what the bytes stand for."""
    q, k, v, mask = problem(*shape)
    (k8, k_meant), (v8, v_meant) = q8_0(k), q8_0(v)
    for keys, values, k_of, v_of in ((k8, v8, k_meant, v_meant), (k8, v, k_meant, v), (k, v8, k, v_meant)):
        results = []
        for isa in ISAS:
            _core.isa_select(isa)
            results += [_core.AttentionRun()(q, keys, values, mask, scale=0.125, threads=n)[0] for n in (1, 2)]
        np.testing.assert_allclose(results[0], oracle(q, k_of, v_of, mask, scale=0.125), atol=2e-6)
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0])


def test_keys_of_q8_0_are_chosen() -> None:
    """The bits are those of the stored keys: the same choice as from the float16 keys that they stand for."""
    q, k, v, mask = problem(1000, 9, 3, 64, 64)
    whole = np.random.default_rng(1).integers(-127, 128, k.shape)
    whole[..., ::32] = 127  # of every block: its scale is 1/64, its values are float16 too
    k = (whole / 64).astype(np.float16)
    k8, meant = q8_0(k)
    np.testing.assert_array_equal(meant, k)
    settings = {"mode": "ternary", "budget": 0.1, "recent": 8}
    chosen, done = _core.AttentionRun()(q, k8, v, mask, scale=0.1, pack=settings)
    assert 0 < done["kept"] < 0.3 * done["visible"]
    halves, of_halves = _core.AttentionRun()(q, k, v, mask, scale=0.1, pack=settings)
    np.testing.assert_array_equal(chosen, halves)
    assert done == of_halves
    exact, _ = _core.AttentionRun()(q, k8, v, mask, scale=0.1)
    assert not np.array_equal(chosen, exact)
    everything, _ = _core.AttentionRun()(q, k8, v, mask, scale=0.1, pack={"mode": "ternary", "budget": 1.0})
    np.testing.assert_array_equal(everything, exact)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["binary", "ternary"])
@pytest.mark.parametrize("popcount", ["off", "on"])
def test_chosen_keys_are_the_same_everywhere(shape: tuple[int, ...], mode: str, popcount: str) -> None:
    q, k, v, mask = problem(*shape)
    settings = {
        "mode": mode, "popcount": popcount, "budget": 0.1, "mass": 0.9, "recent": 8, "density": 0.9,
        "negligible": 0.01, "gamma_chunk": 4,
    }  # fmt: skip
    results = []
    for isa in ISAS:
        _core.isa_select(isa)
        for threads in (1, 2, 3):
            results.append(_core.AttentionRun()(q, k, v, mask, threads=threads, scale=0.125, pack=settings))
    for out, done in results[1:]:
        np.testing.assert_array_equal(out, results[0][0])
        assert done == results[0][1]
    done = results[0][1]
    assert 0 < done["values"] <= done["kept"] <= done["visible"]
    assert done["scored"] > 0
    if shape[0] >= 300:
        assert done["kept"] < 0.4 * done["visible"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("settings", [{"budget": 1.0}, {"budget": 0.01, "density": 0.01}], ids=str)
def test_everything_kept_is_exact(shape: tuple[int, ...], settings: dict[str, float]) -> None:
    """Also when the choice is larger than the density allows (four sinks and the recent positions always are)."""
    q, k, v, mask = problem(*shape)
    exact, _ = _core.AttentionRun()(q, k, v, mask, scale=0.125)
    kept, done = _core.AttentionRun()(q, k, v, mask, scale=0.125, pack={"mode": "ternary", **settings})
    np.testing.assert_array_equal(kept, exact)
    assert done["kept"] == done["visible"] > 0


@pytest.mark.parametrize("refine", ["on", "off"])
def test_heads_of_their_own(refine: str) -> None:
    """An exact KV head has the result of exact attention, bit for bit; the others that of their own budgets."""
    q, k, v, mask = problem(1500, 9, 3, 64, 64)
    pack = {"mode": "ternary", "budget": 0.1, "recent": 8, "negligible": 0.01, "refine": refine}
    exact, _ = _core.AttentionRun()(q, k, v, mask, scale=0.125)
    tenth, all_alike = _core.AttentionRun()(q, k, v, mask, scale=0.125, pack=pack)
    third, _ = _core.AttentionRun()(q, k, v, mask, scale=0.125, pack=pack | {"budget": 0.3})
    own = pack | {"layers": "2.1=exact,2.2=ternary:0.3"}
    results = []
    for isa in ISAS:
        _core.isa_select(isa)
        for threads in (1, 2, 3, 5):
            results.append(_core.AttentionRun()(q, k, v, mask, scale=0.125, pack=own, threads=threads))
    out, done = results[0]
    np.testing.assert_array_equal(out[:3], tenth[:3])
    np.testing.assert_array_equal(out[3:6], exact[3:6])
    np.testing.assert_array_equal(out[6:], third[6:])
    assert not np.array_equal(tenth[3:], exact[3:])
    assert not np.array_equal(third[6:], tenth[6:])
    assert done["scored"] == all_alike["scored"] * 2 / 3
    assert done["kept"] > all_alike["kept"] + (~np.isinf(mask)).sum() * 0.8
    for again, _ in results[1:]:
        np.testing.assert_array_equal(again, out)
    alike = pack | {"budget": 0.5, "layers": "2.0-2=ternary:0.1"}
    np.testing.assert_array_equal(_core.AttentionRun()(q, k, v, mask, scale=0.125, pack=alike)[0], tenth)
    most = pack | {"layers": "2.0-1=exact,2.2=ternary:1"}
    all_exact, done = _core.AttentionRun()(q, k, v, mask, scale=0.125, pack=most, compare=True)
    np.testing.assert_array_equal(all_exact, exact)
    assert done["kept"] == done["visible"] > 0
    if refine == "on":
        assert (done["gap"], done["scored"]) == (0, 0)
    with pytest.raises(ValueError, match="no KV head 3"):
        _core.AttentionRun()(q, k, v, mask, pack=pack | {"layers": "2.3=exact"})


def test_the_best_keys_are_found() -> None:
    """A few keys that look like the query own the softmax; they are among the quarter that is kept."""
    q, k, v, mask = problem(2048, 4, 2, 64, 64)
    mask[:] = 0
    for head in range(2):
        k[700 + 300 * head, head] = 2 * q[2 * head]
        k[800 + 300 * head, head] = 2 * q[2 * head + 1]
    for mode in ("binary", "ternary"):
        for popcount in ("off", "on"):
            settings = {"mode": mode, "popcount": popcount}
            _, done = _core.AttentionRun()(q, k, v, mask, scale=0.5, pack=settings, compare=True)
            assert done["recall"] > 0.99
            assert done["gap"] < 0.05


def test_compare_gives_the_exact_result() -> None:
    q, k, v, mask = problem(600, 6, 3, 32, 32)
    exact, _ = _core.AttentionRun()(q, k, v, mask, scale=0.2)
    settings = {"mode": "binary", "budget": 0.05, "recent": 4}
    chosen, _ = _core.AttentionRun()(q, k, v, mask, scale=0.2, pack=settings)
    compared, done = _core.AttentionRun()(q, k, v, mask, scale=0.2, pack=settings, compare=True)
    np.testing.assert_array_equal(compared, exact)
    error = np.linalg.norm(chosen.astype(np.float64) - exact) / np.linalg.norm(exact.astype(np.float64))
    assert done["gap"] == pytest.approx(error, rel=1e-5)
    assert 0.05 < done["recall"] < 0.9


def test_score_by_bits_in_the_softmax() -> None:
    """Without refining, the result is that of the estimates: near the exact one for keys of equal magnitude."""
    rng = np.random.default_rng(3)
    q, k, v, mask = problem(512, 4, 2, 64, 64)
    k = np.sign(rng.normal(size=k.shape)).astype(np.float16)
    for settings, least in (({}, 0.05), ({"popcount": "on"}, 0.6)):
        pack = {"mode": "binary", "refine": "off", "budget": 1.0, **settings}
        _, done = _core.AttentionRun()(q, k, v, mask, scale=0.125, pack=pack, compare=True)
        assert 0 < done["gap"] < least


def test_negligible_values_are_left_out() -> None:
    q, k, v, mask = problem(1000, 4, 2, 64, 64)
    run = _core.AttentionRun()
    exact, _ = run(q, k, v, mask, scale=1.0)
    some, done = run(q, k, v, mask, scale=1.0, pack={"mode": "binary", "budget": 1.0, "negligible": 1e-4})
    assert done["values"] < done["kept"]
    np.testing.assert_allclose(some, exact, atol=5e-3)


def test_changed_keys_are_noticed() -> None:
    """Keys that somebody wrote without telling: the audit finds it, the result is exact, the next one is right."""
    q, k, v, mask = problem(256, 4, 2, 32, 32)
    settings = {"mode": "binary", "budget": 0.1, "recent": 8}
    run = _core.AttentionRun()
    _, done = run(q, k, v, mask, scale=0.2, pack=settings)
    assert not done["stale"]
    k = problem(256, 4, 2, 32, 32, seed=5)[1]
    result, done = run(q, k, v, mask, scale=0.2, pack=settings)
    assert done["stale"]
    np.testing.assert_array_equal(result, _core.AttentionRun()(q, k, v, mask, scale=0.2)[0])
    again, done = run(q, k, v, mask, scale=0.2, pack=settings)
    assert not done["stale"]
    np.testing.assert_array_equal(again, _core.AttentionRun()(q, k, v, mask, scale=0.2, pack=settings)[0])


def test_larger_heads_than_before() -> None:
    """Bits of a smaller cache have no room for the next one's."""
    run = _core.AttentionRun()
    settings = {"mode": "ternary", "budget": 0.1, "recent": 8}
    run(*problem(64, 2, 1, 16, 16), scale=0.2, pack=settings)
    larger = problem(64, 8, 4, 64, 32)
    again, _ = run(*larger, scale=0.2, pack=settings)
    np.testing.assert_array_equal(again, _core.AttentionRun()(*larger, scale=0.2, pack=settings)[0])


def test_a_budget_without_end_keeps_all() -> None:
    given = problem(300, 4, 2, 32, 32)
    kept, done = _core.AttentionRun()(*given, scale=0.2, pack={"mode": "binary", "budget": 1e30})
    assert done["kept"] == done["visible"]
    np.testing.assert_array_equal(kept, _core.AttentionRun()(*given, scale=0.2)[0])


@pytest.mark.parametrize("size", [np.nan, np.inf, 1e-44])
def test_queries_that_six_bits_cannot_hold(size: float) -> None:
    """All keys look alike then; what is kept is still some of them, and the same everywhere."""
    q, k, v, mask = problem(300, 4, 2, 32, 32)
    q[:, 3] = size
    q[:, 4:] *= np.float32(1e-44)
    results = []
    for isa in ISAS:
        _core.isa_select(isa)
        out, done = _core.AttentionRun()(
            q, k, v, mask, scale=0.2, pack={"mode": "binary", "budget": 0.2, "density": 1.0}
        )
        results.append(out)
        assert 0 < done["kept"] <= done["visible"]
        np.testing.assert_array_equal(results[0], out)


def test_bad_arguments() -> None:
    q, k, v, mask = problem(64, 4, 2, 32, 32)
    run = _core.AttentionRun()
    with pytest.raises(ValueError, match="mode=both"):
        run(q, k, v, mask, pack={"mode": "both"})
    with pytest.raises(ValueError, match="budget=0: must be above 0"):
        run(q, k, v, mask, pack={"mode": "binary", "budget": 0})
    with pytest.raises(ValueError, match="k has dtype"):
        run(q, k.astype(np.float32), v, mask)
    with pytest.raises(ValueError, match="mask has"):
        run(q, k, v, mask[:-1])
    with pytest.raises(ValueError, match="k has shape"):
        run(q, k.view(np.uint8), v, mask)
    with pytest.raises(ValueError, match="v has"):
        run(q, k, v, mask, v_by_channel=True)
    with pytest.raises(ValueError, match="multiple of the KV heads"):
        run(q[:3], k, v, mask)
