"""Tables of what skipping and attention over chosen keys cost and give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from result_tables import load, medians, over, table, with_error


def skipping_table(name: str) -> list[str]:
    """Tokens a second with 1 / 2 threads, and over the same layout with all inputs."""
    rows = load(name)["speed"]

    def lines() -> Iterator[Sequence[str]]:
        for key, row in rows.items():
            own, whole = medians(row["speed"]), f"{key.split(', ')[0]}, all"
            gain = over(own, medians(rows[whole]["speed"])) if whole in rows and whole != key else ""
            yield key, " / ".join(f"{speed:.3g}" for speed in own), gain

    return table(("", "tokens/s", "over all"), lines())


def attention_table(name: str, settings: Sequence[str]) -> list[str]:
    """Tokens a second by the tokens in the KV cache, with each number of threads, and over llama.cpp's."""
    models = load(name)["models"]
    depths = sorted({row["depth"] for row in models[settings[0]]})

    def at(setting: str, depth: int) -> list[float]:
        return medians(row for row in models[setting] if row["depth"] == depth)

    def cell(setting: str, depth: int) -> str:
        speed = " / ".join(f"{one:.3g}" for one in at(setting, depth))
        return speed if setting == settings[0] else f"{speed} ({over(at(setting, depth), at(settings[0], depth))})"

    rows = ((setting, *(cell(setting, depth) for depth in depths)) for setting in settings)
    return table(("", *map(str, depths)), rows)


def choice_table() -> list[str]:
    """Softmax mass and recall of the ways to choose keys, in NumPy."""
    shares = (0.04, 0.25)

    def lines() -> Iterator[Sequence[str]]:
        for name, points in load("attention-choice")["curves"].items():
            found = {point["share"]: point for point in points}
            yield name, *(f"{found[share][key]:.3f}" for key in ("mass", "recall") for share in shares)

    return table(("choice", "softmax mass at 0.04", "at 0.25", "recall@64 at 0.04", "at 0.25"), lines())


def changes_table() -> list[str]:
    """How much the inputs of a token differ from those of the last one."""
    inputs = load("events")["statistics"]["inputs"]
    thetas = list(inputs["ffn_down"]["changed"])
    heads = ("inputs of", "energy", f"changed, θ = {thetas[0]}", *(f"{float(theta):g}" for theta in thetas[1:]))
    rows = (
        (kind, f"{found['energy']:.2f}", *(f"{found['changed'][theta]:.2f}" for theta in thetas))
        for kind, found in inputs.items()
    )
    return table(heads, rows)


_EVENTS = {
    "down, theta 0.3": "`ffn_down`, θ = 0.3",
    "down, theta 0.5": "`ffn_down`, θ = 0.5",
    "MLP, theta 0.3": "the MLP, θ = 0.3",
    "MLP, theta 0.5": "the MLP, θ = 0.5",
    "down, KWTA 0.5": "`ffn_down`, half by KWTA",
    "down, KWTA 0.5 and theta 0.3": "half by KWTA, events among them",
}


def events_table() -> list[str]:
    """Events over the MLP's inputs: quality token by token; the saving that each gate measures itself, one thread."""
    result = load("events")
    quality, speed = result["quality"], result["speed"]["models"]
    heads = (
        "",
        "sent",
        "perplexity",
        "KL divergence, nats",
        "relative error of a product, worst check",
        "saved of a token",
    )

    def lines() -> Iterator[Sequence[str]]:
        for key, label in _EVENTS.items():
            metrics, found = speed[key]["1"]["metrics"], quality[key]
            gate = "event" if "event.saving" in metrics else "kwta"
            sent = metrics["event.topk_kept" if gate == "event" else "kwta.keep_ratio"]
            gap = metrics.get("event.quality_gap", 0.0)
            yield (
                label,
                f"{sent:.2f}",
                with_error(found["change_percent"], found["change_stderr"], "+", 1) + "%",
                f"{found['kl']:.3f}",
                f"{gap:.2f}" if gap else "",
                f"{100 * metrics[f'{gate}.saving']:.1f}%" + (", off" if metrics[f"{gate}.off"] else ""),
            )

    return table(heads, lines())


