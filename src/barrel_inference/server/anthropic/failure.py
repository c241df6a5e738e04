"""An error as Anthropic says it. Pure."""

from __future__ import annotations

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from barrel_inference.errors import BarrelError
from barrel_inference.server import failures
from barrel_inference.server.anthropic.wire import Details, Failed, Problem
from barrel_inference.server.http import record
from barrel_inference.server.http.streaming import JSON, sse

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def failed(error: BarrelError) -> Failed:
    message = failures.public(error)
    if error.code == "context_exceeded":
        numbers = error.details
        message = f"prompt is too long: {numbers.get('n_prompt_tokens')} tokens > {numbers.get('n_ctx')} maximum"
    kind = _TYPES.get(failures.status(error), "api_error")
    code = error.details.get("error_code")
    details = Details(error_code=code) if isinstance(code, str) else UNSET
    return Failed(error=Problem(type=kind, message=message, details=details), request_id=record.current().id)


def failure(error: BarrelError) -> Response:
    return Response(
        msgspec.json.encode(failed(error)),
        status_code=failures.status(error),
        headers=failures.headers(error),
        media_type=JSON,
    )


def last_words(error: BarrelError) -> bytes:
    """The end of a stream that failed."""
    return sse(msgspec.json.encode(failed(error)), "error")
