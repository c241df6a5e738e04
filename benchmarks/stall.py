"""The longest pause of a running stream while another request's long prompt is read, and what that fairness costs the
reader.

On the CPU that cost depends on the model's attention heads: llama.cpp cuts the rows of a step, over all heads, into
four pieces a thread, and computes each piece in tiles of 64 rows of one head. With eight heads a small step fills its
tiles, with SmolLM2's nine it fills little more than half of them. So a generated model with eight is measured, too.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from barrel_inference import AsyncModel
from barrel_inference.registry import gguf
from benchmarks.report import Table, spread
from benchmarks.setting import Answer, Setting, ask, loaded
from tests.support.tiny_models import write_model

WARM_TOKENS = 32  # of the stream, before the other request comes


# SmolLM2's depth and width a head; with random weights, of which the speed does not depend.
EIGHT_HEADS = {
    "embedding_length": 512,
    "block_count": 30,
    "feed_forward_length": 1376,
    "attention.head_count": 8,
    "attention.head_count_kv": 2,
    "context_length": 8192,
}


async def measure(chosen: Setting) -> list[Table]:
    generated = chosen.folder("model") / "eight-heads.gguf"
    write_model(generated, "llama", EIGHT_HEADS)
    about = gguf.read(Path(chosen.model_path))
    heads = about.metadata.get(f"{about.architecture}.attention.head_count", "?")
    rows = [
        {"model": f"{about.name}, {heads} heads"} | await _row(chosen),
        {"model": "generated, 8 heads"} | await _row(replace(chosen, model_path=str(generated))),
    ]
    return [Table("stall", "How long does a stream stand still while another's prompt is read?", rows)]


async def _row(chosen: Setting) -> dict[str, Any]:
    n_prompt = 512 if chosen.quick else 2000
    alone, together, pauses, usual = [], [], [], []
    async with loaded(chosen, context_opts={"n_ctx": 4200, "n_seq_max": 2}) as model:
        for turn in range(chosen.rounds):
            alone.append((await _read(model, n_prompt, seed=turn * 2)).first_token_s)
            reader, pause, gap = await _beside_a_stream(model, n_prompt, seed=turn * 2 + 1)
            together.append(reader.first_token_s)
            pauses.append(pause)
            usual.append(gap)
    return {
        "prompt tokens": n_prompt,
        "usual gap of the stream, s": spread(usual),
        "longest gap meanwhile, s": spread(pauses),
        "prompt read alone, tokens/s": spread([n_prompt / seconds for seconds in alone]),
        "beside the stream, tokens/s": spread([n_prompt / seconds for seconds in together]),
        "beside ÷ alone": spread([a / b for a, b in zip(alone, together, strict=True)]),
    }


def _prompt(n_tokens: int, seed: int) -> list[int]:
    """Of ids that every vocabulary has; the generated model's knows no text."""
    return random.Random(seed).choices(range(3, 100), k=n_tokens)


async def _read(model: AsyncModel, n_prompt: int, seed: int) -> Answer:
    return await ask(model, _prompt(n_prompt, seed), n_tokens=2)


async def _beside_a_stream(model: AsyncModel, n_prompt: int, seed: int) -> tuple[Answer, float, float]:
    """The reader's answer; the longest gap of the stream while it read; the median gap before."""
    arrivals: list[float] = []
    under_way = asyncio.Event()
    tokens = _prompt(64, seed=10_000 + seed)
    stream = asyncio.create_task(_listen(model, tokens, arrivals, under_way))
    await under_way.wait()
    text = _prompt(n_prompt, seed)
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
