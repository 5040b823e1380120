"""What a converted model loses on texts that it was not calibrated on."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .compare import evaluate
from .kl import Estimate


@dataclass(frozen=True)
class EmbeddingLoss:
    """Mean cosine between the embeddings of a model without logits and those of the original model, with standard
    errors over chunks: of each token, and of the mean of a chunk's tokens."""

    text: str
    tokens: int
    token_cosine: Estimate
    text_cosine: Estimate

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        token, text = self.token_cosine, self.text_cosine
        return (
            f"{self.text}, {self.tokens} tokens compared: cosine of a token's embeddings {token.value:.4f} ± "
            f"{token.stderr:.4f}, of a text's {text.value:.4f} ± {text.stderr:.4f}"
        )


@dataclass(frozen=True)
class Loss:
    """Divergence from the original in nats and change of the perplexity in percent on a text, with standard errors
    over the tokens that were scored."""

    text: str
    tokens: int
    divergence: Estimate
    change: Estimate

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        kl, change = self.divergence, self.change
        return (
            f"{self.text}, {self.tokens} tokens scored: KL divergence {kl.value:.4f} ± {kl.stderr:.4f} nats, "
            f"perplexity {change.value:+.1f} ± {change.stderr:.1f}%"
        )


def losses(
    dense: Path,
    model: Path,
    texts: Mapping[str, tuple[bytes, int]],
    *,
    ctx: int = 512,
    threads: int | None = None,
    progress: bool = False,
) -> list[Loss | EmbeddingLoss]:
    """Compare a model with the dense one on texts, each with the number of its chunks of ctx tokens.

    Only one model is in memory at a time. Raises as `evaluate`.
    """
    found: list[Loss | EmbeddingLoss] = []
    with tempfile.TemporaryDirectory(prefix="seeddelta-losses-", dir=model.parent) as folder:
        path = Path(folder) / "text.txt"
        for name, (text, chunks) in texts.items():
            path.write_bytes(text)
            options: dict[str, Any] = {"threads": threads, "reps": 0, "progress": progress, "resume": folder}
            result = evaluate([dense, model], text=path, n_ctx=ctx, chunks=chunks, **options).models[1]
            if result.embedding is not None:
                near = result.embedding
                found.append(EmbeddingLoss(name, near.token.size, near.token_mean, near.text_mean))
                continue
            assert result.perplexity is not None
            assert result.divergence is not None
            assert result.difference is not None
            kl = Estimate(result.divergence.mean, result.divergence.stderr)
            change = Estimate(result.difference.percent, result.difference.percent_stderr)
            found.append(Loss(name, result.perplexity.tokens_scored, kl, change))
    return found
