"""`seeddelta serve`: an OpenAI-compatible server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ..errors import ConfigError

COMMAND_OPTIONS: dict[str, Any] = {"no_args_is_help": True}


def command(
    model: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--model", "-m", metavar="[ALIAS=]FILE", help="GGUF or SeedΔ model; repeat it for several."),
    ] = None,
    config: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--config", metavar="FILE", help="Options in a YAML file; those given here replace its own."),
    ] = None,
    host: Annotated[Optional[str], typer.Option("--host", help="Address to listen on. [default: 127.0.0.1]")] = None,  # noqa: UP045
    port: Annotated[Optional[int], typer.Option("--port", help="Port; 0 takes a free one. [default: 8080]")] = None,  # noqa: UP045
    parallel: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--parallel", "-np", metavar="N", help="Requests at work at the same time. [default: 4]"),
    ] = None,
    context: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--ctx", "-c", metavar="N", help="Tokens of a request, prompt and reply. [default: 4096]"),
    ] = None,
    queue: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--queue", metavar="N", help="Requests that may wait; beyond them: 503. [default: 64]"),
    ] = None,
    threads: Annotated[Optional[int], typer.Option("--threads", "-t", help="Threads. [default: all cores]")] = None,  # noqa: UP045
    drafts: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--drafts", metavar="N", help="Tokens guessed ahead. [default: 0; with --draft 4]"),
    ] = None,
    draft: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--draft", metavar="MODEL", help="A smaller model of the same vocabulary that guesses."),
    ] = None,
    chat_format: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--chat-format", help="A chat format of llama-cpp-python in place of the model's template."),
    ] = None,
    api_key: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--api-key", help="Key that clients must send. [env: SEEDDELTA_API_KEY]", show_default=False),
    ] = None,
    cors: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--cors", metavar="ORIGIN", help="Origin of web pages that may ask, or *; repeat it for several."),
    ] = None,
    grace: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--grace", metavar="SECONDS", help="Time for replies to end when it is stopped. [default: 30]"),
    ] = None,
) -> None:
    """Serve models to OpenAI clients: chat and text completions, streaming, tools, JSON schemas, embeddings.

    Requests of several clients are computed together. /health and /metrics (Prometheus) tell how it goes.

    Example: seeddelta serve -m model.seeddelta.gguf --port 8080 --parallel 4

    Example: seeddelta serve -m small=a.gguf -m large=b.gguf --api-key secret
    """
    from ..serve.options import make_options, read_options
    from ..serve.server import listen, serve

    values: dict[str, Any] = {} if config is None else read_options(config)
    server = {"host": host, "port": port, "api_key": api_key, "cors": cors or None, "grace": grace}
    values |= {name: value for name, value in server.items() if value is not None}
    each = {
        "parallel": parallel, "context": context, "queue": queue, "threads": threads, "drafts": drafts,
        "draft": draft,         "chat_format": chat_format,
    }  # fmt: skip
    if model:
        values["models"] = [_named(one) for one in model]
    if not values.get("models"):
        raise ConfigError("no model to serve; give -m FILE, or models in --config")
    given = {name: value for name, value in each.items() if value is not None}
    values["models"] = [dict(one) | given if isinstance(one, dict) else one for one in values["models"]]
    options = make_options(values, "serve" if config is None else str(config))
    with listen(options.host, options.port) as bound:
        address = f"http://{options.host}:{bound.getsockname()[1]}"
        names = ", ".join(one.name for one in options.models)
        serve(options, bound, on_ready=lambda: typer.echo(f"serving {names} at {address}/v1", err=True))


def _named(text: str) -> dict[str, str]:
    alias, sign, path = text.partition("=")
    return {"alias": alias, "path": path} if sign and not Path(text).exists() else {"path": text}
