"""Requests over HTTP: their bodies, their limits, and how they are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outsize.errors import ConfigError, one_line

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import JSONResponse


class RequestError(Exception):
    """A request that is refused.

    Args:
        status: The HTTP status.
        message: One line for the client.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def require_limits(*limits: int) -> None:
    """Raise a `ConfigError` if a limit on rows, bytes or waiting requests is less than 1."""
    if min(limits) < 1:
        raise ConfigError("max_rows, max_bytes and max_waiting must be >= 1")


async def body_of(request: Request, max_bytes: int) -> bytes:
    """The body, refused while it is read if it is too long."""
    from starlette.requests import ClientDisconnect

    too_long = RequestError(413, f"the body has more than {max_bytes:,} bytes: send fewer rows")
    stated = request.headers.get("content-length", "")
    if stated.isdigit() and int(stated) > max_bytes:
        raise too_long
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > max_bytes:
                raise too_long
    except ClientDisconnect:
        raise RequestError(400, "the client left before the end of the body") from None
    return bytes(body)


def answer_errors() -> Any:
    """Handlers of an application that answer errors with one line of JSON."""
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse

    async def refuse(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestError)
        # What is left of the body is not read, so the connection cannot be used again.
        headers = {"connection": "close"} if error.status == 413 else None
        return JSONResponse({"error": one_line(error)}, error.status, headers)

    async def refuse_route(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        line = f"{request.method} {request.url.path}: {error.detail}"
        return JSONResponse({"error": line}, error.status_code, error.headers)

    return {RequestError: refuse, HTTPException: refuse_route}
