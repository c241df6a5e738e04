"""Loading once for many, reloading upward, unloading, and making room; on a runtime of names and a clock by hand."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from barrel_inference.config import ServerOptions
from barrel_inference.errors import DamagedModelError, InvalidModelError, LoadError, OutOfMemoryError, QueueFullError
from barrel_inference.server.failures import ShuttingDownError
from barrel_inference.server.http import record
from barrel_inference.server.http.record import Record
from barrel_inference.server.models.catalog import Entry
from barrel_inference.server.models.fit import WORKER_BYTES, kv_bytes_per_token
from barrel_inference.server.models.pool import Pool
from tests.server.fakes import FakeRuntime, FakeTimers
from tests.support.gguf_file import write_gguf
from tests.support.memory import FakeMemory

A, B, C = (Entry(name=f"{name}:latest") for name in "abc")


class World:
    """``fits``: how many models the memory holds."""

    def __init__(self, fits: float = 100, **options: Any) -> None:
        self.runtime = FakeRuntime()
        self.timers = FakeTimers()
        size = int(WORKER_BYTES * fits / 0.95) + 1
        self.memory = FakeMemory(total=size, available=size)
        self.pool = Pool(
            self.runtime,
            ServerOptions(**{"num_parallel": 2, **options}),
            memory=self.memory,
            timers=self.timers,
            max_context=4096,
        )

    async def use(self, entry: Entry, **options: Any) -> None:
        async with self.pool.lease(entry, **options):
            pass

    @property
    def loaded(self) -> set[str]:
        return {slot.entry.name[0] for slot in self.pool.loaded()}

    @property
    def loads(self) -> str:
        return "".join(name[0] for name, _ in self.runtime.loads)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_many_callers_load_once() -> None:
    world = World(num_parallel=8)
    world.runtime.gate.clear()
    tasks = [asyncio.create_task(world.use(A)) for _ in range(8)]
    await settle()
    world.runtime.gate.set()
    await asyncio.gather(*tasks)
    assert world.loads == "a"


async def test_a_caller_who_leaves_does_not_stop_the_load_of_the_others() -> None:
    world = World()
    world.runtime.gate.clear()
    first, second = (asyncio.create_task(world.use(A)) for _ in range(2))
    await settle()
    first.cancel()
    await settle()
    world.runtime.gate.set()
    await second
    assert world.loads == "a"


async def test_a_failed_load_is_everybodys_answer_and_the_next_request_tries_again() -> None:
    world = World()
    world.runtime.error = LoadError("no")
    world.runtime.gate.clear()
    tasks = [asyncio.create_task(world.use(A)) for _ in range(2)]
    await settle()
    world.runtime.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [LoadError, LoadError]
    await world.use(A)
    assert world.loads == "aa"


async def test_the_record_says_what_was_waited_for_in_vain() -> None:
    world = World(num_parallel=1, queue_timeout_s=0.01)
    async with world.pool.lease(A):
        world.timers.now += 5
        known = Record(id="x")
        record.begin(known)
        with pytest.raises(QueueFullError):
            await world.use(A)
    assert known.model == "a:latest"
    loading = asyncio.create_task(world.use(B))
    world.runtime.error = LoadError("no")
    world.runtime.gate.clear()
    await settle()
    world.timers.now += 3
    world.runtime.gate.set()
    with pytest.raises(LoadError):
        await loading
    assert (known.model, known.model_known, known.load_s) == ("b:latest", True, 3)


async def test_who_comes_in_the_moment_a_load_ends_does_not_wait_for_ever() -> None:
    world = World(max_loaded_models=1)
    world.runtime.gate.clear()
    first = asyncio.create_task(world.use(A))
    await settle()
    world.runtime.gate.set()  # the load goes on in the loop's next turn, and so do these, right behind it
    same, other = asyncio.create_task(world.use(A)), asyncio.create_task(world.use(B))
    await asyncio.gather(first, same, other)
    assert world.loads == "ab"


async def test_a_smaller_context_is_served_by_a_larger_one() -> None:
    world = World()
    await world.use(A, n_ctx=2048)
    await world.use(A, n_ctx=512)
    assert world.loads == "a"
    await world.use(A, n_ctx=4096)
    assert world.loads == "aa"
    assert [options["context_opts"]["n_ctx"] for _, options in world.runtime.loads] == [2048, 4096]


async def test_a_context_that_is_shorter_than_the_configured_one_is_told_when_it_is_loaded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(context_size=4096)
    with caplog.at_level(logging.INFO):
        await world.use(Entry(name="a:latest", context_size=2048))
        await world.use(Entry(name="b:latest", context_size=8192))
        await world.use(Entry(name="c:latest", context_size=512, load={"context_opts": {"n_ctx": 512}}))
    assert caplog.messages == ["model a:latest: its context has 2048 tokens, not 4096: it was trained on no more"]


async def test_a_larger_context_waits_for_who_uses_the_smaller_one() -> None:
    world = World()
    async with world.pool.lease(A, n_ctx=512) as lease:
        larger = asyncio.create_task(world.use(A, n_ctx=1024))
        await settle()
        assert world.runtime.unloads == []
        assert lease.n_ctx == 512
        assert world.loaded == {"a"}, "who runs is shown"
    await larger
    assert world.runtime.unloads == ["a:latest"]


async def test_a_larger_context_that_cannot_be_loaded_fails_for_who_wants_it_alone() -> None:
    world = World(num_parallel=8)
    async with world.pool.lease(A, n_ctx=512):
        larger = asyncio.create_task(world.use(A, n_ctx=1024))
        await settle()
        smaller = [asyncio.create_task(world.use(A, n_ctx=wanted)) for wanted in (256, 512)]
        await settle()
        world.runtime.error = LoadError("no")
    results = await asyncio.gather(larger, *smaller, return_exceptions=True)
    assert [type(result) for result in results] == [LoadError, type(None), type(None)]
    assert world.loads.startswith("aaa")


async def test_a_larger_context_that_never_fits_is_refused_while_the_smaller_one_goes_on(tmp_path: Path) -> None:
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": 10_000,
        "llama.embedding_length": 1024,
    }
    entry = Entry(name="a:latest", path=str(write_gguf(tmp_path / "a.gguf", metadata)))
    world = World()
    async with world.pool.lease(entry, n_ctx=8):
        with pytest.raises(OutOfMemoryError):
            await world.use(entry, n_ctx=4096)
        assert world.loaded == {"a"}
    await world.use(entry, n_ctx=8)
    assert world.loads == "a"


async def test_nobody_gets_more_than_is_allowed_or_trained_on() -> None:
    world = World()
    await world.use(A, n_ctx=1_000_000)
    await world.use(Entry(name="small:latest", context_size=256), n_ctx=1024)
    assert [options["context_opts"]["n_ctx"] for _, options in world.runtime.loads] == [4096, 256]


@pytest.mark.parametrize(
    ("configured", "size", "asked", "given"),
    [
        ({}, 2048, None, 2048),
        ({}, None, None, 4096),
        ({"n_ctx": 9000}, 2048, None, 9000),
        ({"n_ctx": 9000}, None, 10**6, 9000),
    ],
)
def test_what_one_gets_who_asks_for_nothing(
    configured: dict[str, int], size: int | None, asked: int | None, given: int
) -> None:
    """What the configuration gives a model by name is an operator's word, as the cap is."""
    world = World(context_size=size)
    assert world.pool.context(Entry(name="a:latest", load={"context_opts": configured}), asked) == given


