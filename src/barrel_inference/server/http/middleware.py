"""What a request passes before its endpoint, outermost first: Records, Guard (host, origin, key), Body (size, pace).

Pure ASGI: nothing here buffers an answer. Owns nothing but its settings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from barrel_inference.errors import BarrelError, InvalidRequestError, QueueFullError, RequestTimeoutError
from barrel_inference.server.failures import ForbiddenError, ShuttingDownError, TooLargeError, UnauthorizedError
from barrel_inference.server.http import auth, record
from barrel_inference.server.http.record import Record
from barrel_inference.server.http.streaming import noted

FailureOf = Callable[[Scope], Callable[[BarrelError], Response]]  # each dialect has its own shape

LINGER_S = 2.0
METRICS = "/metrics"

_log = logging.getLogger(__name__)


class Records:
    """Gives each request its Record and its id, and ``ended`` the record in the end."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        begun: Callable[[], None],
        ended: Callable[[Record], None],
        failure_of: FailureOf,
    ) -> None:
        self._app = app
        self._begun = begun
        self._ended = ended
        self._failure_of = failure_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        wanted = Headers(scope=scope).get("x-request-id")
        entry = Record(record.request_id(wanted), scope["method"], scope["path"])
        record.begin(entry)
        self._begun()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
                _add_headers(message, entry)
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            shown = noted(error)
            if not entry.status:
                await self._failure_of(scope)(shown)(scope, receive, sending)
        finally:
            if entry.disconnected and not entry.status:
                entry.status = record.CLIENT_CLOSED_REQUEST
            entry.end()
            self._ended(entry)


def _add_headers(message: Message, entry: Record) -> None:
    headers = MutableHeaders(scope=message)
    headers["x-request-id"] = headers["request-id"] = entry.id  # OpenAI's name for it, and Anthropic's
    headers["x-content-type-options"] = "nosniff"
    if entry.ignored:
        names = [name for name in entry.ignored if name.isascii() and name.isprintable()]
        headers["x-ignored-options"] = ", ".join(names)[:1000]
    if entry.capped:
        headers["x-capped-options"] = ", ".join(f"{name}={given}" for name, given in entry.capped.items())


class Access(NamedTuple):
    """``check_host``: only for a server that this machine alone can reach, or that was told its names."""

    keys: auth.Keys
    origins: auth.Origins
    check_host: bool = True
    hosts: tuple[str, ...] = ()
    open_paths: frozenset[str] = frozenset()


class Guard:
    """Answers preflights, refuses strangers, tells pages which origin may read the answer."""

    def __init__(
        self, app: ASGIApp, *, access: Access, failure_of: FailureOf, is_closing: Callable[[], bool] = lambda: False
    ) -> None:
        self._app = app
        self._access = access
        self._failure_of = failure_of
        self._is_closing = is_closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host, origin = headers.get("host"), headers.get("origin")
        if refusal := self._unwelcome(scope) or _two_hosts(headers) or self._stranger(host, origin):
            await self._failure_of(scope)(noted(refusal))(scope, receive, send)
        elif scope["method"] == "OPTIONS":
            await Response(status_code=204, headers=_preflight(origin))(scope, receive, send)
        elif error := self._refusal(scope["path"], headers):
            await self._failure_of(scope)(noted(error))(scope, receive, _readable(send, origin))
        else:
            address = (scope.get("client") or ("",))[0]
            record.current().client = auth.client_of(self._access.keys, _key(headers), address)
            await self._app(scope, receive, _readable(send, origin))

    def _unwelcome(self, scope: Scope) -> BarrelError | None:
        """Who only wants to know how the server is doing is answered all the same."""
        if scope["path"] in self._access.open_paths or scope["path"] == METRICS:
            return None
        if self._is_closing():
            return ShuttingDownError("the server is shutting down", unread=True)
        if scope.get("crowded"):
            return QueueFullError("server busy: too many connections are open", unread=True, retry_after_s=5)
        return None

    def _stranger(self, host: str | None, origin: str | None) -> ForbiddenError | None:
        """Browsers always name a host; HTTP/1.0 does not."""
        if self._access.check_host and host is not None and not auth.host_allowed(host, self._access.hosts):
            return ForbiddenError("this Host is not allowed: if it is a name of this machine, add it to server.hosts")
        if origin is not None and not self._access.origins.allows(origin, host or ""):
            return ForbiddenError(
                "this Origin is not allowed: to let its pages use the server, add it to server.origins"
            )
        return None

    def _refusal(self, path: str, headers: Headers) -> BarrelError | None:
        keys = self._access.keys
        if not keys or path in self._access.open_paths:
            return None
        key = _key(headers)
        if keys.accepts(key):
            return None
        if key:
            return UnauthorizedError("unauthorized: the server does not know this API key")
        return UnauthorizedError("unauthorized: an API key is required, as Authorization: Bearer or x-api-key")


