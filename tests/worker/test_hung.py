"""Workers that hang, real ones with the stub: what they owe is given by another, and who is only slow is left alone."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest

from barrel_inference.config import ContextOpts, LoadOptions
from barrel_inference.errors import WorkerDiedError
from barrel_inference.types import Chunk, Completion, Request, Sampling
from barrel_inference.worker.supervisor import Supervisor
from tests.support.waiting import eventually

SILENCE_S = 3.0


@asynccontextmanager
async def started(budget_ms: int = 30_000, **stub: Any) -> AsyncIterator[Supervisor]:
    context = ContextOpts(n_ctx=512, n_seq_max=2, decode_budget_ms=budget_ms)
    options = LoadOptions(id="stub", backend="stub", context_opts=context, stub=stub, fingerprint="ab" * 32)
    one = Supervisor(options, silence_s=SILENCE_S)
    await one.start()
    try:
        yield one
    finally:
        await one.stop(drain_s=0, save_s=1)


def request(name: str, prompt: Any = "Once upon a time", n_tokens: int = 60) -> Request:
    return Request(id=name, prompt=prompt, sampling=Sampling(seed=3), max_tokens=n_tokens)


async def collect(one: Supervisor, wanted: Request, seen: list[Chunk] | None = None) -> Completion:
    completion = None
    async for chunk in one.generate(wanted):
        if seen is not None:
            seen.append(chunk)
        completion = chunk.completion
    assert completion is not None
    return completion


def pid_of(one: Supervisor) -> int:
    pid = one.info().worker_pid
    assert pid is not None
    return pid


async def test_a_stopped_worker_is_replaced_and_the_stream_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async with started(delay_ms=10.0) as one:
        expected = (await collect(one, request("alone"))).text
        pid, seen = pid_of(one), []
        async for chunk in one.generate(request("r")):
            seen.append(chunk)
            if len(seen) == 5:
                os.kill(pid, signal.SIGSTOP)
        done = seen[-1].completion
        assert done is not None
        assert "".join(chunk.text for chunk in seen) == done.text == expected
        assert (done.resumed, one.info().restarts) == (1, 1)
        assert not psutil.pid_exists(pid)
    assert "gave no sign of life" in caplog.text


async def test_a_call_to_a_stopped_worker_is_answered_by_the_next() -> None:
    async with started() as one:
        worker = psutil.Process(pid_of(one))
        worker.suspend()
        await eventually(lambda: worker.status() == psutil.STATUS_STOPPED)  # until then it may still answer
        assert await one.call("tokenize", text="hi", add_special=False, parse_special=False)
        assert one.info().restarts == 1


@pytest.mark.slow
async def test_a_step_that_never_ends_is_ended_and_others_go_on() -> None:
    async with started(budget_ms=100, endless=5, delay_ms=10.0) as one:
        other = asyncio.create_task(collect(one, request("other", n_tokens=200)))
        with pytest.raises(WorkerDiedError, match="one step of its engine"):
            await collect(one, request("guilty", (1, 5, 2)))
        assert len((await other).tokens) == 200


async def test_an_engine_that_is_only_slow_is_left_alone() -> None:
    """Its process answers; nothing bounds its steps."""
    async with started(budget_ms=0, delay_ms=2 * SILENCE_S * 1000) as one:
        assert (await collect(one, request("r", n_tokens=1))).resumed == 0
        assert one.info().restarts == 0


async def test_who_was_stopped_together_with_the_server_is_not_blamed() -> None:
    async with started(delay_ms=10.0) as one:
        seen: list[Chunk] = []
        running = asyncio.create_task(collect(one, request("r"), seen))
        await eventually(lambda: len(seen) >= 5)
        os.kill(pid_of(one), signal.SIGSTOP)
        time.sleep(2 * SILENCE_S)  # noqa: ASYNC251 - nothing of the server runs either
        os.kill(pid_of(one), signal.SIGCONT)
        assert (await running).resumed == 0
        assert one.info().restarts == 0


async def test_an_idle_worker_may_be_stopped_for_a_while() -> None:
    async with started() as one:
        os.kill(pid_of(one), signal.SIGSTOP)
        await asyncio.sleep(1.5 * SILENCE_S)
        os.kill(pid_of(one), signal.SIGCONT)
        await collect(one, request("r", n_tokens=2))
        assert one.info().restarts == 0
