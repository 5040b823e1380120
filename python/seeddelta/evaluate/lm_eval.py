"""The command line of lm-evaluation-harness with our model in it: `python -m seeddelta.evaluate.lm_eval`.

The harness finds models of its own only. This is its program, after `SeedDeltaLM` was registered as `seeddelta`:

    python -m seeddelta.evaluate.lm_eval --model seeddelta --model_args path=model.seeddelta.gguf --tasks arc_easy
"""

from __future__ import annotations

from ..errors import needs_extra

with needs_extra("tasks"):
    from lm_eval.__main__ import cli_evaluate

from . import harness  # noqa: F401 (registers the model)

if __name__ == "__main__":
    cli_evaluate()
