"""Where the registry waits: on threads of its own, never on the event loop nor in the executor of requests."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from barrel_inference.aio import AsyncRuntime
from barrel_inference.config import RuntimeConfig
from barrel_inference.errors import LockedError
from barrel_inference.registry import Registry
from barrel_inference.registry.create import CreateRequest
from barrel_inference.registry.download.network import Network, NetworkPolicy
from barrel_inference.registry.files import Root
from barrel_inference.registry.locks import locked
from barrel_inference.server import failures
from barrel_inference.threads import Threads, alone
from tests.registry.conftest import pull
from tests.registry.test_create import content_of
from tests.registry.weights import model
from tests.support.hub import Hub
from tests.support.waiting import eventually

CONTENT = model(60_000)
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class Watched(ThreadPoolExecutor):
    """Remembers what it was asked to do."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked: list[str] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.asked.append(repr((fn, args)))
        return super().submit(fn, *args, **kwargs)


@pytest.fixture
async def requests() -> Watched:
    """The executor of requests."""
    executor = Watched()
    asyncio.get_running_loop().set_default_executor(executor)
    return executor


async def test_nothing_of_the_registry_is_done_where_requests_are(
    hub: Hub, registry: Registry, tmp_path: Path, requests: Watched
) -> None:
    hub.repository("Org/Repo", {"m.gguf": CONTENT})
    own = tmp_path / "own.gguf"
    own.write_bytes(model(5000, 1))
    await pull(registry, "hf://Org/Repo")
    await pull(registry, "hf://Org/Repo")
    await pull(registry, str(own))
    async for _ in registry.create("mine", CreateRequest(from_="Org/Repo", system="x")):
        pass
    upload = model(7000, 2)
    await registry.receive_blob(f"sha256:{hashlib.sha256(upload).hexdigest()}", content_of(upload))
    await registry.aside(registry.copy, "mine", "yours")
    await registry.aside(registry.gc)
    with await registry.hold(Path(registry.resolve("mine").blob_path)):
        pass
    assert requests.asked == []


async def test_nor_are_names_resolved_there(hub: Hub, requests: Watched) -> None:
    hub.serve("/x", b"here")
    async with Network(NetworkPolicy(insecure=True, allow_private=True)) as network:
        _, body = await network.read(hub.url.replace("127.0.0.1", "localhost") + "/x", 100)
    assert (body, requests.asked) == (b"here", [])


async def test_nor_is_a_model_read_there_for_its_fingerprint(hub: Hub, registry: Registry, requests: Watched) -> None:
    hub.repository("Org/Repo", {"m.gguf": CONTENT})
    await pull(registry, "hf://Org/Repo")
    config = RuntimeConfig(model_cache_dir=str(registry.root), cache_dir=str(registry.root.parent / "cache"))
    async with AsyncRuntime(config) as runtime:
        await runtime.load_model(backend="stub", model_path="Org/Repo")
        await runtime.cache.verify()
        assert requests.asked == []


@pytest.fixture
def lock(registry: Registry) -> Iterator[Lock]:
    """As another process would hold it."""
    registry._ground.root.prepare()
    held = Lock(registry.root / ".lock")
    yield held
    held.release()


class Lock:
    def __init__(self, path: Path) -> None:
        self._free = threading.Event()
        taken = threading.Event()

        def hold() -> None:
            with locked(path):
                taken.set()
                self._free.wait(60)

        self._thread = threading.Thread(target=hold)
        self._thread.start()
        assert taken.wait(60)

    def release(self) -> None:
        self._free.set()
        self._thread.join()


async def test_the_loop_goes_on_while_an_upload_waits_for_the_lock(registry: Registry, lock: Lock) -> None:
    receiving = asyncio.create_task(registry.receive_blob(DIGEST, content_of(CONTENT)))
    await eventually(lambda: any(path.stat().st_size == len(CONTENT) for path in uploads(registry)))
    await asyncio.sleep(0.05)
    assert not receiving.done()
    lock.release()
    assert await receiving and registry.has_blob(DIGEST) and uploads(registry) == []


def uploads(registry: Registry) -> list[Path]:
    return list(registry._ground.root.tmp.glob("*.upload"))


async def test_and_while_a_load_does(hub: Hub, registry: Registry) -> None:
    hub.repository("Org/Repo", {"m.gguf": CONTENT})
    await pull(registry, "hf://Org/Repo")
    lock = Lock(registry.root / ".lock")
    config = RuntimeConfig(model_cache_dir=str(registry.root), cache_dir=str(registry.root.parent / "cache"))
    async with AsyncRuntime(config) as runtime:
        loading = asyncio.create_task(runtime.load_model(backend="stub", model_path="Org/Repo"))
        await asyncio.sleep(0.1)
        assert not loading.done() and not leases(registry)
        lock.release()
        await loading
        assert len(leases(registry)) == 1
    assert leases(registry) == []


def leases(registry: Registry) -> list[Path]:
    return list(registry._ground.root.tmp.glob("*.lease"))


async def test_who_leaves_while_it_waits_holds_nothing(registry: Registry, lock: Lock) -> None:
    holding = asyncio.create_task(registry.hold(registry._ground.blobs.path(DIGEST)))
    await asyncio.sleep(0.05)
    holding.cancel()
    await asyncio.wait([holding])
    lock.release()
    await registry.aside(registry.gc)  # has waited for the same lock, behind it
    await eventually(lambda: not leases(registry))


def test_a_lock_that_never_comes_is_an_error_that_names_it(registry: Registry, lock: Lock) -> None:
    root, began = Root(registry.root, lock_wait_s=0.1), time.monotonic()
    with (
        pytest.raises(LockedError, match=r"/models/\.lock has been held by somebody else for 0\.1 s") as caught,
        root.lock(),
    ):
        pass
    assert 0.1 <= time.monotonic() - began < 30
    assert failures.status(caught.value) == 503 and failures.headers(caught.value)["retry-after"] == "10"
    assert failures.public(caught.value).startswith(".lock has been held")


async def test_hashing_ends_with_its_pull(registry: Registry, tmp_path: Path) -> None:
    """A file that is read for minutes, of which the client has seen enough."""
    own = tmp_path / "own.gguf"
    with own.open("wb") as file:
        file.write(CONTENT)
        file.truncate(64 << 30)  # a hole
    events = registry.pull(str(own))
    async for event in events:
        if event.get("completed"):
            break
    assert hashing()
    await events.aclose()
    await eventually(lambda: not hashing())


def hashing() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "hash_file"]


async def test_a_result_whose_caller_has_left_is_undone() -> None:
    threads, go, undone = Threads(1, "t"), threading.Event(), []

    def work() -> str:
        go.wait(60)
        return "done"

    first = asyncio.create_task(threads.run(work, undo=undone.append))
    second = asyncio.create_task(threads.run(work, undo=undone.append))  # waits for the thread
    await asyncio.sleep(0)
    for task in (second, first):
        task.cancel()
    await asyncio.wait([first, second])
    go.set()
    await threads.run(str)
    assert undone == ["done"]


async def test_work_alone_keeps_no_other_waiting() -> None:
    free = threading.Event()
    waiting = [asyncio.create_task(alone(free.wait, 60)) for _ in range(20)]
    assert await alone(max, 1, 2) == 2
    free.set()
    assert all(await asyncio.gather(*waiting))
    with pytest.raises(ZeroDivisionError):
        await alone(divmod, 1, 0)
