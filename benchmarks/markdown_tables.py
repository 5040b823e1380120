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
from result_tables import divergence, label, load, table, with_error
from seeddelta.gguf.names import split_name

ROOT = Path(__file__).parents[1]
FIGURE = ROOT / "docs" / "figures" / "size-quality.png"
_MARKED = re.compile(r"(<!-- table: ([a-z0-9-]+) -->\n).*?(<!-- end of table -->)", flags=re.DOTALL)
_TEXTS = {"test.txt": "WikiText-2", "pydoc-3.11.txt": "Python's help", "asyncio-3.11.py.txt": "code"}
_NAMES = {
    "GPTQ-4-32": "GPTQ, 4 bits, groups of 32",
    "IQ4_KT": "ik_llama.cpp IQ4_KT, four rows joined",
    "IQ3_KT": "ik_llama.cpp IQ3_KT, four rows joined",
    "sequential-4.4": "SeedΔ, 4.4 bits, sequential, with gradients",
    "sequential-3.06": "SeedΔ, 3.06 bits, sequential, with gradients",
}
_RATES = ("sequential-5.1", "sequential-4.4", "sequential-3.4", "sequential-3.06", "sequential-2.40")
_CALIBRATED_ON = {
    "sequential-4.4": "WikiText-2",
    "both-4.4-sequential": "WikiText-2 and the text of the package, half of each",
}


def _label(name: str) -> str:
    return label(name, _NAMES)


def _merged(*results: str) -> list[dict[str, Any]]:
    """What is known of each text: models of several result files, the later ones in place of those before."""
    texts = [load(result)["texts"] for result in results]
    return [
        {"settings": first["settings"], "models": {k: v for text in texts for k, v in text[name]["models"].items()}}
        for name, first in texts[0].items()
    ]


def _divergences(texts: Sequence[dict[str, Any]], name: str) -> Iterator[str]:
    return (divergence(text["models"][name]) for text in texts)


def _text_heads(texts: Sequence[dict[str, Any]]) -> list[str]:
    first, *others = (_TEXTS.get(text["settings"]["text"], text["settings"]["text"]) for text in texts)
    return [f"KL divergence, nats: {first}", *others]


def rates_table() -> list[str]:
    """SmolLM2 by the bits per weight of its layers, the embedding kept."""
    texts = _merged("quality-rates")
    models = texts[0]["models"]
    rows = (
        (f"{models[name]['bits_per_weight']:.2f}", _change(models[name]), *_divergences(texts, name)) for name in _RATES
    )
    return table(("bits per weight of the layers", "perplexity, change", *_text_heads(texts)), rows)


def texts_table() -> list[str]:
    """The same bits, calibrated on one text and on two."""
    texts = _merged("quality-rates", "quality-mixed")
    rows = ((what, *_divergences(texts, name)) for name, what in _CALIBRATED_ON.items())
    return table(("calibrated on", *_text_heads(texts)), rows)


PEERS = ROOT / "research" / "peers" / "results.json"  # what the methods took


def peers_table() -> list[str]:
    """Other methods beside SeedΔ at like bits, the embedding dense in all."""
    texts = _merged("quality-peers", "quality-rates")
    methods = json.loads(PEERS.read_text(encoding="utf-8"))["methods"]

    def lines() -> Iterator[Sequence[str]]:
        for name in ("GPTQ-4-32", "sequential-4.4", "IQ4_KT", "IQ3_KT", "sequential-3.06"):
            method = methods.get(name)
            bits = (method or texts[0]["models"][name])["bits_per_weight"]
            seconds = f"{method['processor_seconds']:.0f} s" if method else ""
            yield _label(name), f"{bits:.2f}", *_divergences(texts, name), seconds

    heads = ("", "bits per weight of the layers, all bytes", *_text_heads(texts))
    return table((*heads, "encoding, processor time"), lines())


def prices_table() -> list[str]:
    """Single matrices: measured over predicted divergence by kind, each with its block in brackets."""
    files = {"SmolLM2-135M": "prices", "Gemma 3 270M": "prices-gemma"}
    found: dict[str, dict[str, list[str]]] = {}
    for model, name in files.items():
        for pair in load(name)["pairs"]:
            place = split_name(pair["tensor"])
            kind, block = ("token_embd", "") if place is None else (place[1], f" ({place[0]})")
            ratio = f"{pair['kl'] / pair['predicted']:.2f}{block}"
            found.setdefault(kind, {}).setdefault(model, []).append(ratio)
    rows = ((f"`{kind}`", *(", ".join(of_kind.get(model, ())) for model in files)) for kind, of_kind in found.items())
    return table(("", *files), rows)


def _change(model: dict[str, Any]) -> str:
    change = model["difference"]
    return "" if change is None else with_error(change["percent"], change["percent_stderr"], "+", 1) + "%"


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
    "texts": texts_table,
    "peers": peers_table,
    "rates": rates_table,
    "prices": prices_table,
    "serve": serve_table,
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