def _two_hosts(headers: Headers) -> InvalidRequestError | None:
    """Whoever stands between may have looked at the other one."""
    return InvalidRequestError("there is more than one Host header") if len(headers.getlist("host")) > 1 else None


def _key(headers: Headers) -> str:
    return auth.key_of(headers.get("authorization", ""), headers.get("x-api-key", ""))


_ALLOWED_HEADERS = (
    "Authorization, Content-Type, User-Agent, Accept, X-Requested-With, X-Request-ID, OpenAI-Beta, OpenAI-Organization,"
    " OpenAI-Project, x-api-key, anthropic-version, anthropic-beta, anthropic-dangerous-direct-browser-access,"
    " x-stainless-arch, x-stainless-async, x-stainless-custom-poll-interval, x-stainless-helper-method,"
    " x-stainless-lang, x-stainless-os, x-stainless-package-version, x-stainless-poll-helper,"
    " x-stainless-retry-count, x-stainless-runtime, x-stainless-runtime-version, x-stainless-timeout"
)


_READABLE_HEADERS = (
    "X-Request-ID, Request-ID, Retry-After, X-Ignored-Options, X-Capped-Options, X-Wrong-Option, X-Error-Code"
)


def _preflight(origin: str | None) -> dict[str, str]:
    if origin is None:
        return {"allow": "GET, HEAD, POST, DELETE, OPTIONS"}
    return {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS",
        "access-control-allow-headers": _ALLOWED_HEADERS,
        "access-control-max-age": "43200",
        "vary": "Origin",
    }


def _readable(send: Send, origin: str | None) -> Send:
    """By the page that asked."""
    if origin is None:
        return send

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["access-control-allow-origin"] = origin
            headers["access-control-expose-headers"] = _READABLE_HEADERS
            headers.add_vary_header("Origin")
        await send(message)

    return sending


class Body:
    """Limits a request's body to ``max_bytes`` (uploads, which have limits of their own, excepted) and its pauses to
    ``pause_s``."""

    def __init__(
        self, app: ASGIApp, *, max_bytes: int, pause_s: float, failure_of: FailureOf, unlimited: Iterable[str] = ()
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._pause_s = pause_s
        self._failure_of = failure_of
        self._unlimited = tuple(unlimited)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        unlimited = scope["path"].startswith(self._unlimited)
        headers = Headers(scope=scope)
        declared = headers.get("content-length", "")
        if not unlimited and declared.isdecimal() and int(declared) > self._max_bytes:
            if "expect" not in headers:  # else nothing comes before we ask for it
                await discard(receive)
            await self._failure_of(scope)(noted(self._too_large()))(scope, receive, send)
            return
        await self._app(scope, self._limited(scope, receive, unlimited), send)

    def _limited(self, scope: Scope, receive: Receive, unlimited: bool) -> Receive:
        seen, complete = 0, False

        async def receiving() -> Message:
            nonlocal seen, complete
            if complete:  # what comes now is the client's leaving, which takes as long as it takes
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), self._pause_s)
            except TimeoutError:
                raise RequestTimeoutError(
                    f"the rest of the body did not come within {self._pause_s:g} s", unread=True
                ) from None
            if scope.get("broken"):
                raise InvalidRequestError("the request's body is not valid HTTP", unread=True)
            seen += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if seen > self._max_bytes and not unlimited:
                if not complete:
                    await discard(receive)
                raise self._too_large()
            return message

        return receiving

    def _too_large(self) -> TooLargeError:
        return TooLargeError(f"the request's body is larger than {self._max_bytes} bytes", limit=self._max_bytes)


async def discard(receive: Receive) -> None:
    """Read on for a while: a client whose connection closes while it still sends never sees why."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while (await receive()).get("more_body", False):
                pass
