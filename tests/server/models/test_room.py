"""Which models make way for which: turns of busy ones, who came before, and patience; with the clock by hand."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from barrel_inference.errors import QueueFullError
from barrel_inference.server.models.catalog import Entry
from barrel_inference.server.models.fit import TURN_S, turn_s
from barrel_inference.server.models.keepalive import FOREVER
from tests.server.models.test_pool import A, B, C, World, settle


class Request:
    """One that holds its model until it is told to end."""

    def __init__(self, world: World, entry: Entry, **options: Any) -> None:
        self.runs = False
        self._end = asyncio.Event()
        self.task = asyncio.create_task(self._ask(world, entry, options))

    async def _ask(self, world: World, entry: Entry, options: dict[str, Any]) -> None:
        async with world.pool.lease(entry, **options):
            self.runs = True
            await self._end.wait()

    async def end(self) -> None:
        self._end.set()
        await asyncio.wait_for(self.task, 60)
        await settle()


async def came(world: World, *entries: Entry, **options: Any) -> list[Request]:
    requests = []
    for entry in entries:
        requests.append(Request(world, entry, **options))
        await settle()
    return requests


async def passes(world: World, seconds: float) -> None:
    world.timers.advance(seconds)
    await settle()


async def test_a_busy_model_makes_way_after_a_while() -> None:
    world = World(max_loaded_models=1, num_parallel=1)
    first, second, newcomer = await came(world, A, A, B)
    await passes(world, TURN_S - 0.1)
    await first.end()
    assert second.runs and not newcomer.runs
    await passes(world, 0.1)
    (third,) = await came(world, A)
    await second.end()
    assert newcomer.runs and not third.runs and world.loads == "ab"
    await newcomer.end()
    assert third.runs and world.loads == "aba"
    await third.end()


async def test_which_of_two_busy_models_makes_way() -> None:
    """The less valuable, and only one."""
    world = World(max_loaded_models=2)
    world.runtime.gate.clear()
    a = Request(world, A)
    await settle()
    world.timers.now += 3
    world.runtime.gate.set()
    b, *_ = await came(world, B)
    c, *_ = await came(world, C)
    await passes(world, TURN_S)
    again, other = await came(world, A, B)
    assert a.runs and again.runs and not other.runs
    await b.end()
    assert c.runs
    for request in (a, again, c, other):
        await request.end()


async def test_what_took_long_to_load_stays_as_long() -> None:
    world = World(max_loaded_models=1)
    world.runtime.gate.clear()
    a = Request(world, A)
    await settle()
    world.timers.now += 60
    world.runtime.gate.set()
    await settle()
    (b,) = await came(world, B)
    await passes(world, turn_s(60) - 1)
    (again,) = await came(world, A)
    assert again.runs
    await passes(world, 1)
    (late,) = await came(world, A)
    assert not late.runs
    for request in (a, again, b, late):
        await request.end()


async def test_what_was_made_free_is_not_for_who_comes_later() -> None:
    world = World(max_loaded_models=1)
    a, b = await came(world, A, B)
    await passes(world, TURN_S)
    (c,) = await came(world, C)
    await a.end()
    assert b.runs and not c.runs and world.loads == "ab"
    await b.end()
    assert c.runs
    await c.end()


async def test_who_comes_later_and_is_in_nobodys_way_does_not_wait() -> None:
    world = World(fits=3.5)
    big = Entry(name="big:latest", load={"context_opts": {"n_ctx": 1}})
    a, b = await came(world, A, B)
    assert a.runs and b.runs
    world.pool._room._max_models = 2  # c waits for one to go
    (c,) = await came(world, C)
    await passes(world, TURN_S)
    world.pool._room._max_models = 4
    (d,) = await came(world, big)
    assert d.runs
    for request in (a, b, c, d):
        await request.end()


async def test_the_gate_opens_again_when_the_newcomer_leaves() -> None:
    world = World(max_loaded_models=1)
    a, b = await came(world, A, B)
    await passes(world, TURN_S)
    (again,) = await came(world, A)
    assert not again.runs
    b.task.cancel()
    await settle()
    assert again.runs and world.loads == "a"
    await a.end()
    await again.end()


async def test_those_who_queue_keep_their_wish() -> None:
    """How long a model is to stay, although it was unloaded in between."""
    world = World(max_loaded_models=1, keep_alive_default_ms=1000)
    a, b = await came(world, A, B)
    await passes(world, TURN_S)
    (again,) = await came(world, A, keep_s=FOREVER)
    await a.end()
    await b.end()
    await again.end()
    await passes(world, 100)
    assert world.loaded == {"a"}


async def test_nobody_waits_longer_than_allowed_in_queue_and_for_room_together() -> None:
    patience_s, loop = 1.0, asyncio.get_running_loop()
    world = World(max_loaded_models=1, num_parallel=1, queue_timeout_s=patience_s)
    (a,) = await came(world, A)
    (first,) = await came(world, B)
    await asyncio.sleep(patience_s * 0.6)
    began = loop.time()
    with pytest.raises(QueueFullError, match="no memory for model 'b:latest' became free"):
        await world.use(B)  # in the queue behind the first, then, when that has given up, for the rest of its time
    assert loop.time() - began < patience_s * 1.4
    with pytest.raises(QueueFullError):
        await first.task
    await a.end()
    assert world.loads == "a"


async def test_two_models_with_room_for_one_both_get_on() -> None:
    """And do not change places too often."""
    world, minutes = World(max_loaded_models=1, queue_timeout_s=0), 5
    served = {"a": 0, "b": 0}

    async def client(entry: Entry) -> None:
        for number in itertools.count():
            async with world.pool.lease(entry):
                done = asyncio.get_running_loop().create_future()
                world.timers.call_later(0.5 + number % 3, lambda done=done: done.done() or done.set_result(None))
                await done
            served[entry.name[0]] += 1

    clients = [asyncio.create_task(client(entry)) for entry in (A, B) for _ in range(4)]
    await settle()
    for _ in range(minutes * 60 * 4):
        await passes(world, 0.25)
    for task in clients:
        task.cancel()
    await asyncio.wait(clients)
    assert min(served.values()) > 0.3 * sum(served.values()), served
    assert 10 < len(world.loads) <= 1 + minutes * 60 / TURN_S


async def test_a_model_that_was_replaced_goes_once_it_is_idle() -> None:
    world = World()
    old, new = (Entry(name="a:latest", digest=digit * 64) for digit in "12")
    running, *_ = await came(world, old)
    (newer,) = await came(world, new)
    assert len(world.pool.loaded()) == 2, "who runs goes on"
    await running.end()
    assert [slot.entry.digest for slot in world.pool.loaded()] == [new.digest]
    await newer.end()
    assert [slot.entry.digest for slot in world.pool.loaded()] == [new.digest]


async def test_what_another_name_still_means_stays() -> None:
    world = World()
    for name, digit in (("a", "1"), ("b", "1"), ("a", "2")):
        await world.use(Entry(name=f"{name}:latest", digest=digit * 64))
    assert len(world.pool.loaded()) == 2
    await world.use(Entry(name="b:latest", digest="3" * 64))
    await settle()
    assert sorted(slot.entry.digest[0] for slot in world.pool.loaded()) == ["2", "3"]


async def test_embeddings_of_the_same_version_stay() -> None:
    world = World()
    await world.use(A)
    await world.use(A, embeddings=True)
    await settle()
    assert len(world.pool.loaded()) == 2
