"""A process with one model, commanded by JSON lines: `worker.main()` in an interpreter of its own (client.py).

A request is {"command": name, …arguments}; the answers are any number of {"progress": [done, total, shown]} and then
{"result": …} or {"error": {"type", "message"}}. The process ends with its standard input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import EvaluationError
from .memory import read_memory

if TYPE_CHECKING:
    import llama_cpp


class Session:
    """The commands. Each public method is one; it takes and returns what JSON can hold."""

    def __init__(self, report: Callable[[int, int, str], None]) -> None:
        self._report = report
        self._model: llama_cpp.Llama | None = None

    @property
    def _llm(self) -> llama_cpp.Llama:
        if self._model is None:
            raise EvaluationError("no model is loaded in this process; send `load` first")
        return self._model

    def load(self, path: str, **options: Any) -> dict[str, Any]:
        """Open the model (arguments of `open_model`). Returns the memory before and after."""
        import llama_cpp  # noqa: F401 (its own memory belongs to `before`)

        from ..session import open_model

        before = read_memory()
        self._model = open_model(path, **options)
        return {"before": before.to_dict(), "after": read_memory().to_dict()}

    def memory(self) -> dict[str, Any]:
        return read_memory().to_dict()

    def speed(self, **options: Any) -> dict[str, Any]:
        """One measurement (arguments of `measure`)."""
        from .speed import measure

        sample = measure(self._llm, **options)
        return {"prompt": sample.prompt, "generation": sample.generation}

    def scores(self, **options: Any) -> dict[str, Any]:
        """Scores of every token of a text (arguments of `score_text`)."""
        from .scores import score_text

        return score_text(self._llm, **options, report=self._report)

    def outputs(self) -> str:
        """What the model gives: `logits`, or `embeddings` alone."""
        from ..session import has_logits

        return "logits" if has_logits(self._llm) else "embeddings"

    def embeddings(self, path: str, text: str, n_ctx: int, chunks: int | None = None) -> int:
        """The embedding of every token of a text, to a file (`embed_text` of embeddings.py)."""
        from .embeddings import embed_text

        return embed_text(self._llm, Path(path), text=text, n_ctx=n_ctx, chunks=chunks, report=self._report)

    def generate(self, prompt: str, max_tokens: int, temperature: float = 0.0) -> dict[str, Any]:
        """Continue a prompt."""
        answer: Any = self._llm.create_completion(prompt, max_tokens=max_tokens, temperature=temperature)
        return {"text": answer["choices"][0]["text"]}

    def metrics(self) -> dict[str, Any]:
        """Counters of the run time; empty for a plain model."""
        return dict(self._llm.seeddelta.metrics())


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer requests until their end. An exception of a command becomes an answer; the process goes on."""

    def send(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    session = Session(lambda done, total, shown: send({"progress": [done, total, shown]}))
    for line in requests:
        try:
            request = json.loads(line)
            name = request.pop("command")
            command = None if name.startswith("_") else getattr(session, name, None)
            if command is None:
                raise EvaluationError(f"command {name!r} is not known")
            send({"result": command(**request)})
        except Exception as error:
            send({"error": {"type": type(error).__name__, "message": str(error)}})


def main() -> None:
    # Anything that a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    serve(sys.stdin, answers)
