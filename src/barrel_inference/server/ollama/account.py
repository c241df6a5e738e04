"""What Ollama's clients ask about ollama.com: there is no account here and nothing goes there. Owns nothing."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from barrel_inference.errors import BarrelError
from barrel_inference.server.failures import ForbiddenError, UnauthorizedError
from barrel_inference.server.http.operation import Operation
from barrel_inference.server.http.plain import answer
from barrel_inference.server.ollama import wire
from barrel_inference.server.ollama.failure import failure


def operations() -> list[Operation]:
    def row(method: str, path: str, endpoint: Any, summary: str, response: Any = None) -> Operation:
        return Operation(method, path, endpoint, failure, summary, response=response)

    nobody = _refusing(UnauthorizedError, "unauthorized")
    not_signed_in = _refusing(UnauthorizedError, "you are not currently signed in")
    no_cloud = _refusing(ForbiddenError, "this server uses no cloud: web search and web fetch are not available")
    return [
        row("GET", "/api/status", _status, "Say that there is no cloud", wire.Status),
        row("POST", "/api/me", nobody, "Refused: there are no accounts"),
        row("POST", "/api/signout", not_signed_in, "Refused: there are no accounts"),
        row("DELETE", "/api/user/keys/{key}", not_signed_in, "Refused: there are no accounts"),
        row("POST", "/api/experimental/web_search", no_cloud, "Refused: there is no cloud"),
        row("POST", "/api/experimental/web_fetch", no_cloud, "Refused: there is no cloud"),
        row("GET", "/api/experimental/model-recommendations", _recommended, "Recommend no model", wire.Recommended),
    ]


async def _status(request: Request) -> Response:
    return answer(wire.Status(wire.Cloud(disabled=True, source="config")))


async def _recommended(request: Request) -> Response:
    return answer(wire.Recommended([]))


def _refusing(kind: type[BarrelError], words: str) -> Any:
    async def endpoint(request: Request) -> Response:
        raise kind(words)

    return endpoint
