"""Writes the tables of results in README.md and docs/, and the figure.

    python benchmarks/markdown_tables.py

A table between `<!-- table: NAME -->` and `<!-- end of table -->` in README.md or docs/ is made of the files of
`benchmarks/results`; tests/test_docs.py fails when one differs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common

ROOT = Path(__file__).parents[1]
FIGURE = ROOT / "docs" / "figures" / "size-quality.png"
_MARKED = re.compile(r"(<!-- table: ([a-z0-9-]+) -->\n).*?(<!-- end of table -->)", flags=re.DOTALL)
_TEXTS = {"test.txt": "WikiText-2", "pydoc-3.11.txt": "Python's help", "asyncio-3.11.py.txt": "code"}
_OTHERWISE = {"lanes-4-sequential": "4 bits, sequential"}
_NAMES = {
    "F16": "dense F16",
    "small": "SeedΔ, `--preset small`",
    "balanced": "SeedΔ, `--preset balanced`",
    "quality": "SeedΔ, `--preset quality`",
    "lanes-4": "SeedΔ, 4 bits",
    "lanes-4-sequential": "SeedΔ, 4 bits, sequential, with gradients",
    "lanes-4-mixed": "SeedΔ, 4 bits",
    "lanes-4-mixed-sequential": "SeedΔ, 4 bits, sequential, with gradients",
    "mixed-4.4-sequential": "SeedΔ, `--size 80M`, sequential, with gradients",
    "trellis-4": "SeedΔ, 4 bits, hashed trellis",
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
    "quality", "balanced", "lanes-4-sequential", "lanes-4", "small",
)  # fmt: skip
_PACKAGE_TEXT = ("F16", "Q4_K_M", "mixed-4.4-sequential", "lanes-4-mixed-sequential", "lanes-4-mixed")


def _load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((common.RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _label(name: str) -> str:
    known = _NAMES.get(name, f"llama.cpp {name}")
    return f"**{known}**" if known.startswith("SeedΔ") else known


def _merged(*results: str) -> list[dict[str, Any]]:
    """What is known of each text: models of several result files, the later ones in place of those before."""
    texts = [_load(result)["texts"] for result in results]
    return [
        {"settings": first["settings"], "models": {k: v for text in texts for k, v in text[name]["models"].items()}}
        for name, first in texts[0].items()
    ]


def files_table(names: Sequence[str], *results: str) -> list[str]:
    """Whole files of SmolLM2: size and quality, the divergence on every text."""
    texts = _merged(*results)
    lines = [
        "| | file, MB | bits a weight of the layers, all bytes | perplexity | change, paired | KL divergence, nats: "
        + " | ".join(_TEXTS.get(text["settings"]["text"], text["settings"]["text"]) for text in texts)
        + " |",
        "| --- |" + " --- |" * (4 + len(texts)),
    ]
    for name, model in sorted(texts[0]["models"].items(), key=lambda item: -item[1]["file_bytes"]):
        if name not in names:
            continue
        cells = [_label(name), f"{model['file_bytes'] / 1e6:.0f}", f"{model['bits_per_weight']:.2f}"]
        cells += [_with_error(model["perplexity"]["ppl"], model["perplexity"]["stderr"]), _change(model)]
        cells += [_divergence(text["models"][name]) for text in texts]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def tensors_table() -> list[str]:
    """Errors of single matrices."""
    lines = [
        "| type | bits a weight | weighted error | worst matrix | plain error |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, row in sorted(_load("tensors")["summary"].items(), key=lambda item: item[1]["bits_per_weight"]):
        errors = " | ".join(f"{row[key]:.4f}" for key in ("rel_l2_w", "rel_l2_w_worst", "rel_l2"))
        lines.append(f"| {name} | {row['bits_per_weight']:.3f} | {errors} |")
    return lines


def short_table() -> list[str]:
    """Four rows for the first page: size and quality beside speed."""
    quality, speed = _merged(*FILES)[0]["models"], _load("decode")["models"]
    lines = [
        "| | file, MB | perplexity | KL divergence, nats | tokens/s, 1 / 2 threads | resident, MB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    # the last two are of one size and kind, only their bits are other ones
    rows = (("F16", "F16"), ("Q4_K_M", "Q4_K_M"), ("lanes-4", "seeddelta-4"), ("lanes-4-sequential", "seeddelta-4"))
    for name, timed in rows:
        model, ppl = quality[name], quality[name]["perplexity"]
        cells = [_label(name), f"{model['file_bytes'] / 1e6:.0f}", _with_error(ppl["ppl"], ppl["stderr"])]
        cells.append(_divergence(model))
        cells += [_speed(speed[timed], "generation"), _resident(speed[timed])]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _change(model: dict[str, Any]) -> str:
    change = model["difference"]
    return "" if change is None else _with_error(change["percent"], change["percent_stderr"], "+", 1) + "%"


def _divergence(model: dict[str, Any]) -> str:
    kl = model["divergence"]
    return "" if kl is None else f"{kl['mean']:.4f} ± {kl['stderr']:.4f}"


def _speed(model: dict[str, Any], part: str) -> str:
    return " / ".join(f"{row[part]['median']:.0f}" for row in model["speed"] if row["depth"] == 0)


def _resident(model: dict[str, Any]) -> str:
    return f"{model['memory']['after_generation']['resident'] / 1e6:.0f}"


def speed_table(name: str) -> list[str]:
    """Whole files of SmolLM2: tokens a second with 1 / 2 threads, memory."""
    lines = ["| | file, MB | prompt of 512 | generation | resident, MB |", "| --- | --- | --- | --- | --- |"]
    for key, model in _load(name)["models"].items():
        speed = [_speed(model, part) for part in ("prompt", "generation")]
        cells = [_label(key), f"{model['file_bytes'] / 1e6:.0f}", *speed, _resident(model)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def shape_table(name: str) -> list[str]:
    """Models of random weights in a larger shape: tokens a second with 1 / 2 threads, and over Q4_K."""
    models = _load(name)["models"]
    lines = [
        "| | file, MB | prompt | generation | generation over Q4_K's |",
        "| --- | --- | --- | --- | --- |",
    ]

    def medians(model: dict[str, Any]) -> list[float]:
        return [row["generation"]["median"] for row in model["speed"]]

    for key, model in models.items():
        over = (f"{a / b:.2f}" for a, b in zip(medians(model), medians(models["Q4_K"]), strict=True))
        cells = [_label(key), f"{model['file_bytes'] / 1e6:.0f}", _speed(model, "prompt"), _speed(model, "generation")]
        lines.append("| " + " | ".join([*cells, " / ".join(over)]) + " |")
    return lines


def serve_table() -> list[str]:
    """Servers: tokens a second of all replies by the number of clients, and milliseconds to a first token."""
    result = _load("serve")
    counts = [str(count) for count in result["settings"]["streams"]]
    heads = [f"{count} client{'s' if count != '1' else ''}" for count in counts]
    lines = [
        f"| server, model | {' | '.join(heads)} | first token, ms | first token behind a long prompt, ms |",
        "| --- |" + " --- |" * (len(counts) + 2),
    ]
    for name, model in result["models"].items():
        alone = model["streams"][counts[0]]["speed"]
        cells = [f"`{model['server']}`, {_label(name)}"]
        for count in counts:
            speed = model["streams"][count]["speed"]
            cells.append(f"{speed:.0f}" + ("" if count == counts[0] else f" ({speed / alone:.2f}x)"))
        first = model["first_token_ms"]
        cells += [f"{first['alone']:.0f}", f"{first['behind']:.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def convert_table() -> list[str]:
    """Conversion of large models: seconds a block, memory, disk, and the whole model."""
    lines = [
        "| shape | CPU | blocks run | text and covariances, s a block | over their bounds | factors, s | encoding, s "
        "| embedding and head, s | memory, GB | disk, GB | whole model, h | loaded in, s | memory loaded, MB |",
        "| --- " * 13 + "|",
    ]
    for path in sorted(common.RESULTS.glob("quantize-*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        stages, blocks = result["stages"], result["options"]["blocks"]
        cells = [f"[{result['options']['shape']}](../../benchmarks/results/{path.name})"]
        cells += [result["machine"]["cpu"].replace("(R)", "").removesuffix(" Processor"), str(blocks)]
        cells += [f"{result['measure_block_seconds']:.0f}", f"{result['over_bounds']:.2f}"]
        cells += [f"{stages[name]['seconds'] / blocks:.0f}" for name in ("factor", "encode")]
        head = stages.get("encode embedding and head")
        cells.append("" if head is None else f"{head['seconds']:.0f}")
        cells.append(f"{max(stage['anonymous'] for stage in stages.values()) / 1e9:.2f}")
        cells += [f"{result['disk']['measured'] / 1e9:.2f}", f"{result['whole_hours']:.1f}" if head else ""]
        loaded = result.get("loaded", [])  # of a file with embedding and head
        cells.append(" / ".join(f"{load['seconds']:.1f}" for load in loaded))
        cells.append(f"{max(load['anon'] for load in loaded) / 1e6:.0f}" if loaded else "")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


TABLES = {
    "convert": convert_table,
    "short": short_table,
    "files": lambda: files_table(_WIKITEXT, *FILES),
    "texts": lambda: files_table(_PACKAGE_TEXT, "quality-texts", "quality-presets"),
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
        for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
        if _MARKED.search(path.read_text(encoding="utf-8"))
    ]


def figure(path: Path) -> None:
    """Divergence over file size: ours beside llama.cpp's types."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    models = {name: model for name, model in _merged(*FILES)[0]["models"].items() if name in _WIKITEXT}
    groups: dict[str, list[tuple[float, float, str]]] = {"o-": [], "*": [], "s": []}
    for name, model in models.items():
        if model["divergence"] is not None:
            marker = "s" if not model["kind"].startswith("SeedΔ") else "*" if name in _OTHERWISE else "o-"
            groups[marker].append((model["file_bytes"] / 1e6, model["divergence"]["mean"], name))
    fig, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    labels = {"o-": "SeedΔ", "*": "SeedΔ, calibrated otherwise", "s": "llama.cpp, imatrix of the same text"}
    for marker, label in labels.items():
        points = sorted(groups[marker])
        axes.plot([p[0] for p in points], [p[1] for p in points], marker, label=label)
        for x, y, name in points:
            text = _OTHERWISE.get(name, "4 bits" if name == "lanes-4" else name)
            axes.annotate(text, (x, y), textcoords="offset points", xytext=(6, 4), fontsize=8)
    axes.set(xlabel="size of the file, MB", ylabel="KL divergence from F16, nats", yscale="log")
    scored = models["F16"]["perplexity"]["tokens_scored"]
    axes.set_title(f"SmolLM2-135M-Instruct, WikiText-2 test, {scored} tokens (below and left is better)", fontsize=9)
    axes.margins(0.12)
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=130)


def _with_error(value: float, error: float, sign: str = "", digits: int = 2) -> str:
    """Of a broken model, whose perplexity has many digits, the power of ten alone."""
    if abs(value) >= 1e4:
        return f"{value:{sign}.0e}"
    return f"{value:{sign}.{digits}f} ± {error:.{digits}f}"


def main() -> None:
    for page in marked_pages():
        page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")
    figure(FIGURE)


if __name__ == "__main__":
    main()
