"""What a scheduler did, since it began."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .request import Generation


@dataclass
class Counters:
    """Counts and sums of seconds. Written by the scheduler's thread; a reader may see a pass half counted.

    Attributes:
        requests, rejected: taken, and refused because too many were waiting.
        ended: finish reason (stop, length, cancelled, failed) -> requests.
        prompt_tokens, reused_tokens: of all prompts, and those of them that a slot's cache had.
        generated_tokens: of replies.
        decodes, shared_decodes: passes of llama.cpp for replies, and those of more than one request.
        decoded_tokens, decode_seconds: of these passes.
        queue_seconds, first_token_seconds: sums over requests, from their arrival.
    """

    requests: int = 0
    rejected: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    decodes: int = 0
    shared_decodes: int = 0
    decoded_tokens: int = 0
    decode_seconds: float = 0.0
    queue_seconds: float = 0.0
    first_token_seconds: float = 0.0

    def decoded(self, requests: int, tokens: int, seconds: float) -> None:
        self.decodes += 1
        self.shared_decodes += requests > 1
        self.decoded_tokens += tokens
        self.decode_seconds += seconds

    def finished(self, reason: str, job: Generation | None = None) -> None:
        self.ended[reason] = self.ended.get(reason, 0) + 1
        if job is not None and job.first_token is not None:
            self.first_token_seconds += job.first_token