async def test_idle_models_are_unloaded_in_time() -> None:
    world = World(keep_alive_default_ms=60_000)
    await world.use(A)
    await world.use(B, keep_s=10.0)
    world.timers.advance(10)
    await settle()
    assert world.loaded == {"a"}
    world.timers.advance(50)
    await settle()
    assert world.loaded == set()
    assert world.runtime.unloads == ["b:latest", "a:latest"]


async def test_a_request_during_an_unload_loads_again() -> None:
    world = World()
    await world.use(A, keep_s=0.0)
    await world.use(A)
    await settle()
    assert world.loads == "aa"
    assert world.loaded == {"a"}


async def test_a_model_that_is_loaded_anew_is_kept_as_by_default() -> None:
    world = World(keep_alive_default_ms=60_000)
    await world.use(A)
    for _ in range(2):  # the second time it is not loaded any more
        world.pool.keep_alive(A, 0.0)
        await settle()
    await world.use(A)
    await settle()
    assert world.loaded == {"a"}


async def test_what_a_failed_load_was_to_be_kept_for_is_forgotten() -> None:
    world = World(keep_alive_default_ms=60_000)
    world.runtime.error = LoadError("no")
    with pytest.raises(LoadError):
        await world.use(A, keep_s=0.0)
    await world.use(A)
    await settle()
    assert world.loaded == {"a"}


async def test_keep_alive_zero_waits_for_running_requests() -> None:
    world = World()
    async with world.pool.lease(A):
        world.pool.keep_alive(A, 0.0)
        await settle()
        assert world.loaded == {"a"}
    await settle()
    assert world.loaded == set()


