"""What is measured of each server in turn: one function a figure, each giving its values by name. Owns nothing.

``turn`` makes the prompts: the same for both servers, never seen before by either.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from benchmarks.server.client import Client, Reply, steady_rate
from benchmarks.server.peers import Peer
from benchmarks.setting import SENTENCE, Tokeniser, prompt


@dataclass(frozen=True)
class Sizes:
    prompt: int = 2000
    decode: int = 128
    head: int = 1500
    document: int = 150  # of a conversation, words
    warm: int = 32  # pieces of a stream before another request comes


QUICK = Sizes(prompt=512, decode=32, head=256, document=60, warm=8)
N_TAIL, N_ANSWER = 24, 16
CONVERSATIONS, TURNS = 12, 3


@dataclass(frozen=True)
class Subject:
    """A server under measurement."""

    peer: Peer
    client: Client
    tokeniser: Tokeniser
    sizes: Sizes

    async def prompt(self, n_tokens: int, seed: int) -> list[int]:
        return await prompt(self.tokeniser, n_tokens, seed)

    async def long_prompt(self, turn: int) -> list[int]:
        """The turn's long prompt, which several figures share."""
        return await self.prompt(self.sizes.prompt, seed=turn)


Figure = Callable[[Subject, int], Awaitable[dict[str, float]]]


async def decode(subject: Subject, turn: int) -> dict[str, float]:
    rates = {}
    for n_streams in (1, 4, 8):
        prompts = [await subject.prompt(64, seed=turn * 100 + n_streams * 10 + i) for i in range(n_streams)]
        replies = await asyncio.gather(*(subject.client.complete(each, subject.sizes.decode) for each in prompts))
        rates[f"decode: {n_streams} at a time, tokens/s"] = steady_rate(replies)
    return rates


async def prefill(subject: Subject, turn: int) -> dict[str, float]:
    """The time to the first token of a prompt never seen."""
    reply = await subject.client.complete(await subject.long_prompt(turn), 2)
    return {"cold prompt, tokens/s": reply.tokens_read / reply.first_token_s}


async def edit(subject: Subject, turn: int) -> dict[str, float]:
    tokens = await subject.long_prompt(turn)
    await subject.client.complete(tokens, 2)
    middle = len(tokens) // 2
    edited = tokens[:middle] + list(reversed(tokens[middle : middle + 8])) + tokens[middle + 8 :]
    reply = await subject.client.complete(edited, 2)
    return {
        "edit at the middle: first token, s": reply.first_token_s,
        "edit at the middle: tokens read": reply.tokens_read,
    }


async def restart(subject: Subject, turn: int) -> dict[str, float]:
    """A prompt that was read before the server was started again."""
    tokens = await subject.long_prompt(turn)
    await subject.client.complete(tokens, 2)
    await subject.peer.stop()
    began = time.perf_counter()
    await subject.peer.start()
    started_s = time.perf_counter() - began
    reply = await subject.client.complete(tokens, 2)
    return {"restart: until ready, s": started_s, "restart: first token, s": reply.first_token_s}


async def heads(subject: Subject, turn: int) -> dict[str, float]:
    """Eight requests at the same moment, one head."""
    head = await subject.prompt(subject.sizes.head, seed=5000 + turn)
    prompts = [head + await subject.prompt(N_TAIL, seed=6000 + turn * 10 + i) for i in range(8)]
    began = time.perf_counter()
    replies = await asyncio.gather(*(subject.client.complete(each, N_ANSWER) for each in prompts))
    return {
        "eight with one head: all, s": max(reply.ended for reply in replies) - began,
        "eight with one head: first token, s": statistics.median(reply.first_token_s for reply in replies),
        "eight with one head: tokens read": sum(reply.tokens_read for reply in replies),
    }


async def conversations(subject: Subject, turn: int) -> dict[str, float]:
    """Twelve at once on four sequences, each with a document of its own and its questions one after the other."""
    began = time.perf_counter()
    talks = await asyncio.gather(*(_talk(subject, turn * 1000 + i) for i in range(CONVERSATIONS)))
    later = [reply for talk in talks for reply in talk[1:]]
    return {
        "twelve conversations: all, s": time.perf_counter() - began,
        "twelve conversations: first token of later turns, s": statistics.median(
            reply.first_token_s for reply in later
        ),
        "twelve conversations: tokens read in later turns": sum(reply.tokens_read for reply in later),
    }


async def _talk(subject: Subject, seed: int) -> list[Reply]:
    messages: list[dict[str, str]] = []
    replies = []
    for number in range(TURNS):
        words = _words(seed + number * 100, 20 if number else subject.sizes.document)
        messages.append({"role": "user", "content": words})
        replies.append(await subject.client.chat(messages, N_ANSWER))
        messages.append({"role": "assistant", "content": replies[-1].text})
    return replies


def _words(seed: int, count: int) -> str:
    return " ".join(random.Random(seed).choices(SENTENCE.split(), k=count))


async def stall(subject: Subject, turn: int) -> dict[str, float]:
    """A stream, while another client's long prompt is read."""
    stream = Reply(0.0)
    tokens = await subject.prompt(64, seed=20_000 + turn)
    task = asyncio.create_task(subject.client.complete(tokens, 3000, stream))
    while len(stream.arrivals) < subject.sizes.warm and not task.done():  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0.01)
    reader = await subject.client.complete(await subject.prompt(subject.sizes.prompt, seed=30_000 + turn), 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    meanwhile = stream.gaps_after(reader.began) or [time.perf_counter() - stream.arrivals[-1]]
    return {
        "a stream beside a long prompt: longest pause, s": max(meanwhile),
        "a stream beside a long prompt: its reading, tokens/s": reader.tokens_read / reader.first_token_s,
    }


ON_EIGHT: Mapping[str, Figure] = {"decode": decode}  # of sequences; the others have four
ON_FOUR: Mapping[str, Figure] = {
    "prefill": prefill,
    "edit": edit,
    "heads": heads,
    "conversations": conversations,
    "stall": stall,
    "restart": restart,
}
