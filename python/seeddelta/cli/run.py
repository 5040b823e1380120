"""`seeddelta run`: generate text with a SeedΔ or plain GGUF model."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from ..errors import EvaluationError
from ._options import (
    Fallback,
    Gap,
    ProcSparse,
    Quiet,
    SeedDelta,
    StateCells,
    Threads,
    load_options,
    parse_threads,
    require_statecells,
)
from ._skipping import skipping
from ._state_pack import state_pack

if TYPE_CHECKING:
    import llama_cpp


@state_pack
@skipping(skip_prompt=False)
def command(
    model: Annotated[Path, typer.Option("--model", "-m", help="GGUF or SeedΔ model.")],
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="Text to continue; - reads it from stdin.")],
    n_predict: Annotated[int, typer.Option("--n-predict", "-n", min=1, help="Tokens to generate at most.")] = 128,
    temperature: Annotated[float, typer.Option("--temp", min=0, help="Temperature; 0 takes the likeliest token.")] = 0,
    top_k: Annotated[int, typer.Option("--top-k", min=0, help="Sample among the K likeliest tokens; 0: all.")] = 40,
    top_p: Annotated[float, typer.Option("--top-p", min=0, max=1, help="Sample among tokens of this share.")] = 0.95,
    seed: Annotated[Optional[int], typer.Option("--seed", "-s", help="Seed of the sampling.")] = None,  # noqa: UP045
    context: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--ctx", "-c", help="Context in tokens. Default: what is needed, at least 512."),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Give the prompt as a question, in the model's chat form.")
    ] = False,
    threads: Threads = None,
    fallback: Fallback = None,
    gap: Gap = None,
    metrics_json: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--metrics-json", metavar="FILE", help="Write speed, memory and counters to this file."),
    ] = None,
    seeddelta: SeedDelta = False,
    statecells: StateCells = False,
    proc_sparse: ProcSparse = True,
    quiet: Quiet = False,
    *,
    skipping: dict[str, Any],
    state_pack_kv: dict[str, Any] | None = None,
) -> None:
    """Generate text. It goes to stdout; a summary of speed and counters goes to stderr.

    Example: seeddelta run -m model.seeddelta.gguf -p "The capital of France is" -n 64

    Example: seeddelta run -m model.gguf -p "The capital of France is" --columns i8 --kwta-k 0.6

    Example: seeddelta run -m model.gguf --chat -p "Why is the sky blue?" --temp 0.7
    """
    from ..evaluate.model import open_model
    from ..evaluate.scoring import tokenize

    if statecells:
        require_statecells([model])
    options = load_options(fallback, gap, proc_sparse)
    config = options.pop("config", {}) | skipping
    if state_pack_kv is not None:
        config["state_pack_kv"] = state_pack_kv
    if config:
        from ..runtime import RuntimeConfig

        options["config"] = RuntimeConfig.from_dict(config)
    counts = parse_threads(threads)
    if prompt == "-":
        prompt = sys.stdin.read()
    if seed is not None:
        options["seed"] = seed
    # a token is at least a byte, so this is enough for the prompt; the chat form adds some
    context = context or max(512, len(prompt.encode()) + n_predict + (256 if chat else 0))
    llm = open_model(model, n_ctx=context, threads=None if counts is None else counts[-1], **options)
    try:
        count = len(tokenize(llm, prompt))
        if count + n_predict > context:
            raise EvaluationError(
                f"{count} tokens of the prompt and {n_predict} more do not fit a context of {context}; "
                "use a larger --ctx or a smaller -n"
            )
        sampling = {"max_tokens": n_predict, "temperature": temperature, "top_k": top_k, "top_p": top_p}
        times = _stream(llm, prompt, chat, sampling)
        _summarise(llm, model, count, times, metrics_json, quiet)
    finally:
        llm.close()


def _stream(llm: llama_cpp.Llama, prompt: str, chat: bool, sampling: dict[str, Any]) -> list[float]:
    """Print the text as it comes. Returns the times of the start and of each piece."""
    times = [time.perf_counter()]
    pieces: Any
    if chat:
        messages: Any = [{"role": "user", "content": prompt}]
        pieces = llm.create_chat_completion(messages, stream=True, **sampling)
    else:
        sys.stdout.write(prompt)
        pieces = llm.create_completion(prompt, stream=True, **sampling)
    for piece in pieces:
        choice = piece["choices"][0]
        text = choice["delta"].get("content") if chat else choice["text"]
        if choice["finish_reason"] is None and text is not None:
            times.append(time.perf_counter())
            sys.stdout.write(text)
            sys.stdout.flush()
    sys.stdout.write("\n")
    return times


def _summarise(
    llm: Any, model: Path, prompt_tokens: int, times: list[float], metrics_json: Path | None, quiet: bool
) -> None:
    from ..evaluate.memory import read_memory

    memory = read_memory()
    generated = len(times) - 1
    speed = (generated - 1) / (times[-1] - times[1]) if generated > 1 else None
    metrics = {
        "model": str(model),
        "prompt_tokens": prompt_tokens,
        "generated_tokens": generated,
        "first_token_seconds": times[1] - times[0] if generated else None,
        "generation_tokens_per_second": speed,
        "memory": memory.to_dict(),
        **llm.seeddelta.metrics(),
    }
    if metrics_json is not None:
        from ..gguf.writer import atomic_output

        with atomic_output(metrics_json) as temporary:
            temporary.write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
    if quiet:
        return
    parts = [f"{prompt_tokens} prompt tokens", f"{generated} generated"]
    if speed is not None:
        parts.append(f"{speed:.1f} tokens/s")
    if memory.resident is not None:
        parts.append(f"{memory.resident / 1e6:.0f} MB in use")
    if llm.seeddelta.enabled:
        served = len(llm.seeddelta.tensors)
        if served:
            parts.append(f"{served} weights from the seed")
        if llm.seeddelta.columns:
            parts.append(f"{len(llm.seeddelta.columns)} weights by columns")
        parts.append(f"{int(metrics['seeddelta.calls'])} products")
        active, skipped = metrics["seeddelta.active_units"], metrics["seeddelta.skipped_units"]
        if skipped:
            parts.append(f"{skipped / (active + skipped):.0%} of the inputs skipped")
        if metrics["statecells.weights"]:
            parts.append(f"{int(metrics['statecells.weights'])} of the weights are StateCells")
        if metrics["seeddelta.dense_calls"]:
            parts.append(f"{int(metrics['seeddelta.dense_calls'])} products from the fallback")
    else:
        parts.append("a plain GGUF model")
    if "attention.exact" in metrics:
        calls = int(metrics["attention.exact"]), int(metrics["attention.packed"])
        density = metrics.get("pack.kv.density", metrics["pack.density"])  # pack. is the MLP's where both are on
        parts.append(f"attention: {calls[0]} exact, {calls[1]} of chosen keys ({density:.0%})")
    if "attention.events" in metrics:
        parts.append(f"{metrics['attention.events']} with events ({metrics['event.stale_pct']:.0f}% reused)")
    print(", ".join(parts), file=sys.stderr)
