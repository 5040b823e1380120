"""The tables of markdown_tables.py that are about the code: kernels, models that no cache holds, encoders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from result_tables import label, load, table

_LANES = (
    ("AVX-512, Zen 4", "lanes"),
    ("AVX-512, Xeon", "lanes-xeon"),
    ("AVX2, Xeon", "lanes-avx2-xeon"),
    ("SSSE3, Xeon", "lanes-ssse3"),
)
_LANES_SHAPE, _LANES_BITS, _LANES_TYPES = "8192x4096", (6, 5, 4, 3, 2, 1), ("Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K")
_LAYERS = {"qwen3-4b": 36, "llama-3.1-8b": 32, "qwen3-30b-a3b": 48}
_SHAPES = (
    ("Zen 4, AVX-512", "decode-1b"),
    ("Zen 4, AVX2", "decode-1b-avx2"),
    ("Xeon, AVX-512 and AMX", "decode-1b-xeon"),
)


def _linked(what: str, name: str) -> str:
    return f"[{what}](../../benchmarks/results/{name}.json)"


def lanes_table() -> list[str]:
    """Speed of the kernels of one token by instruction set: byte lanes and llama.cpp's types, at falling bits."""
    ours = f"SeedΔ, {' / '.join(map(str, _LANES_BITS))} bits"

    def cells(what: str, name: str) -> Iterator[str]:
        products = load(name)["shapes"][_LANES_SHAPE]
        yield _linked(what, name)
        for names in ([f"lanes-{bits}" for bits in _LANES_BITS], _LANES_TYPES):
            yield " / ".join(f"{products[name]['median']:.0f}" for name in names)

    return table(("", ours, " / ".join(_LANES_TYPES)), (list(cells(*file)) for file in _LANES))


def shape_table() -> list[str]:
    """A model of random weights that no cache holds: tokens per second with 1 / 2 threads, on several machines."""
    results = {what: load(name)["models"] for what, name in _SHAPES}

    def speed(model: dict[str, Any] | None, part: str) -> str:
        rows = () if model is None else (row for row in model["speed"] if row["depth"] == 0)
        return " / ".join(f"{row[part]['median']:.0f}" for row in rows)

    def lines() -> Iterator[Sequence[str]]:
        for key, model in next(iter(results.values())).items():
            measured = [speed(found.get(key), part) for found in results.values() for part in ("prompt", "generation")]
            shown = label(key, {f"seeddelta-{bits}": f"SeedΔ, {bits} bits" for bits in _LANES_BITS})
            yield shown, f"{model['file_bytes'] / 1e6:.0f}", *measured

    machines = [head for what, name in _SHAPES for head in (f"{_linked(what, name)}: prompt", "generation")]
    return table(("", "file, MB", *machines), lines())


def encode_table() -> list[str]:
    """Speed of the encoders, feedback included, and the error that they leave."""
    rows = load("encode")["rows"]
    names = {"lanes, fast": "**byte lanes, `fast`**", "lanes": "**byte lanes, `normal`**",
             "lanes, high": "**byte lanes, `high`**"}  # fmt: skip

    def lines() -> Iterator[Sequence[str]]:
        for code in dict.fromkeys(row["code"] for row in rows):
            own = [row for row in rows if row["code"] == code]
            yield (
                names[code],
                " / ".join(f"{row['weights_per_second'] / 1e6:.2f}" for row in own),
                f"{own[0]['error']:.3f}",
            )

    return table(("", "million weights per second, 1 / 2 threads", "squared error of the outputs"), lines())


_MODELS = (
    ("1B", "llama-3.2-1b", None),
    ("4B", "qwen3-4b", "quantize-qwen3-4b"),
    ("8B", "llama-3.1-8b", "quantize-llama-3.1-8b-block"),
    ("30B-A3B", "qwen3-30b-a3b", "quantize-qwen3-30b-a3b"),
)


def _hours(name: str, quality: str) -> float:
    """Of a whole model: what was measured, which is `fast`; of `normal` with the time of its search."""
    result, rows = load(name), load("encode")["rows"]
    speeds = {row["code"]: row["weights_per_second"] for row in rows if row["threads"] == 2}
    slower = {"fast": 1.0, "normal": speeds["lanes, fast"] / speeds["lanes"]}[quality] - 1
    head = result["stages"].get("encode embedding and head", {"seconds": 0.0})["seconds"]
    layers = result["stages"]["encode"]["seconds"] * _LAYERS[result["options"]["shape"]] / result["options"]["blocks"]
    return float(result["whole_hours"] + slower * (layers + head) / 3600)


def costs_table() -> list[str]:
    """What a conversion to 4 bits takes, by the size of the model and the quality."""
    shapes = load("costs")["shapes"]

    def lines() -> Iterator[Sequence[str]]:
        for model, shape, measured in _MODELS:
            fast, normal, best = (shapes[shape][quality] for quality in ("fast", "normal", "best"))
            assert fast == normal  # the search takes time alone
            hours = ("" if measured is None else f"{_hours(measured, quality):.1f}" for quality in ("fast", "normal"))
            sizes = (f"{found[key] / 1e9:.1f}" for key in ("memory", "disk") for found in (normal, best))
            yield f"{model} ({shape})", f"{normal['file'] / 1e9:.1f}", *hours, *sizes

    memory, disk = "memory, GB", "temporary files, GB"
    hours = ("hours, `fast`", "hours, `normal`")
    sizes = (f"{what}, {quality}" for what in (memory, disk) for quality in ("`fast` and `normal`", "`best`"))
    return table(("model", "file, GB", *hours, *sizes), lines())


def lanes_batch_table() -> list[str]:
    """Time of one product of several tokens over that of a single one's."""
    files = (
        ("AMX, Xeon", "lanes-batch-amx-xeon"),
        ("AVX-512, Xeon", "lanes-batch-xeon"),
        ("AVX-512, EPYC", "lanes-batch"),
        ("AVX2, Xeon", "lanes-batch-avx2-xeon"),
        ("AVX2, EPYC", "lanes-batch-avx2"),
    )

    def cells(what: str, name: str) -> Iterator[str]:
        yield _linked(what, name)
        for products in load(name)["shapes"].values():
            speed = {tokens: products[f"lanes, tokens {tokens}"]["median"] for tokens in (1, 2, 4, 8)}
            yield " / ".join(f"{speed[1] / speed[tokens]:.2f}" for tokens in (2, 4, 8))

    heads = ("", *load(files[0][1])["shapes"])
    return table(heads, (list(cells(*file)) for file in files))


TABLES: dict[str, Callable[[], list[str]]] = {
    "costs": costs_table,
    "encode": encode_table,
    "lanes": lanes_table,
    "lanes-batch": lanes_batch_table,
    "shape-1b": shape_table,
}
