"""Answers that stop working when their client leaves: one JSON body, a file, or a stream of pieces.

Each response owns the work it was given: it starts it when it is sent, and has ended it when it returns.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, BinaryIO

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from barrel_inference.errors import BarrelError, ContextExceededError
from barrel_inference.server import failures
from barrel_inference.server.http import record
from barrel_inference.threads import Threads

NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
JSON = "application/json; charset=utf-8"
BYTES = "application/octet-stream"
PIECE_BYTES = 1 << 18

Failure = Callable[[BarrelError], Response]
LastWords = Callable[[BarrelError], bytes]

_log = logging.getLogger(__name__)


class UnderWay:
    """The answers that are being made; the application's state holds it. ``end`` cuts short what nothing else has."""

    def __init__(self) -> None:
        self.ended = False
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        self.ended = True
        for task in self._tasks:
            task.cancel()


class Answer(Response):
    """The bytes that ``work`` gives; ``failure`` makes the response of what it raises."""

    def __init__(self, work: Coroutine[Any, Any, bytes], *, failure: Failure) -> None:
        self._work = work
        self._failure = failure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(scope, receive, self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = Response(await self._work, media_type=JSON)
        except (Exception, asyncio.CancelledError) as error:
            response = self._failure(noted(_reason(error, scope)))
        await response(scope, receive, send)


class Download(Response):
    """The bytes of the open file that ``work`` gives, with a header of its own; the file is closed in the end."""

    def __init__(
        self, work: Coroutine[Any, Any, tuple[BinaryIO, tuple[bytes, bytes]]], threads: Threads, *, failure: Failure
    ) -> None:
        self._work = work
        self._threads = threads
        self._failure = failure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(scope, receive, self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            file, about = await self._work
        except (Exception, asyncio.CancelledError) as error:
            await self._failure(noted(_reason(error, scope)))(scope, receive, send)
            return
        with file:
            length = str(os.fstat(file.fileno()).st_size).encode()
            headers = [(b"content-type", BYTES.encode()), (b"content-length", length), about]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while piece := await self._threads.run(file.read, PIECE_BYTES):
                await _body(send, piece)
            await _body(send, b"", more=False)


class Stream(Response):
    """The pieces of a generator as they come.

    What fails before the first piece is answered with ``failure``; later, ``last_words`` are the last piece.
    """

    def __init__(
        self, pieces: AsyncGenerator[bytes, None], *, media_type: str, last_words: LastWords, failure: Failure
    ) -> None:
        self._pieces = pieces
        self._last_words = last_words
        self._failure = failure
        self._media_type = media_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._pieces):
            await while_connected(scope, receive, self._stream(scope, receive, send))

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            first = await anext(self._pieces, b"")
        except (Exception, asyncio.CancelledError) as error:
            await self._failure(noted(_reason(error, scope)))(scope, receive, send)
            return
        headers = [(b"content-type", self._media_type.encode()), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _body(send, first)
        try:
            async for piece in self._pieces:
                await _body(send, piece)
        except (Exception, asyncio.CancelledError) as error:
            await _body(send, self._last_words(noted(_reason(error, scope))))
        await _body(send, b"", more=False)


async def _body(send: Send, piece: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": more})


def _reason(error: BaseException, scope: Scope) -> BaseException:
    """Why an answer ends. Raises ``error`` when it was cancelled for a client that has left."""
    if not isinstance(error, asyncio.CancelledError):
        return error
    if not scope["app"].state.under_way.ended:
        raise error
    return failures.ShuttingDownError("the server is shutting down")


async def while_connected(scope: Scope, receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` to its end, or cancel it when the client disconnects. The request's body must have been read."""
    task = asyncio.create_task(work)
    scope["app"].state.under_way.add(task)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            record.current().disconnected = True
    finally:
        await ended(gone, task)
    if not task.cancelled():
        task.result()


async def ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel what still runs and wait until it has cleaned up."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def noted(error: BaseException) -> BarrelError:
    """What the client is told of ``error``; the request's record and, for a bug, the log get the rest."""
    shown = failures.of(error)
    entry = record.current()
    entry.error = shown.code
    if isinstance(shown, ContextExceededError):
        named = {"prompt_tokens": "n_prompt_tokens", "n_ctx": "n_ctx"}
        entry.too_long = {name: shown.details.get(detail, 0) for name, detail in named.items()}
    if shown is not error:
        _log.error("request %s failed", entry.id, exc_info=error)
    return shown


async def ndjson(values: AsyncGenerator[Any, None]) -> AsyncGenerator[bytes, None]:
    """A line of JSON for each; closes ``values``."""
    async with aclosing(values):
        async for value in values:
            yield msgspec.json.encode(value) + b"\n"


def sse(data: bytes, event: str | None = None) -> bytes:
    """One server-sent event."""
    name = f"event: {event}\n".encode() if event else b""
    return name + b"data: " + data + b"\n\n"