def attention_events_table() -> list[str]:
    """Perplexity of attention that reuses windows, over attention to all keys."""
    models = load("attention-events-quality")["runs"][0]["models"]
    heads = ("", "windows reused", "operations exact", "change, paired", "KL divergence, nats")

    def lines() -> Iterator[Sequence[str]]:
        for key, found in models.items():
            if key == "exact":
                continue
            against = found["against"]["exact"]
            yield (
                key.replace("events ", "θ = ") + ("" if "gap" in key or "events" not in key else ", no checks"),
                "" if found["stale"] is None else f"{found['stale'] / 100:.2f}",
                f"{found['exact_share']:.2f}" if found["exact_share"] else "",
                with_error(100 * against["change"], 100 * against["change_stderr"], "+") + "%",
                f"{against['kl']:.4f}",
            )

    return table(heads, lines())


def proc_sparse_table() -> list[str]:
    """Fan-out of proc-sparse: bytes, perplexity, error of the outputs."""
    models = load("proc-sparse-13-16")["models"]
    heads = ("fan-out", "bytes of F16", "perplexity", "change", "error of the outputs")
    rows = (
        (
            key.split("fan-out ")[1].split(",")[0], f"{100 * found['bytes_of_dense']:.1f}%", f"{found['ppl']:.2f}",
            with_error(found["change_percent"], found["change_stderr"], "+", 1) + "%", f"{found['rel_out']:.3f}",
        )
        for key, found in models.items()
        if key != "F16"
    )  # fmt: skip
    return table(heads, rows)


def methods_table() -> list[str]:
    """Ways to choose the inputs that are computed with: share of the weights read, and what it costs."""
    rows = (
        (
            f"`{found['method']}`", f"{found['kept']:.3f}",
            with_error(found["perplexity_percent"], found["perplexity_percent_error"], "+", 1) + "%",
            with_error(found["kl"], found["kl_error"], digits=3),
        )
        for found in load("sparsity-methods")["all"]["results"]
    )  # fmt: skip
    return table(("method", "kept", "perplexity", "KL divergence, nats"), rows)


def gates_table() -> list[str]:
    """Every gate at its defaults: speed and perplexity against the same model without, and why it is off."""
    rows = (
        (
            key, "" if found["speed"] is None else f"{found['speed']:.3f}", f"{found['ppl_change_percent']:+.2f}%",
            "; ".join(reason.split("since it ")[1].split(" (")[0] for reason in found["reasons"].values()),
        )
        for key, found in load("gates")["rows"].items()
    )  # fmt: skip
    return table(("gate", "speed", "perplexity", "switched off, since it"), rows)


def zeros_table() -> list[str]:
    """Tokens a second with 1 / 2 threads while exact zeros are skipped, and over those of the same context without."""
    cells: dict[tuple[str, str], dict[int, list[dict[str, Any]]]] = {}
    for row in load("zeros-1b")["rows"]:
        cells.setdefault((row["architecture"], row["columns"]), {}).setdefault(row["wanted"], []).append(row)

    def cell(rows: list[dict[str, Any]]) -> str:
        speed = " / ".join(f"{row['tokens_per_second']:.3g}" for row in rows)
        ratio = " / ".join(f"{row['ratio']:.2f}" for row in rows)
        return f"{speed} ({ratio})"

    shares = sorted({share for found in cells.values() for share in found}, reverse=True)
    heads = ("", *(f"{share}% zeros" for share in shares))
    rows = ((f"{name}, {kind}", *(cell(found[share]) for share in shares)) for (name, kind), found in cells.items())
    return table(heads, rows)


_SHORT = ("llama.cpp", "exact", "ternary 1/4", "ternary 1/8")
TABLES = {
    "skipping": lambda: skipping_table("skipping"),
    "skipping-1b": lambda: skipping_table("skipping-1b"),
    "attention-speed": lambda: attention_table("attention-speed", _SHORT),
    "attention-long": lambda: attention_table("attention-long", ("llama.cpp", "exact", "ternary 1/4", "ternary 1/16")),
    "attention-choice": choice_table,
    "attention-events": attention_events_table,
    "changes": changes_table,
    "events": events_table,
    "gates": gates_table,
    "proc-sparse-13-16": proc_sparse_table,
    "sparsity-methods": methods_table,
    "zeros": zeros_table,
}
