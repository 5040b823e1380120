"""Read damaged files: each ends in an exception of seeddelta.errors or in success, never in anything else.

    python tests/fuzz/mutate.py --cases 20000 [--seed 1] [--subject NAME ...]
    python tests/fuzz/mutate.py --only 1234 --keep damaged.bin       one case again, and its file
    python tests/fuzz/mutate.py --models --cases 20000 [--first 5000]    whole models, loaded, and one token

A case is its number and the seed. Cases run in child processes with a limit of memory beyond what the interpreter has
and a limit of time a case; a child that dies is a failure of its case, and the next one goes on behind it.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # llama.cpp would start a debugger
sys.path.insert(0, str(Path(__file__).parent))

from mutations import mutated
from seeddelta.errors import SeedDeltaError
from subjects import Subject, all_subjects

MEMORY = 256 << 20  # bytes of address space that reading one damaged file of some kilobytes may take
SECONDS = 5.0  # of the processor for one case
WAITING = 120.0  # seconds for one that waits: others may have the processor
_BATCH = 500  # cases a child


@dataclass
class Outcome:
    """`failures` are (case, subject, what happened); `counts` say of each subject how many were read and refused."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[tuple[int, str, str]] = field(default_factory=list)

    @property
    def cases(self) -> int:
        return sum(self.counts.values())


def damaged(subjects: Sequence[Subject], case: int, seed: int) -> tuple[Subject, bytes]:
    """The subject and the file of a case."""
    rng = Random(f"{seed}:{case}")
    subject = subjects[case % len(subjects)]
    return subject, mutated(rng.choice(subject.files), rng)


def read_one(subject: Subject, path: Path) -> tuple[str, str]:
    """("read" | "refused" | "failed", what happened)."""
    try:
        subject.read(path)
    except SeedDeltaError as error:
        return "refused", type(error).__name__
    except Exception:
        return "failed", traceback.format_exc()
    return "read", ""


def _vm_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _child(
    subjects: Sequence[Subject], cases: range, seed: int, pipe: int, memory: int, seconds: float, waiting: float
) -> None:
    """Runs cases and writes a line before and after each."""
    warnings.simplefilter("ignore")
    faulthandler.disable()  # pytest's; the parent tells what happened
    most = _vm_bytes() + memory
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for alarm in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(alarm, signal.SIG_DFL)  # ends the process wherever it is, in native code too
    with tempfile.TemporaryDirectory(prefix="seeddelta-fuzz-") as folder, os.fdopen(pipe, "w", buffering=1) as out:
        path = Path(folder) / "file"
        for case in cases:
            subject, data = damaged(subjects, case, seed)
            path.unlink(missing_ok=True)  # a mapping of the last one stays whole
            path.write_bytes(data)
            out.write(json.dumps([case, subject.name, "begun", ""]) + "\n")
            signal.setitimer(signal.ITIMER_PROF, seconds)
            signal.setitimer(signal.ITIMER_REAL, waiting)
            what, message = read_one(subject, path)
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            out.write(json.dumps([case, subject.name, what, message]) + "\n")


def run(
    subjects: Sequence[Subject],
    cases: int,
    seed: int,
    *,
    first: int = 0,
    memory: int = MEMORY,
    seconds: float = SECONDS,
    waiting: float = WAITING,
    tell: bool = False,
) -> Outcome:
    """Run cases first … cases - 1. With `tell` a line says how far it is, to go on with `--first`."""
    outcome, at = Outcome(), first
    while at < cases:
        at = _batch(subjects, range(at, min(at + _BATCH, cases)), seed, (memory, seconds, waiting), outcome)
        if tell:
            print(f"{at} of {cases}, {len(outcome.failures)} failures", flush=True)
    return outcome


def _batch(
    subjects: Sequence[Subject], cases: range, seed: int, limits: tuple[int, float, float], outcome: Outcome
) -> int:
    """One child; returns the case to go on with."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            _child(subjects, cases, seed, writing, *limits)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    last, name, what, message = cases.start - 1, "", "", ""
    with os.fdopen(reading) as lines:
        for line in lines:
            last, name, what, message = json.loads(line)
            if what != "begun":
                outcome.counts[name, what] += 1
            if what == "failed":
                outcome.failures.append((last, name, message))
    status = os.waitpid(child, 0)[1]
    if what == "begun":
        cause = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"status {status}"
        outcome.counts[name, "failed"] += 1
        outcome.failures.append((last, name, f"the process ended with {cause}"))
    elif status != 0:
        raise RuntimeError(f"the child of the cases {cases} did not begin: status {status}")
    return last + 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", action="store_true", help="whole models through llama.cpp and one token")
    parser.add_argument("--subject", nargs="*", default=None, help="only these kinds of files")
    parser.add_argument("--only", type=int, default=None, help="this case alone, here and without limits")
    parser.add_argument("--keep", type=Path, default=None, help="with --only: leave the damaged file here")
    options = parser.parse_args()
    if options.models:
        from models import MODEL_MEMORY, model_subject, smollm2

        subjects, memory = [model_subject(smollm2())], MODEL_MEMORY
    else:
        subjects = [s for s in all_subjects() if options.subject is None or s.name in options.subject]
        memory = MEMORY
    if options.only is not None:
        subject, data = damaged(subjects, options.only, options.seed)
        with tempfile.TemporaryDirectory() as folder:
            path = options.keep or Path(folder) / "file"
            path.write_bytes(data)
            print(subject.name, *read_one(subject, path))
        return 0
    begin = time.monotonic()
    outcome = run(subjects, options.cases, options.seed, first=options.first, memory=memory, tell=True)
    for subject in subjects:
        print(
            f"{subject.name:12}", *(f"{outcome.counts[subject.name, w]:6} {w}" for w in ("read", "refused", "failed"))
        )
    for case, name, message in outcome.failures[:10]:
        print(f"case {case} ({name}):\n{message}")
    took = time.monotonic() - begin
    print(f"{outcome.cases} cases, seed {options.seed}, {len(outcome.failures)} failures, {took:.0f} s")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
