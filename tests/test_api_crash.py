"""Whatever dies, everybody gets an answer and nothing is left behind: real workers, real kills, the stub backend."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from barrel_inference import AsyncModel, AsyncRuntime, RuntimeConfig, TierSpec
from barrel_inference.errors import NotLoadedError, WorkerDiedError
from barrel_inference.types import Completion
from tests.support.waiting import eventually

SLOW = {"stub": {"delay_ms": 5}, "context_opts": {"n_ctx": 100_000, "n_seq_max": 4}}
POOL_THREADS = 6  # that pools may still start: one does when all that it has are busy
N_TOKENS = 100  # half a second: the worker must not be done before it is killed
PROMPT = "It was the best of times, it was the worst of times, " * 8


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[AsyncRuntime]:
    async with AsyncRuntime(RuntimeConfig(ram_dir=str(tmp_path))) as one:
        yield one


def kill_worker(model: AsyncModel) -> int:
    pid = model.info().worker_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


async def begun(model: AsyncModel, max_tokens: int) -> asyncio.Task[Completion]:
    """A generation that runs: its first chunk has come. What ``info()`` says of it may come too late."""
    stream = model.stream(PROMPT, max_tokens=max_tokens, ignore_eos=True)
    await anext(stream)
    return asyncio.create_task(stream.result())


async def disturbed(model: AsyncModel, prompt: str, kill_at: int, **options: Any) -> tuple[str, Any]:
    """Stream with a kill -9 of the worker after chunk ``kill_at``."""
    text, completion, count = "", None, 0
    async for chunk in model.stream(prompt, **options):
        text += chunk.text
        completion = chunk.completion
        count += 1
        if count == kill_at:
            kill_worker(model)
    return text, completion


@pytest.mark.parametrize("kill_at", [1, 7, 30])
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"seed": 42},
        {"seed": 7, "repeat_penalty": 1.3, "stop": ["zzz"]},
        {"seed": 7, "mirostat": 2},
        {"seed": 7, "logprobs": True},
    ],
    ids=["greedy", "seeded", "penalties", "mirostat", "logprobs"],
)
async def test_a_killed_worker_is_a_pause_not_an_error(
    runtime: AsyncRuntime, kill_at: int, options: dict[str, Any]
) -> None:
    model = await runtime.load_model(backend="stub", **SLOW)
    alone = await model.complete(PROMPT, max_tokens=N_TOKENS, ignore_eos=True, cache="off", **options)
    text, completion = await disturbed(model, PROMPT, kill_at, max_tokens=N_TOKENS, ignore_eos=True, **options)
    assert text == completion.text == alone.text
    assert completion.tokens == alone.tokens
    assert completion.resumed == 1
    assert [each.token for each in completion.logprobs] == [each.token for each in alone.logprobs]
    assert model.info().restarts == 1


async def test_the_second_death_is_a_typed_error_and_the_model_lives_on(runtime: AsyncRuntime) -> None:
    model = await runtime.load_model(backend="stub", **SLOW)
    killed: list[int | None] = [None]  # what had come from the dead one comes after its death
    with pytest.raises(WorkerDiedError):
        async for chunk in model.stream(PROMPT, max_tokens=10_000, ignore_eos=True):
            if chunk.tokens and model.info().worker_pid not in killed:
                killed.append(kill_worker(model))
    assert (await model.complete(PROMPT, max_tokens=3)).finish_reason == "length"


@pytest.mark.parametrize("n_seq_max", [1, 4])
async def test_one_that_kills_every_worker_harms_nobody_else(runtime: AsyncRuntime, n_seq_max: int) -> None:
    stub = {"delay_ms": 5, "lethal": ord("~")}
    model = await runtime.load_model(backend="stub", stub=stub, context_opts={"n_ctx": 4096, "n_seq_max": n_seq_max})
    options: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True}
    prompts = [f"{i} {PROMPT}" for i in range(7)]
    alone = [(await model.complete(prompt, cache="off", seed=i, **options)).text for i, prompt in enumerate(prompts)]
    first_token = asyncio.Event()

    async def follow(prompt: str, seed: int) -> str:
        text = ""
        async for chunk in model.stream(prompt, seed=seed, **options):
            first_token.set()
            text += chunk.text
        return text

    tasks = [asyncio.create_task(follow(prompt, seed)) for seed, prompt in enumerate(prompts)]
    await first_token.wait()
    with pytest.raises(WorkerDiedError):
        await model.complete(f"~ {PROMPT}", **options)
    assert await asyncio.gather(*tasks) == alone
    assert (await model.complete(PROMPT, max_tokens=3)).finish_reason == "length"


async def test_a_death_takes_no_other_model_with_it(runtime: AsyncRuntime) -> None:
    first = await runtime.load_model(backend="stub", **SLOW)
    second = await runtime.load_model(backend="stub", **SLOW)
    running = asyncio.create_task(second.complete(PROMPT, max_tokens=50, ignore_eos=True))
    kill_worker(first)
    assert (await running).resumed == 0
    assert (await first.complete(PROMPT, max_tokens=3)).finish_reason == "length"


async def test_many_requests_survive_one_death(runtime: AsyncRuntime) -> None:
    model = await runtime.load_model(backend="stub", **SLOW)
    options = {"max_tokens": 30, "ignore_eos": True, "temperature": 0}
    alone = [(await model.complete(f"{i} {PROMPT}", cache="off", **options)).text for i in range(8)]
    streams = [model.stream(f"{i} {PROMPT}", **options) for i in range(8)]
    tasks = [asyncio.create_task(stream.result()) for stream in streams[1:]]
    await anext(streams[0])
    kill_worker(model)
    assert [done.text for done in await asyncio.gather(streams[0].result(), *tasks)] == alone


async def test_unloading_cancels_what_runs_or_waits_for_it(runtime: AsyncRuntime) -> None:
    model = await runtime.load_model("m", backend="stub", **SLOW)
    task = await begun(model, 50_000)
    pid = model.info().worker_pid
    await runtime.unload("m")
    assert (await task).finish_reason == "cancelled"
    assert pid is not None and not psutil.pid_exists(pid)

    model = await runtime.load_model("m", backend="stub", **SLOW)
    task = await begun(model, 50)
    await runtime.unload("m", drain_s=60)
    assert (await task).finish_reason == "length"
    with pytest.raises(NotLoadedError):
        await model.complete("x")
    with pytest.raises(NotLoadedError):
        await runtime.unload("m")


async def test_an_unload_writes_what_is_not_written_yet(tmp_path: Path) -> None:
    """At the end of a request all of a long prompt waits to be written, and the unload comes right behind it."""
    disk = TierSpec(name="disk", kind="disk", path=str(tmp_path / "disk"), quota_bytes=1 << 30)
    load: dict[str, Any] = {"backend": "stub", "tier": "disk", "tier_srv": "disk", "context_opts": {"n_ctx": 40_000}}
    prompt = [1 + i % 200 for i in range(30_000)]
    async with AsyncRuntime(RuntimeConfig(ram_dir=str(tmp_path), tiers=(disk,))) as runtime:
        model = await runtime.load_model("m", policy={"cold_max_tokens": 64}, **load)
        await model.prefill(prompt)
        await runtime.unload("m")
        model = await runtime.load_model("m", **load)
        assert (await model.lookup(prompt)).cached_tokens == len(prompt) - 1


async def test_what_was_asked_before_an_unload_is_answered(runtime: AsyncRuntime) -> None:
    """However little of it the worker has seen."""
    model = await runtime.load_model("m", backend="stub", context_opts={"n_seq_max": 3}, stub={"delay_ms": 2.0})
    asked = [asyncio.create_task(model.complete(f"{i} " * 300, max_tokens=10, ignore_eos=True)) for i in range(5)]
    await asyncio.sleep(0)
    await runtime.unload("m", drain_s=60)
    assert [(await each).finish_reason for each in asked] == ["length"] * 5


async def draining(
    runtime: AsyncRuntime, n_tokens: int
) -> tuple[AsyncModel, asyncio.Task[Completion], asyncio.Task[None]]:
    """A slow model that is being unloaded, what it still writes, and the unload, which has an hour."""
    model = await runtime.load_model("m", backend="stub", **SLOW)
    running = await begun(model, n_tokens)
    unloading = asyncio.create_task(runtime.unload("m", drain_s=3600))
    await eventually(lambda: model.info().phase == "stopping")
    return model, running, unloading


async def test_an_unload_goes_on_when_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    async with AsyncRuntime(RuntimeConfig(ram_dir=str(tmp_path))) as runtime:
        model, running, unloading = await draining(runtime, 300)
        unloading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await unloading
        assert (await running).finish_reason == "length"
        await eventually(lambda: model.info().phase == "stopped")


async def test_closing_a_runtime_does_not_wait_for_a_drain(tmp_path: Path) -> None:
    async with AsyncRuntime(RuntimeConfig(ram_dir=str(tmp_path))) as runtime:
        _, running, unloading = await draining(runtime, 90_000)
    assert (await running).finish_reason == "cancelled"
    await unloading


async def test_a_cancelled_load_leaves_nothing(runtime: AsyncRuntime) -> None:
    task = asyncio.create_task(runtime.load_model("m", backend="stub"))
    await eventually(lambda: bool(psutil.Process().children()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert psutil.Process().children() == []
    await runtime.load_model("m", backend="stub")


PARENT = """
import asyncio, os, sys
import barrel_inference as bi

