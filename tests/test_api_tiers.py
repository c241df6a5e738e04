"""What a runtime keeps of its tiers, as its configuration and its user's callable say. No model is loaded: files that
look like old objects are enough for the janitor."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import barrel_inference as bi
from barrel_inference.errors import ConfigError
from barrel_inference.kvcache.record import Name
from barrel_inference.kvcache.tier import Tier
from barrel_inference.types import TierKind
from tests.support.waiting import until

PAGE = 4096
QUOTA = 100 * PAGE
A, B = "aa" * 16, "bb" * 16  # namespaces


def filled(path: Path, kind: TierKind, held: dict[str, int], age_s: float = 1e6) -> bi.TierSpec:
    """A tier with so many objects of each namespace, a page each."""
    spec = bi.TierSpec(name=path.name, kind=kind, path=str(path), quota_bytes=QUOTA)
    tier = Tier(spec)
    used = time.time() - age_s
    for namespace, count in held.items():
        for i in range(count):
            name = Name(f"{i:032x}", namespace[:2] + f"{i + 1:030x}", "block", "p")
            tier.put(namespace, name, [b"x"])
            os.utime(tier.path(namespace, name), (used, used))
    return spec


def left(spec: bi.TierSpec, namespace: str = A) -> int:
    return len(list(Path(spec.path, namespace).glob("*/*.block.p")))


def runtime(*specs: bi.TierSpec, memory: Callable[[], float] | None = None, **config: float) -> bi.Runtime:
    values = bi.RuntimeConfig(tiers=specs, janitor_interval_s=0.01)
    return bi.Runtime(msgspec.structs.replace(values, **config), memory_pressure=memory)


def test_the_users_memory_pressure_evicts_tiers_in_memory_from_the_high_to_the_low_mark(tmp_path: Path) -> None:
    ram = filled(tmp_path / "tmpfs", "ram_file", {A: 80})
    disk = filled(tmp_path / "disk", "disk", {A: 80})
    asked: list[float] = []

    def used() -> float:
        asked.append(left(ram) / 100)
        return asked[-1]

    with runtime(ram, disk, memory=used, pressure_high=0.7, pressure_low=0.4) as one:
        until(lambda: len(asked) >= 2 and asked[-1] <= 0.4)
        n_asked = len(asked)
        until(lambda: len(asked) >= n_asked + 3)  # it is asked again, and has nothing more to do
        assert one.cache.stats().counters["evictions_pressure"] == 80 - left(ram)
    assert 30 < left(ram) <= 40
    assert left(disk) == 80


def test_below_the_high_mark_nothing_is_evicted(tmp_path: Path) -> None:
    ram = filled(tmp_path / "tmpfs", "ram_file", {A: 80})
    asked: list[bool] = []
    with runtime(ram, memory=lambda: asked.append(True) or 0.69, pressure_high=0.7, pressure_low=0.4):  # type: ignore[func-returns-value]
        until(lambda: len(asked) >= 3)
    assert left(ram) == 80


def test_a_memory_pressure_that_raises_is_harmless(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[bool] = []

    def broken() -> float:
        asked.append(True)
        raise RuntimeError("the user's own")

    ram = filled(tmp_path / "tmpfs", "ram_file", {A: 80})
    with runtime(ram, memory=broken) as one:
        until(lambda: len(asked) >= 3)
        model = one.load_model(backend="stub")
        assert model.complete("hi", max_tokens=3).finish_reason == "length"
    assert left(ram) == 80
    assert sum("memory pressure" in record.message for record in caplog.records) == 1


def test_a_namespace_keeps_no_more_than_its_cap(tmp_path: Path) -> None:
    tier = filled(tmp_path / "d", "disk", {A: 50, B: 15})
    with runtime(tier, namespace_cap=0.2):
        until(lambda: left(tier) <= 20)
    assert (left(tier), left(tier, B)) == (20, 15)


def test_a_namespace_is_not_pushed_below_its_floor(tmp_path: Path) -> None:
    """The older one would go first, and all of it."""
    tier = filled(tmp_path / "d", "disk", {A: 26}, age_s=1e6)
    filled(tmp_path / "d", "disk", {B: 74}, age_s=1000)
    with runtime(tier, namespace_floor=0.22):
        until(lambda: left(tier) + left(tier, B) <= 90)
    assert (left(tier), left(tier, B)) == (22, 68)


def test_a_file_system_keeps_the_room_that_the_tier_says(tmp_path: Path) -> None:
    """More free than there can be for long: the tier is emptied. Less than there is: it is left alone."""
    status = os.statvfs(tmp_path)
    total, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    tier = filled(tmp_path / "d", "disk", {A: 50})
    other = filled(tmp_path / "e", "disk", {A: 50})
    with runtime(msgspec.structs.replace(other, min_free_bytes=free // 2)) as one:
        one.start_tier("d", "disk", tier.path, QUOTA, min_free_bytes=(total + free) // 2)
        until(lambda: left(tier) == 0)
        assert left(other) == 50


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [("namespace_cap", 0.0, "> 0 and <= 1"), ("namespace_cap", 1.5, "<= 1"), ("namespace_floor", -0.1, ">= 0")],
)
def test_shares_are_checked(option: str, value: float, allowed: str) -> None:
    from barrel_inference.options import build

    with pytest.raises(ConfigError, match=f"{option}={value} is not allowed: expected a number .*{allowed}"):
        build(bi.RuntimeConfig(), {option: value})
