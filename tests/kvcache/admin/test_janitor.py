"""Quotas, eviction order and memory pressure."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from pathlib import Path

import pytest

from barrel_inference.config import LoadOptions, TierSpec
from barrel_inference.engine.checkpoints import Checkpoints, open_checkpoints
from barrel_inference.kvcache.admin.content import pin
from barrel_inference.kvcache.admin.janitor import Janitor, Limits
from barrel_inference.kvcache.admin.pressure import Source
from barrel_inference.kvcache.record import Name
from barrel_inference.kvcache.tier import Tier
from tests.kvcache.fake_backend import FakeBackend
from tests.kvcache.harness import Runner, options, same, spec
from tests.kvcache.objects import NAMESPACE, put
from tests.support.waiting import until

PAGE = 4096
NO_FLOOR = Limits(min_free_bytes=0, protect_s=0.0)


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def fill(tier: Tier, n: int, namespace: str = "ab" * 16, parent: int = 0) -> list[Name]:
    """A chain of ``n`` small objects (not valid ones: their cost is unknown)."""
    names = [Name(f"{parent + i:032x}", f"{parent + i + 1:032x}", "block", "p") for i in range(n)]
    for name in names:
        tier.put(namespace, name, [b"x"])
    return names


def left(tier: Tier) -> set[str]:
    return {one.name.key for one in tier.objects()}


def test_a_tier_is_brought_from_the_high_to_the_low_mark_leaves_first(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path, quota_bytes=100 * PAGE))
    names = fill(tier, 96)
    janitor = Janitor(NO_FLOOR)
    janitor.add_tier(tier)
    janitor.run_once()
    assert left(tier) == {name.key for name in names[:90]}
    assert tier.quota.used() == 90 * PAGE
    assert janitor.counters["evictions_quota"] == 6
    janitor.run_once()
    assert janitor.counters["evictions_quota"] == 6


def test_what_goes_on_from_another_tier_is_worth_as_much_as_if_it_lay_there(tmp_path: Path) -> None:
    fast, slow = (Tier(spec(tmp_path / name, name=name, quota_bytes=100 * PAGE)) for name in ("fast", "slow"))
    begun = put(slow, list(range(128)))
    *_, last = put(fast, list(range(192)))
    for name in begun:
        fast.remove(NAMESPACE.hex(), name)
    (other,) = put(fast, list(range(500, 564)))
    hours_ago = time.time() - 6 * 3600
    os.utime(fast.path(NAMESPACE.hex(), other), (hours_ago, hours_ago))
    janitor = Janitor(NO_FLOOR)
    for tier in (fast, slow):
        janitor.add_tier(tier)
    janitor.need_room("fast", 90 * PAGE - fast.quota.used() + 1)
    janitor.run_once()
    assert left(fast) == {last.key}
    assert left(slow) == {name.key for name in begun}

    slow.remove(NAMESPACE.hex(), begun[-1])  # now nothing leads to it
    put(fast, list(range(500, 564)))
    os.utime(fast.path(NAMESPACE.hex(), other), (hours_ago, hours_ago))
    janitor.need_room("fast", 90 * PAGE - fast.quota.used() + 1)
    janitor.run_once()
    assert left(fast) == {other.key}


def test_evictions_are_counted_by_tier_and_namespace(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path, quota_bytes=100 * PAGE))
    fill(tier, 50)
    fill(tier, 50, namespace="cd" * 16, parent=1000)
    janitor = Janitor(NO_FLOOR)
    janitor.add_tier(tier)
    janitor.run_once()
    evicted = {key: n for key, n in janitor.evicted.items() if key[2] == "evictions_quota"}
    assert {key[:2] for key in evicted} <= {("disk", "ab" * 16), ("disk", "cd" * 16)}
    assert sum(evicted.values()) == janitor.counters["evictions_quota"] == 10
    n_bytes = sum(n for key, n in janitor.evicted.items() if key[2] == "evicted_bytes")
    assert n_bytes == janitor.counters["evicted_bytes"] == 10 * PAGE


def test_room_is_made_on_request_and_answered(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path, quota_bytes=20 * PAGE))
    fill(tier, 20)
    answered: list[str] = []
    janitor = Janitor(NO_FLOOR, on_room=answered.append)
    janitor.add_tier(tier)
    janitor.start()
    janitor.need_room("disk", 4 * PAGE)
    until(lambda: answered)
    janitor.stop()
    assert answered == ["disk"]
    assert tier.quota.used() <= 16 * PAGE


def test_pinned_ones_go_last_and_what_a_request_found_not_at_all(tmp_path: Path) -> None:
    clock = Clock()
    clock.now += 1000
    tier = Tier(spec(tmp_path, quota_bytes=100 * PAGE))
    found, pinned, _ = (fill(tier, 10, parent=100 * i) for i in range(1, 4))
    janitor = Janitor(Limits(min_free_bytes=0, protect_s=10), clock=clock)
    janitor.add_tier(tier)
    janitor.touched("disk", [name.key for name in found])
    tier.pin("a", [name.key for name in pinned])
    janitor.need_room("disk", 70 * PAGE)
    janitor.run_once()
    assert left(tier) == {name.key for name in [*found, *pinned]}
    janitor.need_room("disk", 100 * PAGE)
    janitor.run_once()
    assert left(tier) == {name.key for name in found}
    clock.now += 20
    janitor.need_room("disk", 100 * PAGE)
    janitor.run_once()
    assert left(tier) == set()


def test_a_namespace_cannot_push_another_below_its_floor(tmp_path: Path) -> None:
    clock = Clock()
    tier = Tier(spec(tmp_path, quota_bytes=100 * PAGE))
    old = fill(tier, 20, namespace="aa" * 16, parent=1000)
    clock.now += 1000
    janitor = Janitor(Limits(min_free_bytes=0, namespace_floor=0.1), clock=clock)
    janitor.add_tier(tier)
    for name in old:
        Path(tier.path("aa" * 16, name)).touch()
    fill(tier, 80, namespace="bb" * 16)
    janitor.need_room("disk", 60 * PAGE)
    janitor.run_once()
    assert sum(one.namespace == "aa" * 16 for one in tier.objects()) >= 10


def test_a_namespace_has_a_cap(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path, quota_bytes=100 * PAGE))
    fill(tier, 50, namespace="aa" * 16)
    fill(tier, 5, namespace="bb" * 16)
    janitor = Janitor(Limits(min_free_bytes=0, namespace_cap=0.2, protect_s=0.0))
    janitor.add_tier(tier)
    janitor.run_once()
    assert sum(one.namespace == "aa" * 16 for one in tier.objects()) == 20
    assert sum(one.namespace == "bb" * 16 for one in tier.objects()) == 5


def test_memory_pressure_empties_tmpfs_tiers_only_until_it_is_over(tmp_path: Path) -> None:
    def tier_of(kind: str) -> Tier:
        path = tmp_path / kind
        return Tier(TierSpec(name=kind, kind=kind, path=str(path), quota_bytes=100 * PAGE))  # type: ignore[arg-type]

    ram, disk = tier_of("ram"), tier_of("disk")
    fill(ram, 50)
    fill(disk, 50)

    def used() -> float:
        return 0.5 + ram.quota.used() / (100 * PAGE)

    janitor = Janitor(NO_FLOOR, memory=used)
    janitor.add_tier(ram)
    janitor.add_tier(disk)
    janitor.run_once()
    assert used() <= 0.75
    assert ram.quota.used() > 20 * PAGE
    assert disk.quota.used() == 50 * PAGE
    assert janitor.counters["evictions_pressure"] > 0
    before = ram.quota.used()
    janitor.run_once()
    assert ram.quota.used() == before


def test_pressure_that_eviction_cannot_end_stops(tmp_path: Path) -> None:
    tier = Tier(TierSpec(name="ram", kind="ram", path=str(tmp_path), quota_bytes=100 * PAGE))
    fill(tier, 10)
    janitor = Janitor(NO_FLOOR, memory=lambda: 0.99)
    janitor.add_tier(tier)
    janitor.run_once()
    assert left(tier) == set()


def test_bytes_of_dead_writers_are_found(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path, quota_bytes=100 * PAGE))
    fill(tier, 5)
    tier.quota.add(50 * PAGE)
    janitor = Janitor(NO_FLOOR)
    janitor.add_tier(tier)
    janitor.run_once()
    assert tier.quota.used() == 5 * PAGE


def test_trouble_is_told_once_until_it_is_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tier = Tier(spec(tmp_path / "t"))
    janitor = Janitor()
    janitor.add_tier(tier)
    for _ in range(2):
        shutil.rmtree(tier.root)
        for _ in range(3):
            janitor.run_once()
        Tier(spec(tmp_path / "t"))
        janitor.run_once()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def nothing() -> float:
    return None  # type: ignore[return-value]


def broken() -> float:
    raise RuntimeError("the user's own")


@pytest.mark.parametrize("source", [nothing, broken])
def test_a_source_that_fails_is_told_once_and_hinders_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, source: Source
) -> None:
    tier = Tier(spec(tmp_path, quota_bytes=100 * PAGE))
    fill(tier, 96)
    janitor = Janitor(NO_FLOOR, memory=source)
    janitor.add_tier(tier)
    for _ in range(3):
        janitor.run_once()
    assert tier.quota.used() == 90 * PAGE
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_pressure_with_a_tier_gone_relieves_the_others(tmp_path: Path) -> None:
    gone, here = (
        Tier(TierSpec(name=name, kind="ram_file", path=str(tmp_path / name), quota_bytes=100 * PAGE))
        for name in ("gone", "here")
    )
    fill(here, 10)
    janitor = Janitor(NO_FLOOR, memory=lambda: 0.99)
    janitor.add_tier(gone)
    janitor.add_tier(here)
    shutil.rmtree(gone.root)
    janitor.run_once()
    assert left(here) == set()


def test_a_clock_that_is_set_back_keeps_nothing_for_ever(tmp_path: Path) -> None:
    clock = Clock()
    tier = Tier(spec(tmp_path, quota_bytes=100 * PAGE))
    names = fill(tier, 96)
    janitor = Janitor(Limits(min_free_bytes=0), clock=clock)
    janitor.add_tier(tier)
    janitor.touched("disk", [name.key for name in names])
    janitor.run_once()
    assert len(left(tier)) == 96
    tier.quota.add(4 * PAGE)  # of a writer that died
    clock.now -= 1e6
    janitor.run_once()
    assert tier.quota.used() == 90 * PAGE == tier.allocated()


def test_a_file_system_that_others_filled_gets_the_room_asked_for(tmp_path: Path) -> None:
    class Filled(Tier):
        def free_bytes(self) -> int:
            return 0

    tier = Filled(spec(tmp_path))
    fill(tier, 20)
    janitor = Janitor(NO_FLOOR)
    janitor.add_tier(tier)
    janitor.need_room("disk", 4 * PAGE)
    janitor.run_once()
    assert len(left(tier)) == 16
    assert janitor.counters["evictions_free_space"] == 4


def test_what_is_no_hits_file_neither_blocks_nor_is_followed(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path))
    os.mkfifo(tmp_path / "hits.json")
    Janitor(NO_FLOOR).add_tier(tier)
    (tmp_path / "hits.json").unlink()
    (tmp_path / "hits.json").symlink_to("/dev/zero")
    Janitor(NO_FLOOR).add_tier(tier)


def test_hits_are_remembered(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path))
    janitor = Janitor(NO_FLOOR)
    janitor.add_tier(tier)
    janitor.touched("disk", ["k"] * 3)
    janitor.stop()
    again = Janitor(NO_FLOOR)
    again.add_tier(tier)
    again.touched("disk", ["k"])
    again.stop()
    assert (tmp_path / "hits.json").read_bytes() == b'{"k":4}'


# ---- with a model over it


class World:
    """A worker's checkpoints and the janitor that answers it, as the runtime connects them."""

    def __init__(self, load: LoadOptions, limits: Limits = NO_FLOOR) -> None:
        self.tier, self._limits = Tier(load.tiers[0]), limits
        self._start_janitor()
        backend = FakeBackend()
        self.checkpoints: Checkpoints = open_checkpoints(
            backend,
            load,
            need_room=lambda tier, n_bytes: self.janitor.need_room(tier, n_bytes),
            touched=lambda tier, keys: self.janitor.touched(tier, keys),
            clock=time.monotonic,
        )
        self.runner = Runner(backend, self.checkpoints, cost_us_per_token=1000.0)

    def _start_janitor(self) -> None:
        self.janitor = Janitor(self._limits, on_room=lambda tier: self.checkpoints.room(tier))
        self.janitor.add_tier(self.tier)
        self.janitor.start()

    def age(self) -> None:
        """Everything becomes old: nothing is fresh, nobody waits for it, no hit is remembered."""
        self.janitor.stop()
        (self.tier.root / "hits.json").unlink()
        for one in self.tier.objects():
            os.utime(self.tier.path(one.namespace, one.name), (0, 0))
        self._start_janitor()

    def close(self) -> None:
        self.checkpoints.close()
        self.janitor.stop()


