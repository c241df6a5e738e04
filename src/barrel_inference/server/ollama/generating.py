"""``/api/generate``, ``/api/chat`` and the embedding routes. Owns nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from barrel_inference.errors import UnsupportedError
from barrel_inference.server import chat, neutral
from barrel_inference.server.fitting import endless, fitted, num_keep
from barrel_inference.server.http import record
from barrel_inference.server.http.operation import Operation, read
from barrel_inference.server.http.streaming import NDJSON, Answer, Stream, ndjson
from barrel_inference.server.models import keepalive
from barrel_inference.server.models.parameters import Parameters
from barrel_inference.server.models.pool import Lease
from barrel_inference.server.ollama import translate, wire
from barrel_inference.server.ollama.failure import embed_failure, failure, line
from barrel_inference.server.ollama.pieces import Piece, Writer, joined, ns
from barrel_inference.server.service import ModelService, Task
from barrel_inference.types import Embedding

Pieces = AsyncGenerator[Piece, None]


class Generating:
    def __init__(self, service: ModelService) -> None:
        self._service = service

    def operations(self) -> list[Operation]:
        post = partial(Operation, "POST", failure=failure)
        embed = partial(Operation, "POST", failure=embed_failure)
        return [
            post(
                "/api/generate",
                self.generate,
                "Continue a prompt, or load or unload a model",
                wire.GenerateRequest,
                wire.Generated,
                wire.Generated,
            ),
            post("/api/chat", self.chat, "Answer a conversation", wire.ChatRequest, wire.Answered, wire.Answered),
            embed("/api/embed", self.embed, "Embed texts", wire.EmbedRequest, wire.Embedded),
            embed(
                "/api/embeddings",
                self.embeddings,
                "Embed one text (the older form)",
                wire.EmbeddingsRequest,
                wire.EmbeddingOnly,
            ),
        ]

    # ---- endpoints

    async def generate(self, request: Request) -> Response:
        body = await read(request, wire.GenerateRequest)
        writer = Writer(translate.named(body.model), generate=True, with_context=not body.raw)
        if not body.prompt and _unloads(body):
            return self._unload(body, writer)
        translate.check_raw(body)
        translate.no_images(body.images, body.model)
        if not body.prompt and not body.suffix:
            return self._load(body, writer)
        found = translate.parameters(body)
        if body.raw or body.suffix:
            return _answered(body, self._raw(body, translate.raw(body, found), found, writer))
        asked = translate.generate(body, found)
        return _answered(body, self._conversation(body, asked, found, writer, task="generate"))

    async def chat(self, request: Request) -> Response:
        body = await read(request, wire.ChatRequest)
        writer = Writer(translate.named(body.model))
        if not body.messages:
            return self._unload(body, writer) if _unloads(body) else self._load(body, writer)
        found = translate.parameters(body)
        asked = translate.chat(body, found)
        return _answered(body, self._conversation(body, asked, found, writer, task="chat"))

    async def embed(self, request: Request) -> Response:
        body = await read(request, wire.EmbedRequest)
        translate.named(body.model)

        async def work() -> bytes:
            embedding = await self._embed(body, translate.inputs(body.input), body.truncate is not False)
            known = record.current()
            answer = wire.Embedded(
                model=body.model,
                embeddings=list(embedding.vectors),
                total_duration=ns(known.elapsed_s()),
                load_duration=ns(known.queued_s + known.load_s),
                prompt_eval_count=embedding.prompt_tokens,
            )
            return msgspec.json.encode(answer)

        return Answer(work(), failure=embed_failure)

    async def embeddings(self, request: Request) -> Response:
        body = await read(request, wire.EmbeddingsRequest)
        translate.named(body.model)

        async def work() -> bytes:
            embedding = await self._embed(body, (body.prompt,) if body.prompt else (), True)
            return msgspec.json.encode(wire.EmbeddingOnly(*embedding.vectors))

        return Answer(work(), failure=embed_failure)

    # ---- work

    def _unload(self, body: wire.Generating, writer: Writer) -> Response:
        """As soon as it is idle; whatever else the request says."""

        async def work() -> bytes:
            await self._service.unload(body.model)
            return msgspec.json.encode(writer.only("unload"))

        return Answer(work(), failure=failure)

    def _load(self, body: wire.Generating, writer: Writer) -> Response:
        async def work() -> bytes:
            found = translate.options(body.options)
            await self._service.load(body.model, translate.wish(found), body.keep_alive)
            return msgspec.json.encode(writer.only("load", capped=_capped()))

        return Answer(work(), failure=failure)

    async def _conversation(
        self, body: wire.Generating, asked: neutral.ChatRequest, found: Parameters, writer: Writer, *, task: Task
    ) -> Pieces:
        wish = translate.wish(found)
        self._service.check(asked)
        async with self._service.lease(body.model, wish, body.keep_alive, task=task) as lease:
            if asked.think:
                await _require_thinking(lease, asked)
            if body.debug_render_only:
                yield writer.debug(await chat.render(lease.model, self._service.whole(lease, asked, wish)))
                return
            if translate.cuts(body):
                asked = msgspec.structs.replace(asked, num_keep=num_keep(lease, found))
            events = self._service.chat_with(lease, asked, _lasting(body, wish, lease, found))
            async with aclosing(_chat_pieces(events, writer, lease.wait_s)) as pieces:
                async for piece in pieces:
                    yield piece

    async def _raw(
        self, body: wire.GenerateRequest, asked: neutral.CompletionRequest, found: Parameters, writer: Writer
    ) -> Pieces:
        async with (
            self._service.lease(body.model, translate.wish(found), body.keep_alive, task="generate") as lease,
            aclosing(self._completion(body, lease, asked, found, writer)) as pieces,
        ):
            async for piece in pieces:
                yield piece

    async def _completion(
        self,
        body: wire.GenerateRequest,
        lease: Lease,
        asked: neutral.CompletionRequest,
        found: Parameters,
        writer: Writer,
    ) -> Pieces:
        if body.debug_render_only:
            yield writer.debug(str(await self._service.prompt(lease, asked)))  # text, as the request's is
            return
        cut = 0
        if asked.truncate and not asked.suffix:
            keep, max_tokens = num_keep(lease, found), found.request.get("max_tokens")
            prompt, cut = await fitted(lease, asked.prompt, keep, max_tokens)
            asked = msgspec.structs.replace(asked, prompt=prompt)
        wish = _lasting(body, translate.wish(found), lease, found)
        async with aclosing(self._service.complete_with(lease, asked, wish)) as chunks:
            async for chunk in chunks:
                if chunk.text:
                    yield writer.text(chunk.text, chunk.logprobs)
                if chunk.completion is not None:
                    more = {"truncated_tokens": cut, "capped": _capped()}
                    yield writer.final(chunk.completion, load_s=lease.wait_s, **more)

    async def _embed(
        self, body: wire.EmbedRequest | wire.EmbeddingsRequest, inputs: tuple[str, ...], truncate: bool
    ) -> Embedding:
        asked = neutral.EmbedRequest(
            model=body.model,
            inputs=inputs,
            dimensions=body.dimensions if isinstance(body, wire.EmbedRequest) else None,
            truncate=truncate,
            keep_alive=body.keep_alive,
        )
        return await self._service.embed(asked, translate.wish(translate.options(body.options)))


def _unloads(body: wire.Generating) -> bool:
    """When it has nothing to say."""
    return keepalive.parse(body.keep_alive) == 0


def _lasting(body: wire.Generating, wish: Parameters, lease: Lease, found: Parameters) -> Parameters:
    return endless(wish, lease.n_ctx, num_keep(lease, found)) if translate.shifts(body) else wish


async def _require_thinking(lease: Lease, asked: neutral.ChatRequest) -> None:
    """In Ollama's words, with the name as the client wrote it."""
    template = asked.chat_template or lease.entry.template
    if not (await asyncio.to_thread(chat.features, lease.model.info(), template)).thinking:
        raise UnsupportedError(f'"{asked.model}" does not support thinking', capability="thinking")


async def _chat_pieces(events: AsyncGenerator[neutral.Event, None], writer: Writer, load_s: float) -> Pieces:
    async with aclosing(events):
        async for event in events:
            if isinstance(event, neutral.Finished):
                dropped = {"truncated_messages": event.dropped_messages, "truncated_tokens": event.dropped_tokens}
                yield writer.final(event.completion, load_s=load_s, **dropped, capped=_capped())
            elif (piece := writer.event(event)) is not None:
                yield piece


def _capped() -> dict[str, int] | None:
    return record.current().capped or None


def _answered(body: wire.Generating, pieces: Pieces) -> Response:
    """As lines, or with ``stream: false`` as one object."""
    if body.stream is False:
        return Answer(_joined(pieces), failure=failure)
    return Stream(ndjson(pieces), media_type=NDJSON, last_words=line, failure=failure)


async def _joined(pieces: Pieces) -> bytes:
    async with aclosing(pieces):
        return msgspec.json.encode(joined([piece async for piece in pieces]))
