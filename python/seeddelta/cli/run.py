"""`seeddelta run`: generate text with a SeedΔ or plain GGUF model."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import time
from typing import Any

from ..errors import EvaluationError, RequestError
from ..settings.measuring import RunSettings
from ..settings.serving import ChatSettings
from ..settings.tree import STDOUT
from ._command import from_settings
from ._options import put_json, require_statecells

_log = logging.getLogger(__name__)


@from_settings(RunSettings)
def command(settings: RunSettings) -> None:
    """Generate text from a prompt; in a terminal and without a prompt, chat.

    Text goes to stdout; tokens, speed and memory go to stderr, with -v counters, too.

    Example: seeddelta run model.seeddelta.gguf -p "The capital of France is" -n 64

    Example: seeddelta run model.gguf -p "The capital of France is" --columns f16 --kwta-k 0.6

    Example: seeddelta run model.gguf -f report.txt --json-schema summary.json -n 256

    Example: seeddelta run model.gguf --chat -p "Why is the sky blue?" --temp 0.7
    """
    from ..session import open_model, require_logits

    if settings.prompt is None and settings.file is None:
        _chat(settings)
        return
    if settings.runtime.statecells:
        require_statecells([settings.model])
    prompt = _prompt(settings)
    more: dict[str, Any] = {} if settings.seed is None else {"seed": settings.seed}
    # a token is at least a byte, so this is enough for the prompt; the chat form adds some
    room = len(prompt.encode()) + settings.n_predict + (256 if settings.chat else 0)
    context = settings.context or max(512, room)
    threads = settings.thread_count
    llm = open_model(settings.model, n_ctx=context, threads=threads, config=settings.runtime, **more)
    try:
        require_logits(llm)
        count = _count(llm, settings, prompt)
        context = min(context, llm.n_ctx())
        if count + settings.n_predict > context:
            raise EvaluationError(
                f"{count} tokens of the prompt and {settings.n_predict} more do not fit a context of {context}; "
                "use a larger --ctx or a smaller -n"
            )
        sampling = {
            "max_tokens": settings.n_predict, "temperature": settings.temperature, "top_k": settings.top_k,
            "top_p": settings.top_p, "min_p": settings.min_p, "repeat_penalty": settings.repeat_penalty,
            "grammar": _grammar(settings),
        }  # fmt: skip
        times, text = _stream(llm, prompt, settings.chat, sampling, show=settings.metrics_json != STDOUT)
        _summarize(llm, settings, count, times, text)
    finally:
        llm.close()


def _chat(settings: RunSettings) -> None:
    """What a model that is run without a text does. Raises EvaluationError where that cannot be a conversation."""
    from ..gguf.hub import located
    from ..gguf.model_file import read_header
    from .chat import converse

    model = settings.model
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise EvaluationError("nothing to continue; give --prompt TEXT or --file FILE, or talk with `seeddelta chat`")
    path = located(model)
    if path.is_file() and "tokenizer.chat_template" not in read_header(path).metadata:
        raise EvaluationError(
            f"{model}: has no chat template and only continues texts; give --prompt TEXT or --file FILE"
        )
    shared = settings.model_fields_set & set(ChatSettings.model_fields)
    other = sorted(settings.model_fields_set - shared - {"chat", "quiet"})
    if other:
        raise EvaluationError(
            f"without a prompt this is a chat, which has no {other[0]}; give --prompt TEXT, or leave it out"
        )
    converse(ChatSettings(**{name: getattr(settings, name) for name in shared}))


def _prompt(settings: RunSettings) -> str:
    from ..session import read_text

    if settings.file is not None:
        return read_text(settings.file, whole=True).decode(errors="ignore").replace("\r\n", "\n")
    assert settings.prompt is not None
    given = sys.stdin.read() if settings.prompt == "-" else settings.prompt
    return os.fsencode(given).decode("utf-8", "replace")  # an argument may be bytes of another encoding


def _count(llm: Any, settings: RunSettings, prompt: str) -> int:
    """Tokens of the prompt, with the chat template where it is used. Raises EvaluationError when there are none."""
    from ..serve.completions import chat_tokens
    from ..session.long_words import tokens_of

    if settings.chat:
        return len(chat_tokens(llm, [{"role": "user", "content": prompt}]))
    tokens = tokens_of(llm, prompt.encode(), special=True)  # as create_completion reads it
    if not tokens:
        raise EvaluationError(f"{settings.file or '--prompt'} is empty; give some text")
    return len(tokens)


def _grammar(settings: RunSettings) -> Any:
    from llama_cpp import LlamaGrammar

    from ..serve.schema import json_grammar
    from ..session import read_text

    path = settings.json_schema
    if path is None:
        return None
    try:
        return LlamaGrammar.from_string(json_grammar(json.loads(read_text(path))), verbose=False)
    except (RequestError, ValueError, RecursionError) as error:
        raise EvaluationError(f"{path}: cannot be made a grammar ({error})") from error


def _stream(llm: Any, prompt: str, chat: bool, sampling: dict[str, Any], *, show: bool) -> tuple[list[float], str]:
    """Print the text as it comes. Returns the times of the start and of each piece, and what was generated."""
    times, generated = [time.perf_counter()], ""
    out = sys.stdout if show else io.StringIO()
    pieces: Any
    if chat:
        messages: Any = [{"role": "user", "content": prompt}]
        pieces = llm.create_chat_completion(messages, stream=True, **sampling)
    else:
        out.write(prompt)
        pieces = llm.create_completion(prompt, stream=True, **sampling)
    for piece in pieces:
        choice = piece["choices"][0]
        text = choice["delta"].get("content") if chat else choice["text"]
        if choice["finish_reason"] is None and text is not None:
            times.append(time.perf_counter())
            generated += text
            out.write(text)
            out.flush()
    out.write("\n")
    return times, generated


def _summarize(llm: Any, settings: RunSettings, prompt_tokens: int, times: list[float], text: str) -> None:
    from llama_cpp import llama_cpp

    from ..evaluate.memory import read_memory

    memory = read_memory()
    clock = llama_cpp.llama_perf_context(llm.ctx)  # its own: text comes in bursts
    speed = 1000 * clock.n_eval / clock.t_eval_ms if clock.n_eval > 0 and clock.t_eval_ms > 0 else None
    generated = len(times) - 1
    metrics = {
        "model": str(settings.model),
        "text": text,
        "prompt_tokens": prompt_tokens,
        "generated_tokens": generated,
        "first_token_seconds": times[1] - times[0] if len(times) > 1 else None,
        "generation_tokens_per_second": speed,
        "memory": memory.to_dict(),
        **llm.seeddelta.metrics(),
    }
    put_json(settings.metrics_json, metrics)
    if settings.quiet:
        return
    parts = [f"{prompt_tokens} prompt token{'' if prompt_tokens == 1 else 's'}", f"{generated} generated"]
    if speed is not None:
        parts.append(f"{speed:.{0 if speed >= 100 else 1}f} tokens/s")
    if memory.resident is not None:
        parts.append(f"{memory.resident / 1e6:.0f} MB")
    print(", ".join(parts), file=sys.stderr)
    _log.info("%s", ", ".join(_counters(llm, metrics)))


def _counters(llm: Any, metrics: dict[str, Any]) -> list[str]:
    """What computed the text, for those who ask with -v."""
    parts = []
    if llm.seeddelta.enabled:
        served = len(llm.seeddelta.tensors)
        if served:
            parts.append(f"{served} converted matrices")
        if llm.seeddelta.columns:
            parts.append(f"{len(llm.seeddelta.columns)} weights by columns")
        parts.append(f"{int(metrics['seeddelta.calls'])} products")
        active, skipped = metrics["seeddelta.active_inputs"], metrics["seeddelta.skipped_inputs"]
        if skipped:
            parts.append(f"{skipped / (active + skipped):.0%} of the inputs skipped")
        if metrics["statecells.weights"]:
            parts.append(f"{int(metrics['statecells.weights'])} of the weights are StateCells")
        if metrics["seeddelta.dense_calls"]:
            parts.append(f"{int(metrics['seeddelta.dense_calls'])} products from the fallback")
    else:
        parts.append("a plain GGUF model")
    if exact := int(metrics.get("attention.exact", 0)):
        parts.append(f"attention: {exact} exact")
    if chosen := int(metrics.get("attention.packed", 0)):
        density = metrics.get("pack.kv.density", metrics.get("pack.density"))  # pack. may be the MLP's
        parts.append(f"attention: {chosen} of chosen keys ({density:.0%})")
    if "attention.events" in metrics:
        parts.append(f"{metrics['attention.events']} with events ({metrics['event.stale_pct']:.0f}% reused)")
    return parts
