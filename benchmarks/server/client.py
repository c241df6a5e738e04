"""One client for both servers: OpenAI's routes, streamed, greedy, timed at the arrival of each piece. Owns nothing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import aiohttp
import msgspec

from benchmarks.server.peers import MODEL, Peer

GREEDY = {"temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}


@dataclass
class Reply:
    """Seconds since it was asked; ``arrivals``: perf_counter at each piece with text."""

    began: float
    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated: int = 0
    ended: float = 0.0

    @property
    def first_token_s(self) -> float:
        return self.arrivals[0] - self.began

    @property
    def tokens_read(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    def gaps_after(self, moment: float) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.arrivals) if later > moment]


class Client:
    """Of one server, which may come back elsewhere."""

    def __init__(self, session: aiohttp.ClientSession, peer: Peer) -> None:
        self._session = session
        self._peer = peer

    async def complete(self, tokens: list[int], n_tokens: int, reply: Reply | None = None) -> Reply:
        """``reply``: filled as the answer comes, for whoever watches it."""
        return await self._ask("/v1/completions", {"prompt": tokens}, n_tokens, reply)

    async def chat(self, messages: list[dict[str, str]], n_tokens: int) -> Reply:
        return await self._ask("/v1/chat/completions", {"messages": messages}, n_tokens, None)

    async def _ask(self, path: str, body: dict[str, Any], n_tokens: int, reply: Reply | None) -> Reply:
        body = {"model": MODEL, "max_tokens": n_tokens, **GREEDY, **body}
        reply = reply or Reply(0.0)
        reply.began = time.perf_counter()
        async with self._session.post(self._peer.url + path, json=body) as response:
            if response.status != 200:
                raise RuntimeError(f"{self._peer.name}: {response.status} {(await response.text())[:500]}")
            async for event in _events(response):
                _take(reply, event)
        reply.ended = time.perf_counter()
        if not reply.arrivals or reply.generated != n_tokens:
            raise RuntimeError(f"{self._peer.name}: {reply.generated} tokens instead of {n_tokens}")
        return reply


class Tokens:
    """Text to tokens by our server, so that both are sent the same ids."""

    def __init__(self, session: aiohttp.ClientSession, peer: Peer) -> None:
        self._session = session
        self._peer = peer

    async def tokenize(self, text: str, /) -> list[int]:
        body = {"model": MODEL, "content": text}
        async with self._session.post(f"{self._peer.url}/api/tokenize", json=body, raise_for_status=True) as response:
            return list((await response.json())["tokens"])


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        if line.startswith(b"data: {"):
            yield msgspec.json.decode(line[6:])


def _take(reply: Reply, event: dict[str, Any]) -> None:
    if "error" in event:
        raise RuntimeError(str(event["error"]))
    for choice in event["choices"]:
        text = choice.get("text") or choice.get("delta", {}).get("content") or ""
        if text or (choice.get("finish_reason") and not reply.arrivals):  # all of it may have been control tokens
            reply.arrivals.append(time.perf_counter())
            reply.text += text
    if usage := event.get("usage"):
        reply.prompt_tokens = usage["prompt_tokens"]
        reply.generated = usage["completion_tokens"]
        reply.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def steady_rate(replies: list[Reply]) -> float:
    """Tokens a second of all together, from the last first piece to the first last one. A piece is a token, but for
    characters of several tokens."""
    start, stop = max(reply.arrivals[0] for reply in replies), min(reply.arrivals[-1] for reply in replies)
    tokens = sum(
        reply.generated / len(reply.arrivals) * sum(start < arrival <= stop for arrival in reply.arrivals)
        for reply in replies
    )
    return tokens / (stop - start)
