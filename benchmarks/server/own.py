"""What only our server is asked: how soon it listens, what it weighs without models, what its HTTP layer adds."""

from __future__ import annotations

import statistics

import aiohttp
import psutil

from benchmarks.server.client import Client
from benchmarks.server.peers import N_CTX, Ours
from benchmarks.setting import Setting, ask, loaded, prompt


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
    server = Ours(chosen.model_path, chosen.folder("latency"), threads=chosen.threads, sequences=4)
    room = {"n_ctx": N_CTX, "n_seq_max": 4, "n_threads": chosen.threads}
    try:
        await server.start()
        async with aiohttp.ClientSession() as session, loaded(chosen, context_opts=room) as model:
            client, tokens = Client(session, server), await prompt(model, 32, seed=1)
            over_http, direct = [], []
            for _ in range(n_pairs):
                over_http.append((await client.complete(tokens, 1)).first_token_s)
                direct.append((await ask(model, tokens, 1)).first_token_s)
    finally:
        await server.stop()
    return {"HTTP beside the Python API, ms": [1e3 * (statistics.median(over_http) - statistics.median(direct))]}


OWN = {"idle": idle, "latency": latency}