async def main():
    config = bi.RuntimeConfig(ram_dir=sys.argv[1])
    async with bi.AsyncRuntime(config) as runtime:
        model = await runtime.load_model(backend="stub", stub={"delay_ms": 5}, context_opts={"n_ctx": 100_000})
        async for chunk in model.stream("hello", max_tokens=50_000, ignore_eos=True):
            if chunk.tokens:
                print(model.info().worker_pid, flush=True)
                await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_no_orphan_outlives_its_parent_and_its_tier_is_swept(tmp_path: Path, how: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    worker = psutil.Process(int(await asyncio.to_thread(parent.stdout.readline)))
    left_behind = [path for path in tmp_path.glob("*/*") if path.is_dir()]
    assert len(left_behind) == 1
    parent.send_signal(how)
    parent.wait()
    parent.stdout.close()
    await eventually(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
    async with AsyncRuntime(RuntimeConfig(ram_dir=str(tmp_path))) as runtime:
        await runtime.load_model(backend="stub")
        assert not left_behind[0].exists()
    assert list(tmp_path.glob("*/*")) == []


FORKS = """
import asyncio, os, sys, time
import barrel_inference as bi

async def main():
    async with bi.AsyncRuntime(bi.RuntimeConfig(ram_dir=sys.argv[1])) as runtime:
        model = await runtime.load_model(backend="stub")
        sibling = os.fork()
        if not sibling:
            time.sleep(3600)
        print(model.info().worker_pid, sibling, flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
async def test_a_worker_ends_with_its_parent_also_while_a_fork_of_that_keeps_its_socket(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", FORKS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = (await asyncio.to_thread(parent.stdout.readline)).split()
    worker, sibling = (psutil.Process(int(pid)) for pid in pids)
    parent.kill()
    parent.wait()
    try:
        assert sibling.is_running()
        await eventually(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
    finally:
        sibling.kill()
        parent.stdout.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_hundred_cycles_leave_nothing_behind(tmp_path: Path) -> None:
    me = psutil.Process()

    def held() -> tuple[int, int]:
        return me.num_fds(), len(me.children(recursive=True))

    async with AsyncRuntime(RuntimeConfig(ram_dir=str(tmp_path))) as runtime:

        async def cycle() -> None:
            model = await runtime.load_model("m", backend="stub")
            await model.complete(PROMPT, max_tokens=2, seed=1)
            await runtime.unload("m")

        for _ in range(3):
            await cycle()
        before, threads, objects = held(), me.num_threads(), len(list(tmp_path.glob("*/*/*/??/*")))
        for _ in range(100):
            await cycle()
        await eventually(lambda: held() == before)
        assert me.num_threads() <= threads + POOL_THREADS
        assert len(list(tmp_path.glob("*/*/*/??/*"))) == objects
    assert list(tmp_path.glob("*/*")) == []
