"""Let the disk be full at one place after the other of what commands write, and see what becomes of the files.

    python tests/fuzz/full_disks.py --disks 200 [--seed 1]

A limit on the size of files stands for the full disk: what would go beyond it fails, half-way, with a real errno. Exit
status 1, and a line, when a command ends otherwise than by an error that names the file, harms a file that was there,
leaves anything but its parts behind, or does not end in the right bytes when there is room again.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))  # for the command line; pytest has it there already

from llama_helpers import TEXT
from models import smollm2
from seeddelta.cli.main import main as command
from tiny_llama import write_llama

SMALL = ["-c", "64", "--chunks", "2", "-t", "1", "-q"]
# Arguments, and the outputs among them. Whether the output is the same bytes each time.
COMMANDS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "build": (
        ["build", "-i", "dense.gguf", "-o", "out/built.gguf", "--base-kind", "prng_block", "--targets", "ffn",
         "-t", "1", "-q"],
        ("built.gguf",),
    ),
    "imatrix": (
        ["imatrix", "-m", "dense.gguf", "-f", "text.txt", "-o", "out/i.gguf", "--hessian", "out/cov.gguf", *SMALL],
        ("i.gguf", "cov.gguf"),
    ),
    "quantize": (
        ["quantize", "dense.gguf", "-f", "text.txt", "-o", "out/quantized.gguf", "--targets", "attn_k", "--quality",
         "fast", "--ctx", "64", "--chunks", "2", "-t", "1", "-q"],
        ("quantized.gguf",),
    ),
    "eval": (
        ["eval", "-m", "dense.gguf", "-f", "text.txt", "--no-speed", "--save-kl-base", "out/base.kld", *SMALL],
        ("base.kld",),
    ),
}  # fmt: skip
OLD = b"what was there"
TOLD = ("cannot be written", "no room for the kept tensors")  # and the second is about the memory of a view


class Found(Protocol):
    """What a campaign found to be wrong."""

    wrong: list[str]


@dataclass
class Filled:
    """`disks` were full at a place that was written; `wrong` is what should not be."""

    disks: int = 0
    runs: int = 0
    wrong: list[str] = field(default_factory=list)


def write_inputs(folder: Path, tokenizer_of: Path) -> None:
    write_llama(folder / "dense.gguf", tokenizer_of)
    (folder / "text.txt").write_text("\n".join([TEXT] * 12), encoding="utf-8")


def run(folder: Path, arguments: list[str], limit: int | None) -> tuple[int, str]:
    """Exit status of a command in a child, and its messages."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.chdir(folder)
            os.dup2(there, 1)
            os.dup2(there, 2)
            os.close(here)
            sys.stdout = sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1)  # not pytest's
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            status = command(arguments)
            sys.stderr.flush()
            os._exit(status)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(99)
    os.close(there)
    with open(here, encoding="utf-8", errors="replace") as messages:
        text = messages.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def fill(folder: Path, name: str, disks: int, rng: Random, filled: Filled) -> None:
    """Full disks at `disks` places of one command, from the first byte to the last one of its largest file."""
    arguments, names = COMMANDS[name]
    output = folder / "out"
    output.mkdir()
    status, text = run(folder, arguments, None)
    assert status == 0, text
    expected = {one: (output / one).read_bytes() for one in names}
    largest = max(map(len, expected.values()))
    for number in range(disks):
        shutil.rmtree(output)
        output.mkdir()
        for one in names:
            (output / one).write_bytes(OLD)
        limit = 0 if number == 0 else min(largest - 1, int(largest * (number + rng.random()) / disks))
        status, text = run(folder, arguments, limit)
        filled.runs += 1
        if status == 0:
            continue  # of the smaller outputs
        filled.disks += 1
        where = f"{name}, {limit} of {largest} bytes: "
        if status != 1 or "Traceback" in text or not any(told in text for told in TOLD):
            filled.wrong.append(where + f"status {status}, {text[-1500:]}")
        check(output, where, names, expected, filled)
        if number % 16 == 0:  # there is room again
            status, text = run(folder, arguments, None)
            if status != 0 or any((output / one).read_bytes() != expected[one] for one in names):
                filled.wrong.append(where + f"then another file, or none; status {status}, {text[-500:]}")
    shutil.rmtree(output)


def check(
    output: Path,
    where: str,
    names: tuple[str, ...],
    expected: Mapping[str, bytes],
    found: Found,
    *,
    was_killed: bool = False,
) -> None:
    """Outputs are as they were, or whole; what is kept to go on with has the name of one. What a killed process was
    writing has that name, too, and a dot before it: the next one that writes the output removes it."""
    for one in names:
        data = (output / one).read_bytes() if (output / one).exists() else None
        if data not in (OLD, expected[one]):
            found.wrong.append(where + f"{one} is harmed")
    for left in sorted(path.name for path in output.iterdir() if path.name not in names):
        if not (left.removeprefix(".") if was_killed else left).startswith(names):
            found.wrong.append(where + f"leaves {left} behind")


def fill_disks(
    folder: Path, tokenizer_of: Path, disks: int, rng: Random, names: tuple[str, ...] = tuple(COMMANDS)
) -> Filled:
    write_inputs(folder, tokenizer_of)
    filled = Filled()
    shares = {"build": 0.55, "imatrix": 0.3, "quantize": 0.05, "eval": 0.1}
    for name in names:
        fill(folder, name, max(2, round(disks * shares[name])), rng, filled)
    return filled


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disks", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(COMMANDS))
    options = parser.parse_args()
    begin = time.monotonic()
    names = tuple(options.only.split(","))
    with tempfile.TemporaryDirectory(prefix="seeddelta-disk-") as temporary:
        filled = fill_disks(Path(temporary), smollm2(), options.disks, Random(options.seed), names)
    for line in filled.wrong:
        print(line)
    print(
        f"{filled.disks} full disks in {filled.runs} runs, {len(filled.wrong)} wrong, {time.monotonic() - begin:.0f} s"
    )
    return 1 if filled.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
