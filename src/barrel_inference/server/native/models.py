"""What a model makes of a text and what is kept of it: tokenize, detokenize and the cache routes. Owns nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from barrel_inference.aio.cache import AsyncCache
from barrel_inference.errors import InvalidRequestError
from barrel_inference.kvcache.admin.content import Removed, Scrubbed
from barrel_inference.server.http import plain
from barrel_inference.server.http.operation import Operation, read
from barrel_inference.server.http.plain import answer
from barrel_inference.server.http.streaming import Answer
from barrel_inference.server.models.pool import Lease
from barrel_inference.server.native import wire
from barrel_inference.server.service import PLAIN, ModelService
from barrel_inference.types import CacheLookup, CacheReport


class Asking:
    def __init__(self, service: ModelService, cache: AsyncCache) -> None:
        self._service = service
        self._cache = cache

    def operations(self) -> list[Operation]:
        row = partial(Operation, failure=plain.failure)
        prompt = wire.PromptRequest
        return [
            row("POST", "/api/tokenize", self.tokenize, "Text to tokens", wire.TokenizeRequest, wire.Tokenized),
            row("POST", "/api/detokenize", self.detokenize, "Tokens to text", wire.DetokenizeRequest, wire.Detokenized),
            row("GET", "/api/cache", self.stats, "What is kept, and the counters", None, wire.Cache),
            row("POST", "/api/cache/lookup", self.lookup, "How much would be restored", prompt, CacheLookup),
            row("POST", "/api/cache/prefill", self.prefill, "Read a prompt ahead of its use", prompt, CacheReport),
            row("POST", "/api/cache/pin", self.pin, "Keep a prompt longer than others", prompt, wire.Pinned),
            row("POST", "/api/cache/unpin", self.unpin, "Let a prompt go again", prompt, wire.Unpinned),
            row("POST", "/api/cache/clear", self.clear, "Remove what is kept", wire.ClearRequest, Removed),
            row("POST", "/api/cache/verify", self.verify, "Prove what is kept", wire.VerifyRequest, Scrubbed),
        ]

    async def tokenize(self, request: Request) -> Response:
        body = await read(request, wire.TokenizeRequest)

        async def work(lease: Lease) -> wire.Tokenized:
            tokens = await lease.model.tokenize(
                body.content, add_special=body.add_special, parse_special=body.parse_special
            )
            return wire.Tokenized(tokens, len(tokens))

        return self._with_model(body.model, body.keep_alive, work)

    async def detokenize(self, request: Request) -> Response:
        body = await read(request, wire.DetokenizeRequest)

        async def work(lease: Lease) -> wire.Detokenized:
            return wire.Detokenized(await lease.model.detokenize(body.tokens))

        return self._with_model(body.model, body.keep_alive, work)

    async def stats(self, request: Request) -> Response:
        found = await self._cache.stats()
        tiers = [msgspec.convert(tier, wire.Tier, from_attributes=True) for tier in found.tiers]
        namespaces = await self._cache.namespaces()
        counters = {name: getattr(found, name) for name in ("counters", "by_model", "by_tier")}
        return answer(wire.Cache(tiers=tiers, namespaces=namespaces, **counters))

    async def lookup(self, request: Request) -> Response:
        return await self._with_prompt(request, lambda lease, prompt: lease.model.lookup(prompt))

    async def prefill(self, request: Request) -> Response:
        return await self._with_prompt(request, lambda lease, prompt: lease.model.prefill(prompt))

    async def pin(self, request: Request) -> Response:
        async def work(lease: Lease, prompt: str) -> wire.Pinned:
            return wire.Pinned(await lease.model.pin(prompt))

        return await self._with_prompt(request, work)

    async def unpin(self, request: Request) -> Response:
        async def work(lease: Lease, prompt: str) -> wire.Unpinned:
            return wire.Unpinned(await lease.model.unpin(prompt))

        return await self._with_prompt(request, work)

    async def clear(self, request: Request) -> Response:
        body = await read(request, wire.ClearRequest, empty=b"{}")
        removed = await self._cache.clear(namespace=body.namespace, older_than_s=body.older_than_s, tier=body.tier)
        return answer(removed)

    async def verify(self, request: Request) -> Response:
        body = await read(request, wire.VerifyRequest, empty=b"{}")
        return answer(await self._cache.verify(tier=body.tier))

    async def _with_prompt(self, request: Request, work: Callable[[Lease, str], Awaitable[Any]]) -> Response:
        body = await read(request, wire.PromptRequest)
        prompt = prompt_of(body)

        async def with_lease(lease: Lease) -> Any:
            return await work(lease, await prompt(lease))

        return self._with_model(body.model, body.keep_alive, with_lease)

    def _with_model(self, name: str, keep_alive: Any, work: Callable[[Lease], Awaitable[Any]]) -> Response:
        async def encoded() -> bytes:
            async with self._service.lease(name, PLAIN, keep_alive) as lease:
                return msgspec.json.encode(await work(lease))

        return Answer(encoded(), failure=plain.failure)


def prompt_of(body: wire.PromptRequest) -> Callable[[Lease], Awaitable[str]]:
    """How to have it from the model. Raises InvalidRequestError unless there is one, and only one."""
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("give either a prompt or messages")

    async def prompt(lease: Lease) -> str:
        if body.prompt is None:
            return await lease.model.apply_template(body.messages or [])
        return body.prompt

    return prompt
