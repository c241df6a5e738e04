"""The worker program itself, at the border: wrong orders are answered, a lost runtime ends it."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from barrel_inference.config import LoadOptions
from barrel_inference.worker.channel import AsyncChannel
from barrel_inference.worker.messages import PROTOCOL, Call, Cancel, Failed, Load, Progress, Ready
from barrel_inference.worker.process import WorkerProcess, worker_command

STUB = LoadOptions(id="m", backend="stub", stub={"load_s": 0.4})


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        ([Load(PROTOCOL + 1, STUB)], "two different installations"),
        ([Cancel("r")], "must be Load"),
        ([], "must be Load"),
    ],
)
async def test_wrong_orders_are_answered_and_end_it(orders: list[Any], message: str) -> None:
    process, sock = WorkerProcess.spawn("m", worker_command())
    channel = await AsyncChannel.open(sock)
    channel.send(orders)
    batch = await channel.receive()
    assert batch is not None and isinstance(batch[0], Failed)
    assert message in batch[0].error["message"]
    assert await process.wait() == 0
    channel.close()


@pytest.mark.parametrize("wait_for", [None, Progress, Ready], ids=["before its orders", "while loading", "when ready"])
async def test_it_ends_when_the_runtime_is_gone(wait_for: type | None) -> None:
    process, sock = WorkerProcess.spawn("m", worker_command())
    channel = await AsyncChannel.open(sock)
    if wait_for is not None:
        channel.send([Load(PROTOCOL, STUB)])
        while not isinstance((await channel.receive() or [None])[0], wait_for):
            pass
    channel.close()
    assert await process.wait() == 0


@pytest.mark.parametrize("broken", ["intake.Intake.cancel", "intake.Intake._reply"], ids=["reader", "intake"])
async def test_it_ends_with_any_of_its_threads(broken: str) -> None:
    """Deaf, it would hold its clients for ever."""
    module, name, method = broken.split(".")
    program = f"""
from barrel_inference.worker import __main__
from barrel_inference.worker.child import {module}
{module}.{name}.{method} = None  # calling it is a TypeError
__main__.main()
"""
    process, sock = WorkerProcess.spawn("m", [sys.executable, "-c", program])
    channel = await AsyncChannel.open(sock)
    channel.send([Load(PROTOCOL, STUB)])
    channel.send([Cancel("r"), Call(1, "facts", {})])
    while await channel.receive() is not None:
        pass
    assert await process.wait() == 1
    channel.close()


async def test_a_thread_that_cannot_even_tell_how_it_ended_ends_it_too() -> None:
    """As without memory."""
    program = """
import logging
from barrel_inference.worker import __main__
from barrel_inference.worker.child import intake, worker
def fail(*args, **kwargs): raise MemoryError
intake.Intake._reply = worker.log.error = logging.shutdown = fail
__main__.main()
"""
    process, sock = WorkerProcess.spawn("m", [sys.executable, "-c", program])
    channel = await AsyncChannel.open(sock)
    channel.send([Load(PROTOCOL, STUB)])
    channel.send([Call(1, "facts", {})])
    async with asyncio.timeout(60):
        while await channel.receive() is not None:
            pass
    assert await process.wait() == 1
    channel.close()