def test_mistake_02_disk_grows_past_its_cap(tmp_path: Path) -> None:
    quota = 60 * PAGE
    world = World(options(spec(tmp_path, quota_bytes=quota)))
    seen: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.append(world.tier.allocated())

    watcher = threading.Thread(target=watch)
    watcher.start()
    rng = random.Random(5)
    for _ in range(25):
        world.runner.run([rng.randrange(1000) for _ in range(rng.randrange(64, 400))], 2)
    done.set()
    watcher.join()
    assert max(seen) <= quota
    assert world.checkpoints.counters["saves_cold"] > 60
    assert world.janitor.counters["evictions_quota"] > 0
    world.close()


def test_mistake_08_evicting_what_the_request_needs(tmp_path: Path) -> None:
    """Room for one conversation, two that alternate: what a waiting request has found is still there when its turn
    comes, even if nothing could be read ahead and another conversation is saved meanwhile."""
    world = World(options(spec(tmp_path, quota_bytes=9 * PAGE)), Limits(min_free_bytes=0, protect_s=600))
    a, b = list(range(10, 400)), list(range(500, 890))
    for waiting, other in ((a, b), (b, a), (a, b)):
        whole = world.runner.run(waiting)
        ahead = [world.checkpoints.find(waiting) for _ in range(2)]
        plan = world.checkpoints.find(waiting)
        assert plan.length == len(waiting) - 1
        world.runner.run(other, 2)
        assert world.checkpoints.restore(plan, 0) == plan.length == len(waiting) - 1
        for unused in ahead:
            world.checkpoints.release(unused)
        assert same(world.runner.run(waiting, cache="read"), whole)
        world.age()
    world.close()


