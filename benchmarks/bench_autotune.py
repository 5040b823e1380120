"""What tuning the rates buys: at equal bytes, rates that are measured, uniform, or by a rule of thumb, and llama.cpp.

    seeddelta imatrix dense.gguf -f wiki.valid.txt -o imatrix.gguf --hessian cov.gguf --chunks 48
    python benchmarks/bench_autotune.py --tune-text wiki.valid.txt --text wiki.test.txt --imatrix imatrix.gguf \\
        --hessian cov.gguf

For every budget three models with the same covariance: `autotuned`, `uniform` (rates as equal as the bytes allow) and
`rule` (--bpw: the sensitivities of a table); beside them llama.cpp's types with the
imatrix of the same text. The tuning reads `--tune-text` from its end; `--text` is never seen before the end. Perplexity
and divergence are from the original on the same tokens, and differences from `uniform` are paired. Writes JSON and a
figure. An interrupted run goes on where it was with --reuse.
"""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path
from typing import Any

import common
import numpy as np
import seeddelta
from seeddelta.convert.plan import make_plan
from seeddelta.evaluate import Comparison, ModelReport
from seeddelta.report.tables import make_console
from seeddelta.tune.store import EncodedStore

LLAMA = ("IQ2_M", "Q2_K", "IQ3_M", "Q3_K_M", "IQ4_XS", "IQ4_NL", "Q4_K_M", "Q5_K_M")
OURS = ("autotuned", "uniform", "rule")


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--tune-text", type=Path, required=True, help="text that is tuned on")
    parser.add_argument("--text", type=Path, required=True, help="text that is evaluated on")
    parser.add_argument("--budgets", default="3.25,4,5,6", help="bits per weight of the layers (default: %(default)s)")
    parser.add_argument("--chunks", type=int, default=64, help="chunks of the text (default: %(default)s)")
    parser.add_argument("--targets", default="all", help="matrices, as for build (default: %(default)s)")
    parser.add_argument("--ctx", type=int, default=512, help="tokens of a chunk (default: %(default)s)")
    parser.add_argument(
        "--tune-chunks", type=int, default=4, help="chunks a group is measured on (default: %(default)s)"
    )
    parser.add_argument("--verify-chunks", type=int, default=16, help="held out while tuning (default: %(default)s)")
    parser.add_argument("--detail", action="store_true", help="measure every layer by itself")
    parser.add_argument("--threads", type=int, default=0, help="threads (default: all cores)")
    parser.add_argument(
        "--imatrix", type=Path, required=True, help="imatrix of the original model, for llama.cpp's types"
    )
    parser.add_argument("--hessian", type=Path, help="covariance file of the original model, for ours")
    parser.add_argument("--llama", default=",".join(LLAMA), help="llama.cpp's types (default: %(default)s)")
    parser.add_argument("--ours", default=",".join(OURS), help="rule may be left out (default: %(default)s)")
    parser.add_argument("--reuse", action="store_true", help="go on with the models and measurements in --work")
    options = parser.parse_args()
    families = ("autotuned", "uniform", *(("rule",) if "rule" in options.ours.split(",") else ()))

    dense = common.dense_model(options.dense, options.work)
    scores = options.work / "autotune-scores"
    if not options.reuse:
        for folder in (options.work / "autotune", scores):
            shutil.rmtree(folder, ignore_errors=True)
    models, tunings = {"F16": dense}, {}
    for budget in map(float, options.budgets.split(",")):
        files = [options.work / f"{dense.stem}-{family}-{budget:g}.gguf" for family in families]
        report = _tune(options, dense, budget, *files)
        tunings[f"{budget:g}"] = report.model_dump(mode="json")
        models |= {f"{family} {budget:g}": file for family, file in zip(families, files, strict=True)}
    for name in filter(None, options.llama.split(",")):
        models[name] = common.llama_model(dense, options.work, name, imatrix=options.imatrix)
    comparison = seeddelta.evaluate(
        list(models.values()), text=options.text, n_ctx=options.ctx, chunks=options.chunks, reps=0,
        threads=options.threads or None, resume=scores, progress=True,
    )  # fmt: skip
    reports = dict(zip(models, comparison.models, strict=True))
    saved = options.name or "autotune"
    differences = {
        f"{family} {budget}": _paired(reports[f"{family} {budget}"], reports[f"uniform {budget}"])
        for budget in tunings
        for family in families
        if family != "uniform"
    }
    result = {
        "benchmark": saved,
        "settings": dict(comparison.settings) | {"text": options.text.name, "tune_text": options.tune_text.name},
        "models": {name: report.to_dict() | {"path": report.path.name} for name, report in reports.items()},
        "minus_uniform": differences,
        "tunings": tunings,
    }
    _print(reports, differences, comparison)
    path = common.save(saved, result, options.results)
    _figure(reports, path.with_suffix(".png"))
    return 0


