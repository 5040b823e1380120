"""Tables and the figure of the real models: size, quality and speed of SmolLM2-135M and Gemma 3 270M."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from result_tables import divergence, label, load, over, table

MODELS = (("SmolLM2-135M", "smollm2"), ("Gemma 3 270M", "gemma"))
# names of files in the results of bench_quality.py -> what they are, and the same file in those of bench_programs.py
_ONE_RATE = "one-rate"  # before rows of frequent tokens had a code of their own
_OURS = {
    "normal-4": ("SeedΔ, `--bits 4`", "SeedΔ, 4 bits"),
    "embedding-5": ("SeedΔ, `--bits 4 --tensor-type token_embd=5`", "SeedΔ, 4 bits"),
    "embedding-5-best": ("SeedΔ, `--bits 4 --tensor-type token_embd=5 --quality best`", ""),
    "best-74": ("SeedΔ, `--size 74M --quality best`", "SeedΔ, 74 MB"),
    "best-80": ("SeedΔ, `--size 80M --quality best`", "SeedΔ, 80 MB"),
    "balanced": ("SeedΔ, default options", "SeedΔ, default"),
    "default-best": ("SeedΔ, `--quality best`", ""),
    _ONE_RATE: ("SeedΔ, one rate for the embedding", ""),
}
_NOT_DRAWN = (_ONE_RATE, "embedding-5-best")
_TEXTS = {
    "test": "WikiText-2", "pydoc": "Python's help", "asyncio": "code", "zh": "Chinese manual pages",
    "ru": "Russian manual pages",
}  # fmt: skip
_SHORT = ("F16", "Q4_0", "IQ4_XS", "Q4_K_M", "normal-4", "balanced", "best-74", "best-80")


def programs_table() -> list[str]:
    """llama-bench, both models: tokens per second with 1 / 2 threads."""

    def lines() -> Iterator[Sequence[str]]:
        for model, name in (("SmolLM2-135M", "programs-smollm2"), ("Gemma 3 270M", "programs-gemma")):
            for key, one in load(name)["models"].items():
                speeds = (
                    " / ".join(f"{of[part]['median']:.0f}" for of in one["threads"].values())
                    for part in ("prompt", "generation")
                )
                shown = label(key) if one["exec"] else f"{label(key.split(',')[0])}, without `exec`"
                yield model, shown, f"{one['file_bytes'] / 1e6:.0f}", *speeds

    return table(("", "", "file, MB", "prompt of 512", "generation"), lines())


_CONTEXTS = ("smollm2", "gemma", "1b", "smollm2-zen5")
_LABELS = {
    "smollm2": {"F16": "SmolLM2-135M, F16", "SeedΔ": "**SmolLM2-135M, SeedΔ default**"},
    "smollm2-zen5": {"F16": "Zen 5: SmolLM2-135M, F16", "SeedΔ": "**Zen 5: SmolLM2-135M, SeedΔ 4 bits**"},
    "gemma": {"F16": "Gemma 3 270M, F16", "SeedΔ": "**Gemma 3 270M, SeedΔ default**"},
    "1b": {"Q8_0": "Llama of 1B weights, Q8_0"},
}


def context_table(what: str) -> list[str]:
    """Tokens per second of prompts or of generation in contexts, and how many times that of llama.cpp's attention."""
    depths = (0, 512, 2048, 8192, 32768)

    def lines() -> Iterator[Sequence[str]]:
        for file in _CONTEXTS:
            for name, settings in load(f"context-speed-{file}")["models"].items():
                stock, own = (_by_depth(settings[setting], what) for setting in ("llama", "auto"))
                cells = (
                    f"{' / '.join(f'{speed:.0f}' for speed in own[depth])} ({over(own[depth], stock[depth])})"
                    if depth in own
                    else ""
                    for depth in depths
                )
                yield _LABELS[file][name], *cells

    return table(("", *(f"context {depth}" for depth in depths)), lines())


def _by_depth(speeds: Sequence[dict[str, Any]], what: str) -> dict[int, list[float]]:
    """Tokens per second at each depth, for each number of threads."""
    found: dict[int, list[float]] = {}
    for row in sorted(speeds, key=lambda row: (row["depth"], row["threads"])):
        found.setdefault(row["depth"], []).append(row[what]["median"])
    return found


def kernel_table() -> list[str]:
    """One operation of attention: how many times as fast ours is as llama.cpp's."""
    rows = load("context-kernel")["operations"]
    positions = sorted({row["positions"] for row in rows})

    def lines() -> Iterator[Sequence[str]]:
        for model in dict.fromkeys(row["model"] for row in rows):
            for tokens, shown in ((1, "a token"), (512, "a prompt of 512 tokens")):
                of = {row["positions"]: row for row in rows if (row["model"], row["tokens"]) == (model, tokens)}
                times = ((of[n]["llama"]["median"], of[n]["auto"]["median"]) for n in positions)
                yield model, shown, *(f"{1e-3 * own:.3g} ms ({stock / own:.2f})" for stock, own in times)

    return table(("heads of", "", *(f"{n} positions" for n in positions)), lines())


