"""What gc takes and what it spares, whatever others are doing and however they died."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barrel_inference.aio import AsyncRuntime
from barrel_inference.config import RuntimeConfig
from barrel_inference.errors import ModelNotFoundError, PullError
from barrel_inference.registry import Registry
from barrel_inference.registry.create import CreateRequest
from barrel_inference.registry.locks import Lease, leased, locked, try_lock
from tests.registry.conftest import open_registry, pull
from tests.registry.weights import model, shards
from tests.support.hub import Hub
from tests.support.waiting import eventually

# Three models of two weights: names share blobs.
WEIGHTS = [model(3000, seed) for seed in range(2)]
NAMES = ["a", "b", "c"]


def publish(hub: Hub) -> None:
    for number, name in enumerate(NAMES):
        hub.ollama(f"library/{name}", [("model", WEIGHTS[number % 2]), ("system", name.encode())])


def blob_names(registry: Registry) -> set[str]:
    return {path.name for path in (registry.root / "blobs").iterdir()}


async def test_a_shared_blob_stays_until_its_last_name_goes(hub: Hub, registry: Registry) -> None:
    publish(hub)
    await pull(registry, "a")
    await pull(registry, "c")
    assert len(blob_names(registry)) == 1
    registry.remove("a")
    registry.gc()
    assert len(blob_names(registry)) == 1
    registry.remove("c")
    planned, done = registry.gc(dry_run=True), registry.gc()
    assert planned == done and sum(item.freed_bytes for item in done) > 3000
    assert blob_names(registry) == set() and registry.gc() == []


async def test_a_loaded_model_is_spared(hub: Hub, registry: Registry) -> None:
    publish(hub)
    await pull(registry, "a")
    with registry.hold_files(registry.locate("a").path, Path("/elsewhere")):
        registry.remove("a")
        registry.gc()
        assert len(blob_names(registry)) == 1
    registry.gc()
    assert blob_names(registry) == set()


@pytest.mark.parametrize("linked", ["hard", "symbolic"])
async def test_all_parts_of_a_loaded_split_model_are_spared(registry: Registry, tmp_path: Path, linked: str) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for number, part in enumerate(shards(3), 1):
        (folder / f"m-{number:05d}-of-00003.gguf").write_bytes(part)
    async for _ in registry.create("a", CreateRequest(modelfile="FROM ./m-00001-of-00003.gguf", directory=str(folder))):
        pass
    first = registry.locate("a").path
    if linked == "symbolic":  # as on a file system without hard links
        for name, shard in zip(sorted(first.parent.iterdir()), registry.resolve("a").shards, strict=True):
            name.unlink()
            name.symlink_to(shard.blob_path)
    parts = sorted(first.parent.iterdir())
    contents = [part.read_bytes() for part in parts]
    with registry.hold_files(first):
        registry.remove("a")
        registry.gc()
        assert [part.read_bytes() for part in parts] == contents
    registry.gc()
    assert blob_names(registry) == set()


async def test_a_model_loaded_by_name_is_spared_until_it_is_unloaded(hub: Hub, registry: Registry) -> None:
    publish(hub)
    await pull(registry, "a")
    config = RuntimeConfig(model_cache_dir=str(registry.root), cache_dir=str(registry.root.parent / "cache"))
    async with AsyncRuntime(config) as runtime:
        model = await runtime.load_model(backend="stub", model_path="a")
        assert model.info().model_path == registry.resolve("a").blob_path
        registry.remove("a")
        registry.gc()
        assert len(blob_names(registry)) == 1
        await runtime.unload(model.id)
        registry.gc()
        assert blob_names(registry) == set()
        with pytest.raises(ModelNotFoundError, match="model 'a' not found"):
            await runtime.load_model(backend="stub", model_path="a")


HOLDER = """
import sys, time
from pathlib import Path
from barrel_inference.registry import Registry
registry = Registry(Path(sys.argv[1]))
with registry.hold_files(registry.locate("a").path):
    print("held", flush=True)
    time.sleep(600)