async def test_the_least_valuable_idle_model_makes_room() -> None:
    world = World(fits=2)
    await world.use(A)
    world.timers.advance(5)
    await world.use(B)
    await world.use(C)
    assert world.loaded == {"b", "c"}


async def test_a_busy_model_is_never_evicted() -> None:
    world = World(fits=2)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world.pool.lease(A))
        await world.use(B)
        world.timers.advance(100)
        await world.use(C)
        assert world.loaded == {"a", "c"}


async def test_while_all_are_busy_a_load_waits() -> None:
    world = World(fits=1)
    async with world.pool.lease(A):
        waiting = asyncio.create_task(world.use(B))
        await settle()
        assert world.loads == "a"
    await asyncio.wait_for(waiting, 60)
    assert world.loaded == {"b"}


async def test_what_never_fits_is_refused_with_the_sizes() -> None:
    world = World(fits=0.5)
    with pytest.raises(OutOfMemoryError, match=r"needs 0\.2 GB of memory; 0\.1 of 0\.1 GB are free"):
        await world.use(A)


async def test_memory_that_others_use_is_no_room() -> None:
    world = World(fits=4)
    world.memory.available = WORKER_BYTES // 2
    with pytest.raises(OutOfMemoryError):
        await world.use(A)


async def test_max_loaded_models() -> None:
    world = World(max_loaded_models=1)
    await world.use(A)
    await world.use(B)
    assert world.loaded == {"b"}


async def test_the_queue_is_bounded() -> None:
    world = World(num_parallel=1, max_queue=0)
    async with world.pool.lease(A):
        with pytest.raises(QueueFullError):
            await world.use(A)


async def test_a_worker_that_failed_for_good_is_loaded_anew() -> None:
    world = World()
    async with world.pool.lease(A) as lease:
        lease.model.phase = "failed"  # type: ignore[attr-defined]
    await world.use(A)
    assert world.loads == "aa"


async def test_the_end_waits_for_what_runs_and_refuses_what_comes() -> None:
    world = World()
    async with world.pool.lease(A):
        closing = asyncio.create_task(world.pool.close())
        await settle()
        assert not closing.done()
        with pytest.raises(ShuttingDownError):
            await world.use(B)
    await asyncio.wait_for(closing, 60)


async def test_hints_count_only_when_they_load() -> None:
    world = World()
    await world.use(A, hints={"context_opts": {"n_threads": 3}})
    await world.use(A, hints={"context_opts": {"n_threads": 1}})
    assert [options["context_opts"].get("n_threads") for _, options in world.runtime.loads] == [3]


async def test_any_order_of_requests_ends_with_nothing_in_use() -> None:
    world = World(fits=2, num_parallel=2)

    async def client(entry: Entry, n_ctx: int) -> None:
        for _ in range(5):
            async with world.pool.lease(entry, n_ctx=n_ctx):
                await asyncio.sleep(0.001)

    clients = [client(entry, n_ctx) for entry in (A, B, C) for n_ctx in (256, 1024)]
    await asyncio.wait_for(asyncio.gather(*clients), 60)
    assert all(slot.gate.running == slot.gate.waiting == slot.keep.active == 0 for slot in world.pool.slots())
    assert len(world.loaded) <= 2


def test_kv_bytes_per_token() -> None:
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 30,
        "llama.embedding_length": 576,
        "llama.attention.head_count": 9,
        "llama.attention.head_count_kv": 3,
    }
    assert kv_bytes_per_token(metadata) == 30 * 3 * (64 + 64) * 2
    assert kv_bytes_per_token(metadata, "q8_0", "q8_0") == int(30 * 3 * 128 * 8.5 / 8)


async def test_files_that_were_replaced_while_a_request_ran_are_not_its_fault() -> None:
    """Its worker died, and the next one does not find what the first had read."""
    world = World()
    with pytest.raises(DamagedModelError, match="'a:latest' are missing or damaged"):
        async with world.pool.lease(A):
            raise InvalidModelError("a.gguf has been replaced")
    await world.use(A)


async def test_a_model_that_is_loaded_anew_has_only_the_names_it_is_asked_for_by_since() -> None:
    world = World()
    copy = Entry(name="copy:latest", digest="1")
    await world.use(copy)
    await world.use(Entry(name="a:latest", digest="1"))
    (slot,) = world.pool.loaded()
    assert slot.names == {"copy:latest", "a:latest"}
    await world.use(copy, keep_s=0.0)
    await settle()
    assert not world.pool.loaded()
    await world.use(Entry(name="a:latest", digest="1"))
    (slot,) = world.pool.loaded()
    assert slot.names == {"a:latest"} and slot.entry.name == "a:latest"