def sequences_table() -> list[str]:
    """Four sequences decoded together."""
    rows = load("context-sequences")["speeds"]

    def lines() -> Iterator[Sequence[str]]:
        for model in dict.fromkeys(row["model"] for row in rows):
            of = {
                setting: [row["speed"]["median"] for row in rows if (row["model"], row["setting"]) == (model, setting)]
                for setting in ("llama", "auto")
            }
            speeds = (" / ".join(f"{speed:.0f}" for speed in values) for values in of.values())
            yield model, *speeds, over(of["auto"], of["llama"])

    return table(("", "`--attention llama`", "`--attention auto`", "times"), lines())


def quality_table(names: Sequence[str] | None = None) -> list[str]:
    """Both models: size, divergence on every text, and tokens per second where they were measured."""

    def lines() -> Iterator[Sequence[str]]:
        for model, name in MODELS:
            texts = list(load(f"models-{name}")["texts"].values())
            programs = load(f"programs-{name}")["models"]
            first = texts[0]["models"]
            for key in sorted(first, key=lambda key: -first[key]["file_bytes"]):
                if key == _ONE_RATE or (names is not None and key not in names):
                    continue
                what, same = _OURS.get(key, (key, key))
                speed = programs[same]["threads"].values() if same in programs else ()
                tokens = " / ".join(f"{of['generation']['median']:.0f}" for of in speed)
                divergences = (divergence(text["models"][key]) for text in texts)
                yield model, label(what), f"{first[key]['file_bytes'] / 1e6:.0f}", *divergences, tokens

    kl = "KL divergence, nats: WikiText-2"
    return table(("", "", "file, MB", kl, "Python's help", "code", "tokens/s, 1 / 2 threads"), lines())


def frequent_table() -> list[str]:
    """Both models' default files, and as large ones whose embedding has one rate, on all texts."""

    def lines() -> Iterator[Sequence[str]]:
        results = [*((model, f"models-{name}") for model, name in MODELS), ("Gemma 3 270M", "quality-languages")]
        for model, name in results:
            for text, one in load(name)["texts"].items():
                before, now = (one["models"][key] for key in (_ONE_RATE, "balanced"))
                ratio = now["divergence"]["mean"] / before["divergence"]["mean"]
                shown = _TEXTS[text.split("-")[0].split(".")[0]]
                yield model, shown, divergence(before), divergence(now), f"{ratio:.2f}"

    return table(("", "text", "one rate", "rows of frequent tokens finer", "ratio"), lines())


def seeds_table() -> list[str]:
    """KL divergence of the same commands with the seeds 1 and 2."""

    def lines() -> Iterator[Sequence[str]]:
        for model, name in MODELS:
            runs = [load(f"models-{name}")["texts"], load(f"models-{name}-seed-2")["texts"]]
            for key in next(iter(runs[1].values()))["models"]:
                if key != "F16":
                    found = ([of[text]["models"][key]["divergence"]["mean"] for of in runs] for text in runs[1])
                    yield model, label(_OURS[key][0]), *(f"{one:.4f} / {two:.4f}" for one, two in found)

    return table(("", "", "WikiText-2", "Python's help", "code"), lines())


TABLES: dict[str, Callable[[], list[str]]] = {
    "short": lambda: quality_table(_SHORT),
    "models": quality_table,
    "seeds": seeds_table,
    "frequent": frequent_table,
    "programs": programs_table,
    "context-generation": lambda: context_table("generation"),
    "context-prompts": lambda: context_table("prompt"),
    "context-kernel": kernel_table,
    "context-sequences": sequences_table,
}


def _apart(labels: dict[tuple[float, float], str]) -> dict[tuple[float, float], str]:
    """Labels of points, with those of one place (within 2% in both directions) joined at the first."""
    joined: dict[tuple[float, float], str] = {}
    for (x, y), text in labels.items():
        near = next((at for at in joined if abs(x / at[0] - 1) < 0.02 and abs(y / at[1] - 1) < 0.02), None)
        if near is None:
            joined[x, y] = text
        else:
            joined[near] += f"; {text}"
    return joined


def figure(path: Path) -> None:
    """Divergence over file size, a panel for each model: ours beside llama.cpp's types."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, panels = plt.subplots(1, len(MODELS), figsize=(9, 3.4), layout="constrained")
    for axes, (model, name) in zip(panels, MODELS, strict=True):
        text = next(iter(load(f"models-{name}")["texts"].values()))
        for ours, marker, legend in ((True, "o", "SeedΔ"), (False, "s", "llama.cpp, imatrix of the same text")):
            points = sorted(
                (one["file_bytes"] / 1e6, one["divergence"]["mean"], key)
                for key, one in text["models"].items()
                if one["divergence"] is not None and (key in _OURS) == ours and key not in _NOT_DRAWN
            )
            axes.plot([p[0] for p in points], [p[1] for p in points], marker, label=legend)
            shown = {
                (x, y): _OURS[key][0].removeprefix("SeedΔ, ").replace("`", "") if ours else key for x, y, key in points
            }
            for (x, y), text_of in _apart(shown).items():
                axes.annotate(text_of, (x, y), textcoords="offset points", xytext=(6, -9 if ours else 4), fontsize=7)
        scored = text["models"]["F16"]["perplexity"]["tokens_scored"]
        axes.set(xlabel="size of the file, MB", yscale="log")
        axes.set_title(f"{model}, WikiText-2 test, {scored} tokens", fontsize=9)
        axes.margins(0.25)
        axes.grid(alpha=0.3, which="both")
    panels[0].set_ylabel("KL divergence from F16, nats")
    panels[1].legend(fontsize=8, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=130)
