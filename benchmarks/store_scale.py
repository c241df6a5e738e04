"""A tier with 50,000 objects: how soon a worker is ready, and how long the lookup of a 32,000-token prompt takes.

The stub backend fills the tier: its state is small, its path through the worker and the store is the real one.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from barrel_inference import AsyncRuntime
from benchmarks.report import Table, spread
from benchmarks.setting import GIB, Setting, objects

BLOCK_TOKENS = 64
N_PROMPT = 32_000


async def measure(chosen: Setting) -> list[Table]:
    n_objects = 2_000 if chosen.quick else 50_000
    full, empty = chosen.folder("full"), chosen.folder("empty")
    await _fill(full, n_objects)
    table = Table("store_scale", "Does a large store slow anything down?")
    for folder in (empty, full):
        taken = [await _load_and_look(folder) for _ in range(chosen.rounds)]
        table.rows.append(
            {
                "objects": len(objects(folder)),
                "ready, s": spread([ready for ready, _, _ in taken]),
                f"lookup of {N_PROMPT} tokens, ms": spread([lookup * 1000 for _, lookup, _ in taken]),
                "tokens found": taken[0][2],
            }
        )
    return [table]


def _text(seed: int) -> list[int]:
    return [(seed * 7919 + position * 31) % 200 for position in range(N_PROMPT)]


async def _fill(folder: Path, n_objects: int) -> None:
    async with AsyncRuntime() as runtime:
        runtime.start_tier("bench", "disk", str(folder), 20 * GIB)
        model = await runtime.load_model("fill", **_stub())
        for seed in range(n_objects * BLOCK_TOKENS // N_PROMPT):
            await model.prefill(_text(seed))


async def _load_and_look(folder: Path) -> tuple[float, float, int]:
    """Seconds until ready, seconds of one lookup, tokens it found."""
    async with AsyncRuntime() as runtime:
        runtime.start_tier("bench", "disk", str(folder), 20 * GIB)
        began = time.perf_counter()
        model = await runtime.load_model("look", **_stub())
        ready_s = time.perf_counter() - began
        began = time.perf_counter()
        found = await model.lookup(_text(0))
        return ready_s, time.perf_counter() - began, found.cached_tokens


def _stub() -> dict[str, Any]:
    return {"backend": "stub", "tier": "disk", "tier_srv": "bench", "context_opts": {"n_ctx": N_PROMPT + 64}}
