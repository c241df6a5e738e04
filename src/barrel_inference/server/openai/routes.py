"""The ``/v1`` routes of OpenAI. Owns nothing; the store of responses belongs to ``responses``."""

from __future__ import annotations

import base64
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from barrel_inference.server.http.operation import Operation, read
from barrel_inference.server.http.streaming import JSON, SSE, Answer, Stream, sse
from barrel_inference.server.neutral import Service
from barrel_inference.server.openai import chunks, completions, translate, wire
from barrel_inference.server.openai.failure import failure, last_words
from barrel_inference.server.openai.responses.routes import Responses

DONE = sse(b"[DONE]")
Event = TypeVar("Event")


def routes(service: Service, *, keep_alive: bool = False) -> list[Operation]:
    """``keep_alive``: whether the field of that name in a body has an effect (it is always accepted)."""
    return OpenAI(service, keep_alive).operations() + Responses(service, keep_alive).operations()


class OpenAI:
    def __init__(self, service: Service, keep_alive: bool) -> None:
        self._service = service
        self._keep_alive = keep_alive

    def operations(self) -> list[Operation]:
        row = partial(Operation, failure=failure)
        return [
            row(
                "POST",
                "/v1/chat/completions",
                self.chat,
                "Answer a conversation",
                wire.ChatCompletionRequest,
                wire.ChatCompletion,
                wire.ChatCompletionChunk,
            ),
            row(
                "POST",
                "/v1/completions",
                self.complete,
                "Continue a text",
                wire.CompletionRequest,
                wire.Completion,
                wire.Completion,
            ),
            row("POST", "/v1/embeddings", self.embed, "Embed texts", wire.EmbeddingRequest, wire.Embeddings),
            row("GET", "/v1/models", self.models, "List the models", response=wire.Models),
            row("GET", "/v1/models/{model:path}", self.model, "Describe a model", response=wire.Model),
        ]

    async def chat(self, request: Request) -> Response:
        body = await read(request, wire.ChatCompletionRequest)
        asked = translate.chat(body, keep_alive=self._keep_alive)
        writer = chunks.Writer(
            body.model,
            logprobs=bool(body.logprobs),
            usage=bool(body.stream_options and body.stream_options.include_usage),
            functions=bool(body.functions and not body.tools),
        )
        return _answered(body, self._service.chat(asked), writer)

    async def complete(self, request: Request) -> Response:
        body = await read(request, wire.CompletionRequest)
        pieces = completions.generate(self._service, body, self._keep_alive)
        return _answered(body, pieces, completions.Writer(body))

    async def embed(self, request: Request) -> Response:
        body = await read(request, wire.EmbeddingRequest)
        asked = translate.embedding(body, keep_alive=self._keep_alive)

        async def work() -> bytes:
            found = await self._service.embed(asked)
            translate.check_dimensions(body.dimensions, found)
            shown = _packed if body.encoding_format == "base64" else list
            answer = wire.Embeddings(
                data=[wire.Embedding(index=index, embedding=shown(each)) for index, each in enumerate(found.vectors)],
                model=body.model,
                usage=wire.EmbeddingUsage(prompt_tokens=found.prompt_tokens, total_tokens=found.prompt_tokens),
            )
            return msgspec.json.encode(answer)

        return Answer(work(), failure=failure)

    async def models(self, request: Request) -> Response:
        cards = await self._service.models()
        data = [wire.Model(id=card.id, created=card.created, owned_by=card.owned_by) for card in cards]
        return Response(msgspec.json.encode(wire.Models(data=data)), media_type=JSON)

    async def model(self, request: Request) -> Response:
        card = await self._service.model(request.path_params["model"])
        model = wire.Model(id=card.id, created=card.created, owned_by=card.owned_by)
        return Response(msgspec.json.encode(model), media_type=JSON)


class Writer(Protocol[Event]):
    """Makes one response of its events, in chunks or whole."""

    def chunks(self, event: Event, /) -> Sequence[msgspec.Struct]: ...

    def last_chunk(self) -> msgspec.Struct | None: ...

    def whole(self, events: list[Event], /) -> msgspec.Struct: ...


def _answered(body: wire.Sampled, events: AsyncGenerator[Event, None], writer: Writer[Event]) -> Response:
    if body.stream:
        return Stream(_chunks(events, writer), media_type=SSE, last_words=last_words, failure=failure)
    return Answer(_whole(events, writer), failure=failure)


async def _chunks(events: AsyncGenerator[Event, None], writer: Writer[Event]) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for event in events:
            for chunk in writer.chunks(event):
                yield sse(msgspec.json.encode(chunk))
    if (last := writer.last_chunk()) is not None:
        yield sse(msgspec.json.encode(last))
    yield DONE


async def _whole(events: AsyncGenerator[Event, None], writer: Writer[Event]) -> bytes:
    async with aclosing(events):
        return msgspec.json.encode(writer.whole([event async for event in events]))


def _packed(vector: tuple[float, ...]) -> str:
    """Little-endian float32, in base64."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
