"""Writes the tables of results in README.md and docs/, and the figure.

    python benchmarks/markdown_tables.py

A table between `<!-- table: NAME -->` and `<!-- end of table -->` in README.md or docs/ is made of the files of
`benchmarks/results`; tests/test_docs.py fails when one differs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import code_tables
import model_tables
import skipping_tables
from result_tables import divergence, label, load, medians, over, table, with_error

ROOT = Path(__file__).parents[1]
FIGURE = ROOT / "docs" / "figures" / "size-quality.png"
_MARKED = re.compile(r"(<!-- table: ([a-z0-9-]+) -->\n).*?(<!-- end of table -->)", flags=re.DOTALL)
_TEXTS = {"test.txt": "WikiText-2", "pydoc-3.11.txt": "Python's help", "asyncio-3.11.py.txt": "code"}
_NAMES = {
    "small": "SeedΔ, `--preset small`",
    "balanced": "SeedΔ, `--preset balanced`",
    "large": "SeedΔ, `--preset large`",
    "lanes-4": "SeedΔ, 4 bits",
    "lanes-4-sequential": "SeedΔ, 4 bits, sequential calibration and gradients",
    "lanes-4-mixed": "SeedΔ, 4 bits",
    "lanes-4-mixed-sequential": "SeedΔ, 4 bits, sequential calibration and gradients",
    "mixed-4.4-sequential": "SeedΔ, `--size 80M`, sequential calibration and gradients",
    "both-4-sequential": "SeedΔ, 4 bits, 64 chunks, seed 1",
    "both-4-sequential-2": "SeedΔ, 4 bits, 64 chunks, seed 2",
    "both-4-sequential-96": "SeedΔ, 4 bits, 96 chunks, seed 2",
    "both-4-sequential-96-1": "SeedΔ, 4 bits, 96 chunks, embedding dense, seed 1",
    "both-4-survivors": "SeedΔ, 4 bits, 64 chunks, `--quality normal`, seed 1",
    "both-4.4-sequential": "SeedΔ, 4.4 bits, 64 chunks, seed 1",
    "both-4.4-sequential-2": "SeedΔ, 4.4 bits, 64 chunks, seed 2",
    "both-5.1-sequential": "SeedΔ, 5.1 bits, 64 chunks, seed 1",
    "GPTQ-4-32": "GPTQ, 4 bits, groups of 32",
    "IQ4_KT": "ik_llama.cpp IQ4_KT, four rows joined",
    "IQ3_KT": "ik_llama.cpp IQ3_KT, four rows joined",
    "seeddelta-6": "SeedΔ, 6 bits",
    "seeddelta-5": "SeedΔ, 5 bits",
    "seeddelta-4": "SeedΔ, 4 bits",
    "seeddelta-3": "SeedΔ, 3 bits",
    "seeddelta-2": "SeedΔ, 2 bits",
}


# llama.cpp's types and what was encoded sequentially, then the presets of the code as it is
FILES = ("quality-files", "quality-presets")
_WIKITEXT = (
    "F16", "Q4_K_M", "Q3_K_M", "Q4_0", "IQ4_XS", "IQ3_M", "Q2_K",
    "large", "balanced", "lanes-4-sequential", "lanes-4", "small",
)  # fmt: skip
_PACKAGE_TEXT = ("F16", "Q4_K_M", "mixed-4.4-sequential", "lanes-4-mixed-sequential", "lanes-4-mixed")

_BOTH_TEXTS = (
    "F16", "Q4_K_M", "both-4-sequential", "both-4-sequential-2", "both-4-sequential-96",
    "both-4-sequential-96-1", "both-4-survivors", "both-4.4-sequential", "both-4.4-sequential-2", "both-5.1-sequential",
)  # fmt: skip


def _label(name: str) -> str:
    if name.startswith("sequential-"):
        bits, _, seed = name.removeprefix("sequential-").partition("-")
        return f"**SeedΔ, {bits} bits, sequential, with gradients{f', seed {seed}' if seed else ''}**"
    return label(name, _NAMES)


def _merged(*results: str) -> list[dict[str, Any]]:
    """What is known of each text: models of several result files, the later ones in place of those before."""
    texts = [load(result)["texts"] for result in results]
    return [
        {"settings": first["settings"], "models": {k: v for text in texts for k, v in text[name]["models"].items()}}
        for name, first in texts[0].items()
    ]


def files_table(names: Sequence[str], *results: str) -> list[str]:
    """Whole files of SmolLM2: size and quality, the divergence on every text."""
    texts = _merged(*results)
    first, *others = (_TEXTS.get(text["settings"]["text"], text["settings"]["text"]) for text in texts)
    heads = ("", "file, MB", "bits per weight of the layers, all bytes", "perplexity", "change, paired")

    def lines() -> Iterator[Sequence[str]]:
        for name, model in sorted(texts[0]["models"].items(), key=lambda item: -item[1]["file_bytes"]):
            if name in names:
                ppl = with_error(model["perplexity"]["ppl"], model["perplexity"]["stderr"])
                size = (f"{model['file_bytes'] / 1e6:.0f}", f"{model['bits_per_weight']:.2f}")
                divergences = (divergence(text["models"][name]) for text in texts)
                yield _label(name), *size, ppl, _change(model), *divergences

    return table((*heads, f"KL divergence, nats: {first}", *others), lines())


PEERS = ROOT / "research" / "peers" / "results.json"  # what the methods took


def peers_table() -> list[str]:
    """Other methods beside SeedΔ at like bits, the embedding dense in all."""
    texts = _merged("quality-peers", "quality-rates")
    methods = json.loads(PEERS.read_text(encoding="utf-8"))["methods"]
    first, *others = (_TEXTS.get(text["settings"]["text"], text["settings"]["text"]) for text in texts)

    def lines() -> Iterator[Sequence[str]]:
        for name in ("GPTQ-4-32", "sequential-4.4", "IQ4_KT", "IQ3_KT", "sequential-3.06"):
            method = methods.get(name)
            bits = (method or texts[0]["models"][name])["bits_per_weight"]
            divergences = (divergence(text["models"][name]) for text in texts)
            yield _label(name), f"{bits:.2f}", *divergences, f"{method['processor_seconds']:.0f} s" if method else ""

    heads = ("", "bits per weight of the layers, all bytes", f"KL divergence, nats: {first}", *others)
    return table((*heads, "encoding, processor time"), lines())


def autotune_table() -> list[str]:
    """Rates by `seeddelta autotune` beside one rate for all and llama.cpp's types, at like bytes."""
    result = load("autotune")
    bits, change, kl = "bits per weight of the layers, all bytes", "perplexity, change", "KL divergence, nats"

    def minus_uniform(name: str) -> str:
        less = result["minus_uniform"].get(name)
        if less is None:
            return ""
        return f"{with_error(less['kl'], less['kl_stderr'], '+', 4)} ({less['kl_relative']:+.0%})"

    rows = (
        (name, f"{model['bits_per_weight']:.2f}", _change(model), divergence(model), minus_uniform(name))
        for name, model in sorted(result["models"].items(), key=lambda item: item[1]["bits_per_weight"])
        if name != "F16"
    )
    return table(("", bits, change, kl, "KL minus one rate's"), rows)


