"""The Python API on a real model with sliding-window attention: what comes back from the store, from behind its window,
goes on as if it had never been away."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from barrel_inference import AsyncRuntime, RuntimeConfig
from tests.support.models import gemma

pytestmark = [pytest.mark.model, pytest.mark.slow]

WINDOW = 512
CUT = 768  # behind it the prompts part; blocks before the window have fallen out of the context by then
PROMPT = "".join(f"On day {day} the keeper of the lighthouse wrote what the sea had said to him. " for day in range(45))
GREEDY: dict[str, Any] = {"max_tokens": 16, "temperature": 0, "ignore_eos": True}
# With more threads, one-row attention splits the cells among them, and the order of summation depends on where in
# memory a window happens to lie. In longer steps the few rows behind the shared head are computed in tiles with it, and
# alone they are not: a hundredth of a logarithm, which decides between two words that are as good.
CONTEXT = {"n_ctx": 1024, "n_ubatch": 256, "n_threads": 1, "n_threads_batch": 2}


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[AsyncRuntime]:
    async with AsyncRuntime(RuntimeConfig(ram_dir=str(tmp_path))) as one:
        yield one


@pytest.mark.timeout(900)
async def test_a_restored_window_is_the_undisturbed_one(runtime: AsyncRuntime) -> None:
    model = await runtime.load_model("gemma", model_path=gemma(), context_opts=CONTEXT)
    assert (model.info().cache_layout, model.info().cache_verdict) == ("swa", "exact")
    undisturbed = await model.complete(PROMPT, cache="off", exact="cold", **GREEDY)
    assert undisturbed.usage.prompt_tokens > CUT > WINDOW

    n_chunks, killed = 0, None
    async for chunk in model.stream(PROMPT, exact="cold", **GREEDY):
        n_chunks += 1
        killed = chunk.completion
        if n_chunks == 5:
            worker = model.info().worker_pid
            assert worker is not None
            os.kill(worker, signal.SIGKILL)
    assert killed is not None
    assert (killed.tokens, killed.resumed) == (undisturbed.tokens, 1)

    await runtime.unload("gemma")
    model = await runtime.load_model("gemma", model_path=gemma(), context_opts=CONTEXT)
    reloaded = await model.complete(PROMPT, **GREEDY)
    assert (reloaded.cache.restored_tokens, reloaded.cache.tier) == (undisturbed.usage.prompt_tokens - 1, "ram")
    assert reloaded.tokens == undisturbed.tokens

    other = PROMPT[: PROMPT.index("day 42")] + "morning he"  # the same head, past the window, and another end
    shared = await model.complete(other, **GREEDY)
    alone = await model.complete(other, exact="cold", **GREEDY)
    assert shared.cache.restored_tokens >= CUT
    assert alone.cache.restored_tokens == 0  # restored rows lie in other cells, which sums show in the last bit
    assert shared.tokens == alone.tokens != undisturbed.tokens
