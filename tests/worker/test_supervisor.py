"""The supervisor against real processes that speak the protocol without an engine (fake_worker.py)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from barrel_inference.config import LoadOptions
from barrel_inference.errors import (
    BarrelError,
    InvalidRequestError,
    LoadError,
    NotLoadedError,
    RequestTimeoutError,
    WorkerDiedError,
)
from barrel_inference.types import Chunk, Completion, Request, Sampling
from barrel_inference.worker.messages import Progress
from barrel_inference.worker.supervisor import Supervisor, backoff_s
from tests.support.waiting import eventually

FAKE = Path(__file__).with_name("fake_worker.py")


def supervisor(mode: str = "ok", **settings: Any) -> Supervisor:
    return Supervisor(LoadOptions(id="fake"), command=[sys.executable, str(FAKE), mode], **settings)


@asynccontextmanager
async def started(mode: str = "ok", **settings: Any) -> AsyncIterator[Supervisor]:
    one = supervisor(mode, **settings)
    await one.start()
    try:
        yield one
    finally:
        await one.stop(drain_s=0, save_s=1)


def request(prompt: str, name: str = "r", **fields: Any) -> Request:
    return Request(id=name, prompt=prompt, sampling=Sampling(), **fields)


async def collect(one: Supervisor, wanted: Request) -> tuple[str, Completion]:
    text, completion = "", None
    async for chunk in one.generate(wanted):
        text += chunk.text
        completion = chunk.completion
    assert completion is not None
    return text, completion


async def test_a_request_streams_to_its_completion() -> None:
    async with started() as one:
        text, completion = await collect(one, request("count"))
        assert text == completion.text == "0 1 2 3 4 "
        assert completion.timings.total_s >= completion.timings.first_token_s > 0
        await eventually(lambda: one.counters() == {"done": 1.0})
        assert one.info().phase == "ready"
        assert one.info().worker_pid is not None
    assert one.info().phase == "stopped"


async def test_many_requests_run_at_once_and_ids_are_unique() -> None:
    async with started() as one:
        results = await asyncio.gather(*(collect(one, request("count", f"r{i}")) for i in range(20)))
        assert {text for text, _ in results} == {"0 1 2 3 4 "}
        async with aclosing(one.generate(request("slow", "same", max_tokens=1000))) as running:
            await anext(running)
            with pytest.raises(InvalidRequestError, match="in use"):
                await collect(one, request("count", "same"))


async def test_what_the_worker_answers_before_ready_is_raised_and_not_retried() -> None:
    one = supervisor("refuse")
    with pytest.raises(LoadError, match="will not") as caught:
        await one.start()
    assert caught.value.details == {"why": "refused"}
    assert one.phase == "stopped"


async def test_a_death_before_ready_is_a_load_error_with_the_last_output() -> None:
    with pytest.raises(LoadError, match=r"died while loading \(killed by signal 6") as caught:
        await supervisor("die").start()
    assert "GGML_ASSERT" in caught.value.details["output"]


async def test_a_stalled_load_is_killed_and_progress_is_observed() -> None:
    seen: list[object] = []
    with pytest.raises(LoadError, match=r"no progress for 0\.7 s"):
        await supervisor("stall", ready_timeout_s=0.7, observe=seen.append).start()
    assert seen in ([Progress("weights", 0.5)], [])  # an overloaded machine may not even come to the first message


async def test_garbage_from_a_worker_is_a_load_error() -> None:
    with pytest.raises(LoadError, match="broke the protocol"):
        await supervisor("garbage").start()


async def test_a_missing_program_is_an_error_and_leaks_no_descriptor() -> None:
    before = psutil.Process().num_fds()
    one = Supervisor(LoadOptions(id="fake"), command=["/nonexistent"])
    with pytest.raises(LoadError, match="cannot be started"):
        await one.start()
    assert psutil.Process().num_fds() == before


@pytest.mark.parametrize("death", [0, 1, 3])
async def test_a_stream_continues_with_the_same_text_after_a_crash(death: int) -> None:
    async with started() as one:
        text, completion = await collect(one, request(f"die:{death}"))
        assert text == completion.text == "0 1 2 3 4 "
        assert completion.resumed == 1
        assert one.info().restarts == 1


async def test_a_second_death_on_one_request_is_its_error_and_the_model_lives_on() -> None:
    async with started() as one:
        with pytest.raises(WorkerDiedError, match="died 2 times"):
            await collect(one, request("kill:2"))
        assert (await collect(one, request("count")))[0] == "0 1 2 3 4 "
        assert one.info().restarts == 2


async def test_the_guilty_one_alone_fails_whatever_is_beside_it() -> None:
    async with started(sleep=lambda delay_s: asyncio.sleep(0)) as one:
        tasks = {
            prompt: asyncio.create_task(collect(one, request(prompt, f"r{n}", max_tokens=5)))
            for n, prompt in enumerate(("count", "slow", "kill:2", "kill:0", "count:9"))
        }
        echo = asyncio.create_task(one.call("echo", a=1))
        done = dict(zip(tasks, await asyncio.gather(*tasks.values(), return_exceptions=True), strict=True))
        assert [prompt for prompt, end in done.items() if isinstance(end, WorkerDiedError)] == ["kill:2", "kill:0"]
        assert {end[0] for end in done.values() if isinstance(end, tuple)} == {"0 1 2 3 4 "}
        assert await echo == {"a": 1}


async def test_what_cannot_be_sent_after_a_restart_takes_nobody_with_it() -> None:
    gate = asyncio.Event()

    async def sleep(delay_s: float) -> None:
        await gate.wait()

    async with started(sleep=sleep) as one:
        dying = asyncio.create_task(collect(one, request("die:1")))
        await eventually(lambda: one.info().phase == "restarting")
        bad = asyncio.create_task(collect(one, request("lone \ud800 surrogate", "bad")))
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(InvalidRequestError):
            await bad
        assert (await dying)[0] == "0 1 2 3 4 "


async def test_calls_are_answered_over_a_restart_and_fail_at_the_second_death() -> None:
    async with started() as one:
        assert await one.call("echo", a=[1]) == {"a": [1]}
        with pytest.raises(LoadError, match="no op nonsense"):
            await one.call("nonsense")
        with pytest.raises(WorkerDiedError):
            await one.call("die")
        assert await one.call("echo", b=2) == {"b": 2}


async def test_an_idle_worker_that_is_killed_comes_back() -> None:
    async with started() as one:
        pid = one.info().worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: one.info().restarts == 1)
        assert (await collect(one, request("count")))[0] == "0 1 2 3 4 "
        assert one.info().worker_pid != pid
    assert not psutil.pid_exists(pid)


async def test_deaths_are_spaced_by_a_growing_delay_and_a_model_beyond_hope_fails(tmp_path: Path) -> None:
    delays: list[float] = []

    async def sleep(delay_s: float) -> None:
        delays.append(delay_s)

    one = supervisor(f"once:{tmp_path / 'loaded'}", sleep=sleep)
    await one.start()
    with pytest.raises(LoadError, match="died while loading"):
        await collect(one, request("die:1"))
    assert delays == [0.0, 0.5, 1.0]
    assert one.info().phase == "failed"
    with pytest.raises(WorkerDiedError, match="has failed"):
        await one.call("echo")
    await one.stop(drain_s=0, save_s=0)


async def test_a_restart_for_which_there_is_no_process_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    delays: list[float] = []

    async def sleep(delay_s: float) -> None:
        delays.append(delay_s)
        threading.stack_size(1 << 47 if len(delays) < 3 else 0)  # no thread can be started

    async with started(sleep=sleep) as one:
        assert (await collect(one, request("die:1")))[0] == "0 1 2 3 4 "
        assert one.info().phase == "ready"
    assert delays == [0.0, 0.5, 1.0]
    assert "Traceback" not in caplog.text


async def test_an_unexpected_error_fails_the_model_and_leaves_no_process() -> None:
    seen: list[object] = []

    def observe(message: object) -> None:
        seen.append(message)
        if len(seen) == 2:  # of the second life
            raise ZeroDivisionError("a bug")

    async with started(observe=observe) as one:
        with pytest.raises(BarrelError, match="ZeroDivisionError"):
            await collect(one, request("die:1"))
        assert one.info().phase == "failed"
        assert psutil.Process().children() == []
        with pytest.raises(WorkerDiedError, match="has failed"):
            await one.call("echo")


def test_the_backoff_doubles_up_to_its_limit() -> None:
    assert [backoff_s(n) for n in (0, 1, 2, 3, 4, 30)] == [0.0, 0.0, 0.5, 1.0, 2.0, 30.0]


async def test_closing_a_stream_cancels_the_request() -> None:
    async with started() as one:
        async with aclosing(one.generate(request("slow", max_tokens=100_000))) as chunks:
            await anext(chunks)
        await eventually(lambda: one.counters() == {"done": 1.0})


async def test_cancel_ends_a_request_with_its_reason() -> None:
    async with started() as one:
        chunks = [Chunk()]
        async for chunk in one.generate(request("slow", max_tokens=100_000)):
            chunks.append(chunk)
            one.cancel("r")
        assert chunks[-1].completion is not None
        assert chunks[-1].completion.finish_reason == "cancelled"
        one.cancel("unknown")


async def test_cancel_without_a_worker_keeps_what_was_delivered() -> None:
    never = asyncio.Event()

    async def sleep(delay_s: float) -> None:
        await never.wait()

    async with started(sleep=sleep) as one:
        task = asyncio.create_task(collect(one, request("die:3")))
        await eventually(lambda: one.info().phase == "restarting")
        one.cancel("r")
        text, completion = await task
        assert (text, completion.text, completion.finish_reason) == ("0 1 2 ", "0 1 2 ", "cancelled")


async def test_a_timeout_ends_the_request_and_stops_the_work() -> None:
    async with started() as one:
        with pytest.raises(RequestTimeoutError) as caught:
            await collect(one, request("slow", max_tokens=100_000, timeout_s=0.05))
        assert caught.value.details == {"timeout_s": 0.05}
        await eventually(lambda: one.counters() == {"done": 1.0})


async def test_a_request_that_cannot_be_encoded_is_refused() -> None:
    async with started() as one:
        with pytest.raises(InvalidRequestError):
            await collect(one, request("lone \ud800 surrogate"))
        with pytest.raises(InvalidRequestError):
            await one.call("echo", a=object())
        assert (await collect(one, request("count")))[0] == "0 1 2 3 4 "


async def test_a_stopped_model_refuses_and_a_deaf_worker_is_killed() -> None:
    one = supervisor("deaf")
    await one.start()
    pid = one.info().worker_pid
    running = asyncio.create_task(collect(one, request("slow", max_tokens=100_000)))
    await asyncio.sleep(0)
    stopping = asyncio.create_task(one.stop(drain_s=-5.0, save_s=0.2))
    with pytest.raises(BarrelError):
        await running
    await stopping
    assert pid is not None
    assert not psutil.pid_exists(pid)
    with pytest.raises(NotLoadedError):
        await one.call("echo")


async def test_stopping_while_restarting_leaves_no_process() -> None:
    waiting = asyncio.Event()

    async def sleep(delay_s: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    one = supervisor(sleep=sleep)
    await one.start()
    task: Awaitable[Any] = asyncio.create_task(collect(one, request("die:1")))
    await waiting.wait()
    await one.stop(drain_s=0, save_s=0)
    with pytest.raises(NotLoadedError):
        await task
    assert psutil.Process().children() == []
