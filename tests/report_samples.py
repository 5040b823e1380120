"""Measurements as `seeddelta eval --json` prints them, with numbers from a formula."""

from __future__ import annotations

from typing import Any

MB = 1_000_000


def speed(threads: int, factor: float) -> dict[str, Any]:
    samples = [100 * threads * factor, 101 * threads * factor, 99 * threads * factor]
    found = {
        "median": samples[0],
        "mad": samples[1] - samples[0],
        "min": samples[2],
        "max": samples[1],
        "samples": samples,
    }
    return {"threads": threads, "depth": 0, "n_prompt": 32, "n_gen": 8, "prompt": found, "generation": found}


def model(
    path: str, kind: str, megabytes: float, bits: float, change: float | None, kl: float | None
) -> dict[str, Any]:
    memory = {
        "anon": 60 * MB,
        "file": int(megabytes * MB),
        "shmem": 0,
        "peak": 90 * MB + int(megabytes * MB),
        "pss": None,
    }
    memory["resident"] = 60 * MB + int(megabytes * MB)
    ppl = {"ppl": 20 * (1 + (change or 0) / 100), "stderr": 0.4, "tokens_scored": 512, "chunks": 2, "n_ctx": 512}
    difference = (
        None
        if change is None
        else {"log_ratio": change / 100, "stderr": 0.002, "percent": change, "percent_stderr": 0.2}
    )
    divergence = (
        None if kl is None else {"mean": kl, "stderr": kl / 20, "same_top_percent": 90.0, "same_top_stderr": 0.5}
    )
    return {
        "path": path, "kind": kind, "file_bytes": int(megabytes * MB), "block_weights": 106 * MB,
        "bits_per_weight": bits, "weights": 134 * MB, "model_bits_per_weight": 8 * megabytes / 134,
        "memory": {"before_load": memory, "after_load": memory, "after_generation": memory},
        "speed": [speed(1, 16 / bits), speed(2, 16 / bits)], "perplexity": ppl, "difference": difference,
        "divergence": divergence, "metrics": {}, "sample": "Paris <b>& so on</b>",
    }  # fmt: skip


def evaluation(small: str = "m/smol-4bit.seeddelta.gguf", middle: str = "m/smol-3bit.seeddelta.gguf") -> dict[str, Any]:
    """An original model, two SeedΔ files and two types of llama.cpp; one of them is broken."""
    settings = {
        "text": "texts/wiki.txt", "n_ctx": 512, "chunks": 2, "threads": [1, 2], "reps": 3, "n_prompt": 32, "n_gen": 8,
        "depths": [0], "kl": True,
    }  # fmt: skip
    return {
        "settings": settings,
        "models": [
            model("m/smol-f16.gguf", "F16", 270, 16, None, None),
            model(small, "SeedΔ 4 bits", 112, 4.05, 3.7, 0.04),
            model(middle, "SeedΔ 3 bits", 99, 3.05, 15.0, 0.15),
            model("m/smol-Q4_K_M.gguf", "Q4_K", 105, 5.5, 2.5, 0.03),
            model("m/smol-IQ1_S.gguf", "IQ1_S", 60, 2.0, 9.4e7, 17.0),
        ],
    }


def without_quality(data: dict[str, Any]) -> dict[str, Any]:
    """The same where no text was given."""
    data["settings"]["text"] = None
    for one in data["models"]:
        one.update({"perplexity": None, "difference": None, "divergence": None, "sample": None})
    return data
