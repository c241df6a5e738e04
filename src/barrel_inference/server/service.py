"""Answers the dialects' requests (``neutral.Service``) with models from the pool. Owns nothing but its parts.

A request's options go over the model's own parameters, and those over the dialect's defaults.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from typing import Any, Literal

import msgspec

from barrel_inference.chat import steady
from barrel_inference.config import ServerOptions
from barrel_inference.errors import InvalidRequestError, ModelNotFoundError, PullError, UnsupportedError
from barrel_inference.server import chat, insert, limits
from barrel_inference.server.failures import ShuttingDownError
from barrel_inference.server.http import record
from barrel_inference.server.models import keepalive
from barrel_inference.server.models.catalog import Catalog, Entry
from barrel_inference.server.models.parameters import Parameters, merge, translate
from barrel_inference.server.models.pool import Lease, Pool
from barrel_inference.server.neutral import (
    ChatRequest,
    CompletionRequest,
    EmbedRequest,
    Event,
    Finished,
    KeepAlive,
    ModelCard,
)
from barrel_inference.types import Chunk, Completion, Embedding, Message

PLAIN = Parameters({}, {})

Pull = Callable[[str], Awaitable[None]]
Task = Literal["chat", "generate", "embed"]  # Ollama's words, which refusals use


class ModelService:
    """``pull(name)`` fetches an unknown model; None when that is not wanted."""

    def __init__(self, catalog: Catalog, pool: Pool, options: ServerOptions, pull: Pull | None = None) -> None:
        self.catalog = catalog
        self.pool = pool
        self._options = options
        self._pull = pull

    # ---- generating

    async def chat(self, request: ChatRequest, wish: Parameters = PLAIN) -> AsyncGenerator[Event, None]:
        """``wish``: how to load, and the defaults below the model's own parameters."""
        self.check(request)
        async with (
            self.lease(request.model, wish, request.keep_alive, task="chat") as lease,
            aclosing(self.chat_with(lease, request, wish)) as events,
        ):
            async for event in events:
                yield event

    def check(self, request: ChatRequest) -> None:
        """Before a model is taken for it. Raises InvalidRequestError, SchemaError."""
        limits.check(request, self._options)

    async def chat_with(self, lease: Lease, request: ChatRequest, wish: Parameters) -> AsyncGenerator[Event, None]:
        async with aclosing(chat.chat_events(lease.model, self.whole(lease, request, wish))) as events:
            async for event in events:
                if isinstance(event, Finished):
                    _complete(event.completion)
                yield event

    def whole(self, lease: Lease, request: ChatRequest, wish: Parameters) -> ChatRequest:
        """As the model is to read it: with what its manifest adds, without what would move its head."""
        request = msgspec.structs.replace(
            request, messages=steady.messages(request.messages, self._options.steady_prompts)
        )
        request = merged(lease.entry, request, wish)
        limits.check_form(request.options, self._options.max_nesting)
        return request

    async def complete(self, request: CompletionRequest, wish: Parameters = PLAIN) -> AsyncGenerator[Chunk, None]:
        async with (
            self.lease(request.model, wish, request.keep_alive, task="generate") as lease,
            aclosing(self.complete_with(lease, request, wish)) as chunks,
        ):
            async for chunk in chunks:
                yield chunk

    async def complete_with(
        self, lease: Lease, request: CompletionRequest, wish: Parameters
    ) -> AsyncGenerator[Chunk, None]:
        prompt = await self.prompt(lease, request)
        options = _options(lease.entry, request.options, wish)
        limits.check_form(options, self._options.max_nesting)
        stream = lease.model.stream(prompt, **options)
        record.current().streams.append(stream)
        async with stream:
            async for chunk in stream:
                if chunk.completion is not None:
                    _complete(chunk.completion)
                yield chunk

    async def prompt(self, lease: Lease, request: CompletionRequest) -> str | tuple[int, ...]:
        """As the model is to read it."""
        if not request.suffix:
            return request.prompt
        return await insert.prompt(lease.model, lease.entry.name, _text(request.prompt), request.suffix)

    async def detokenize(self, model: str, tokens: Sequence[int]) -> str:
        async with self.lease(model, PLAIN, None) as lease:
            return await lease.model.detokenize(tokens)

    async def count_tokens(self, request: ChatRequest) -> int:
        self.check(request)
        async with self.lease(request.model, PLAIN, request.keep_alive, task="chat") as lease:
            return await chat.count_tokens(lease.model, self.whole(lease, request, PLAIN))

    async def embed(self, request: EmbedRequest, wish: Parameters = PLAIN) -> Embedding:
        async with self.lease(request.model, wish, request.keep_alive, task="embed") as lease:
            inputs = request.inputs
            if request.truncate:
                inputs = tuple([await _cut(lease, each) for each in inputs])
            embedding = await lease.model.embed(inputs) if inputs else Embedding(vectors=(), prompt_tokens=0)
            record.current().prompt_tokens += embedding.prompt_tokens
        if request.dimensions:
            vectors = tuple(_shortened(vector, request.dimensions) for vector in embedding.vectors)
            embedding = msgspec.structs.replace(embedding, vectors=vectors)
        return embedding

    # ---- models

    async def models(self) -> list[ModelCard]:
        return [self._card(entry) for entry in self.catalog.list()]

    async def model(self, name: str) -> ModelCard:
        return self._card(self.catalog.resolve(name))

    async def find(self, name: str) -> Entry:
        """Pulls what is not here when that is configured. Raises ModelNotFoundError."""
        try:
            return self.catalog.resolve(name)
        except ModelNotFoundError:
            if self._pull is None:
                raise
        try:
            await self._pull(name)
        except PullError as error:
            if error.details.get("status") != 404:
                raise
            raise ModelNotFoundError(f"model '{name}' not found: {error}", model=name) from None
        return self.catalog.resolve(name)

    @asynccontextmanager
    async def lease(
        self, name: str, wish: Parameters, keep_alive: KeepAlive, *, task: Task | None = None
    ) -> AsyncGenerator[Lease, None]:
        """The model, loaded, for the time of one request. Raises UnsupportedError for a ``task`` that is not its; None
        is what every model can do."""
        record.current().model = name.partition("?")[0]  # a signed URL is a secret
        keep_s = keepalive.parse(keep_alive)
        entry = await self.find(name)
        if entry.embedding and task in ("chat", "generate"):
            raise UnsupportedError(f'"{name}" does not support {task}', capability="completion")
        own = translate(entry.parameters)
        async with self.pool.lease(
            entry,
            n_ctx=wish.n_ctx or own.n_ctx,
            hints=merge(own.load, wish.load),
            keep_s=keep_s,
            embeddings=entry.embedding or task == "embed",
        ) as lease:
            if wish.n_ctx and wish.n_ctx > lease.n_ctx:
                record.current().capped["num_ctx"] = lease.n_ctx
            yield lease

    async def load(self, name: str, wish: Parameters = PLAIN, keep_alive: KeepAlive = None) -> None:
        """Only load."""
        async with self.lease(name, wish, keep_alive):
            pass

    async def unload(self, name: str) -> None:
        """As soon as it is idle. Raises ModelNotFoundError for a name that nobody knows."""
        self.pool.keep_alive(self.catalog.resolve(name), 0.0)

    def _card(self, entry: Entry) -> ModelCard:
        created = datetime.fromisoformat(entry.modified_at).timestamp()
        owner = entry.name.rpartition("/")[0] or "library"
        return ModelCard(id=entry.name, created=int(created), owned_by=owner, n_ctx=self.pool.context(entry))


