"""The runtime with models of the stub."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from barrel_inference import AsyncRuntime, RuntimeConfig
from barrel_inference.config import TierSpec
from barrel_inference.errors import NotLoadedError
from barrel_inference.kvcache.record import Name
from barrel_inference.kvcache.tier import NS_HEX, NoRoomError, Tier
from tests.support.waiting import eventually


async def test_what_was_counted_stays_while_a_model_is_unloaded(tmp_path: Path) -> None:
    async with AsyncRuntime(RuntimeConfig(ram_dir=str(tmp_path))) as runtime:
        model = await runtime.load_model("m", backend="stub", stub={"delay_ms": 20.0})
        async with model.stream("hi", max_tokens=5000) as stream:
            await anext(stream)
            await eventually(lambda: model.info().running)  # as workers report now and then, with what they count
            before = await prompt_tokens(runtime)
            unloading = asyncio.ensure_future(runtime.unload("m", drain_s=600))
            await eventually(lambda: not runtime.models())
            assert await prompt_tokens(runtime) == before > 0
            stream.cancel()
        await unloading
        assert await prompt_tokens(runtime) == before


async def test_a_handle_is_found_by_its_id(tmp_path: Path) -> None:
    async with AsyncRuntime(RuntimeConfig(ram_dir=str(tmp_path))) as runtime:
        loaded = await runtime.load_model("m", backend="stub")
        assert runtime.model("m") is loaded
        assert "hello" in await runtime.model("m").detokenize(await runtime.model("m").tokenize("hello"))
        await runtime.unload("m")
        with pytest.raises(NotLoadedError, match="'m' is not loaded"):
            runtime.model("m")


async def prompt_tokens(runtime: AsyncRuntime) -> float:
    return (await runtime.cache.stats()).by_model.get("m", {}).get("prompt_tokens", 0)


async def test_counters_of_the_store_are_told_by_tier_and_model(tmp_path: Path) -> None:
    """What the worker saves and restores, and what the janitor takes of it."""
    disk = TierSpec(name="my disk", kind="disk", path=str(tmp_path / "disk"), quota_bytes=1 << 20)
    config = RuntimeConfig(ram_dir=str(tmp_path), tiers=(disk,), janitor_interval_s=0.05)
    async with AsyncRuntime(config) as runtime:
        load = {"backend": "stub", "tier": "disk", "tier_srv": "my disk"}
        prompt = "word " * 80
        await (await runtime.load_model("m", **load)).complete(prompt, max_tokens=2)
        await runtime.unload("m")
        model = await runtime.load_model("m", **load)
        await model.complete(prompt, max_tokens=2)
        namespace = model.info().namespace[:NS_HEX]
        await runtime.unload("m")
        stats = await runtime.cache.stats()
        counted = stats.by_tier["my disk"]["m"]
        assert counted["saves_cold"] == stats.by_model["m"]["saves_cold"] > 0
        assert counted["restored_tokens"] == stats.counters["restored_tokens_my disk"] > 0
        assert sum(counted.get(name, 0) for name in ("hits_exact", "hits_partial")) == 1
        assert not any("\x1f" in name for name in stats.counters)
        fill(Path(disk.path), namespace, disk)
        await eventually(lambda: runtime.cache._tiers.janitor.counters["evictions_quota"])
        stats = await runtime.cache.stats()
        assert stats.by_tier["my disk"]["m"]["evictions_quota"] == stats.counters["evictions_quota"]
        assert stats.by_tier["my disk"]["m"]["evicted_bytes"] > 0


def fill(root: Path, namespace: str, spec: TierSpec) -> None:
    """Up to the quota, with objects of the namespace that nobody has used for an hour."""
    tier, long_ago = Tier(spec), time.time() - 3600
    with suppress(NoRoomError):
        for number in range(1 << 20):
            name = Name(f"{number:032x}", f"{number + 1:032x}", "block", "p")
            tier.put(namespace, name, [b"x" * 4096])
            (path,) = root.rglob(name.file)
            os.utime(path, (long_ago, long_ago))
