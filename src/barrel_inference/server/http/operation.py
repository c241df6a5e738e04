"""One row of the API: method, path, what goes in and out. Routes and the OpenAPI document are made from the same rows.

An endpoint raises BarrelErrors; the operation answers them in its dialect's shape.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from barrel_inference.errors import InvalidRequestError
from barrel_inference.server.http import record
from barrel_inference.server.http.streaming import Failure, noted

T = TypeVar("T")
_AT = re.compile(r"at `\$\.([^`]+)`$")
_FIELD = re.compile(r"field `(\w+)`")

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Operation:
    """``request``, ``response`` and ``stream`` (one piece of a streamed answer) are msgspec types, or None for no JSON.

    ``media``: of an answer that is no JSON, ``takes`` of such a body. ``also``: types of answers that are no errors and
    not 200, by status.
    ``query``: names of optional parameters. ``open`` operations need no API key.
    """

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    request: Any = None
    response: Any = None
    stream: Any = None
    _: KW_ONLY
    failure: Failure
    media: str = ""
    takes: str = ""
    also: Mapping[int, Any] = field(default_factory=dict)
    query: tuple[str, ...] = ()
    open: bool = False

    def route(self) -> Route:
        return Route(self.path, self.answer, methods=[self.method], include_in_schema=False)

    async def answer(self, request: Request) -> Response:
        """Of the endpoint, or the failure it ended with."""
        record.current().route = self.path
        try:
            return await self.endpoint(request)
        except ClientDisconnect:  # in its body; raised further, it would be told as an error of ours
            record.current().disconnected = True
            return Response(status_code=record.CLIENT_CLOSED_REQUEST)
        except Exception as error:
            return self.failure(noted(error))


def count(text: str, *, most: int, option: str) -> int:
    """A query parameter from 1 to ``most``. Raises InvalidRequestError."""
    if text.isdecimal() and len(text) < 10 and 1 <= int(text) <= most:
        return int(text)
    raise InvalidRequestError(f"{option}: must be 1 to {most}", option=option)


async def read(request: Request, kind: type[T], *, empty: bytes | None = None) -> T:
    """The JSON body, whatever its content type claims to be. Raises InvalidRequestError.

    ``empty``: what an empty body stands for; without it an empty body is an error.
    """
    body = await request.body()
    if not body.strip():
        if empty is None:
            raise InvalidRequestError("missing request body")
        body = empty
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if encoding := request.headers.get("content-encoding"):
            wrong = f"content-encoding {encoding[:20]!r} is not supported: send the body unencoded"
            raise InvalidRequestError(wrong) from None
        raise InvalidRequestError(f"invalid request: {error}", **_place(str(error))) from None


def _place(error: str) -> dict[str, str]:
    """The field that a decoder complains about, as ``option``."""
    at, field = _AT.search(error), _FIELD.search(error)
    names = [found[1] for found in (at, field) if found]
    return {"option": ".".join(names)} if names else {}
