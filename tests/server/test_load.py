"""More clients than the server takes: who waits, who is sent away and told when to come back, and that nobody is left
without an answer. The places of the model are held by the test, so that nothing depends on how fast anybody is."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from barrel_inference.server.app import Server
from tests.registry.weights import model
from tests.server.harness import STUB, RunningServer
from tests.support.hub import Fault, Hub
from tests.support.waiting import until

DEPTH, CROWD, MANY = 100, 320, 40
ASK = {"model": "stub", "max_tokens": 2}
MESSAGES = [{"role": "user", "content": "Hi"}]
DIALECTS: dict[str, tuple[dict[str, Any], int]] = {  # path: what is asked, the status of a refusal
    "/api/generate": ({"model": "stub", "prompt": "Hi", "options": {"num_predict": 2}, "stream": False}, 503),
    "/v1/chat/completions": ({**ASK, "messages": MESSAGES}, 429),
    "/v1/messages": ({**ASK, "messages": MESSAGES}, 429),
}


def serving(root: Path, places: int, **options: Any) -> RunningServer:
    return RunningServer(root, num_parallel=places, max_queue=DEPTH, models={"stub": STUB}, **options)


@asynccontextmanager
async def connected(server: RunningServer) -> AsyncIterator[Crowd]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.timeout(240):
        yield Crowd(server, session)


@asynccontextmanager
async def held(server: RunningServer, places: int) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """All places of the model, taken; what it yields gives them back."""
    stack = AsyncExitStack()

    async def take(inside: Server) -> None:
        entry = inside.service.catalog.resolve("stub")
        for _ in range(places):
            await stack.enter_async_context(inside.pool.lease(entry))

    async def release() -> None:
        await asyncio.to_thread(server.run, lambda inside: stack.aclose())

    await asyncio.to_thread(server.run, take)
    try:
        yield release
    finally:
        await release()


class Answer(NamedTuple):
    """``told``: when to come back."""

    who: int
    status: int
    told: bool
    body: Any


class Crowd:
    """Clients on one loop, and their answers as they came."""

    def __init__(self, server: RunningServer, session: aiohttp.ClientSession) -> None:
        self.answers: list[Answer] = []
        self._server = server
        self._session = session

    async def ask(self, who: int, path: str, key: str = "none") -> None:
        url, headers = self._server.url + path, {"x-api-key": key}
        async with self._session.post(url, json=DIALECTS[path][0], headers=headers) as response:
            told = "Retry-After" in response.headers
            self.answers.append(Answer(who, response.status, told, await response.json()))

    async def until(self, waiting: int, answered: int) -> None:
        """So many wait in the server, in another thread, and so many have been answered."""
        while await asyncio.to_thread(waiting_in, self._server) != waiting or len(self.answers) != answered:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def waiting_in(server: RunningServer) -> int:
    return server.ask(lambda inside: sum(slot.gate.waiting for slot in inside.pool.slots()))


async def test_a_crowd_is_answered_whole_or_sent_away(tmp_path: Path) -> None:
    with serving(tmp_path, places=2) as server:
        async with connected(server) as crowd, held(server, 2) as release:
            paths = [list(DIALECTS)[who % len(DIALECTS)] for who in range(CROWD)]
            clients = [asyncio.create_task(crowd.ask(who, path)) for who, path in enumerate(paths)]
            await crowd.until(waiting=DEPTH, answered=CROWD - DEPTH)
            for answer in crowd.answers:
                assert (answer.status, answer.told) == (DIALECTS[paths[answer.who]][1], True)
            await release()
            await asyncio.gather(*clients)
        assert waiting_in(server) == 0
    assert Counter(answer.status == 200 for answer in crowd.answers) == {True: DEPTH, False: CROWD - DEPTH}


async def test_who_came_later_does_not_pass(tmp_path: Path) -> None:
    """One place, so that the order is exact."""
    with serving(tmp_path, places=1) as server:
        async with connected(server) as crowd, held(server, 1) as release:
            clients = []
            for who in range(MANY):
                clients.append(asyncio.create_task(crowd.ask(who, "/api/generate")))
                await crowd.until(waiting=who + 1, answered=0)
            await release()
            await asyncio.gather(*clients)
    assert order(crowd) == list(range(MANY))


def order(crowd: Crowd) -> list[int]:
    served = sorted(crowd.answers, key=lambda answer: datetime.fromisoformat(answer.body["created_at"]))
    return [answer.who for answer in served]


async def test_clients_with_keys_take_turns(tmp_path: Path) -> None:
    keys = ("key-of-the-one", "key-of-the-other")
    with serving(tmp_path, places=1, api_keys=keys) as server:
        async with connected(server) as crowd, held(server, 1) as release:
            clients = []
            for who, key in enumerate((0, 0, 0, 1, 1)):
                clients.append(asyncio.create_task(crowd.ask(who, "/api/generate", keys[key])))
                await crowd.until(waiting=who + 1, answered=0)
            await release()
            await asyncio.gather(*clients)
    assert order(crowd) == [0, 3, 1, 4, 2]


async def chats_have_one_thread(inside: Server) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))


def test_chats_go_on_beside_downloads(tmp_path: Path) -> None:
    """However many: each has the threads that it needs, and takes none of those that render chats."""
    with Hub() as hub, ThreadPoolExecutor(MANY) as clients:
        for number in range(3):
            hub.repository(f"Org/Repo{number}", {"m.gguf": model(60_000, number)})
            resource = hub.resources[f"/cdn/Org/Repo{number}/m.gguf"]
            resource.skip, resource.faults = 1, [Fault(stall_at=10_000)]
        patient = {"registry": {"hf_endpoint": hub.url, "stall_s": 3600.0}}
        with serving(tmp_path, places=2, runtime=patient) as server:
            server.run(chats_have_one_thread)
            for number in range(3):
                clients.submit(server.post, "/api/pull", {"model": f"hf://Org/Repo{number}"})
            until(lambda: hub.sent_bytes > 30_000)
            assert server.ask(lambda inside: inside._registry is not None and inside._registry.pulls_running) == 3
            chat = {**ASK, "messages": MESSAGES}
            assert server.post("/api/chat", {**chat, "stream": False})[0] == 200
            assert server.request("GET", "/metrics")[0] == 200


def test_a_model_is_not_starved_by_a_busy_one(tmp_path: Path) -> None:
    """There is room for one, and the clients of the other never pause."""
    models = {name: {**STUB, "stub": {"delay_ms": 10.0, "model": name}} for name in ("busy", "other")}
    counts: Counter[int] = Counter()
    done = threading.Event()

    def asks(name: str) -> int:
        asked = {"model": name, "prompt": "x", "options": {"num_predict": 40}, "stream": False}
        return server.post("/api/generate", asked)[0]

    def client() -> None:
        while not done.is_set():
            counts[asks("busy")] += 1

    options = {"max_loaded_models": 1, "queue_timeout_s": 50.0, "models": models}
    with RunningServer(tmp_path, num_parallel=2, **options) as server, ThreadPoolExecutor(3) as clients:
        for _ in range(3):
            clients.submit(client)
        until(lambda: counts[200] >= 3)
        try:
            assert asks("other") == 200
            before = counts[200]
            until(lambda: counts[200] >= before + 3)
        finally:
            done.set()
    assert set(counts) == {200}
