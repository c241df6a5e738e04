"""What only our server is asked: how soon it listens, what it weighs without models, what its HTTP layer adds, how soon
it stops for a client that left."""

from __future__ import annotations

import asyncio
import re
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import psutil

from benchmarks.server.client import Client
from benchmarks.server.peers import MODEL, N_CTX, Ours
from benchmarks.setting import Setting, ask, loaded, prompt

NEWLINE = 198  # a token that is whole text in SmolLM2's vocabulary


async def idle(chosen: Setting) -> dict[str, list[float]]:
    """Without models. After one answer, since the first imports more."""
    listening, weight = [], []
    for _ in range(chosen.rounds):
        server = Ours(None, chosen.folder("idle"), threads=chosen.threads, sequences=4)
        try:
            listening.append(await server.listen())
            async with aiohttp.ClientSession() as session, session.get(f"{server.url}/api/tags") as answer:
                await answer.read()
            assert server.process is not None
            weight.append(psutil.Process(server.process.pid).memory_info().rss / 1e6)
        finally:
            await server.stop()
    return {"serve, until it listens, s": listening, "serve without models, RSS, MB": weight}


async def latency(chosen: Setting) -> dict[str, list[float]]:
    """One token of a short warm prompt over HTTP and by the Python API, in turns, so that the machine is the same for
    both. The client is part of it."""
    n_pairs = 20 if chosen.quick else 100
    room = {"n_ctx": N_CTX, "n_seq_max": 4, "n_threads": chosen.threads}
    async with _serving(chosen, "latency") as (server, session), loaded(chosen, context_opts=room) as model:
        client, tokens = Client(session, server), await prompt(model, 32, seed=1)
        over_http, direct = [], []
        for _ in range(n_pairs):
            over_http.append((await client.complete(tokens, 1)).first_token_s)
            direct.append((await ask(model, tokens, 1)).first_token_s)
    return {"HTTP beside the Python API, ms": [1e3 * (statistics.median(over_http) - statistics.median(direct))]}


@asynccontextmanager
async def _serving(chosen: Setting, folder: str) -> AsyncIterator[tuple[Ours, aiohttp.ClientSession]]:
    server = Ours(chosen.model_path, chosen.folder(folder), threads=chosen.threads, sequences=4)
    try:
        await server.start()
        async with aiohttp.ClientSession() as session:
            yield server, session
    finally:
        await server.stop()


async def cancel(chosen: Setting) -> dict[str, list[float]]:
    """What the engine samples beyond the pieces that a client has read when it leaves."""
    beyond = []
    async with _serving(chosen, "cancel") as (server, session):
        for n_read in range(4, 8 if chosen.quick else 20):
            before = await _sampled(session, server.url)
            await _read_and_leave(session, server.url, n_read)
            beyond.append(await _settled(session, server.url) - before - n_read)
    return {"sampled after the client left, tokens": beyond}


async def _read_and_leave(session: aiohttp.ClientSession, url: str, n_pieces: int) -> None:
    body = {"model": MODEL, "prompt": "Count:", "max_tokens": 2000, "stream": True, "ignore_eos": True}
    body |= {"logit_bias": {str(NEWLINE): 100}}  # a piece is a token
    answer = await session.post(f"{url}/v1/completions", json=body)
    async for line in answer.content:
        n_pieces -= line.startswith(b"data: {")
        if not n_pieces:
            break
    answer.close()


async def _sampled(session: aiohttp.ClientSession, url: str) -> float:
    async with session.get(f"{url}/metrics") as answer:
        found = re.search(r"^barrel_kv_generated_tokens_total.* ([0-9.]+)$", await answer.text(), re.MULTILINE)
    return float(found[1]) if found else 0.0


async def _settled(session: aiohttp.ClientSession, url: str) -> float:
    """The count once it stands still; workers report four times a second."""
    last = -1.0
    while last != (now := await _sampled(session, url)):
        last = now
        await asyncio.sleep(0.6)
    return now


OWN = {"idle": idle, "latency": latency, "cancel": cancel}
