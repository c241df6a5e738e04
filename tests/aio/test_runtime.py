"""The runtime with models of the stub."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from barrel_inference import AsyncRuntime, RuntimeConfig, TierSpec
from barrel_inference.errors import ConfigError, InvalidModelError, NotLoadedError
from barrel_inference.kvcache.record import Name
from barrel_inference.kvcache.tier import NS_HEX, NoRoomError, Tier
from tests.support.waiting import eventually
from tests.worker import fake_worker

FAKE_WORKER = fake_worker.__file__


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


async def test_no_thread_outlives_a_closed_runtime(tmp_path: Path) -> None:
    """However long somebody holds on to it."""
    before = set(threading.enumerate())
    runtime = AsyncRuntime(RuntimeConfig(ram_dir=str(tmp_path)))
    async with runtime:
        await runtime.load_model("m", backend="stub")
        await runtime.cache.verify()
        begun = {thread.name.split("_")[0] for thread in set(threading.enumerate()) - before}
    assert {"cache", "registry", "kv-janitor"} <= begun
    left = {"asyncio"}  # the loop's own
    await eventually(lambda: {each.name.split("_")[0] for each in set(threading.enumerate()) - before} <= left)
    assert await runtime.cache.namespaces() == []  # whoever asks all the same is answered
    await runtime.close()


@pytest.mark.parametrize("is_unloaded", [True, False])
async def test_a_worker_may_save_for_as_long_as_its_policy_says(tmp_path: Path, is_unloaded: bool) -> None:
    told = tmp_path / "told"
    command = [sys.executable, FAKE_WORKER, f"note:{told}"]
    async with AsyncRuntime(RuntimeConfig(ram_dir=str(tmp_path)), worker_command=command) as runtime:
        await runtime.load_model("m", backend="stub", policy={"evict_save_timeout_ms": 4321})
        if is_unloaded:
            await runtime.unload("m")
    assert told.read_text() == "4.321"


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


async def test_without_a_configuration_it_has_the_user_s_own(tmp_path: Path) -> None:
    """As bi.load_model has; in a process of its own, whose environment that is."""
    file = tmp_path / "config.toml"
    file.write_text(f'ram_dir = "{tmp_path}"\n[context_opts]\nn_ctx = 777\n')
    program = (
        "import asyncio, barrel_inference as bi\n"
        "async def main():\n"
        "    async with bi.AsyncRuntime() as own, bi.AsyncRuntime(bi.RuntimeConfig()) as plain:\n"
        "        return own.config.context_opts, plain.config.context_opts\n"
        "if __name__ == '__main__':\n"
        "    own, plain = asyncio.run(main())\n"
        "    with bi.Runtime() as runtime:\n"
        "        model = runtime.load_model(backend='stub')\n"
        "        print(own.n_ctx, own.n_batch, plain.n_ctx, model.info().n_ctx)\n"
    )
    settings = {"BARREL_INFERENCE_CONFIG": str(file), "BARREL_INFERENCE_CONTEXT_OPTS_N_BATCH": "99"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, env=os.environ | settings, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out.split() == [b"777", b"99", b"2048", b"777"]


async def test_the_first_load_starts_it(tmp_path: Path) -> None:
    """Or the janitor's thread would have no loop to tell of room."""
    tier = TierSpec(name="store", kind="disk", path=str(tmp_path / "kv"), quota_bytes=1 << 20)
    runtime = AsyncRuntime(RuntimeConfig(ram_dir=str(tmp_path), tiers=(tier,)))
    runtime._on_room("store")  # nobody to tell yet
    try:
        model = await runtime.load_model("m", backend="stub", tier="disk", tier_srv="store")
        await runtime.start()  # again, and nothing happens
        runtime._on_room("store")
        assert (await model.complete("hi", max_tokens=2)).tokens
    finally:
        await runtime.close()


@pytest.mark.parametrize(
    ("model_id", "options", "words"),
    [
        (
            "smollm2:135m",
            {},
            r"'smollm2:135m', which comes first, is the id .* load_model\(model_path='smollm2:135m'\)",
        ),
        (None, {}, "nothing says what to load: expected model_path"),
        (None, {"n_ctx": 4096}, r"it belongs to context_opts: context_opts={'n_ctx': 4096}"),
        (None, {"model_path": "a", "n_gpu_layers": 99}, r"it belongs to model_opts: model_opts={'n_gpu_layers': 99}"),
        (None, {"min_tokens": 1}, r"it belongs to policy"),
        (None, {"n_ctxx": 1}, "unknown option 'n_ctxx'"),
    ],
)
async def test_what_is_misunderstood_is_explained(
    tmp_path: Path, model_id: str | None, options: dict[str, Any], words: str
) -> None:
    async with AsyncRuntime(RuntimeConfig(ram_dir=str(tmp_path))) as runtime:
        with pytest.raises(ConfigError, match=words):
            await runtime.load_model(model_id, **options)


async def test_a_wrong_path_is_shown_whole_to_who_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "model.gguf"
    async with AsyncRuntime(RuntimeConfig(ram_dir=str(tmp_path))) as runtime:
        with pytest.raises(InvalidModelError) as caught:
            await runtime.load_model(model_path=path)
    assert str(caught.value) == f"{path}: no such file or directory"
    assert caught.value.message == "model.gguf: no such file or directory"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


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
