"""An error as OpenAI says it. Pure."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from barrel_inference.errors import BarrelError
from barrel_inference.server import failures
from barrel_inference.server.http.streaming import JSON, sse
from barrel_inference.server.openai.wire import Failed, Problem

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "unavailable_error",
    504: "timeout_error",
}
_CODES = {"context_exceeded": "context_length_exceeded", "unauthorized": "invalid_api_key"}


def problem(error: BarrelError) -> Problem:
    option = error.details.get("option")
    code = error.details.get("error_code", error.code)
    return Problem(
        message=failures.public(error),
        type=_TYPES.get(failures.status(error), "server_error"),
        param=option if isinstance(option, str) else None,
        code=_CODES.get(code, code),
    )


def failure(error: BarrelError) -> Response:
    return Response(
        msgspec.json.encode(Failed(error=problem(error))),
        status_code=failures.status(error),
        headers=failures.headers(error),
        media_type=JSON,
    )


def last_words(error: BarrelError) -> bytes:
    """The end of a stream that failed."""
    return sse(msgspec.json.encode(Failed(error=problem(error)))) + sse(b"[DONE]")
