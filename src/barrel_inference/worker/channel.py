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
from collections.abc import Sequence
from typing import Generic, TypeVar

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
    (length,) = _LENGTH.unpack(header)
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


class AsyncChannel:
    """The runtime's end. ``send`` only buffers: the worker's reader thread drains it whatever the engine does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_bytes: int) -> None:
        self._reader = reader
        self._writer = writer
        self._max_bytes = max_bytes
        self._decoder: _Decoder[Up] = _Decoder(Up)

    @classmethod
    async def open(cls, sock: socket.socket, max_bytes: int = MAX_FRAME_BYTES) -> AsyncChannel:
        """Take over ``sock``."""
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        return cls(reader, writer, max_bytes)

    def send(self, messages: Sequence[Msg]) -> None:
        """Queue one frame. A dead peer is not an error here: ``receive`` reports it."""
        if not self._writer.is_closing():
            self._writer.write(encode(messages, self._max_bytes))

    async def receive(self) -> list[Up] | None:
        """The next frame, or None when the worker has closed its end."""
        try:
            header = await self._reader.readexactly(_LENGTH.size)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise ChannelError("closed inside a frame header") from error
            return None
        except ConnectionError:
            return None
        return self._decoder.decode(await self._read_payload(_payload_length(header, self._max_bytes)))

    async def _read_payload(self, length: int) -> bytes:
        try:
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ChannelError("closed inside a frame") from error

    def close(self) -> None:
        self._writer.transport.abort()


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