def test_what_a_request_has_found_stays_however_long_it_waits(tmp_path: Path) -> None:
    """Renewed while it waits; what nobody waits for any more goes."""
    world = World(options(spec(tmp_path, quota_bytes=60 * PAGE)), Limits(min_free_bytes=0, protect_s=600))
    waiting = list(range(10, 400))
    world.runner.run(waiting)
    plan = world.checkpoints.find(waiting)
    n_found = len(left(world.tier))
    for is_kept in (True, False):
        world.age()
        if is_kept:
            world.checkpoints.keep([plan, plan])
            until(lambda: all(one.used_at > 0 for one in world.tier.objects()))
        world.janitor.need_room("disk", 60 * PAGE)
        world.janitor.run_once()
        assert len(left(world.tier)) == (n_found if is_kept else 0)
    world.checkpoints.release(plan)
    world.close()


def test_mistake_09_the_short_shared_head_is_evicted(tmp_path: Path) -> None:
    """Long documents read once must not displace a head that is used all the time, nor a pinned one."""
    world = World(options(spec(tmp_path, quota_bytes=60 * PAGE)), Limits(min_free_bytes=0, protect_s=0.0))
    head, pinned = list(range(10, 210)), list(range(300, 500))
    world.runner.run([*pinned, 1])
    store = world.checkpoints.store
    assert store is not None
    assert pin(store, pinned) == 199
    for i in range(5):
        world.runner.run([*head, *range(600 + i, 640 + i)])
    rng = random.Random(2)
    for i in range(6):
        world.runner.run([rng.randrange(1000) for _ in range(2000)])
        if i % 2:
            world.runner.run([*head, *range(700 + i, 740 + i)])
    assert world.checkpoints.lookup([*head, 5]).cached_tokens >= 192
    assert world.checkpoints.lookup([*pinned, 5]).cached_tokens >= 192
    assert world.janitor.counters["evictions_quota"] > 50
    world.close()