"""


async def test_a_killed_holder_holds_nothing(hub: Hub, registry: Registry) -> None:
    publish(hub)
    await pull(registry, "a")
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(registry.root)], stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "held\n"
    registry.remove("a")
    registry.gc()
    assert len(blob_names(registry)) == 1
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    registry.gc()
    assert blob_names(registry) == set() and list((registry.root / "tmp").glob("*.lease")) == []


async def test_a_running_pull_keeps_what_it_counts_on(hub: Hub, registry: Registry) -> None:
    """The blob is here, the pull relies on it, its last name is removed, gc runs: the classic loss."""
    projector = model(3 << 20, 7, **{"general.type": "mmproj"})
    hub.ollama("library/big", [("model", WEIGHTS[0]), ("projector", projector)])
    publish(hub)
    await pull(registry, "a")
    hub.bytes_per_s = 3e6
    running = asyncio.ensure_future(pull(registry, "big"))
    await eventually(lambda: hub.sent_bytes > 200_000)
    registry.remove("a")
    registry.gc()
    await running
    assert [result.problem for result in registry.verify()] == [None, None]


async def test_parts_are_kept_for_days_and_then_go(hub: Hub, registry: Registry) -> None:
    part = registry.root / "tmp" / ("ab" * 32 + ".part")
    registry._ground.root.prepare()
    part.write_bytes(b"x" * 1000)
    part.with_name(part.name + ".state").write_bytes(b"y")
    assert registry.gc() == []
    long_ago = time.time() - 15 * 86400
    os.utime(part, (long_ago, long_ago))
    held = try_lock(part)
    assert held is not None and registry.gc() == []  # a running download, however old
    os.close(held)
    assert [item.kind for item in registry.gc()] == ["part"]
    assert list((registry.root / "tmp").iterdir()) == []


@pytest.mark.parametrize("kept", [slice(-20), slice(0)], ids=["cut", "empty"])
async def test_the_blob_of_an_unreadable_manifest_is_spared(hub: Hub, registry: Registry, kept: slice) -> None:
    publish(hub)
    await pull(registry, "a")
    path = registry.root / "manifests" / "a" / "latest.json"
    path.write_bytes(path.read_bytes()[kept])
    assert registry.list().broken and len(blob_names(registry)) == 1
    assert not any(item.kind == "blob" for item in registry.gc())
    registry.remove("a")
    assert any(item.kind == "blob" for item in registry.gc())


async def test_what_is_no_file_stops_nothing_and_takes_nothing(hub: Hub, registry: Registry) -> None:
    publish(hub)
    await pull(registry, "a")
    long_ago = time.time() - 99 * 86400
    for path in ("manifests/a/dir.json", "refs/dir.ref", "tmp/dir.lease", "tmp/dir.part", "tmp/dir.state"):
        (registry.root / path).mkdir()
        os.utime(registry.root / path, (long_ago, long_ago))
    os.mkfifo(registry.root / "manifests" / "a" / "pipe.json")
    os.mkfifo(registry.root / "refs" / "pipe.ref")
    assert {item.kind for item in registry.gc()} == {"temporary"}
    listing = registry.list()
    assert [manifest.name for manifest in listing.manifests] == ["a"] and len(listing.broken) == 2
    assert [result.problem for result in registry.verify(["a"])] == [None]


async def test_a_link_among_the_blobs_is_only_a_link(hub: Hub, registry: Registry, tmp_path: Path) -> None:
    publish(hub)
    await pull(registry, "a")
    blob = registry.locate("a").path
    outside = tmp_path / "outside.gguf"
    blob.rename(outside)
    blob.symlink_to(outside)
    assert [result.problem for result in registry.verify()] == [None]
    outside.write_bytes(b"damaged")
    await pull(registry, "a")
    assert outside.read_bytes() == b"damaged" and blob.read_bytes() == WEIGHTS[0] and not blob.is_symlink()
    blob.unlink()
    blob.symlink_to(outside)
    registry.remove("a")
    registry.gc()
    assert outside.exists() and blob_names(registry) == set()


async def test_leftovers_of_dead_writers_go(registry: Registry) -> None:
    registry._ground.root.prepare()
    (registry.root / "refs" / f".x.ref.{'0' * 32}").write_text("half")
    (registry.root / "tmp" / "dead.work").mkdir()
    (registry.root / "tmp" / "dead.upload").write_text("x")
    (registry.root / "blobs" / "notes.txt").write_text("somebody's own")
    assert sorted(item.kind for item in registry.gc()) == ["temporary"] * 3
    assert blob_names(registry) == {"notes.txt"}


def test_leases_of_the_living_count(tmp_path: Path) -> None:
    first, second = Lease(tmp_path), Lease(tmp_path)
    first.add(["aa", "bb"])
    second.add(["cc"])
    assert leased(tmp_path) == {"aa", "bb", "cc"}
    first.close()
    assert leased(tmp_path) == {"cc"}
    second.close()
    assert leased(tmp_path) == set()


def test_the_lock_excludes(tmp_path: Path) -> None:
    with locked(tmp_path / "l"):
        assert try_lock(tmp_path / "l") is None
    held = try_lock(tmp_path / "l")
    assert held is not None
    os.close(held)


class Daemon:
    """One registry doing random things. After each step every installed model must have its weights."""

    def __init__(self, registry: Registry, seed: int) -> None:
        self.registry, self.chance = registry, random.Random(seed)

    async def step(self, kind: str) -> None:
        one, two = self.chance.choice(NAMES), self.chance.choice(NAMES)
        try:
            await self._do(kind, one, two)
        except (ModelNotFoundError, PullError) as error:
            assert isinstance(error, ModelNotFoundError) or "removed while" in error.message, error
        for manifest in self.registry.list().manifests:
            path = Path(manifest.blob_path)
            gone = not path.exists() and self.registry._ground.store.find(manifest.model_name) == manifest
            assert not gone, f"{manifest.model_name} lost its weights after {kind}"

    async def _do(self, kind: str, one: str, two: str) -> None:
        match kind:
            case "pull":
                await pull(self.registry, one)
            case "create":
                async for _ in self.registry.create(f"mine-{two}", CreateRequest(from_=one, system=two)):
                    pass
            case "copy":
                await asyncio.to_thread(self.registry.copy, one, two)
            case "rm":
                await asyncio.to_thread(self.registry.remove, one)
            case "edit":
                await asyncio.to_thread(self.registry.edit, one, parameters={"top_k": self.chance.randint(1, 9)})
            case "gc":
                await asyncio.to_thread(self.registry.gc)
            case "verify":
                for result in await asyncio.to_thread(list, self.registry.verify()):
                    # its last name may have gone between the listing and the reading
                    assert result.problem in (None, "missing"), result


KINDS = ["pull", "create", "copy", "rm", "edit", "gc", "gc", "verify"]
PLANS = st.lists(st.lists(st.sampled_from(KINDS), min_size=1, max_size=8), min_size=2, max_size=4)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PLANS, st.integers(0, 2**32))
def test_no_interleaving_loses_weights(
    tmp_path_factory: pytest.TempPathFactory, plans: list[list[str]], seed: int
) -> None:
    """Several daemons on one root, each doing its own list of things at the same time."""

    async def run() -> None:
        async def one(number: int, plan: list[str]) -> None:
            daemon = Daemon(open_registry(root, hub), seed + number)
            for kind in plan:
                await daemon.step(kind)

        await asyncio.gather(*(one(number, plan) for number, plan in enumerate(plans)))

    root = tmp_path_factory.mktemp("root")
    with Hub() as hub:
        publish(hub)
        asyncio.run(run())
        whole_and_clean(open_registry(root, hub))


def whole_and_clean(registry: Registry) -> None:
    """All weights are right, and after gc nothing is left that nobody needs."""
    assert [result for result in registry.verify() if result.problem] == []
    registry.gc()
    needed = {Path(manifest.blob_path).name for manifest in registry.list().manifests}
    assert blob_names(registry) == needed
    assert [path for path in (registry.root / "tmp").iterdir() if path.suffix != ".uploaded"] == []


ANOTHER = """
import asyncio, sys
from pathlib import Path
from tests.registry.test_gc import KINDS, Daemon
from barrel_inference.config import RegistryOpts
from barrel_inference.registry import Registry
root, url, seed = sys.argv[1:]
daemon = Daemon(Registry(Path(root), RegistryOpts(ollama_endpoint=url)), int(seed))
async def main():
    for _ in range(40):
        await daemon.step(daemon.chance.choice(KINDS))
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_two_processes_on_one_root_lose_nothing(hub: Hub, registry: Registry) -> None:
    publish(hub)
    command = [sys.executable, "-c", ANOTHER, str(registry.root), hub.url]
    processes = [subprocess.Popen([*command, str(seed)]) for seed in range(3)]
    daemon = Daemon(registry, 99)
    while any(process.poll() is None for process in processes):
        await daemon.step(daemon.chance.choice(KINDS))
    assert [process.returncode for process in processes] == [0, 0, 0]
    whole_and_clean(registry)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_killed_processes_leave_a_root_that_is_whole(hub: Hub, registry: Registry) -> None:
    publish(hub)
    chance = random.Random(5)
    command = [sys.executable, "-c", ANOTHER, str(registry.root), hub.url]
    for seed in range(4):
        process = subprocess.Popen([*command, str(seed)])
        seen = len(hub.seen)
        await eventually(lambda: len(hub.seen) > seen + 3 or process.poll() is not None)  # noqa: B023 - within the round
        await asyncio.sleep(chance.random() / 5)  # any moment will do
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert registry.list().broken == []
        assert [result for result in registry.verify() if result.problem] == []
    whole_and_clean(registry)
