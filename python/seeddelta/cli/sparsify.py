"""`seeddelta sparsify`: measure how much of each input of a model can be skipped."""

from __future__ import annotations

import json
import sys
from typing import Any

from ..settings.sparsifying import SparsifySettings
from ._command import from_settings


@from_settings(SparsifySettings)
def command(settings: SparsifySettings) -> None:
    """Experiment: measure which inputs can be skipped, and write the settings for --kwta-file.

    The inputs of every matrix are profiled; then half of those of each kind, and of each layer, is skipped to see what
    it costs. A budget of weights is divided so that the expected cost is least, and the smallest budget within the
    limit is looked for. Takes some minutes for a small model.

    Example: seeddelta sparsify model-f16.gguf --text wiki.valid.txt -o skip.yaml --max-dppl 2%

    Example: seeddelta run model-f16.gguf -p "Hello" --columns f16 --kwta-file skip.yaml

    Example: seeddelta sparsify model.seeddelta.gguf --text wiki.valid.txt -o skip.yaml (built with --layout column)
    """
    from ..sparsify import sparsify
    from ..storage.output import atomic_output

    options = settings.model_dump(include={"keep", "score", "target", "chunks", "probe_chunks", "per_layer"})
    found = sparsify(
        settings.model,
        settings.text,
        max_percent=settings.max_dppl,
        n_ctx=settings.context,
        threads=settings.thread_count,
        say=lambda line: None if settings.quiet else print(line, file=sys.stderr),
        **options,
    )
    data = found.file.model_dump(mode="json")
    with atomic_output(settings.output) as temporary:
        temporary.write_text(_dump(data, settings.output.suffix), encoding="utf-8")
    change = "" if found.percent is None else f", perplexity {found.percent:+.2f}% on {settings.text.name}"
    print(f"{settings.output}: {found.share:.1%} of the weights are read for a token{change}")


def _dump(data: dict[str, Any], suffix: str) -> str:
    if suffix == ".json":
        return json.dumps(data, indent=1) + "\n"
    import yaml

    return str(yaml.safe_dump(data, sort_keys=False))