def tensors_table() -> list[str]:
    """Errors of single matrices."""
    keys = ("rel_l2_w", "rel_l2_w_worst", "rel_l2")
    rows = (
        (name, f"{row['bits_per_weight']:.3f}", *(f"{row[key]:.4f}" for key in keys))
        for name, row in sorted(load("tensors")["summary"].items(), key=lambda item: item[1]["bits_per_weight"])
    )
    return table(("type", "bits per weight", "weighted error", "worst matrix", "plain error"), rows)


def _change(model: dict[str, Any]) -> str:
    change = model["difference"]
    return "" if change is None else with_error(change["percent"], change["percent_stderr"], "+", 1) + "%"


def _speed(model: dict[str, Any], part: str) -> str:
    return " / ".join(f"{row[part]['median']:.0f}" for row in model["speed"] if row["depth"] == 0)


def _resident(model: dict[str, Any]) -> str:
    return f"{model['memory']['after_generation']['resident'] / 1e6:.0f}"


def speed_table(name: str) -> list[str]:
    """Whole files of SmolLM2: tokens per second with 1 / 2 threads, memory."""
    rows = (
        (
            _label(key), f"{model['file_bytes'] / 1e6:.0f}", _speed(model, "prompt"), _speed(model, "generation"),
            _resident(model),
        )
        for key, model in load(name)["models"].items()
    )  # fmt: skip
    return table(("", "file, MB", "prompt of 512", "generation", "resident, MB"), rows)


