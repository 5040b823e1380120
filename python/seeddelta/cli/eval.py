"""`seeddelta eval`: perplexity, speed and memory of models, side by side."""

from __future__ import annotations

from ..settings.measuring import EvalSettings
from ._command import from_settings
from ._options import model_options, put_json, require_statecells


@from_settings(EvalSettings)
def command(settings: EvalSettings) -> None:
    """Compare models with the first one: size, KL divergence, perplexity, speed and memory.

    Chunks and score are those of llama-perplexity. The change compares the same tokens in both models, so its error is
    much smaller than that of either perplexity. Each model has its own process; memory is read after it generated 64
    tokens. Skipping (--columns, --kwta, --state-pack) is for all models but the first of several. Where
    the target is `kv`, their scored tokens are decoded one by one, since prompts are llama.cpp's; likewise with
    --state-pack-mlp-aggressive.

    Example: seeddelta eval dense.gguf model.seeddelta.gguf --text wiki.test.txt --chunks 16

    Example: seeddelta eval model.gguf --text wiki.test.txt --no-speed --json

    Example: seeddelta eval model.gguf model.gguf --text wiki.test.txt --columns f16 --kwta-k 0.6

    Example: seeddelta eval dense.gguf -f wiki.test.txt --no-speed --save-kl-base dense.kld

    Example: seeddelta eval a.gguf b.gguf --kl-base dense.kld --no-speed --resume eval-parts

    Example: seeddelta eval m.gguf m.gguf -f wiki.test.txt -c 4096 --state-pack binary --state-pack-target kv
    """
    from ..evaluate import evaluate

    if settings.runtime.statecells:
        require_statecells(settings.model)
    runtime = settings.runtime
    if "skip_prompt" not in runtime.model_fields_set and runtime.skips:
        runtime = runtime.model_copy(update={"skip_prompt": True})  # chunks are prompts
    comparison = evaluate(
        settings.model,
        text=settings.text,
        n_ctx=settings.context,
        chunks=settings.chunks,
        threads=settings.threads,
        reps=settings.reps if settings.speed else 0,
        kl=settings.kl,
        kl_base=settings.kl_base,
        save_kl_base=settings.save_kl_base,
        resume=settings.resume,
        options=model_options(settings.model, runtime),
        progress=not settings.quiet,
    )
    if put_json(settings.as_json, comparison.to_dict()):
        return
    from ..report.tables import comparison_table, make_console

    scored = comparison.models[0].perplexity
    title = None
    if scored is not None:
        of = f"{scored.chunks} chunks of {scored.n_ctx}, {scored.tokens_scored} tokens scored"
        title = f"{settings.text or settings.kl_base}: {of}"
    make_console().print(comparison_table(comparison, title=title))
