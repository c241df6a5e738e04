"""The longest pause of a running stream while another request's long prompt is read, and what that fairness costs the
reader."""

from __future__ import annotations

import asyncio
import statistics
import time
from itertools import pairwise

from barrel_inference import AsyncModel
from benchmarks.report import Table, spread
from benchmarks.setting import Answer, Setting, ask, loaded, prompt

WARM_TOKENS = 32  # of the stream, before the other request comes


async def measure(chosen: Setting) -> list[Table]:
    n_prompt = 512 if chosen.quick else 2000
    alone, together, pauses, usual = [], [], [], []
    async with loaded(chosen, context_opts={"n_ctx": 4200, "n_seq_max": 2}) as model:
        for turn in range(chosen.rounds):
            alone.append((await _read(model, n_prompt, seed=turn * 2)).first_token_s)
            reader, pause, gap = await _beside_a_stream(model, n_prompt, seed=turn * 2 + 1)
            together.append(reader.first_token_s)
            pauses.append(pause)
            usual.append(gap)
    row = {
        "prompt tokens": n_prompt,
        "usual gap of the stream, s": spread(usual),
        "longest gap meanwhile, s": spread(pauses),
        "prompt read alone, tokens/s": spread([n_prompt / seconds for seconds in alone]),
        "beside the stream, tokens/s": spread([n_prompt / seconds for seconds in together]),
        "beside ÷ alone": spread([a / b for a, b in zip(alone, together, strict=True)]),
    }
    return [Table("stall", "How long does a stream stand still while another's prompt is read?", [row])]


async def _read(model: AsyncModel, n_prompt: int, seed: int) -> Answer:
    return await ask(model, await prompt(model, n_prompt, seed), n_tokens=2)


async def _beside_a_stream(model: AsyncModel, n_prompt: int, seed: int) -> tuple[Answer, float, float]:
    """The reader's answer; the longest gap of the stream while it read; the median gap before."""
    arrivals: list[float] = []
    under_way = asyncio.Event()
    tokens = await prompt(model, 64, seed=10_000 + seed)
    stream = asyncio.create_task(_listen(model, tokens, arrivals, under_way))
    await under_way.wait()
    text = await prompt(model, n_prompt, seed)
    began = time.perf_counter()
    reader = await ask(model, text, n_tokens=2)
    stream.cancel()
    await asyncio.gather(stream, return_exceptions=True)
    gaps = [(later, later - earlier) for earlier, later in pairwise(arrivals)]
    meanwhile = [gap for later, gap in gaps if began < later]
    return reader, max(meanwhile), statistics.median(gap for later, gap in gaps if later <= began)


async def _listen(model: AsyncModel, tokens: list[int], arrivals: list[float], under_way: asyncio.Event) -> None:
    async for chunk in model.stream(tokens, max_tokens=4000, temperature=0.0, ignore_eos=True):
        if chunk.tokens:
            arrivals.append(time.perf_counter())
        if len(arrivals) == WARM_TOKENS:
            under_way.set()
