"""The tables of markdown_tables.py that are about the code: kernels, a token's parts, encoders, conversion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import common
from result_tables import load, table


def lanes_table(result: str) -> list[str]:
    """Speed of the kernels of one token: byte lanes and llama.cpp's types, at falling bits."""
    shapes = load(result)["shapes"]

    def kind(name: str) -> str:
        return name.partition("-")[0] if "-" in name else "types"

    kinds = {one: [name for name in next(iter(shapes.values())) if kind(name) == one] for one in ("lanes", "types")}
    heads = [
        f"{word}{' / '.join(name.rpartition('-')[2] for name in kinds[one])}{' bits' if one != 'types' else ''}"
        for one, word in (("lanes", "lanes, "), ("types", ""))
    ]

    def lines() -> Iterator[Sequence[str]]:
        for shape, products in shapes.items():
            rates = (" / ".join(f"{products[name]['median']:.1f}" for name in names) for names in kinds.values())
            yield shape.replace("x", "×"), *rates

    return table(("outputs × inputs", *heads), lines())


def profile_table() -> list[str]:
    """Milliseconds of a token by parts of the program, with one and two threads."""
    results = {"SmolLM2": load("profile")["rows"], "1B shape": load("profile-1b")["rows"]}
    columns = {shape: [row for row in rows if row["model"] == "seeddelta-4"] for shape, rows in results.items()}

    def lines() -> Iterator[Sequence[str]]:
        for part in ("all", *results["SmolLM2"][0]["parts"]):
            cells = (
                " / ".join(f"{row['ms'] if part == 'all' else row['parts'][part]:.2f}" for row in rows)
                for rows in columns.values()
            )
            yield part, *cells

    return table(("ms, 1 / 2 threads", *columns), lines())


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


def convert_table() -> list[str]:
    """Conversion of large models: seconds a block, memory, disk, and the whole model."""
    heads = (
        "shape", "CPU", "blocks run", "text and covariances, s a block", "over their bounds", "factors, s",
        "encoding, s", "embedding and head, s", "memory, GB", "disk, GB",
        "whole model, h", "loaded in, s", "memory loaded, MB",
    )  # fmt: skip

    def cells(name: str) -> Iterator[str]:
        result = load(name)
        stages, blocks = result["stages"], result["options"]["blocks"]
        yield f"[{result['options']['shape']}](../../benchmarks/results/{name}.json)"
        yield from (result["machine"]["cpu"].replace("(R)", "").removesuffix(" Processor"), str(blocks))
        yield from (f"{result['measure_block_seconds']:.0f}", f"{result['over_bounds']:.2f}")
        yield from (f"{stages[stage]['seconds'] / blocks:.0f}" for stage in ("factor", "encode"))
        head = stages.get("encode embedding and head")
        yield "" if head is None else f"{head['seconds']:.0f}"
        yield f"{max(stage['anonymous'] for stage in stages.values()) / 1e9:.2f}"
        yield from (f"{result['disk']['measured'] / 1e9:.2f}", f"{result['whole_hours']:.1f}" if head else "")
        loaded = result.get("loaded", [])  # of a file with embedding and head
        yield " / ".join(f"{one['seconds']:.1f}" for one in loaded)
        yield f"{max(one['anon'] for one in loaded) / 1e6:.0f}" if loaded else ""

    return table(heads, (list(cells(path.stem)) for path in sorted(common.RESULTS.glob("quantize-*.json"))))


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
        yield f"[{what}](../../benchmarks/results/{name}.json)"
        for products in load(name)["shapes"].values():
            speed = {tokens: products[f"lanes, tokens {tokens}"]["median"] for tokens in (1, 2, 4, 8)}
            yield " / ".join(f"{speed[1] / speed[tokens]:.2f}" for tokens in (2, 4, 8))

    heads = ("", *load(files[0][1])["shapes"])
    return table(heads, (list(cells(*file)) for file in files))


TABLES: dict[str, Callable[[], list[str]]] = {
    "convert": convert_table,
    "encode": encode_table,
    "profile": profile_table,
    "lanes": lambda: lanes_table("lanes"),
    "lanes-xeon": lambda: lanes_table("lanes-xeon"),
    "lanes-avx2-xeon": lambda: lanes_table("lanes-avx2-xeon"),
    "lanes-batch": lanes_batch_table,
    "lanes-ssse3": lambda: lanes_table("lanes-ssse3"),
}
