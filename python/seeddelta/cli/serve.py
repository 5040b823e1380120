"""`seeddelta serve`: an OpenAI-compatible server."""

from __future__ import annotations

import typer

from ..errors import ConfigError
from ..settings.serving import ServeSettings
from ._command import from_settings


@from_settings(ServeSettings)
def command(settings: ServeSettings) -> None:
    """Serve models with OpenAI's API: chat, completions, streaming, JSON schemas.

    Requests of several clients are computed together. /health and /metrics (Prometheus) tell how it goes.

    Example: seeddelta serve model.seeddelta.gguf --port 8080 --parallel 4

    Example: seeddelta serve small=a.gguf large=b.gguf --api-key secret
    """
    from ..serve.server import listen, serve

    if not settings.served():
        raise ConfigError("no model to serve; write: seeddelta serve MODEL, or give models in --config")
    with listen(settings.host, settings.port) as bound:
        address = f"http://{settings.host}:{bound.getsockname()[1]}"
        names = ", ".join(one.name for one in settings.served())
        serve(settings, bound, on_ready=lambda: typer.echo(f"serving {names} at {address}/v1", err=True))
