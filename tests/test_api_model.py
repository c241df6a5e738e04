"""The Python API on a real model: crash and continue, restart and restore, chat, embeddings refused, bad requests."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from barrel_inference import AsyncModel, AsyncRuntime, RuntimeConfig, TierSpec
from barrel_inference.errors import ContextExceededError, InvalidRequestError, NoWeightsError, OutOfMemoryError
from barrel_inference.worker.process import worker_command
from tests.support.models import smollm2
from tests.support.waiting import eventually

pytestmark = pytest.mark.model

LIMITED = ["sh", "-c", 'ulimit -v 900000; exec "$@"', "sh", *worker_command()]
PROMPT = "The lighthouse keeper wrote every night what the sea had said to him. " * 12


@pytest.fixture(scope="module")
def path() -> Path:
    return smollm2()


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[AsyncRuntime]:
    async with AsyncRuntime(RuntimeConfig(ram_dir=str(tmp_path))) as one:
        yield one


@pytest.fixture
async def model(runtime: AsyncRuntime, path: Path) -> AsyncModel:
    return await runtime.load_model("m", model_path=path)


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0}, {"seed": 11}, {"seed": 5, "repeat_penalty": 1.2, "top_k": 20}, {"seed": 3, "mirostat": 2}],
    ids=["greedy", "seeded", "penalties", "mirostat"],
)
async def test_a_killed_worker_is_a_pause_in_the_same_text(model: AsyncModel, options: dict[str, Any]) -> None:
    alone = await model.complete(PROMPT, max_tokens=32, cache="off", **options)
    text, count, completion = "", 0, None
    async for chunk in model.stream(PROMPT, max_tokens=32, **options):
        text += chunk.text
        count += 1
        completion = chunk.completion
        if count == 5:
            pid = model.info().worker_pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
    assert completion is not None
    assert text == completion.text == alone.text
    assert completion.resumed == 1


async def test_a_restart_of_the_runtime_finds_its_prompt_on_disk(tmp_path: Path, path: Path) -> None:
    disk = TierSpec(name="disk", kind="disk", path=str(tmp_path / "disk"), quota_bytes=1 << 30)
    config = RuntimeConfig(ram_dir=str(tmp_path), tiers=(disk,))
    texts = []
    for expected in ("cold", "exact"):
        async with AsyncRuntime(config) as runtime:
            model = await runtime.load_model(model_path=path, tier="disk", tier_srv="disk")
            done = await model.complete(PROMPT, max_tokens=8, temperature=0)
            texts.append(done.text)
            assert done.cache.kind == expected
            assert done.usage.cached_tokens == done.cache.restored_tokens
    assert done.cache.tier == "disk"
    assert done.cache.restored_tokens == done.usage.prompt_tokens - 1
    assert texts[0] == texts[1]


async def test_a_chat_turn_comes_back_as_the_tokens_that_were_sampled(model: AsyncModel) -> None:
    messages: list[Any] = [{"role": "user", "content": f"Summarise this: {PROMPT}"}]
    first = await model.chat(messages, max_tokens=40, seed=9, temperature=1.5)
    messages += [first.message, {"role": "user", "content": "Shorter!"}]
    second = await model.chat(messages, max_tokens=4, temperature=0)
    sampled = first.completion.prompt_tokens + first.completion.tokens
    assert second.completion.prompt_tokens[: len(sampled)] == sampled
    assert second.usage.cached_tokens >= len(sampled) - 1


async def test_a_tool_is_called_and_its_result_read(model: AsyncModel) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Bergen", "Porto"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
    }
    tool = {"type": "function", "function": {"name": "forecast", "description": "Weather", "parameters": parameters}}
    messages: list[Any] = [{"role": "user", "content": "How will the weather be in Porto for three days?"}]
    options: dict[str, Any] = {"tools": [tool], "parallel_tool_calls": False, "temperature": 0, "max_tokens": 100}
    asked = await model.chat(messages, tool_choice="required", **options)
    (call,) = asked.tool_calls
    arguments = json.loads(call["function"]["arguments"])
    assert asked.finish_reason == "tool_calls" and call["function"]["name"] == "forecast"
    assert arguments["city"] in ("Bergen", "Porto") and 1 <= arguments["days"] <= 9
    result = {"role": "tool", "content": "Rain, rain, sun.", "tool_call_id": call["id"]}
    told = await model.chat([*messages, asked.message, result], tool_choice="none", **options)
    sampled = asked.completion.prompt_tokens + asked.completion.tokens
    assert told.content and not told.tool_calls
    assert told.completion.prompt_tokens[: len(sampled)] == sampled
    assert told.usage.cached_tokens >= len(sampled) - 1


async def test_a_finish_key_continues_where_it_ended(model: AsyncModel) -> None:
    first = await model.complete(PROMPT, max_tokens=20, seed=9, temperature=1.5)
    assert first.finish_key is not None
    second = await model.complete(
        PROMPT + first.text + " And then", parent_key=first.finish_key, max_tokens=2, temperature=0
    )
    sampled = first.prompt_tokens + first.tokens
    assert second.prompt_tokens[: len(sampled)] == sampled
    unknown = await model.complete(PROMPT, parent_key="00" * 32, max_tokens=1)
    assert unknown.finish_reason == "length"


async def test_sequences_run_side_by_side_as_they_would_alone(runtime: AsyncRuntime, path: Path) -> None:
    model = await runtime.load_model(model_path=path, context_opts={"n_seq_max": 4, "n_ctx": 512})
    prompts = [f"Story {i}: once upon a time" for i in range(6)]
    done = await asyncio.gather(*(model.complete(prompt, max_tokens=12, seed=1) for prompt in prompts))
    assert [len(each.tokens) for each in done] == [12] * 6
    with pytest.raises(ContextExceededError) as caught:
        await model.complete("word " * 600)
    assert caught.value.details["n_ctx"] == 512
    assert caught.value.details["n_prompt_tokens"] > 512


async def test_bad_requests_are_typed_and_harm_nobody(model: AsyncModel) -> None:
    running = asyncio.create_task(model.complete("Once upon a time", max_tokens=30, temperature=0))
    for prompt in ("", [], [49152], [2**31 - 1]):
        with pytest.raises(InvalidRequestError):
            await model.complete(prompt)
    nul = await model.complete("NUL \0 inside", max_tokens=2)
    assert nul.usage.prompt_tokens > 0
    assert (await running).finish_reason in ("length", "stop")


async def test_inputs_embed_alone_as_in_company(model: AsyncModel) -> None:
    both = await model.embed(["The sea is blue.", "Stock prices fell."])
    alone = await model.embed("The sea is blue.")
    assert [math.isclose(sum(x * x for x in vector), 1.0, rel_tol=1e-3) for vector in both.vectors] == [True, True]
    assert sum(a * b for a, b in zip(both.vectors[0], alone.vectors[0], strict=True)) > 0.999
    assert both.prompt_tokens > alone.prompt_tokens


async def test_a_tokenizer_only_model_tokenizes(runtime: AsyncRuntime, path: Path) -> None:
    model = await runtime.load_model(model_path=path, model_opts={"vocab_only": True})
    tokens = await model.tokenize("Hello, wörld!")
    assert await model.detokenize(tokens) == "Hello, wörld!"
    with pytest.raises(NoWeightsError):
        await model.complete("Hello")


async def test_what_the_first_request_touched_is_locked_after_it(runtime: AsyncRuntime, path: Path) -> None:
    def locked_bytes() -> int:
        status = Path(f"/proc/{model.info().worker_pid}/status").read_text()
        return int(status.partition("VmLck:")[2].split()[0]) * 1024

    model = await runtime.load_model(model_path=path, model_opts={"weight_residency": "lazy_then_pin_resident"})
    assert locked_bytes() == 0
    await model.complete("Hello", max_tokens=1)
    await eventually(lambda: locked_bytes() or any("locked" in warning for warning in model.info().warnings))


async def test_the_cache_is_seen_and_steered(model: AsyncModel, runtime: AsyncRuntime, tmp_path: Path) -> None:
    assert (await model.prefill(PROMPT)).kind == "cold"
    pinned = await runtime.cache.pin("m", PROMPT)
    assert pinned > 100
    assert (await runtime.cache.lookup("m", PROMPT)).cached_tokens >= pinned - 1
    assert (await runtime.cache.export("m", PROMPT, tmp_path / "warm.kvx")).objects > 0
    assert (await runtime.cache.verify()).corrupt == 0
    assert await runtime.cache.unpin("m", PROMPT)
    stats = await runtime.cache.stats()
    assert stats.tiers[0].name == "ram" and stats.tiers[0].objects > 0
    assert (await runtime.cache.clear()).objects == stats.tiers[0].objects
    assert (await runtime.cache.lookup("m", PROMPT)).cached_tokens == 0
    assert (await runtime.cache.import_(tmp_path / "warm.kvx")).objects > 0
    assert (await runtime.cache.lookup("m", PROMPT)).cached_tokens >= pinned - 1


async def test_what_llama_cpp_cannot_allocate_is_out_of_memory(path: Path, tmp_path: Path) -> None:
    async with AsyncRuntime(RuntimeConfig(ram_dir=str(tmp_path)), worker_command=LIMITED) as runtime:
        with pytest.raises(OutOfMemoryError, match=r"^llama.cpp cannot make this context: \S+ insufficient memory"):
            await runtime.load_model(model_path=path, context_opts={"n_ctx": 8192, "n_seq_max": 4})
