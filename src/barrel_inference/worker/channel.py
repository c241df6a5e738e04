"""Framed messages over a socket pair: one end for asyncio (the runtime), one end for threads (the worker).

    u32 little-endian payload length | msgpack array of messages

A clean end of stream is ``None``; an end inside a frame, an oversized length or an undecodable payload is a
``ChannelError``, after which the channel is of no use. Each end is owned by whoever made it; ``BlockingChannel.send``
alone may be called from any thread.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

import msgspec

from barrel_inference.worker.messages import MAX_FRAME_BYTES, Msg, Up

T = TypeVar("T")

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()


class ChannelError(Exception):
    """The other end broke the protocol, or died in the middle of a frame."""


def encode(messages: Sequence[Msg], max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """One frame. Raises ChannelError when it would be larger than ``max_bytes``."""
    payload = _encoder.encode(messages)
    if len(payload) > max_bytes:
        raise ChannelError(f"a frame of {len(payload)} bytes exceeds the limit of {max_bytes}")
    return _LENGTH.pack(len(payload)) + payload


def _payload_length(header: bytes | bytearray, max_bytes: int) -> int:
    (length,) = _LENGTH.unpack_from(header)
    if length > max_bytes:
        raise ChannelError(f"the other end announces a frame of {length} bytes; the limit is {max_bytes}")
    return int(length)


class _Decoder(Generic[T]):
    def __init__(self, message_type: type[T] | object) -> None:
        self._decoder = msgspec.msgpack.Decoder(list[message_type])  # type: ignore[valid-type]

    def decode(self, payload: bytes | bytearray) -> list[T]:
        try:
            return self._decoder.decode(payload)
        except msgspec.MsgspecError as error:
            raise ChannelError(f"undecodable frame: {error}") from error


class AsyncChannel(asyncio.Protocol):
    """The runtime's end. ``send`` only buffers: the worker's reader thread drains it whatever the engine does.

    A listener is called from the transport itself: a task of its own between the two would cost every token another
    turn of the event loop.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._decoder: _Decoder[Up] = _Decoder(Up)
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._frames: deque[list[Up]] = deque()  # until somebody listens
        self._take: Callable[[list[Up]], None] = self._keep
        self._changed = asyncio.Event()
        self._is_over = False
        self._error: Exception | None = None

    @classmethod
    async def open(cls, sock: socket.socket, max_bytes: int = MAX_FRAME_BYTES) -> AsyncChannel:
        """Take over ``sock``."""
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_unix_connection(lambda: cls(max_bytes), sock=sock)
        return channel

    def send(self, messages: Sequence[Msg]) -> None:
        """Queue one frame. A dead peer is not an error here: who receives is told."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(messages, self._max_bytes))

    async def receive(self) -> list[Up] | None:
        """The next frame, or None when the worker has closed its end."""
        while not self._frames and not self._is_over:
            await self._change()
        if self._frames:
            return self._frames.popleft()
        if self._error is not None:
            raise self._error
        return None

    async def listen(self, take: Callable[[list[Up]], None]) -> None:
        """Call ``take`` with every frame, in place of ``receive``, until the worker closes its end. Raises what
        ``take`` raises."""
        while self._frames:
            take(self._frames.popleft())
        self._take = take
        while not self._is_over:
            await self._change()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Nothing more is heard, and that is no error."""
        self._end(None)
        if self._transport is not None:
            self._transport.abort()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _keep(self, frame: list[Up]) -> None:
        self._frames.append(frame)
        self._changed.set()

    # ---- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has another class

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while not self._is_over and (payload := self._next_payload()) is not None:
                self._take(self._decoder.decode(payload))
        except Exception as error:  # of the worker, or of the listener
            self._end(error)
            self.close()

    def eof_received(self) -> None:
        self._end(ChannelError("closed inside a frame") if self._buffer else None)

    def connection_lost(self, error: Exception | None) -> None:
        self.eof_received()

    def _next_payload(self) -> bytearray | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        end = _LENGTH.size + _payload_length(self._buffer, self._max_bytes)
        if len(self._buffer) < end:
            return None
        payload = self._buffer[_LENGTH.size : end]
        del self._buffer[:end]
        return payload

    def _end(self, error: Exception | None) -> None:
        """Only the first reason counts."""
        if not self._is_over:
            self._is_over, self._error = True, error
            self._changed.set()


class BlockingChannel(Generic[T]):
    """The worker's end: one thread receives, any thread sends."""

    def __init__(self, sock: socket.socket, receives: type[T] | object, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._max_bytes = max_bytes
        self._decoder: _Decoder[T] = _Decoder(receives)

    def send(self, messages: Sequence[Msg]) -> None:
        """Write one frame, waiting while the runtime does not read. Raises OSError when it is gone."""
        frame = encode(messages, self._max_bytes)
        with self._sending:
            self._sock.sendall(frame)

    def receive(self) -> list[T] | None:
        """The next frame, or None when the runtime has closed its end (or died)."""
        header = self._read(_LENGTH.size)
        if header is None:
            return None
        payload = self._read(_payload_length(header, self._max_bytes))
        if payload is None:
            raise ChannelError("closed inside a frame")
        return self._decoder.decode(payload)

    def _read(self, length: int) -> bytearray | None:
        """Exactly ``length`` bytes; None at an end of stream before the first."""
        buffer = bytearray(length)
        view = memoryview(buffer)
        done = 0
        while done < length:
            try:
                received = self._sock.recv_into(view[done:])
            except ConnectionError:
                received = 0
            if received == 0 and done:
                raise ChannelError("closed inside a frame")
            if received == 0:
                return None
            done += received
        return buffer

    def close(self) -> None:
        self._sock.close()
