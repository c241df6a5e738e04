"""``/health``, ``/metrics``, ``/openapi.json`` and ``/docs``: what those who run the server ask. Owns nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from barrel_inference.server.http import openapi, plain
from barrel_inference.server.http.metrics import CONTENT_TYPE
from barrel_inference.server.http.operation import Operation
from barrel_inference.server.http.plain import answer
from barrel_inference.server.native import wire

State = Callable[[], wire.Health]
Metrics = Callable[[], Awaitable[bytes]]


class Operating:
    """``operations_of`` gives all operations of the server, these included; ``error_of(path)`` the type of errors."""

    def __init__(
        self,
        state: State,
        metrics: Metrics,
        operations_of: Callable[[], Sequence[Operation]],
        error_of: Callable[[str], Any],
    ) -> None:
        self._state = state
        self._metrics = metrics
        self._operations_of = operations_of
        self._error_of = error_of

    def operations(self) -> list[Operation]:
        get = partial(Operation, "GET", failure=plain.failure)
        health = partial(get, response=wire.Health, open=True)
        return [
            health("/health", self.health, "Whether the process lives"),
            health("/health/ready", self.ready, "Whether requests are accepted", also={503: wire.Health}),
            get("/metrics", self.metrics, "Prometheus metrics", media="text/plain"),
            get("/openapi.json", self.openapi, "This document", response=dict[str, Any]),
            get("/docs", self.docs, "The routes as a page", media="text/html"),
        ]

    async def health(self, request: Request) -> Response:
        return answer(self._state())

    async def ready(self, request: Request) -> Response:
        state = self._state()
        return answer(state, 200 if state.status == "ok" else 503)

    async def metrics(self, request: Request) -> Response:
        return Response(await self._metrics(), media_type=CONTENT_TYPE)

    async def openapi(self, request: Request) -> Response:
        own = version("barrel-inference")
        return answer(openapi.document(self._operations_of(), version=own, error_of=self._error_of))

    async def docs(self, request: Request) -> Response:
        return HTMLResponse(openapi.page(self._operations_of(), version=version("barrel-inference")))
