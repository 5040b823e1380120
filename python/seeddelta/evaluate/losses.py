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
class Loss:
    """Divergence from the dense model in nats and change of the perplexity in percent on a text, with standard errors
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
) -> list[Loss]:
    """Compare a model with the dense one on texts, each with the number of its chunks of ctx tokens.

    Only one model is in memory at a time. Raises as `evaluate`.
    """
    found = []
    with tempfile.TemporaryDirectory(prefix="seeddelta-losses-", dir=model.parent) as folder:
        path = Path(folder) / "text.txt"
        for name, (text, chunks) in texts.items():
            path.write_bytes(text)
            options: dict[str, Any] = {"threads": threads, "reps": 0, "progress": progress, "resume": folder}
            result = evaluate([dense, model], text=path, n_ctx=ctx, chunks=chunks, **options).models[1]
            assert result.perplexity is not None
            assert result.divergence is not None
            assert result.difference is not None
            kl = Estimate(result.divergence.mean, result.divergence.stderr)
            change = Estimate(result.difference.percent, result.difference.percent_stderr)
            found.append(Loss(name, result.perplexity.tokens_scored, kl, change))
    return found
