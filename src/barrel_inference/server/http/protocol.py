"""The connection below the application: how long and how large the head of a request may be, and how long a client may
neither ask nor read. And what uvicorn does not do: bodies behind an offer to upgrade, clients that ask ahead and leave,
fields behind a body, HTTP/1.0.

Owned by uvicorn, one instance a connection.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, ClassVar

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_AHEAD = 16  # requests behind the one in hand; only as long as we read is it seen that a client leaves

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-type: text/plain\r\n"
    b"content-length: 24\r\n\r\nrequest head too large\r\n"
)


def guarded(
    *, max_header_bytes: int, head_timeout_s: float, write_timeout_s: float, max_connections: int = 0
) -> type[HttpToolsProtocol]:
    """uvicorn's protocol with these limits; it is given to uvicorn as a class."""
    limits = {
        "max_header_bytes": max_header_bytes,
        "head_timeout_s": head_timeout_s,
        "write_timeout_s": write_timeout_s,
        "max_connections": max_connections,
    }
    return type("LimitedHttp", (GuardedHttp,), limits)


class GuardedHttp(HttpToolsProtocol):
    """A connection that does not finish the head of its first request in time is closed; later ones are under
    uvicorn's keep-alive timer until anything comes, and under this one from then on. One whose client does not read
    its answer is closed too: what it asked for holds a place of the model."""

    max_header_bytes: ClassVar[int]
    head_timeout_s: ClassVar[float]
    write_timeout_s: ClassVar[float]
    max_connections: ClassVar[int]  # 0: any number

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0  # read so far, while in the head
        self._named_bytes = 0  # of what the parser has named: path and fields
        self._in_head = True
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None
        self._data = b""  # in the parser's hands
        self._rest = b""  # for it, behind an offer to upgrade
        self._body_head = b""  # tells the parser of a body that it would take for another protocol's
        self._silent = False  # while it reads that

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._read_on()
        if self._answering is not None and not self._answering.response_complete:  # uvicorn tells the last one only
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        self._rest = data
        while self._rest:
            self._data, self._rest = self._rest, b""
            super().data_received(self._data)
        if self._in_head and self._head_bytes > self.max_header_bytes:
            self._refuse_head()
        if self._deadline is None and self.cycle is not None and self.cycle.response_complete:
            self._arm()  # empty lines, or more of a body that was answered already: uvicorn's timer has ended with them

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._read_on()
        super().resume_writing()
        self._see_off()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._see_off()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._see_off()

    def shutdown(self) -> None:
        super().shutdown()
        self._see_off()

    def on_message_begin(self) -> None:
        if self._silent:
            return
        super().on_message_begin()
        if not self._in_head:
            self._in_head = True
            self._head_bytes = 0
            self._arm()
        self._named_bytes = 0

    def on_url(self, url: bytes) -> None:
        if self._silent:
            return
        self._named_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._silent:
            return
        self._named_bytes += len(name) + len(value)
        self._check_named()
        if self._in_head:  # fields behind a chunked body are not the head's, which others may have checked
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._silent:
            self._silent = False
            return
        self._check_named()
        self._in_head = False
        self._disarm()
        if 0 < self.max_connections < len(self.connections):
            self.scope["crowded"] = True  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            _until_closed(self.cycle)
        if self.parser.should_upgrade():
            self._body_head = _body_head(self.headers)
        if 0 < len(self.pipeline) < MAX_AHEAD:
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        if not self._body_head:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        """Not into the middle of an answer: that one ends first, and with it the connection. If it is the answer to
        the very body that cannot be read, the application is told so, to say it in its own words."""
        cycle = self._answering
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
            self.pipeline.clear()
            if cycle.more_body:
                cycle.scope["broken"] = True  # type: ignore[typeddict-unknown-key]
                cycle.message_event.set()
        elif not self.transport.is_closing():
            super().send_400_response(msg)
            self._see_off()

    def _unsupported_upgrade_warning(self) -> None:
        """To answer as if nothing had been offered is what HTTP asks for. Java's client offers HTTP/2 with everything
        that it sends, and the parser stops there."""
        error = sys.exception()
        assert error is not None
        self._silent = bool(self._body_head)
        self._rest = self._body_head + self._data[error.args[0] :]
        self._body_head = b""

    def _check_named(self) -> None:
        """It may have come whole, even with a body behind it."""
        if self._named_bytes > self.max_header_bytes:
            self._refuse_head()
            raise ValueError("request head too large")  # ends the parsing

    def _refuse_head(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()
            self._see_off()

    def _see_off(self) -> None:
        """A connection that was closed stays until its client has read what is left: that has its time as well."""
        if self.transport.is_closing() and self._unread is None:
            self._unread = self.loop.call_later(self.write_timeout_s, self.transport.abort)

    def _read_on(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _arm(self) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(self.head_timeout_s, self.transport.abort)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _until_closed(cycle: RequestResponseCycle) -> None:
    """HTTP/1.0 knows no chunks: what has no length ends with the connection."""
    send = cycle.send

    async def sending(message: Any) -> None:
        cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.chunked_encoding = False
    cycle.send = sending  # type: ignore[method-assign]


def _body_head(headers: list[tuple[bytes, bytes]]) -> bytes:
    """A head that says nothing but what body follows; empty when none does."""
    framing = [name + b": " + value for name, value in headers if name in (b"content-length", b"transfer-encoding")]
    return b"\r\n".join([b"POST / HTTP/1.1", *framing, b"", b""]) if framing else b""
