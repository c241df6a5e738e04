"""A connection whose client does not read; what can be seen from outside is in ``tests/server/test_security.py``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from barrel_inference.server.http.protocol import guarded


class Transport(asyncio.Transport):
    """Takes everything; tells when it is broken off."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = asyncio.Event()
        self.closed = False

    def is_closing(self) -> bool:
        return self.closed or self.aborted.is_set()

    def write(self, data: Any) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted.set()


async def silent(scope: Any, receive: Any, send: Any) -> None:
    """An application that says nothing."""


def connected(write_timeout_s: float) -> tuple[Any, Transport]:
    kind = guarded(max_header_bytes=1000, head_timeout_s=3600, write_timeout_s=write_timeout_s)
    protocol = kind(Config(app=silent, ws="none", log_config=None), ServerState(), {})
    transport = Transport()
    protocol.connection_made(transport)
    return protocol, transport


async def test_who_does_not_read_is_let_go() -> None:
    protocol, transport = connected(0.01)
    protocol.pause_writing()
    async with asyncio.timeout(60):
        await transport.aborted.wait()
    protocol.connection_lost(None)


@pytest.mark.parametrize("close", ["timeout_keep_alive_handler", "shutdown"])
async def test_who_does_not_read_the_rest_of_a_closed_connection_is_let_go(close: str) -> None:
    protocol, transport = connected(0.01)
    getattr(protocol, close)()
    protocol.resume_writing()  # there is less left, but something
    async with asyncio.timeout(60):
        await transport.aborted.wait()
    protocol.connection_lost(None)


async def test_who_reads_on_in_time_stays() -> None:
    protocol, transport = connected(3600)
    protocol.pause_writing()
    timer = protocol._unread
    protocol.resume_writing()
    assert timer.cancelled()
    protocol.pause_writing()
    timer = protocol._unread
    protocol.connection_lost(None)
    assert timer.cancelled()
    assert not transport.aborted.is_set()
