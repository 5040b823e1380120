"""The OpenAI-compatible HTTP server: the API's requests and llama-cpp-python's chat formats over our schedulers."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, TypeVar

from ..errors import needs_extra
from ..settings.serving import ServeSettings
from .bodies import ChatBody, CompletionBody, ReplyBody
from .completions import Completions
from .failures import answer_failures, described
from .metrics import CONTENT_TYPE, prometheus
from .models import Models
from .reading import StrictRoute

with needs_extra("serve"):
    import anyio
    from anyio import to_thread
    from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
    from fastapi.middleware.cors import CORSMiddleware
    from fastapi.responses import PlainTextResponse, StreamingResponse
    from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

T = TypeVar("T")
_BEARER = HTTPBearer(auto_error=False)
_WATCH = 0.1  # seconds between looks at whether a client is still there


def make_app(models: Models, settings: ServeSettings) -> FastAPI:
    """The application. It closes the models when it ends."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.threads = anyio.CapacityLimiter(models.room + 8)  # a request waits in a thread
        yield
        await to_thread.run_sync(models.close)

    app = FastAPI(title="seeddelta", lifespan=lifespan)
    app.state.models, app.state.api_key = models, settings.key
    if settings.cors:
        app.add_middleware(CORSMiddleware, allow_origins=list(settings.cors), allow_methods=["*"], allow_headers=["*"])
    app.include_router(router)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "models": [name for name, _ in models]}

    answer_failures(app)
    return app


def authenticate(
    request: Request, sent: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)] = None
) -> None:
    """Lets a client in that has the key, when there is one."""
    key = request.app.state.api_key
    if key is not None and (sent is None or not secrets.compare_digest(sent.credentials.encode(), key.encode())):
        raise HTTPException(401, "the API key is missing or wrong", {"WWW-Authenticate": "Bearer"})


router = APIRouter(dependencies=[Depends(authenticate)], route_class=StrictRoute)


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    models: Models = request.app.state.models
    return {"object": "list", "data": [_model(name, one) for name, one in models]}


@router.get("/v1/models/{name:path}")
async def retrieve_model(request: Request, name: str) -> dict[str, Any]:
    return _model(*request.app.state.models.find(name))


def _model(name: str, scheduler: Any) -> dict[str, Any]:
    found = {"id": name, "object": "model", "created": 0, "owned_by": "seeddelta"}
    return found | {"context_length": scheduler.context_length}


@router.post("/v1/completions")
async def create_completion(request: Request, body: CompletionBody) -> Any:
    name, scheduler = request.app.state.models.find(body.model)
    completions = Completions(scheduler, name)
    options = body.options()
    if body.stream:
        return await _stream(request, body, completions, lambda: completions.create_completion(stream=True, **options))
    return await _whole(request, completions, lambda: completions.create_completion(**options))


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request, body: ChatBody) -> Any:
    name, scheduler = request.app.state.models.find(body.model)
    completions = Completions(scheduler, name)
    options = body.options()

    def create(stream: bool) -> Any:
        return completions.create_chat_completion(stream=stream, grammar=body.reply_grammar(), **options)

    if body.stream:
        return await _stream(request, body, completions, lambda: iter(create(True)))
    return await _whole(request, completions, lambda: create(False))


@router.get("/metrics")
async def metrics(request: Request) -> PlainTextResponse:
    text = await to_thread.run_sync(prometheus, request.app.state.models)
    return PlainTextResponse(text, media_type=CONTENT_TYPE)


async def _whole(request: Request, work: Completions, call: Callable[[], T]) -> T:
    """The result of a call in a thread, which is stopped when the client goes away."""
    outcome: list[T | Exception] = []

    async def wait() -> None:
        try:
            outcome.append(await to_thread.run_sync(call, limiter=request.app.state.threads))
        except Exception as error:  # raised below, outside of the task group
            outcome.append(error)
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        while not await request.is_disconnected():
            await anyio.sleep(_WATCH)
        work.cancel()
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


async def _stream(
    request: Request, body: ReplyBody, completions: Completions, call: Callable[[], Any]
) -> StreamingResponse:
    """A stream of server-sent events. What is wrong with the request is raised before it begins."""
    threads = request.app.state.threads
    try:
        chunks = iter(await to_thread.run_sync(call, limiter=threads, abandon_on_cancel=True))
    except BaseException:
        completions.cancel()
        raise

    async def events() -> AsyncIterator[str]:
        ready = _Events(chunks, asyncio.get_running_loop())
        threading.Thread(target=ready.fill, name="seeddelta-stream", daemon=True).start()
        try:
            while text := await ready.take():
                yield text
            if body.include_usage and ready.last is not None:
                yield _event(ready.last | {"choices": [], "usage": completions.usage()})
        finally:
            completions.cancel()
        yield "data: [DONE]\n\n"

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


class _Events:
    """Chunks of a reply on their way from a thread that waits for them to the loop that sends them.

    The thread lives as long as the reply: one for each chunk would cost more than the chunk. What has come since the
    loop last looked is sent together.

    Attributes:
        last: the last chunk, when all are taken.
    """

    def __init__(self, chunks: Iterator[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._chunks, self._loop = chunks, loop
        self._texts: deque[str] = deque()
        self._ended = False
        self._changed = asyncio.Event()
        self.last: dict[str, Any] | None = None

    def fill(self) -> None:
        """In the thread: every chunk, until there are no more."""
        try:
            for chunk in self._chunks:
                self.last = chunk
                self._put(_event(chunk))
        except Exception as error:  # the status is sent already: the client is told in the stream
            self._put(_event({"error": described(error)}))
            self.last = None
        finally:
            self._ended = True
            self._wake()

    async def take(self) -> str:
        """In the loop: what has come; "" at the end."""
        while not self._texts and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        count = len(self._texts)
        return "".join(self._texts.popleft() for _ in range(count))

    def _put(self, text: str) -> None:
        self._texts.append(text)
        self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody reads on
            self._loop.call_soon_threadsafe(self._changed.set)


def _event(value: Any) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
