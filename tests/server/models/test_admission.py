"""The queue before a model: order, depth, time-out, clients' turns, and callers who leave at any moment."""

from __future__ import annotations

import asyncio
import random

import pytest

from barrel_inference.errors import QueueFullError
from barrel_inference.server.models.admission import Gate


class Crowd:
    """Callers by name; each holds its place until it is told to go. A name's letter is its client, where it has a
    number."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.entered: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._go: dict[str, asyncio.Event] = {}

    async def come(self, *names: str) -> None:
        for name in names:
            self._go[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._call(name))
            await settle()

    async def go(self, name: str) -> None:
        self._go[name].set()
        await self.tasks[name]
        await settle()

    async def _call(self, name: str) -> None:
        async with self.gate.admit(name[0] if name[1:] else ""):
            self.entered.append(name)
            await self._go[name].wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_first_come_first_served() -> None:
    crowd = Crowd(Gate(capacity=2, depth=10, timeout_s=0))
    await crowd.come("a", "b", "c", "d", "e")
    assert crowd.entered == ["a", "b"]
    assert (crowd.gate.running, crowd.gate.waiting) == (2, 3)
    await crowd.go("b")
    await crowd.go("a")
    assert crowd.entered == ["a", "b", "c", "d"]
    for name in "cde":
        await crowd.go(name)
    assert (crowd.gate.running, crowd.gate.waiting) == (0, 0)


async def test_a_full_queue_refuses_and_says_when_to_try_again() -> None:
    crowd = Crowd(Gate(capacity=1, depth=1, timeout_s=0))
    await crowd.come("a", "b")
    with pytest.raises(QueueFullError) as caught:
        async with crowd.gate.admit():
            pass
    assert caught.value.message == "server busy, please try again.  maximum pending requests exceeded"
    assert caught.value.details["retry_after_s"] > 0
    await crowd.go("a")
    await crowd.go("b")


async def test_nobody_waits_for_ever() -> None:
    crowd = Crowd(Gate(capacity=1, depth=5, timeout_s=0.01))
    await crowd.come("a")
    with pytest.raises(QueueFullError, match=r"no turn within 0\.01 s"):
        async with crowd.gate.admit():
            pass
    assert crowd.gate.waiting == 0
    await crowd.go("a")


async def test_who_leaves_the_queue_is_no_obstacle() -> None:
    crowd = Crowd(Gate(capacity=1, depth=5, timeout_s=0))
    await crowd.come("a", "b", "c")
    crowd.tasks["b"].cancel()
    await asyncio.gather(crowd.tasks["b"], return_exceptions=True)
    await crowd.go("a")
    assert crowd.entered == ["a", "c"]
    await crowd.go("c")
    assert crowd.gate.running == 0


async def test_a_turn_that_comes_as_its_caller_leaves_goes_to_the_next() -> None:
    crowd = Crowd(Gate(capacity=1, depth=5, timeout_s=0))
    await crowd.come("a", "b", "c")
    crowd._go["a"].set()
    await asyncio.sleep(0)  # a has left, b's turn is set but b has not run
    crowd.tasks["b"].cancel()
    await settle()
    assert crowd.entered[-1] == "c"
    await crowd.go("c")
    assert (crowd.gate.running, crowd.gate.waiting) == (0, 0)


async def test_any_coming_and_going_leaves_nothing_behind() -> None:
    chance = random.Random(7)
    gate = Gate(capacity=3, depth=6, timeout_s=0)
    most = 0

    async def call() -> None:
        nonlocal most
        try:
            async with gate.admit(chance.choice("ab")):
                most = max(most, gate.running)
                await asyncio.sleep(chance.random() * 0.002)
        except QueueFullError:
            pass

    tasks = []
    for _ in range(200):
        tasks.append(asyncio.create_task(call()))
        await asyncio.sleep(chance.random() * 0.001)
        if chance.random() < 0.3:
            chance.choice(tasks).cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (gate.running, gate.waiting) == (0, 0)
    assert most == 3


async def test_a_client_with_many_requests_waits_for_one_with_few() -> None:
    crowd = Crowd(Gate(capacity=1, depth=10, timeout_s=0))
    await crowd.come("a1", "a2", "a3", "b1")
    for name in ("a1", "a2", "b1", "a3"):
        assert crowd.entered[-1] == name
        await crowd.go(name)


async def test_a_full_queue_takes_one_more_of_who_has_few_from_who_has_most() -> None:
    crowd = Crowd(Gate(capacity=1, depth=3, timeout_s=0))
    await crowd.come("a1", "a2", "a3", "a4", "b1")
    with pytest.raises(QueueFullError, match="maximum pending requests exceeded") as caught:
        await crowd.tasks["a4"]
    assert caught.value.details["retry_after_s"] > 0
    await crowd.come("a5")
    with pytest.raises(QueueFullError):
        await crowd.tasks["a5"]
    for name in ("a1", "a2", "b1", "a3"):
        assert crowd.entered[-1] == name
        await crowd.go(name)
    assert (crowd.gate.running, crowd.gate.waiting) == (0, 0)


async def test_a_closed_gate_lets_nobody_in_and_an_open_one_those_who_wait() -> None:
    crowd = Crowd(Gate(capacity=2, depth=10, timeout_s=0))
    await crowd.come("a")
    crowd.gate.close()
    await crowd.come("b", "c", "d")
    await crowd.go("a")
    assert (crowd.entered, crowd.gate.running, crowd.gate.waiting) == (["a"], 0, 3)
    crowd.gate.open()
    await settle()
    assert crowd.entered == ["a", "b", "c"]
    for name in "bcd":
        await crowd.go(name)