def shape_table(name: str) -> list[str]:
    """Models of random weights in a larger shape: tokens per second with 1 / 2 threads, and over Q4_K."""
    models = load(name)["models"]
    base = medians(models["Q4_K"]["speed"])

    def lines() -> Iterator[Sequence[str]]:
        for key, model in models.items():
            speeds = (_speed(model, part) for part in ("prompt", "generation"))
            yield _label(key), f"{model['file_bytes'] / 1e6:.0f}", *speeds, over(medians(model["speed"]), base)

    return table(("", "file, MB", "prompt", "generation", "generation over Q4_K's"), lines())


def serve_table() -> list[str]:
    """Servers: tokens per second of all replies by the number of clients, and milliseconds to a first token."""
    result = load("serve")
    counts = [str(count) for count in result["settings"]["streams"]]
    clients = [f"{count} client{'s' if count != '1' else ''}" for count in counts]

    def lines() -> Iterator[Sequence[str]]:
        for name, model in result["models"].items():
            alone, *speeds = (model["streams"][count]["speed"] for count in counts)
            first = (f"{model['first_token_ms'][which]:.0f}" for which in ("alone", "behind"))
            more = (f"{speed:.0f} ({speed / alone:.2f}x)" for speed in speeds)
            shown = label(name.removesuffix(f", {model['server']}"))
            yield f"`{model['server']}`, {shown}", f"{alone:.0f}", *more, *first

    return table(("server, model", *clients, "first token, ms", "first token behind a long prompt, ms"), lines())


TABLES: dict[str, Callable[[], list[str]]] = {
    **code_tables.TABLES,
    **skipping_tables.TABLES,
    **model_tables.TABLES,
    "files": lambda: files_table(_WIKITEXT, *FILES),
    "texts": lambda: files_table(_PACKAGE_TEXT, "quality-texts", "quality-presets"),
    "both": lambda: files_table(_BOTH_TEXTS, "quality-mixed", "quality-texts"),
    "peers": peers_table,
    "rates": lambda: files_table(tuple(load("quality-rates")["texts"]["test.txt"]["models"]), "quality-rates"),
    "autotune": autotune_table,
    "tensors": tensors_table,
    "speed": lambda: speed_table("decode"),
    "speed-xeon": lambda: speed_table("decode-xeon"),
    "serve": serve_table,
    "shape-1b-xeon": lambda: shape_table("decode-1b-xeon"),
    "shape-1b": lambda: shape_table("decode-1b"),
    "shape-1b-avx2": lambda: shape_table("decode-1b-avx2"),
}


def updated(text: str) -> str:
    """`text` with every marked table as the results have it now."""
    return _MARKED.sub(lambda found: found[1] + "\n".join(TABLES[found[2]]()) + "\n" + found[3], text)


def marked_pages() -> list[Path]:
    return [
        path
        for path in (
            ROOT / "README.md",
            *sorted((ROOT / "docs").rglob("*.md")),
            *sorted((ROOT / "research").rglob("*.md")),
        )
        if _MARKED.search(path.read_text(encoding="utf-8"))
    ]


def main() -> None:
    for page in marked_pages():
        page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")
    model_tables.figure(FIGURE)


if __name__ == "__main__":
    main()
