"""``/v1/messages`` and, in Anthropic's form, ``/v1/models``. Owns nothing.

A stream that has to wait begins with pings, so that ``message_start`` can tell what the prompt really took.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from barrel_inference.server.anthropic import translate, wire
from barrel_inference.server.anthropic.failure import failure, last_words
from barrel_inference.server.anthropic.models import Models
from barrel_inference.server.anthropic.stream import Writer
from barrel_inference.server.http import record
from barrel_inference.server.http.operation import Operation, read
from barrel_inference.server.http.streaming import SSE, Answer, Stream, ended, sse
from barrel_inference.server.neutral import ChatRequest, Event, Service


def routes(service: Service, *, keep_alive: bool = False, ping_s: float) -> list[Operation]:
    """``keep_alive``: whether the field of that name in a body has an effect (it is always accepted). ``ping_s``: how
    long a stream is silent before it says ping."""
    return Anthropic(service, keep_alive, ping_s).operations() + Models(service).operations()


class Anthropic:
    def __init__(self, service: Service, keep_alive: bool, ping_s: float) -> None:
        self._service = service
        self._keep_alive = keep_alive
        self._ping_s = ping_s

    def operations(self) -> list[Operation]:
        post = partial(Operation, "POST", failure=failure)
        return [
            post(
                "/v1/messages",
                self.create,
                "Answer a conversation",
                wire.MessagesRequest,
                wire.Message,
                wire.StreamEvent,
            ),
            post(
                "/v1/messages/count_tokens",
                self.count_tokens,
                "Count the tokens of a conversation",
                wire.CountRequest,
                wire.Counted,
            ),
        ]

    async def create(self, request: Request) -> Response:
        body = await read(request, wire.MessagesRequest)
        asked = translate.messages(body, keep_alive=self._keep_alive)
        record.current().ignored += translate.unheeded(body)
        writer = Writer(
            body.model,
            stops=body.stop_sequences or (),
            marked=translate.marks_cache(body),
            hides_thinking=translate.hides_thinking(body),
            reports_edits=body.context_management is not None,
        )
        if body.stream:
            return Stream(self._stream(asked, writer), media_type=SSE, last_words=last_words, failure=failure)
        return Answer(self._whole(asked, writer), failure=failure)

    async def count_tokens(self, request: Request) -> Response:
        body = await read(request, wire.CountRequest)
        return Answer(self._count(translate.count(body)), failure=failure)

    async def _count(self, asked: ChatRequest) -> bytes:
        return msgspec.json.encode(wire.Counted(input_tokens=await self._service.count_tokens(asked)))

    async def _whole(self, asked: ChatRequest, writer: Writer) -> bytes:
        async with aclosing(self._service.chat(asked)) as events:
            async for event in events:
                for _ in writer.take(event):
                    pass
        return msgspec.json.encode(writer.message)

    async def _stream(self, asked: ChatRequest, writer: Writer) -> AsyncGenerator[bytes, None]:
        async with aclosing(with_silences(self._service.chat(asked), self._ping_s)) as events:
            async for event in events:
                for piece in [wire.Ping()] if event is None else writer.take(event):
                    yield sse(msgspec.json.encode(piece), str(piece.__struct_config__.tag))


async def with_silences(events: AsyncGenerator[Event, None], silence_s: float) -> AsyncGenerator[Event | None, None]:
    """The events, and None for every ``silence_s`` without one."""
    async with aclosing(events):
        coming = asyncio.ensure_future(anext(events, None))
        try:
            while True:
                done, _ = await asyncio.wait([coming], timeout=silence_s)
                if done and coming.result() is None:
                    return
                yield coming.result() if done else None
                if done:
                    coming = asyncio.ensure_future(anext(events, None))
        finally:
            await ended(coming)
