"""Perplexity and divergence from the original model on texts, at what each kind of weight costs.

    seeddelta imatrix dense.gguf -f wiki.valid.txt -o imatrix.gguf --hessian cov.gguf --chunks 48
    python benchmarks/bench_quality.py files --text wiki.test.txt --text pydoc --text code --imatrix imatrix.gguf \\
        --hessian cov.gguf

Suites: `files` (our presets beside llama.cpp's types, quantised with the same imatrix by the loaded library, embedding
included), `ablation` (one thing changed at a time, layers only), `calibration` (4 bits with each covariance of
`--covariance NAME=FILE`, captured in another way). Bits count every byte of the block matrices. llama.cpp falls back
to other types where a row is no multiple of 256, so on small models its bits are higher than the names say.
`--text pydoc` is the text of Python's own `pydoc_data.topics`, `--text code` the source of its package asyncio.
Differences from the original model are paired: the same tokens, scored by both.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import common
import seeddelta
from seeddelta.evaluate import Comparison
from seeddelta.report.tables import make_console

H, IMATRIX = {"hessian": True}, {"imatrix": True}
LLAMA = ("IQ2_M", "Q2_K", "IQ3_M", "Q3_K_M", "Q4_0", "IQ4_XS", "IQ4_NL", "Q4_1", "Q4_K_M")
# suite -> name -> options of the recipe; True stands for the file that was given
SUITES: dict[str, dict[str, dict[str, Any]]] = {
    "ablation": {
        "no calibration": {},
        "no rotation": {"rotation_block": 0},
        "imatrix": IMATRIX,
        "imatrix, columns scaled": IMATRIX | {"column_power": 0.2},
        "feedback": H,
        "feedback, columns not scaled": H | {"column_power": 0},
        "feedback, no rotation": H | {"rotation_block": 0},
        "feedback, seed 2": H | {"seed": 2},
        "feedback, 3 bits": H | {"bits": 3},
        "feedback, 2.5 bits": H | {"bits": 2.5},
        "feedback, 2 bits": H | {"bits": 2},
        "feedback, 3 bits + coo": H | {"bits": 3, "scheme": "coo", "K": 8, "vals": "int8"},
        "prng_block + coo": {"base_kind": "prng_block", "scheme": "coo", "K": "auto", "vals": "int8"},
        "fht_struct + block": {"base_kind": "fht_struct", "scheme": "block", "block": 32, "K": "auto", "vals": "int8"},
        "fht_struct + codebook": {"base_kind": "fht_struct", "scheme": "codebook_resid", "K": "auto"},
        "none + codebook (StateCells)": {"base_kind": "none", "scheme": "codebook_resid", "K": "auto"},
    },
    "calibration": {},
    "files": {
        "tiny": H | {"preset": "tiny"},
        "small": H | {"preset": "small"},
        "lanes-4": H | {"bits": 4},
        "balanced": H | {"preset": "balanced"},
        "large": H | {"preset": "large"},
    },
}


def _options() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("suite", choices=SUITES, help="what to compare")
    parser.add_argument("--text", action="append", required=True, help="text file, pydoc or code; may be given often")
    parser.add_argument("--chunks", type=int, default=64, help="chunks of each text (default: %(default)s)")
    parser.add_argument("--ctx", type=int, default=512, help="tokens of a chunk (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="threads (default: all cores)")
    parser.add_argument("--imatrix", type=Path, required=True, help="imatrix of the original model")
    parser.add_argument("--hessian", type=Path, required=True, help="covariance file of the original model")
    parser.add_argument("--covariance", action="append", default=[], metavar="NAME=FILE", help="for calibration")
    parser.add_argument("--llama", default=",".join(LLAMA), help="llama.cpp's types (default: %(default)s)")
    parser.add_argument(
        "--reuse",
        action="store_true",
        help="take models that are in --work, and add to the texts and models of the result file",
    )
    parser.add_argument(
        "--file",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="a finished file beside them; may be given often",
    )
    parser.add_argument("--only", default="", help="expression that the names of our models must have")
    return parser.parse_args()


def main() -> int:
    options = _options()
    dense = common.dense_model(options.dense, options.work)
    models = {"F16": dense}
    recipes = dict(SUITES[options.suite])
    if options.suite == "calibration":
        for text in options.covariance:
            name, _, file = text.partition("=")
            recipes[name] = {"hessian": Path(file)}
    whole = options.suite == "files"
    for name, recipe in recipes.items():
        if re.search(options.only, name):
            given = {key: getattr(options, key) if value is True else value for key, value in recipe.items()}
            given |= {"targets": "full" if whole else "all"}
            stem = ("whole-" if whole else "") + re.sub(r"\W+", "-", name)
            models[name] = common.seeddelta_model(dense, options.work, stem, reuse=options.reuse, **given)
    if whole:
        for name in filter(None, options.llama.split(",")):
            models[name] = common.llama_model(dense, options.work, name, imatrix=options.imatrix)
    models |= {name: Path(file) for name, _, file in (text.partition("=") for text in options.file)}
    saved = options.name or f"quality-{options.suite}"
    result: dict[str, Any] = {"benchmark": saved, "texts": {}}
    if options.reuse and (options.results / f"{saved}.json").exists():
        result["texts"] = json.loads((options.results / f"{saved}.json").read_text(encoding="utf-8"))["texts"]
    for text in options.text:
        path = common.TEXTS[text](options.work) if text in common.TEXTS else Path(text)
        comparison = seeddelta.evaluate(
            list(models.values()), text=path, n_ctx=options.ctx, chunks=options.chunks, threads=options.threads,
            reps=0, progress=True,
        )  # fmt: skip
        make_console().print(path.name)
        _print(list(models), comparison)
        found = {"settings": dict(comparison.settings) | {"text": path.name}, "models": {}}
        before = result["texts"].get(path.name, found)
        if all(before["settings"].get(key) == found["settings"][key] for key in ("chunks", "n_ctx", "text")):
            found["models"] = before["models"]
        for name, report in zip(models, comparison.models, strict=True):
            found["models"][name] = report.to_dict() | {"path": report.path.name}
        result["texts"][path.name] = found
        common.save(saved, result, options.results)
    return 0


def _short(value: float) -> str:
    """A broken model's perplexity has many digits."""
    return f"{value:.2f}" if abs(value) < 1e4 else f"{value:.1e}"


def _print(names: list[str], comparison: Comparison) -> None:
    from rich.table import Table

    table = Table()
    table.add_column("model")
    for heading in ("bits per weight", "file, MB", "perplexity", "change (paired)", "KL, nats", "same top"):
        table.add_column(heading, justify="right")
    for name, report in zip(names, comparison.models, strict=True):
        change, kl = report.difference, report.divergence
        assert report.perplexity is not None
        table.add_row(
            name,
            f"{report.size.bits_per_weight:.2f}",
            f"{report.size.file_bytes / 1e6:.1f}",
            f"{_short(report.perplexity.ppl)} ± {_short(report.perplexity.stderr)}",
            "" if change is None else f"{_short(change.percent)}% ± {_short(change.percent_stderr)}",
            "" if kl is None else f"{kl.mean:.4f} ± {kl.stderr:.4f}",
            "" if kl is None else f"{kl.same_top_percent:.1f}%",
        )
    make_console().print(table)


if __name__ == "__main__":
    sys.exit(main())
