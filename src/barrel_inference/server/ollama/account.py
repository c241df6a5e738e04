"""What Ollama's clients ask about ollama.com: there is no account here and nothing goes there. Owns nothing."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from barrel_inference.errors import BarrelError
from barrel_inference.server.failures import ForbiddenError, UnauthorizedError
from barrel_inference.server.http.operation import Endpoint, Operation
from barrel_inference.server.http.plain import answer
from barrel_inference.server.ollama import wire
from barrel_inference.server.ollama.failure import failure


def operations() -> list[Operation]:
    row = partial(Operation, failure=failure)
    nobody = _refusing(UnauthorizedError, "unauthorized")
    not_signed_in = _refusing(UnauthorizedError, "you are not currently signed in")
    no_cloud = _refusing(ForbiddenError, "this server uses no cloud: web search and web fetch are not available")
    return [
        row("GET", "/api/status", _status, "Say that there is no cloud", response=wire.Status),
        row("POST", "/api/me", nobody, "Refused: there are no accounts"),
        row("POST", "/api/signout", not_signed_in, "Refused: there are no accounts"),
        row("DELETE", "/api/user/keys/{key}", not_signed_in, "Refused: there are no accounts"),
        row("POST", "/api/experimental/web_search", no_cloud, "Refused: there is no cloud"),
        row("POST", "/api/experimental/web_fetch", no_cloud, "Refused: there is no cloud"),
        row(
            "GET", "/api/experimental/model-recommendations", _recommended, "Recommend no model", None, wire.Recommended
        ),
    ]


async def _status(request: Request) -> Response:
    return answer(wire.Status(wire.Cloud(disabled=True, source="config")))


async def _recommended(request: Request) -> Response:
    return answer(wire.Recommended([]))


def _refusing(kind: type[BarrelError], words: str) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        raise kind(words)

    return endpoint
