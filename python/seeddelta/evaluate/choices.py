"""Multiple-choice tasks from the files of llama-perplexity: HellaSwag, Winogrande and its binary multiple choice.

Formats and scores are those of llama.cpp's tools/perplexity/perplexity.cpp: a choice's score is the mean
log-probability of its tokens behind what all choices begin with; the one with the largest is the model's answer.
"""

from __future__ import annotations

import csv
import math
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import EvaluationError
from ..session import require_logits
from ..session.decoder import Decoder
from ..session.long_words import tokens_of
from .continuations import score_continuation

if TYPE_CHECKING:
    import llama_cpp

_MOST_ANSWERS = 100  # of a task, as llama-perplexity has it
_MIN_TRAILING = 3  # Winogrande: what follows the choice is scored alone when it has more tokens (k_min_trailing_ctx)


@dataclass(frozen=True)
class Task:
    """texts: one a choice, in two parts; the model's answer is judged by the second, or behind what is common.
    gold: the index of the right one."""

    texts: tuple[tuple[str, str], ...]
    gold: int


@dataclass(frozen=True)
class ChoiceResult:
    """right: bool[tasks]."""

    right: npt.NDArray[np.bool_]

    @property
    def accuracy(self) -> float:
        return float(self.right.mean())

    @property
    def stderr(self) -> float:
        return math.sqrt(self.accuracy * (1 - self.accuracy) / max(len(self.right) - 1, 1))

    def difference(self, base: ChoiceResult) -> tuple[float, float]:
        """Accuracy minus that of a base on the same tasks, and its standard error, of paired tasks."""
        paired = self.right.astype(np.float64) - base.right
        error = paired.std(ddof=1) / math.sqrt(len(paired)) if len(paired) > 1 else 0.0
        return float(paired.mean()), float(error)

    def to_dict(self) -> dict[str, Any]:
        return {"accuracy": self.accuracy, "stderr": self.stderr, "tasks": len(self.right)}


def read_hellaswag(path: str | os.PathLike[str]) -> list[Task]:
    """Six lines a task: context, index of the right ending, four endings. Raises EvaluationError."""
    lines = _lines(path)
    tasks = []
    for at in range(0, len(lines), 6):
        part = lines[at : at + 6]
        if len(part) < 6 or part[1].strip() not in ("0", "1", "2", "3"):
            raise EvaluationError(f"{path}: line {at + 1}: no HellaSwag task (context, 0-3, four endings)")
        tasks.append(Task(tuple((part[0], f" {ending}") for ending in part[2:]), int(part[1])))
    return tasks


def read_winogrande(path: str | os.PathLike[str]) -> list[Task]:
    """CSV lines: index, sentence with `_`, two choices, 1 or 2. Raises EvaluationError."""
    tasks = []
    for number, row in enumerate(csv.reader(_lines(path)), 1):
        if len(row) != 5 or "_" not in row[1] or row[4].strip() not in ("1", "2"):
            raise EvaluationError(
                f"{path}: line {number}: no Winogrande task (index,sentence with _,choice,choice,1-2)"
            )
        before, _, after = row[1].partition("_")
        tasks.append(Task(tuple((before + choice, after) for choice in row[2:4]), int(row[4]) - 1))
    return tasks


def read_multiple_choice(path: str | os.PathLike[str]) -> list[Task]:
    """llama-perplexity's binary file (ARC, MMLU, TruthfulQA): of each task the answers of which one is right.

    Little-endian: the number of tasks, their offsets, then each task: the question, and two lists of answers with
    labels (int32, 1: right). Texts are a length and bytes; numbers are uint32. Raises EvaluationError.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise EvaluationError(f"{path}: cannot be read ({error.strerror}); give the file of the tasks") from error
    tasks = []
    try:
        (count,) = struct.unpack_from("<I", data)
        at = 4 + 4 * count
        for _ in range(count):
            question, at = _packed_text(data, at)
            answers, labels, at = _packed_answers(data, at)
            _, _, at = _packed_answers(data, at)
            tasks.append(Task(tuple((question, f" {answer}") for answer in answers), labels.index(1)))
    except (struct.error, ValueError, MemoryError) as error:
        raise EvaluationError(
            f"{path}: task {len(tasks) + 1}: not in llama-perplexity's format of multiple-choice tasks ({error})"
        ) from error
    if not tasks:
        raise EvaluationError(f"{path}: has no tasks")
    return tasks


def _packed_text(data: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<I", data, at)
    end = at + 4 + size
    if end > len(data):
        raise ValueError("it ends inside a text")
    return data[at + 4 : end].decode(), end


def _packed_answers(data: bytes, at: int) -> tuple[list[str], list[int], int]:
    (count,) = struct.unpack_from("<I", data, at)
    if count > _MOST_ANSWERS:
        raise ValueError(f"{count} answers")
    at += 4
    answers = []
    for _ in range(count):
        answer, at = _packed_text(data, at)
        answers.append(answer)
    return answers, list(struct.unpack_from(f"<{count}i", data, at)), at + 4 * count


READERS: dict[str, Callable[[str | os.PathLike[str]], list[Task]]] = {
    "hellaswag": read_hellaswag,
    "winogrande": read_winogrande,
    "multiple_choice": read_multiple_choice,
}


def score_tasks(
    llm: llama_cpp.Llama, tasks: Sequence[Task], on_task: Callable[[], None] = lambda: None
) -> ChoiceResult:
    """The model's answers. Raises EvaluationError for a task that does not fit the context."""
    require_logits(llm)
    decoder = Decoder(llm)
    right = []
    for task in tasks:
        right.append(_answer(llm, decoder, task) == task.gold)
        on_task()
    decoder.clear()
    return ChoiceResult(np.array(right, dtype=bool))


def _answer(llm: llama_cpp.Llama, decoder: Decoder, task: Task) -> int:
    whole = [tokens_of(llm, (first + second).encode()) for first, second in task.texts]
    common = 0
    while all(common < len(one) and one[common] == whole[0][common] for one in whole):
        common += 1
    starts = [max(common, 1)] * len(whole)
    behind = [len(tokens_of(llm, first.encode())) for first, _ in task.texts]
    heads_differ = len({first for first, _ in task.texts}) > 1
    if heads_differ and all(len(one) - at > _MIN_TRAILING for one, at in zip(whole, behind, strict=True)):
        starts = behind
    scores = []
    for index, (tokens, start) in enumerate(zip(whole, starts, strict=True)):
        found = score_continuation(decoder, tokens, start, keep=max(common - 1, 0) if index else 0)
        scores.append(found.log_probs.mean() if len(found.log_probs) else -np.inf)
    return int(np.argmax(scores))


def _lines(path: str | os.PathLike[str]) -> list[str]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EvaluationError(f"{path}: cannot be read ({error}); give a text file in UTF-8") from error
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise EvaluationError(f"{path}: has no tasks")
    return lines
