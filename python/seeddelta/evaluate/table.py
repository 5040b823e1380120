"""The table of models that were measured together: columns, and numbers as text."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from .measurements import Series, number, speeds_of

# columns of models.csv
COLUMNS = (
    "name", "kind", "file_mb", "saved_mb", "bits_per_weight", "model_bits_per_weight", "perplexity",
    "perplexity_stderr", "change_percent", "change_stderr", "kl_nats", "kl_stderr", "same_top_percent", "token_cosine",
    "token_cosine_stderr", "text_cosine", "text_cosine_stderr", "threads", "prompt_tokens_per_s",
    "generation_tokens_per_s", "memory_mb", "peak_mb", "path",
)  # fmt: skip
Values = dict[str, Any]


def model_values(model: Mapping[str, Any], series: Series) -> Values:
    """The numbers of COLUMNS; None for what was not measured. Speeds are medians at the most threads, from depth 0."""
    memory = number(model, "memory", "after_generation", "resident")
    peak = number(model, "memory", "after_generation", "peak")
    speeds = [speed for speed in speeds_of(model) if not speed.depth]
    speed = max(speeds, key=lambda found: found.threads, default=None)
    values = (
        model["name"],
        model["kind"],
        float(model["file_bytes"]) / 1e6,
        (float(series.base["file_bytes"]) - float(model["file_bytes"])) / 1e6,
        number(model, "bits_per_weight"),
        number(model, "model_bits_per_weight"),
        number(model, "perplexity", "ppl"),
        number(model, "perplexity", "stderr"),
        number(model, "difference", "percent"),
        number(model, "difference", "percent_stderr"),
        number(model, "divergence", "mean"),
        number(model, "divergence", "stderr"),
        number(model, "divergence", "same_top_percent"),
        *(number(model, "embedding", f"{kind}_cosine{end}") for kind in ("token", "text") for end in ("", "_stderr")),
        None if speed is None else speed.threads,
        None if speed is None or not speed.prompt else statistics.median(speed.prompt),
        None if speed is None or not speed.generation else statistics.median(speed.generation),
        None if memory is None else memory / 1e6,
        None if peak is None else peak / 1e6,
        str(model["path"]),
    )
    return dict(zip(COLUMNS, values, strict=True))


def headings(series: Series) -> dict[str, Callable[[Values], str]]:
    """Columns of the table of a series, as far as there is something in them: heading -> the cell of a model."""
    columns: dict[str, tuple[str, Callable[[Values], str]]] = {
        "model": ("name", lambda v: str(v["name"])),
        "weights": ("kind", lambda v: str(v["kind"])),
        "file, MB": ("file_mb", lambda v: f"{v['file_mb']:.1f}"),
        "saved, MB": ("saved_mb", lambda v: f"{v['saved_mb']:.1f}" if v["saved_mb"] else ""),
        "bits, layers": ("bits_per_weight", lambda v: _fixed(v["bits_per_weight"], 2)),
        "bits, all": ("model_bits_per_weight", lambda v: _fixed(v["model_bits_per_weight"], 2)),
        "perplexity": ("perplexity", lambda v: _error(v["perplexity"], v["perplexity_stderr"], 2)),
        "change": ("change_percent", lambda v: _error(v["change_percent"], v["change_stderr"], 2, "+", " %")),
        "KL, nats": ("kl_nats", lambda v: _error(v["kl_nats"], v["kl_stderr"], 4)),
        "same top": ("same_top_percent", lambda v: _fixed(v["same_top_percent"], 1, " %")),
        "cosine, token": ("token_cosine", lambda v: _error(v["token_cosine"], v["token_cosine_stderr"], 4)),
        "cosine, text": ("text_cosine", lambda v: _error(v["text_cosine"], v["text_cosine_stderr"], 4)),
        "prompt, tok/s": ("prompt_tokens_per_s", lambda v: _fixed(v["prompt_tokens_per_s"], 1)),
        "gen., tok/s": ("generation_tokens_per_s", lambda v: _fixed(v["generation_tokens_per_s"], 1)),
        "memory, MB": ("memory_mb", lambda v: _fixed(v["memory_mb"], 0)),
    }
    found = [model_values(model, series) for model in series.models]
    return {
        heading: cell for heading, (key, cell) in columns.items() if any(values[key] is not None for values in found)
    }


def settings_text(series: Series) -> str:
    """What was measured, in a line."""
    settings, parts = series.settings, []
    scored = number(series.base, "perplexity", "tokens_scored")
    if scored is not None:
        chunks = number(series.base, "perplexity", "chunks") or 0
        parts.append(f"{chunks:.0f} chunks of {settings.get('n_ctx')}, {scored:.0f} tokens scored")
    if any(model.get("speed") for model in series.models):
        parts.append(
            f"speed of {settings.get('n_prompt')} prompt and {settings.get('n_gen')} generated tokens, "
            f"threads {', '.join(map(str, settings.get('threads', [])))}, {settings.get('reps')} repetitions"
        )
    parts.append(f"compared with {series.base['name']}")
    return "; ".join(parts)


def _fixed(value: float | None, digits: int, unit: str = "") -> str:
    return "" if value is None else f"{value:.{digits}f}{unit}"


def _error(value: float | None, error: float | None, digits: int, sign: str = "", unit: str = "") -> str:
    """A number with its standard error; a broken model's has many digits."""
    if value is None:
        return ""
    if abs(value) >= 1e4:
        return f"{value:{sign}.1e}{unit}"
    return f"{value:{sign}.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}") + unit
