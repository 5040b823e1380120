"""Bodies of requests, read strictly: UTF-8, JSON as its standard has it, and no more of it than is taken."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any

from ..errors import needs_extra
from .fields import not_deeper
from .schema import DEPTH

with needs_extra("serve"):
    from fastapi import HTTPException, Request, Response
    from fastapi.routing import APIRoute

MOST_BYTES = 8 << 20
_DEPTH = 4 * DEPTH  # of a whole body, in which a schema may be
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class StrictRoute(APIRoute):
    """A route whose body is read strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handler(_StrictRequest(_as_json(request.scope), request.receive))

        return strictly


def _as_json(scope: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The request with a body of JSON, whatever it calls it: `curl -d` calls it a form, as many clients do.

    Raises HTTPException where a page of the web calls it another type: its browser would send that to a server of this
    machine without asking it first.
    """
    headers = dict(scope["headers"])
    kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if scope["method"] != "POST" or kind == b"application/json":
        return scope
    if b"origin" in headers:
        raise HTTPException(400, "the body: a web page must send it with Content-Type: application/json")
    others = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
    return {**scope, "headers": [*others, (b"content-type", b"application/json")]}


class _StrictRequest(Request):
    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            body, size = bytearray(), 0
            async for part in self.stream():
                size += len(part)
                if size <= MOST_BYTES:
                    body += part
                elif size > 8 * MOST_BYTES:  # a client that is told before it has sent all may not read the answer
                    break
            if size > MOST_BYTES:
                raise HTTPException(413, f"the body has more than {MOST_BYTES} bytes", {"Connection": "close"})
            self._body = bytes(body)
        return self._body

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            try:
                self._json = parsed(await self.body())
            except ValueError as error:
                raise HTTPException(400, f"the body cannot be read as JSON: {error}") from error
        return self._json


def parsed(body: bytes) -> Any:
    """The value of JSON. Raises ValueError for what the standard has not: NaN, numbers beyond a double, halves of
    surrogate pairs, and values nested too deeply."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_number, parse_float=_finite)
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 from byte {error.start} on") from error
    except UnicodeEncodeError as error:
        raise ValueError("a text has half of a surrogate pair") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return not_deeper(value, _DEPTH)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value
