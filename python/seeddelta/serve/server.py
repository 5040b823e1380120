"""The process: a socket, signals, and an orderly end."""

from __future__ import annotations

import errno
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType

from ..errors import OutputError, needs_extra
from ..settings.serving import ServeSettings
from .app import make_app
from .models import Models

with needs_extra("serve"):
    import uvicorn

# Seconds that another thread may keep the interpreter when the scheduler comes back from a decode; Python takes 5 ms,
# as long as a decode of a small model.
_SWITCH = 0.0005
_AFTER_GRACE = 5  # seconds for connections to be closed when the replies have been ended


class _Server(uvicorn.Server):
    """Stops in order: no new requests, then `grace` seconds for replies that are at work, then these are cut off."""

    def __init__(self, config: uvicorn.Config, models: Models, grace: float) -> None:
        super().__init__(config)
        self._models, self._grace = models, grace

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # not uvicorn's own: it would end the process by the signal, as if it had not been handled
        if self.should_exit:
            self.force_exit = True
        else:
            self.should_exit = True
            threading.Thread(target=self._stop, daemon=True).start()

    def _stop(self) -> None:
        self._models.drain()
        timer = threading.Timer(self._grace, self._models.cancel_all)
        timer.daemon = True
        timer.start()


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises OutputError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        remedy = "choose another --port" if taken else "give an address of this machine as --host"
        raise OutputError(f"{host}:{port}: cannot listen there ({error.strerror}); {remedy}") from error
    return bound


def serve(settings: ServeSettings, bound: socket.socket, on_ready: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGINT or SIGTERM. The models are loaded first; `on_ready` is called when clients can come."""
    sys.setswitchinterval(_SWITCH)
    models = Models(settings.served())
    config = uvicorn.Config(
        make_app(models, settings),
        log_level="warning",
        timeout_graceful_shutdown=int(settings.grace) + _AFTER_GRACE,
        lifespan="on",
    )
    bound.listen(config.backlog)  # from now on nobody is turned away
    on_ready()
    _Server(config, models, settings.grace).run(sockets=[bound])
