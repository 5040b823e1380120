"""Every failure of a request in the form of OpenAI's API."""

from __future__ import annotations

import logging
from typing import Any

from ..errors import BusyError, RequestError, SeedDeltaError, UnknownModelError, needs_extra
from .fields import FieldError

with needs_extra("serve"):
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException

_LOG = logging.getLogger("uvicorn.error")
_WRONG = "invalid_request_error"
_LONG = 1000  # characters of a message


def answer_failures(app: FastAPI) -> None:
    """Register the handlers."""
    for kind in (SeedDeltaError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _on_error)


def described(error: BaseException) -> dict[str, Any]:
    """An exception as the object `error` of OpenAI's API. One that is nobody's on purpose goes to the log."""
    kind, code, param, message = "server_error", None, None, str(error)
    if isinstance(error, RequestError):
        kind, code = _WRONG, error.code
        if isinstance(error, FieldError | UnknownModelError):
            param = error.param if isinstance(error, FieldError) else "model"
    elif isinstance(error, BusyError):
        kind = "server_busy"
    elif isinstance(error, HTTPException):
        kind, message = _WRONG, str(error.detail)
        code = "invalid_api_key" if error.status_code == 401 else None
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"][1:])[:_LONG] or None
        text = first["msg"].removeprefix("Value error, ")
        kind, message = _WRONG, f"{param or 'the body'}: {text}"
    elif not isinstance(error, SeedDeltaError):
        _LOG.error("a request failed", exc_info=error)
        message = "the server failed; its log has the reason"
    if len(message) > _LONG:  # it has the client's own words
        message = message[:_LONG] + "…"
    return {"message": message, "type": kind, "param": param, "code": code}


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    status, headers = 500, None
    if isinstance(error, HTTPException):
        status, headers = error.status_code, error.headers
        if status in (404, 405):  # of the router, which says no more than the words of the status
            what = f"{request.method} {request.url.path}"
            error = HTTPException(
                status, f"{what}: there is no such path" if status == 404 else f"{what}: not this method"
            )
    elif isinstance(error, RequestError | RequestValidationError):
        status = 404 if isinstance(error, UnknownModelError) else 400
    elif isinstance(error, BusyError):
        status, headers = 503, {"Retry-After": "1"}
    return JSONResponse({"error": described(error)}, status, headers)
