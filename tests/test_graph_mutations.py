"""Nodes with a field that is not as llama.cpp makes it: computed as the fields say, or refused by name; never wrong."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from ggml_graph import F16, F32, I32, Graph
from seeddelta import _core

pytest.importorskip("llama_cpp")

from seeddelta.runtime import library

N_OUT, N_IN, TOKENS, EXPERTS, USED, HEADS, DIM, POSITIONS = 40, 128, 6, 3, 2, 4, 32, 256
SLACK = 1 << 16  # bytes behind the data of a tensor that a longer stride may reach
I64, Q8_0, F64, Q4_0 = 27, 8, 28, 2


@dataclass
class Subject:
    """A node, its sources, and what its fields say that it computes; None: they say nothing that is defined."""

    graph: Graph
    node: int
    sources: list[int]
    expected: Callable[[], np.ndarray[Any, Any] | None]
    keep: list[Any]


class Fields:
    def __init__(self) -> None:
        self.at = library.loaded_ggml().layout()

    def get(self, tensor: int, field: str, index: int = 0) -> int:
        kind = ctypes.c_int32 if field in ("type", "op") else ctypes.c_int64
        return int(kind.from_address(tensor + self.at[field] + ctypes.sizeof(kind) * index).value)

    def set(self, tensor: int, field: str, index: int, value: int) -> None:
        kind = ctypes.c_int32 if field in ("type", "op") else ctypes.c_int64
        kind.from_address(tensor + self.at[field] + ctypes.sizeof(kind) * index).value = value

    def shape(self, tensor: int) -> list[int]:
        return [self.get(tensor, "ne", i) for i in range(4)]

    def array(self, tensor: int, dtype: str = "<f4") -> np.ndarray[Any, Any] | None:
        """The tensor's values by its sizes and strides, ggml's dimensions last to first; None for what is no array."""
        sizes = self.shape(tensor)
        strides = [self.get(tensor, "nb", i) if n != 1 else 0 for i, n in enumerate(sizes)]
        if min(sizes) < 1 or min(strides) < 0 or sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) > SLACK:
            return None
        raw = (ctypes.c_uint8 * (SLACK + 8)).from_address(self.get(tensor, "data"))
        return np.ndarray(sizes[::-1], dtype, buffer=raw, strides=strides[::-1])


FIELDS = Fields()


def roomy(graph: Graph, tensor: ctypes.c_void_p, keep: list[Any], values: np.ndarray[Any, Any] | None) -> int:
    """The tensor with its data in memory of its own that longer strides do not leave."""
    room = np.zeros(2 * SLACK, np.uint8)
    if values is not None:
        flat = np.resize(values.astype(values.dtype, copy=False).reshape(-1), 2 * SLACK // values.itemsize)
        room[:] = flat.view(np.uint8)
    keep.append(room)
    assert tensor.value is not None
    FIELDS.set(tensor.value, "data", 0, room.ctypes.data)
    return tensor.value


def product(rng: np.random.Generator, matrix: np.ndarray[Any, Any]) -> Subject:
    graph, keep = Graph(), []
    w = graph.tensor(F16, N_IN, N_OUT, name="w")
    x = graph.tensor(F32, N_IN, TOKENS)
    node = graph.op("mul_mat", w, x)
    roomy(graph, x, keep, rng.normal(size=(TOKENS, N_IN)).astype(np.float32))
    roomy(graph, node, keep, None)

    def expected() -> np.ndarray[Any, Any] | None:
        inputs = FIELDS.array(x.value or 0)
        return None if inputs is None else inputs @ matrix.T

    return Subject(graph, node.value or 0, [w.value or 0, x.value or 0], expected, keep)


def lookup(rng: np.random.Generator, matrix: np.ndarray[Any, Any]) -> Subject:
    graph, keep = Graph(), []
    w = graph.tensor(F16, N_IN, N_OUT, name="w")
    ids = graph.tensor(I32, TOKENS)
    node = graph.op("get_rows", w, ids)
    roomy(graph, ids, keep, rng.integers(0, N_OUT, SLACK).astype(np.int32))
    roomy(graph, node, keep, None)

    def expected() -> np.ndarray[Any, Any] | None:
        rows = FIELDS.array(ids.value or 0, "<i4")
        return None if rows is None else matrix[rows.reshape(-1)][None, None]

    return Subject(graph, node.value or 0, [w.value or 0, ids.value or 0], expected, keep)


def experts(rng: np.random.Generator, matrix: np.ndarray[Any, Any]) -> Subject:
    graph, keep = Graph(), []
    w = graph.tensor(F16, N_IN, N_OUT, EXPERTS, name="experts")
    x = graph.tensor(F32, N_IN, 1, TOKENS)
    ids = graph.tensor(I32, USED, TOKENS)
    node = graph.op("mul_mat_id", w, x, ids)
    roomy(graph, x, keep, rng.normal(size=(TOKENS, N_IN)).astype(np.float32))
    roomy(graph, ids, keep, rng.integers(0, EXPERTS, SLACK).astype(np.int32))
    roomy(graph, node, keep, None)

    def expected() -> np.ndarray[Any, Any] | None:
        inputs, chosen = FIELDS.array(x.value or 0), FIELDS.array(ids.value or 0, "<i4")
        if inputs is None or chosen is None:
            return None
        tokens, used = chosen.shape[2], chosen.shape[3]
        slots = inputs[0][:, np.arange(used) % inputs.shape[2]]
        y = np.einsum("tsi,tsoi->tso", slots[:tokens], matrix[chosen[0, 0]])
        return y[None]

    return Subject(graph, node.value or 0, [w.value or 0, x.value or 0, ids.value or 0], expected, keep)


def mutate(rng: np.random.Generator, subject: Subject) -> str:
    """One change of the node or of a source. Returns what it was."""
    at = FIELDS.at
    tensors = [subject.node, *subject.sources]
    kind = rng.choice(["parameter", "source", "swap", "type", "ne", "nb", "none"])
    if kind == "parameter":
        where = at["op"] + 4 + 4 * int(rng.integers((at["src"] - at["op"] - 4) // 4))
        value = int(rng.choice([1, 2, 10, -1, 0x3F800000, int(rng.integers(1 << 31))]))
        ctypes.c_int32.from_address(subject.node + where).value = value
        return f"parameter at {where - at['op']} is {value}"
    if kind == "source":
        slot = int(rng.integers(len(subject.sources), 10))
        FIELDS.set(subject.node, "src", slot, int(rng.choice(subject.sources)))
        return f"source {slot}"
    if kind == "swap":
        slot = int(rng.integers(1, len(subject.sources)))
        FIELDS.set(subject.node, "src", slot, int(rng.choice([*subject.sources, 0])))
        return f"source {slot} is another one"
    tensor = int(rng.integers(len(tensors)))
    if kind == "type":
        value = int(rng.choice([F32, F16, I32, I64, Q8_0, F64, Q4_0]))
        FIELDS.set(tensors[tensor], "type", 0, value)
        return f"type {value} of {tensor}"
    if kind == "none":
        return "nothing"
    index = int(rng.integers(4))
    old = FIELDS.get(tensors[tensor], kind, index)
    value = int(rng.choice([old + 4, old * 2, old - 1, 0, 1, 4, old + 64, -old]))
    FIELDS.set(tensors[tensor], kind, index, value)
    return f"{kind}[{index}] of {tensor}: {value} for {old}"


SUBJECTS = {"product": product, "lookup": lookup, "experts": experts}


def weights() -> tuple[list[_core.Weight], dict[str, np.ndarray[Any, Any]]]:
    rng = np.random.default_rng(3)
    rows = rng.uniform(0.5, 1.5, N_OUT).astype(np.float16)
    single = _core.Weight("w", N_OUT, N_IN, base_kind=0, base_scale=0.01, arrays={"row_scale": rows})
    index = np.sort(
        rng.permuted(np.tile(np.arange(N_IN, dtype=np.uint16), (N_OUT * EXPERTS, 1)), axis=1)[:, :8], axis=1
    )
    arrays = {"row_scale": np.ones(N_OUT * EXPERTS, np.float16), "d_idx": index}
    arrays |= {"d_val": rng.normal(size=index.shape).astype(np.float16)}
    many = _core.Weight("experts", N_OUT, N_IN, n_experts=EXPERTS, base_kind=255, arrays=arrays)
    dense = many.dequantize().reshape(EXPERTS, N_OUT, N_IN)
    return [single, many], {"product": single.dequantize(), "lookup": single.dequantize(), "experts": dense}


def campaign(name: str, rounds: int, seed: int) -> dict[str, int]:
    """Counts of what was computed right, refused and left to ggml (its first source is no weight of ours any more)."""
    made, dense = weights()
    registry = _core.WeightRegistry(library.loaded_ggml())
    for weight in made:
        registry.add(weight)
    rng, seen = np.random.default_rng(seed), {"right": 0, "refused": 0}
    custom = FIELDS.at["op_custom"]
    for number in range(rounds):
        hook = _core.GraphHook(registry)
        subject = SUBJECTS[name](rng, dense[name])
        what = f"{name} {number} of seed {seed}: " + " and ".join(
            mutate(rng, subject) for _ in range(int(rng.integers(1, 3)))
        )
        callback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)(hook.callback)
        callback(subject.node, True, hook.user_data)
        error = hook.take_error()
        if error is not None:
            seen["refused"] += 1
            assert "node" in error[2], what
        else:
            assert FIELDS.get(subject.node, "op") == custom, f"{what}: neither changed nor refused"
            lib = library.native_library()
            graph = ctypes.c_void_p(lib.ggml_new_graph(subject.graph._context))
            lib.ggml_build_forward_expand(graph, ctypes.c_void_p(subject.node))
            assert lib.ggml_graph_compute_with_ctx(subject.graph._context, graph, 2) == 0
            if hook.take_error() is not None:
                seen["refused"] += 1
                subject.graph.close()
                continue
            found, expected = FIELDS.array(subject.node), subject.expected()
            if expected is None or found is None:
                assert 0 in FIELDS.shape(subject.node), what
            else:
                assert found.shape == expected.shape, what
                np.testing.assert_allclose(found, expected, atol=0.03 * np.abs(expected).max(), err_msg=what)
                seen["right"] += 1
        subject.graph.close()
    return seen


@pytest.mark.parametrize("name", SUBJECTS)
def test_nodes_are_computed_right_or_refused(name: str) -> None:
    seen = campaign(name, 70, seed=1)
    assert seen["right"] > 5
    assert seen["refused"] > 30


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_nodes_are_computed_right_or_refused(name: str, seed: int) -> None:
    campaign(name, 70, seed)


def plain_hook() -> tuple[_core.GraphHook, Graph, ctypes.c_void_p, ctypes.c_void_p]:
    made, _ = weights()
    registry = _core.WeightRegistry(library.loaded_ggml())
    registry.add(made[0])
    graph = Graph()
    x = graph.tensor(F32, N_IN, TOKENS, data=np.ones((TOKENS, N_IN), np.float32))
    return _core.GraphHook(registry), graph, graph.tensor(F16, N_IN, N_OUT, name="w"), x


def shown(hook: _core.GraphHook, node: ctypes.c_void_p) -> tuple[str, str, str] | None:
    callback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)(hook.callback)
    callback(node, True, hook.user_data)
    return hook.take_error()


def test_a_refusal_names_node_and_field() -> None:
    hook, graph, w, x = plain_hook()
    node = graph.op("mul_mat", w, x)
    ctypes.c_int32.from_address((node.value or 0) + FIELDS.at["op_params"] + 8).value = 1
    library.native_library().ggml_set_name(node, b"ffn_up-7")
    kind, tensor, text = shown(hook, node) or ("", "", "")
    assert (kind, tensor) == ("layout", "w")
    assert text == "tensor 'w' has parameters that are not known (byte 8), node 'ffn_up-7'"
    other = graph.op("mul_mat", w, x)
    FIELDS.set(other.value or 0, "src", 4, x.value or 0)
    assert "has a source that is not known (number 4)" in (shown(hook, other) or ("", "", ""))[2]


def test_a_precision_is_known() -> None:
    hook, graph, w, x = plain_hook()
    node = graph.op("mul_mat", w, x)
    library.native_library().ggml_mul_mat_set_prec(node, 10)
    assert shown(hook, node) is None
    assert FIELDS.get(node.value or 0, "op") == FIELDS.at["op_custom"]
    node = graph.op("mul_mat", w, x)
    library.native_library().ggml_mul_mat_set_prec(node, 11)
    assert "unknown precision (11)" in (shown(hook, node) or ("", "", ""))[2]


@pytest.mark.parametrize("of", ["input", "result"])
@pytest.mark.parametrize(("axis", "gap"), [(2, 0), (2, 4 * N_IN), (2, -4 * N_IN), (3, 4 * N_IN), (3, -4 * N_IN)])
def test_streams_that_do_not_follow_each_other_are_refused(of: str, axis: int, gap: int) -> None:
    hook, graph, w, _ = plain_hook()
    sizes = (TOKENS, 2, 1) if axis == 2 else (TOKENS, 1, 2)
    x = graph.tensor(F32, N_IN, *sizes)
    node = graph.op("mul_mat", w, x)
    changed = (x if of == "input" else node).value or 0
    FIELDS.set(changed, "nb", axis, FIELDS.get(changed, "nb", axis) + gap)
    error = shown(hook, node)
    if gap == 0:
        assert error is None
        assert FIELDS.get(node.value or 0, "op") == FIELDS.at["op_custom"]
    else:
        assert error is not None
        assert error[:2] == ("layout", "w")


def test_an_input_that_is_overwritten_between_two_products() -> None:
    """The second one must not take the activations of the first, though both read the same tensor."""
    made, dense = weights()
    registry = _core.WeightRegistry(library.loaded_ggml())
    registry.add(made[0])
    hook, graph = _core.GraphHook(registry), Graph()
    values = np.random.default_rng(4).normal(size=(TOKENS, N_IN)).astype(np.float32)
    w, x = graph.tensor(F16, N_IN, N_OUT, name="w"), graph.tensor(F32, N_IN, TOKENS, data=values)
    first = graph.op("mul_mat", w, x)
    doubled = graph.op("add_inplace", x, x)
    second, third = graph.op("mul_mat", w, x), graph.op("mul_mat", w, x)
    graph.compute(hook, first, doubled, second, third)
    assert hook.take_error() is None
    expected = values @ dense["product"].T
    for node, factor in ((first, 1), (second, 2), (third, 2)):
        found = graph.array(node, F32, N_OUT, TOKENS)
        np.testing.assert_allclose(found, factor * expected, atol=0.03 * np.abs(expected).max())
    assert hook.counters()["w"]["reused"] == 1  # the third one takes those of the second
    graph.close()


@pytest.mark.parametrize("where", ["the weight", "a view of it", "third source"])
def test_a_hole_in_another_place(where: str) -> None:
    """ggml would compute with it: as a part of it, or as the second matrix."""
    hook, graph, w, x = plain_hook()
    if where == "the weight":
        node = graph.op("mul_mat", x, w)
    elif where == "a view of it":
        part = graph.view(w, N_IN, 8, 2 * N_IN, 0)
        shown(hook, part)  # the view itself is seen first
        node = graph.op("mul_mat", part, x)
    else:
        node = graph.op("add", x, x)
        FIELDS.set(node.value or 0, "src", 2, w.value or 0)
    kind, tensor, detail = shown(hook, node) or ("", "", "")
    assert (kind, tensor) == ("not_served", "w")
    assert "node '" in detail


@pytest.mark.parametrize("hole", [False, True])
def test_a_custom_operation_of_somebody_else(hole: bool) -> None:
    """No node of ours, whatever its user data: it computes as it did, and what it does with a weight is refused."""
    hook, graph, w, x = plain_hook()
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    seen = []
    theirs = signature(lambda dst, ith, nth, data: seen.append(data))
    lib: Any = library.native_library()
    lib.ggml_custom_4d.restype = ctypes.c_void_p
    sources = (ctypes.c_void_p * 1)(w.value if hole else x.value)
    sizes = [ctypes.c_int64(n) for n in (N_OUT, TOKENS, 1, 1)]
    for data in (0, hook.user_data):
        made = lib.ggml_custom_4d(
            graph._context, F32, *sizes, sources, 1, theirs, 1, ctypes.c_void_p(data)
        )  # fmt: skip
        node = ctypes.c_void_p(made)
        raw = (ctypes.c_uint8 * 256).from_address(made)
        before = bytes(raw)
        error = shown(hook, node)
        assert bytes(raw) == before
        assert (error or ("", "", ""))[:2] == (("not_served", "w") if hole else ("", ""))
        if not hole:
            plan = ctypes.c_void_p(lib.ggml_new_graph(graph._context))
            lib.ggml_build_forward_expand(plan, node)
            assert lib.ggml_graph_compute_with_ctx(graph._context, plan, 1) == 0
    assert seen == ([] if hole else [None, hook.user_data])


def test_attention_with_fields_that_are_not_known_is_left_to_ggml() -> None:
    rng = np.random.default_rng(5)
    half = rng.normal(size=(2, POSITIONS, DIM)).astype(np.float16).view(np.uint16)
    lib: Any = library.native_library()
    lib.ggml_flash_attn_ext.restype = ctypes.c_void_p
    for offset, value, ours in ((0, 0, True), (12, 10, True), (12, 3, False), (16, 1, False), (60, 7, False)):
        hook = _core.GraphHook(_core.WeightRegistry(library.loaded_ggml()))
        _core.OwnAttention(library.loaded_ggml(), _core.Options({"attention": b"exact"})).take_over(hook)
        results = []
        for hooked in (True, False):
            graph = Graph()
            q = graph.tensor(F32, DIM, 1, HEADS, data=np.linspace(-1, 1, HEADS * DIM, dtype=np.float32))
            k, v = (graph.tensor(F16, DIM, POSITIONS, 2, data=half) for _ in range(2))
            mask = graph.tensor(F16, POSITIONS, 64, data=np.zeros((64, POSITIONS), np.uint16))
            floats = ctypes.c_float(0.2), ctypes.c_float(0), ctypes.c_float(0)
            node = ctypes.c_void_p(lib.ggml_flash_attn_ext(graph._context, q, k, v, mask, *floats))
            if offset:
                ctypes.c_int32.from_address((node.value or 0) + FIELDS.at["op_params"] + offset).value = value
            if hooked:
                shown(hook, node)
                assert (FIELDS.get(node.value or 0, "op") == FIELDS.at["op_custom"]) == ours, (offset, value)
            if offset in (0, 12) and value in (0, 10):
                plan = ctypes.c_void_p(lib.ggml_new_graph(graph._context))
                lib.ggml_build_forward_expand(plan, node)
                assert lib.ggml_graph_compute_with_ctx(graph._context, plan, 1) == 0
                results.append(graph.array(node, F32, DIM, HEADS).copy())
            graph.close()
        if results:
            np.testing.assert_allclose(results[0], results[1], atol=2e-3)
        assert _core.metrics(None, hook)["attention.left"] == (0 if ours else 1)
