"""One soak from its seed: ask everything alone, shake until warm, measure, shake for the time given, measure again.

Owns the hub and the daemon for its time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.soak.asking import Asker
from tests.soak.clients import Client, More, Solo, solo_answers
from tests.soak.daemon import REAL, SHAKEN, STEADY, Daemon
from tests.soak.operators import PULLED, Operators, offer
from tests.soak.questions import questions
from tests.soak.tally import Tally
from tests.soak.usage import Row, Usage, compared, measure
from tests.support.hub import Hub

REST_S = 120.0  # at most, for a server to come to rest


@dataclass(frozen=True)
class Plan:
    """``warm_up`` and ``main`` make the clocks or counters that say when clients have done enough."""

    seed: int
    warm_up: Callable[[], More]
    main: Callable[[], More]
    n_clients: int = 6
    n_questions: int = 30
    real: Path | None = None
    n_real_questions: int = 6
    pace_s: float = 0.0  # of the stubs' clients
    real_pace_s: float = 0.0


@dataclass(frozen=True)
class Result:
    tally: Tally
    rows: list[Row]

    @property
    def good(self) -> bool:
        return not self.tally.counts["faults"] and all(row.flat for row in self.rows)


def for_seconds(seconds: float) -> More:
    end = time.monotonic() + seconds
    return lambda count: time.monotonic() < end


async def run(plan: Plan, root: Path) -> Result:
    with Hub() as hub, Daemon(root, hub.url, plan.real) as daemon:
        offer(hub)
        soak = _Soak(plan, hub, daemon)
        rows = await soak.run()
        for wrong in await asyncio.to_thread(daemon.stop):
            soak.tally.fault(wrong)
        if left := [str(path) for path in daemon.tmpfs.iterdir() if path.name != "kv"]:
            soak.tally.fault(f"left on tmpfs: {left}")
    return Result(soak.tally, rows)


class _Soak:
    def __init__(self, plan: Plan, hub: Hub, daemon: Daemon) -> None:
        self.tally = Tally()
        self._plan = plan
        self._hub = hub
        self._daemon = daemon
        self._spared = 0
        self._unloaded = (SHAKEN,) if plan.real is None else (SHAKEN, REAL)

    async def run(self) -> list[Row]:
        stubs, real = await self._solo()
        await self._shake(stubs, real, self._plan.warm_up)
        before = await self._at_rest()
        await self._shake(stubs, real, self._plan.main)
        return compared(before, await self._at_rest())

    async def _solo(self) -> tuple[Solo, Solo]:
        plan = self._plan
        async with session() as opened:
            asker = Asker(opened, self._daemon.url)
            steady = await solo_answers(asker, questions(plan.seed, STEADY, plan.n_questions))
            (worker,) = self._daemon.workers()
            self._spared = worker.pid
            shaken = await solo_answers(asker, questions(plan.seed, SHAKEN, plan.n_questions))
            asked = questions(plan.seed, REAL, plan.n_real_questions, n_tokens=(4, 16)) if plan.real else []
            return {**steady, **shaken}, await solo_answers(asker, asked)

    async def _shake(self, stubs: Solo, real: Solo, clock: Callable[[], More]) -> None:
        async with session() as opened:
            asker = Asker(opened, self._daemon.url)
            clients = [
                Client(f"client {number}", asker, stubs, self.tally, self._plan.pace_s)
                for number in range(self._plan.n_clients)
            ]
            if real:  # one alone, so that its solo run is what it must be
                clients.append(Client("client of the real model", asker, real, self.tally, self._plan.real_pace_s))
            operators = Operators(asker, self._daemon, self._hub, self.tally, self._spared, self._unloaded)
            more = clock()
            working = [asyncio.create_task(work) for work in operators.all(self._plan.seed)]
            try:
                await asyncio.gather(*(client.run(self._plan.seed, more) for client in clients))
            finally:
                await self._ended(working)

    async def _ended(self, working: list[asyncio.Task[None]]) -> None:
        for task in working:
            task.cancel()
        for outcome in await asyncio.gather(*working, return_exceptions=True):
            if not isinstance(outcome, asyncio.CancelledError):
                self.tally.fault(f"an operator failed: {outcome!r}")

    # ---- rest

    async def _at_rest(self) -> Usage:
        """With every model unloaded but one, every cache and the registry empty, every connection closed."""
        await self._emptied()
        deadline = time.monotonic() + REST_S
        last: Usage | None = None
        while time.monotonic() < deadline:
            await asyncio.sleep(0.5)
            if [each.pid for each in self._daemon.workers()] != [self._spared]:
                continue
            now = await asyncio.to_thread(measure, self._daemon)
            if last is not None and now.server_descriptors == last.server_descriptors:
                return now
            last = now
        raise RuntimeError(f"the server did not come to rest: workers {self._daemon.workers()}, not {self._spared}")

    async def _emptied(self) -> None:
        async with session() as opened:
            asker = Asker(opened, self._daemon.url)
            for name in self._unloaded:
                await asker.call("POST", "/api/generate", {"model": name, "keep_alive": 0})
            for name in PULLED:  # what was begun is kept for a later pull: this one
                await asker.call("POST", "/api/pull", {"model": name, "stream": False})
            for each in (await asker.call("GET", "/api/tags"))[1]["models"]:
                if each["name"].startswith(PULLED):
                    await asker.call("DELETE", "/api/delete", {"model": each["name"]})
            await asker.call("POST", "/api/gc", {})
            await asker.call("POST", "/api/cache/clear", {})


def session() -> aiohttp.ClientSession:
    """A connection for each request: one that is kept may be closed by the server as it is used again."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True), timeout=aiohttp.ClientTimeout(total=None)
    )
