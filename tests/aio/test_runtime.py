"""The runtime with models of the stub."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from barrel_inference import AsyncRuntime, RuntimeConfig
from barrel_inference.errors import NotLoadedError
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
