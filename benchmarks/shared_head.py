"""Eight requests at once with one head of 1,000 tokens: wall time, first tokens, and how often the head was read."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from barrel_inference import AsyncModel
from benchmarks.report import Table, spread
from benchmarks.setting import Answer, Setting, ask, loaded, prompt

REQUESTS = 8
N_TAIL = 24
N_ANSWER = 16


async def measure(chosen: Setting) -> list[Table]:
    n_head = 256 if chosen.quick else 1000
    table = Table("shared_head", "Do eight requests with one head read it once?")
    for n_sequences in (4, 8):
        for cache in ("off", "auto"):
            taken = [await _burst(chosen, n_head, n_sequences, cache, turn) for turn in range(chosen.rounds)]
            table.rows.append(_row(n_head, n_sequences, cache, taken))
    return [table]


async def _burst(chosen: Setting, n_head: int, n_sequences: int, cache: str, turn: int) -> tuple[float, list[Answer]]:
    """All eight at the same moment, on a model that has never seen the head."""
    room = {"n_ctx": n_head + N_TAIL + N_ANSWER + 64, "n_seq_max": n_sequences}
    async with loaded(chosen, context_opts=room) as model:
        prompts = [await _prompt(model, n_head, turn, i) for i in range(REQUESTS)]
        began = time.perf_counter()
        answers = await asyncio.gather(*(ask(model, tokens, N_ANSWER, cache=cache) for tokens in prompts))
        return time.perf_counter() - began, list(answers)


async def _prompt(model: AsyncModel, n_head: int, turn: int, question: int) -> list[int]:
    head = await prompt(model, n_head, seed=5000 + turn)
    return head + await prompt(model, N_TAIL, seed=6000 + question)


def _row(n_head: int, n_sequences: int, cache: str, taken: list[tuple[float, list[Answer]]]) -> dict[str, Any]:
    answers = [answer for _, group in taken for answer in group]
    prefilled = spread([sum(answer.prefilled for answer in group) for _, group in taken])
    return {
        "sequences": n_sequences,
        "cache": cache,
        "wall, s": spread([wall for wall, _ in taken]),
        "first token, s": spread([answer.first_token_s for answer in answers]),
        "prompt tokens read": prefilled,
        "heads read": prefilled.median / n_head,
    }
