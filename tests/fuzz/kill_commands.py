"""Kill commands, and processes that decode, at random moments, and see what becomes of the files.

    python tests/fuzz/kill_commands.py --kills 100 [--seed 1] [--only build,imatrix,quantize,decode]

Exit status 1, and a line, when a kill harms an output that was there, leaves a part of one in its place, when the same
command does not end in the same bytes afterwards or leaves files behind, or when another process that computes from the
same file gets other numbers.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from full_disks import COMMANDS, OLD, check, command, write_inputs
from llama_helpers import load_small, logits_of
from models import smollm2

SHARES = {"build": 0.25, "imatrix": 0.25, "quantize": 0.2, "decode": 0.3}
_PATIENCE = 180.0  # seconds for a command that nobody kills


@dataclass
class Killed:
    """`kills` met something that was running, `runs` ended by themselves, `wrong` is what should not be."""

    kills: int = 0
    runs: int = 0
    wrong: list[str] = field(default_factory=list)


def in_child(work: Callable[[], int], after: float | None) -> float | None:
    """Seconds that a child took with `work`; None when it, and what it had started, was killed `after` so many."""
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            sys.stdout = sys.stderr = os.fdopen(2, "w", encoding="utf-8")
            os._exit(work())
        except BaseException:
            os._exit(99)
    deadline = begin + (_PATIENCE if after is None else after)
    status = None
    while status is None:
        ended, found = os.waitpid(child, os.WNOHANG)
        if ended:
            status = found
        elif time.monotonic() >= deadline:
            try:
                os.killpg(child, signal.SIGKILL)
            except ProcessLookupError:  # it has no group yet
                os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
        else:
            time.sleep(0.002)
    if os.WIFSIGNALED(status) and after is not None:
        return None
    if status != 0:
        raise RuntimeError(f"a command ended with status {status}")
    return time.monotonic() - begin


def kill_command(folder: Path, name: str, kills: int, rng: Random, killed: Killed) -> None:
    """Kill one command again and again, mostly over what the kill before has left."""
    arguments, names = COMMANDS[name]
    output = folder / "out"

    def work() -> int:
        os.chdir(folder)
        return command(arguments)

    def fresh() -> None:
        for path in output.iterdir():
            path.unlink()
        for one in names:
            (output / one).write_bytes(OLD)

    output.mkdir()
    whole = in_child(work, None)
    assert whole is not None
    expected = {one: (output / one).read_bytes() for one in names}
    fresh()
    goal = killed.kills + kills
    while killed.kills < goal and not killed.wrong:
        took = in_child(work, rng.uniform(0, whole) if rng.random() < 0.8 else None)
        killed.kills += took is None
        killed.runs += took is not None
        check(output, f"{name}, kill {killed.kills}: ", names, expected, killed, was_killed=True)
        if took is not None:
            end(output, name, expected, killed)
            fresh()
    in_child(work, None)
    killed.runs += 1
    end(output, name, expected, killed)
    for path in output.iterdir():
        path.unlink()
    output.rmdir()


def end(output: Path, name: str, expected: dict[str, bytes], killed: Killed) -> None:
    """What a command that ended has to leave: its outputs, and nothing else."""
    found = {path.name: path.read_bytes() for path in output.iterdir() if path.is_file()}
    if found != expected or len(list(output.iterdir())) != len(expected):
        other = [one for one in expected if found.get(one) != expected[one]]
        killed.wrong.append(f"{name} ended after {killed.kills} kills with {sorted(found)}; different: {other}")


def kill_decodes(folder: Path, kills: int, rng: Random, killed: Killed) -> None:
    """Kill processes that decode while another one computes from the same file."""
    model, tokens = folder / "model.gguf", list(range(5, 25))

    def work() -> int:
        return command(["build", "-i", str(folder / "dense.gguf"), "-o", str(model), "--bits", "4", "-q", "-t", "1"])

    def digest(llm: object) -> bytes:
        return hashlib.sha256(logits_of(llm, tokens).tobytes()).digest()

    def decode(rounds: int) -> int:
        llm = load_small(model, 2)
        for _ in range(rounds):
            digest(llm)
        return 0

    in_child(work, None)
    before = model.read_bytes()
    ask, asked = os.pipe()[::-1], os.pipe()  # written to by this process; by the one that stays
    child = os.fork()
    if child == 0:
        try:
            os.close(ask[0])
            llm = load_small(model, 1)
            while os.read(ask[1], 1):
                os.write(asked[1], digest(llm))
            os._exit(0)
        except BaseException:
            os._exit(99)
    os.close(ask[1])
    whole = in_child(lambda: decode(1), None)
    assert whole is not None
    numbers = set()
    for _ in range(kills):
        took = in_child(lambda: decode(1000), rng.uniform(0, 1.2 * whole))
        killed.kills += took is None
        os.write(ask[0], b"?")
        numbers.add(os.read(asked[0], 32))
    os.close(ask[0])
    if os.waitpid(child, 0)[1] != 0 or len(numbers) > 1:
        killed.wrong.append(f"decode: a process beside those that were killed ended, or had {len(numbers)} results")
    if model.read_bytes() != before:
        killed.wrong.append("decode: the model is another one")
    model.unlink()


def kill_commands(
    folder: Path, tokenizer_of: Path, kills: int, rng: Random, names: tuple[str, ...] = tuple(SHARES)
) -> Killed:
    write_inputs(folder, tokenizer_of)
    killed, share = Killed(), sum(SHARES[name] for name in names)
    for name in names:
        count = max(1, round(kills * SHARES[name] / share))
        if name == "decode":
            kill_decodes(folder, count, rng, killed)
        else:
            kill_command(folder, name, count, rng, killed)
    return killed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the moments, which depend on the machine, too")
    parser.add_argument("--only", default=",".join(SHARES))
    options = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="seeddelta-kill-") as temporary:
        names = tuple(options.only.split(","))
        killed = kill_commands(Path(temporary), smollm2(), options.kills, Random(options.seed), names)
    for line in killed.wrong:
        print(line)
    print(
        f"{killed.kills} kills, {killed.runs} commands ended, {len(killed.wrong)} wrong, "
        f"{time.monotonic() - begin:.0f} s"
    )
    return 1 if killed.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