def _complete(completion: Completion) -> None:
    """Note what it took. Raises ShuttingDownError for an answer that was cut short and not by its client, who would
    have closed the generator."""
    record.current().complete(completion)
    if completion.finish_reason == "cancelled":
        raise ShuttingDownError("the model was unloaded before the answer was complete")


def _options(entry: Entry, options: Mapping[str, Any], wish: Parameters) -> dict[str, Any]:
    """``trace`` lets the engine's lines in the log be found from the request's own."""
    return wish.request | translate(entry.parameters).request | dict(options) | {"trace": record.current().id}


def merged(entry: Entry, request: ChatRequest, wish: Parameters) -> ChatRequest:
    """With what the model's manifest adds: its system message unless there is one, its messages behind either, its
    parameters."""
    given = () if request.context else entry.messages  # an earlier conversation began with them
    before = tuple(msgspec.convert(message, Message) for message in given)
    head = tuple(itertools.takewhile(lambda message: message.role in ("system", "developer"), request.messages))
    rest = request.messages[len(head) :]
    if entry.system and not head:
        head = (Message(role="system", content=entry.system),)
    messages = head + before + rest
    return msgspec.structs.replace(
        request,
        messages=messages,
        options=_options(entry, request.options, wish),
        chat_template=request.chat_template or entry.template,
    )


def _text(prompt: str | tuple[int, ...]) -> str:
    if isinstance(prompt, str):
        return prompt
    raise InvalidRequestError("a suffix needs a prompt of text, not of token ids", option="suffix")


async def _cut(lease: Lease, text: str | tuple[int, ...]) -> str | tuple[int, ...]:
    """At most as many tokens as the model can embed at once."""
    limit = lease.n_ctx
    if isinstance(text, str) and len(text.encode()) < limit - 2:  # a token has at least one byte
        return text
    tokens = await lease.model.tokenize(text) if isinstance(text, str) else list(text)
    return text if len(tokens) <= limit else tuple(tokens[:limit])


def _shortened(vector: tuple[float, ...], dimensions: int) -> tuple[float, ...]:
    head = vector[:dimensions]
    norm = math.sqrt(sum(value * value for value in head)) or 1.0
    return tuple(value / norm for value in head)
