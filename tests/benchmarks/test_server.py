"""The side by side: what the client reads off a stream, and when an aim counts as reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from benchmarks import server
from benchmarks.report import Spread
from benchmarks.server.client import Client, Reply, steady_rate
from benchmarks.setting import Setting

PIECES = (
    b'data: {"choices": [{"text": "The", "finish_reason": null}]}\n\n'
    b'data: {"choices": [{"text": " end", "finish_reason": null}]}\n\n'
    b'data: {"choices": [{"text": "", "finish_reason": "length"}], "usage": {"prompt_tokens": 9,'
    b' "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}}\n\n'
    b"data: [DONE]\n\n"
)


class Fake:
    """A server that streams ``PIECES`` whatever it is asked."""

    name = "fake"
    url = ""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


async def _answer(request: web.Request) -> web.Response:
    return web.Response(body=PIECES, content_type="text/event-stream")


@asynccontextmanager
async def client() -> AsyncIterator[Client]:
    app = web.Application()
    app.router.add_post("/v1/completions", _answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    peer = Fake()
    peer.url = "http://{}:{}".format(*runner.addresses[0])
    try:
        async with aiohttp.ClientSession() as session:
            yield Client(session, peer)
    finally:
        await runner.cleanup()


async def test_a_stream_is_read_piece_by_piece_and_its_usage_with_it() -> None:
    async with client() as asked:
        reply = await asked.complete([1, 2, 3], 2)
    assert reply.text == "The end" and len(reply.arrivals) == 2
    assert (reply.generated, reply.tokens_read) == (2, 1)
    assert reply.began <= reply.arrivals[0] <= reply.arrivals[1] <= reply.ended


async def test_an_answer_of_another_length_is_no_measurement() -> None:
    async with client() as asked:
        with pytest.raises(RuntimeError, match="2 tokens instead of 3"):
            await asked.complete([1], 3)


def test_the_rate_counts_only_while_all_streams_run() -> None:
    early = Reply(0.0, arrivals=[1.0, 2.0, 3.0, 4.0], generated=4)
    late = Reply(0.0, arrivals=[2.0, 3.0, 4.0, 5.0], generated=4)
    assert steady_rate([early, late]) == pytest.approx(2.0)


def test_the_ratio_is_of_pairs_and_decides() -> None:
    row = server.row("decode: 4 at a time, tokens/s", {"ours": [100.0, 240.0], "llama-server": [50.0, 200.0]})
    assert row["ours ÷ llama-server"] == Spread((2.0, 1.2))
    assert (row["aim"], row["reached"]) == ("≥ 1.15 ×", "yes")
    slow = server.row("eight with one head: all, s", {"ours": [5.0], "llama-server": [10.0]})
    assert (slow["aim"], slow["reached"]) == ("≤ 0.4 ×", "no")


def test_ours_alone_has_no_ratio_but_its_own_limits() -> None:
    assert server.row("cold prompt, tokens/s", {"ours": [200.0]})["reached"] == ""
    assert server.row("serve, until it listens, s", {"ours": [0.4]})["reached"] == "yes"


def test_a_figure_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no such figures: nonsense"):
        asyncio.run(server.measure(Setting("model.gguf", tmp_path, only=("nonsense",))))
