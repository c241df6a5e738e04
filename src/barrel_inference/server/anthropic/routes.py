"""``/v1/messages``. Owns nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from barrel_inference.server.anthropic import translate, wire
from barrel_inference.server.anthropic.failure import failure, last_words
from barrel_inference.server.anthropic.stream import Writer
from barrel_inference.server.http.operation import Operation, read
from barrel_inference.server.http.streaming import JSON, SSE, Answer, Stream, sse
from barrel_inference.server.neutral import ChatRequest, Event, Service

PING_S = 10.0


def routes(service: Service, *, keep_alive: bool = False, ping_s: float = PING_S) -> list[Operation]:
    """``keep_alive``: whether the field of that name in a body has an effect (it is always accepted). ``ping_s``: how
    long a stream may be silent."""
    return Anthropic(service, keep_alive, ping_s).operations()


class Anthropic:
    def __init__(self, service: Service, keep_alive: bool, ping_s: float) -> None:
        self._service = service
        self._keep_alive = keep_alive
        self._ping_s = ping_s

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "POST",
                "/v1/messages",
                self.create,
                failure,
                "Answer a conversation",
                request=wire.MessagesRequest,
                response=wire.Message,
                stream=wire.StreamEvent,
            ),
            Operation(
                "POST",
                "/v1/messages/count_tokens",
                self.count_tokens,
                failure,
                "Count the tokens of a conversation",
                request=wire.CountRequest,
                response=wire.Counted,
            ),
        ]

    async def create(self, request: Request) -> Response:
        body = await read(request, wire.MessagesRequest)
        asked = translate.messages(body, keep_alive=self._keep_alive)
        writer = Writer(body.model)
        if body.stream:
            return Stream(self._stream(asked, writer), media_type=SSE, last_words=last_words, failure=failure)
        return Answer(self._whole(asked, writer), failure=failure)

    async def count_tokens(self, request: Request) -> Response:
        body = await read(request, wire.CountRequest)
        counted = wire.Counted(input_tokens=await self._service.count_tokens(translate.count(body)))
        return Response(msgspec.json.encode(counted), media_type=JSON)

    async def _whole(self, asked: ChatRequest, writer: Writer) -> bytes:
        async with aclosing(self._service.chat(asked)) as events:
            async for event in events:
                for _ in writer.take(event):
                    pass
        return msgspec.json.encode(writer.message)

    async def _stream(self, asked: ChatRequest, writer: Writer) -> AsyncGenerator[bytes, None]:
        begun = False
        async with aclosing(_with_silences(self._service.chat(asked), self._ping_s)) as events:
            async for event in events:
                if event is not None and not begun:
                    begun = True
                    for piece in writer.begin(event):
                        yield _encoded(piece)
                for piece in [wire.Ping()] if event is None else writer.take(event):
                    yield _encoded(piece)


async def _with_silences(events: AsyncGenerator[Event, None], silence_s: float) -> AsyncGenerator[Event | None, None]:
    """The events, and None for every ``silence_s`` without one (after the first)."""
    async with aclosing(events):
        next_event = asyncio.ensure_future(anext(events, None))
        begun = False
        try:
            while True:
                done, _ = await asyncio.wait([next_event], timeout=silence_s if begun else None)
                if not done:
                    yield None
                    continue
                event = next_event.result()
                if event is None:
                    return
                begun = True
                yield event
                next_event = asyncio.ensure_future(anext(events, None))
        finally:
            next_event.cancel()
            await asyncio.gather(next_event, return_exceptions=True)


def _encoded(event: wire.StreamEvent) -> bytes:
    return sse(msgspec.json.encode(event), str(event.__struct_config__.tag))
