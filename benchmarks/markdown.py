"""Markdown tables of results, as they stand in docs/: python benchmarks/markdown.py quality-models tensors"""

from __future__ import annotations

import json
import sys
from typing import Any

import common


def quality(result: dict[str, Any]) -> list[str]:
    lines = []
    for text, found in result["texts"].items():
        settings, models = found["settings"], found["models"]
        scored = next(iter(models.values()))["perplexity"]["tokens_scored"]
        lines += [
            f"`{text}`, {settings['chunks']} chunks of {settings['n_ctx']}, {scored} tokens scored:",
            "",
            "| model | bits a weight | perplexity | change (paired) | KL, nats | same top |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for name, model in sorted(models.items(), key=lambda item: item[1]["bits_per_weight"]):
            ppl, change, kl = model["perplexity"], model["difference"], model["divergence"]
            cells = [name, f"{model['bits_per_weight']:.2f}", _with_error(ppl["ppl"], ppl["stderr"])]
            if change is None:
                cells += ["", "", ""]
            else:
                cells.append(_with_error(change["percent"], change["percent_stderr"], sign="+") + "%")
                cells += [f"{kl['mean']:.4f} ± {kl['stderr']:.4f}", f"{kl['same_top_percent']:.1f}%"]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return lines


def tensors(result: dict[str, Any]) -> list[str]:
    lines = [
        "| type | bits a weight | weighted error | worst matrix | plain error |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, row in sorted(result["summary"].items(), key=lambda item: item[1]["bits_per_weight"]):
        errors = " | ".join(f"{row[key]:.4f}" for key in ("rel_l2_w", "rel_l2_w_worst", "rel_l2"))
        lines.append(f"| {name} | {row['bits_per_weight']:.3f} | {errors} |")
    return lines


def _with_error(value: float, error: float, sign: str = "") -> str:
    return f"{value:{sign}.2f} ± {error:.2f}" if abs(value) < 1e4 else f"{value:{sign}.0e}"


def main() -> int:
    for name in sys.argv[1:]:
        result = json.loads((common.RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        print("\n".join(quality(result) if "texts" in result else tensors(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