def _tune(options: Any, dense: Path, budget: float, tuned: Path, uniform: Path, *rule: Path) -> Any:
    """The models of a budget. What is measured and encoded is kept for the next budget."""
    recipe = seeddelta.Recipe(
        input=dense, output=tuned, targets=options.targets, target_bpw=budget, hessian=options.hessian,
        threads=options.threads, **({} if options.hessian else {"imatrix": options.imatrix}),
    )  # fmt: skip
    folder = options.work / "autotune"
    report = seeddelta.autotune(
        seeddelta.TuneOptions(
            recipe=recipe, output=tuned.with_suffix(".yaml"), build=True, text=options.tune_text, ctx=options.ctx,
            chunks=options.tune_chunks, verify_chunks=options.verify_chunks, detail=options.detail, checkpoint=folder,
            keep=True,
        )
    )  # fmt: skip
    console = make_console()
    console.print(report.to_table())
    console.print(report.candidates_table())
    console.print(f"{budget:g} bits: {report.decision}: {report.message}")
    assert report.uniform is not None
    free = recipe.model_copy(update={"target_bpw": None})
    store = EncodedStore(free, folder / "parts")
    rates = {"bits": report.uniform.bits, "tensor_type": report.uniform.tensor_type}
    for other in (
        free.model_copy(update={"output": uniform} | rates),
        *(recipe.model_copy(update={"output": path}) for path in rule),
    ):  # fmt: skip
        assert other.parts_folder is not None
        store.offer({name: own.bits for name, own in make_plan(other).recipes.items()}, other.parts_folder)
        seeddelta.build(other)
    return report


def _paired(one: ModelReport, other: ModelReport) -> dict[str, float]:
    """One minus other on the same tokens: divergence in nats, and log perplexity, with standard errors."""
    assert one.divergence is not None
    assert other.divergence is not None
    assert one.perplexity is not None
    assert other.perplexity is not None
    kl = one.divergence.kl - other.divergence.kl
    found = {"kl": kl, "log_ppl": one.perplexity.nll - other.perplexity.nll}
    means = {name: float(values.mean()) for name, values in found.items()}
    errors = {f"{name}_stderr": float(np.std(v, ddof=1)) / math.sqrt(v.size) for name, v in found.items()}
    return means | errors | {"kl_relative": means["kl"] / other.divergence.mean}


def _print(reports: dict[str, ModelReport], differences: dict[str, Any], comparison: Comparison) -> None:
    from rich.table import Table

    table = Table(title=f"{comparison.settings['text']}")
    table.add_column("model")
    for heading in ("bits per weight", "perplexity", "change (paired)", "KL, nats", "same top", "KL minus uniform"):
        table.add_column(heading, justify="right")
    for name, report in sorted(reports.items(), key=lambda item: item[1].size.bits_per_weight or 0.0):
        change, kl = report.difference, report.divergence
        assert report.perplexity is not None
        found = differences.get(name)
        table.add_row(
            name,
            f"{report.size.bits_per_weight:.2f}",
            f"{report.perplexity.ppl:.2f} ± {report.perplexity.stderr:.2f}",
            "" if change is None else f"{change.percent:+.2f}% ± {change.percent_stderr:.2f}",
            "" if kl is None else f"{kl.mean:.4f} ± {kl.stderr:.4f}",
            "" if kl is None else f"{kl.same_top_percent:.1f}%",
            "" if found is None else f"{found['kl']:+.4f} ± {found['kl_stderr']:.4f} ({found['kl_relative']:+.0%})",
        )
    make_console().print(table)


def _figure(reports: dict[str, ModelReport], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for family in (*OURS, "llama.cpp"):
        points = sorted(
            (report.size.bits_per_weight, report.divergence.mean, report.divergence.stderr, name)
            for name, report in reports.items()
            if report.divergence is not None and _family(name) == family
        )
        if not points:
            continue
        bits, kl, error, names = zip(*points, strict=True)
        line = "" if family == "llama.cpp" else "-"
        axes.errorbar(bits, kl, error, fmt=f"o{line}", markersize=4, capsize=2, linewidth=1, label=family)
        if family == "llama.cpp":
            for x, y, name in zip(bits, kl, names, strict=True):
                axes.annotate(name, (x, y), xytext=(4, 3), textcoords="offset points", fontsize="x-small")
    axes.set_yscale("log")
    axes.set_xlabel("bits per weight of the layers, all bytes")
    axes.set_ylabel("KL divergence from F16, nats")
    axes.grid(linewidth=0.4, which="both")
    axes.legend()
    figure.savefig(path, dpi=150)
    print(f"written: {path}", file=sys.stderr)


def _family(name: str) -> str | None:
    if name == "F16":
        return None
    family = name.partition(" ")[0]
    return family if family in OURS else "llama.cpp"


if __name__ == "__main__":
    sys.exit(main())
