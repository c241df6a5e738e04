"""A tier with 50,000 objects: how soon a worker is ready, how long the store takes to look up a prompt of 32,000
tokens, and how long the question takes over the Python API.

The stub backend fills the tier: its state is small, its path through the worker and the store is the real one.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from barrel_inference import AsyncRuntime
from barrel_inference.config import BLOCK_TOKENS, RuntimeConfig, TierSpec
from barrel_inference.kvcache import lookup
from barrel_inference.kvcache.namespace import Namespace
from barrel_inference.kvcache.store import Shape, Store
from barrel_inference.kvcache.tier import Tier
from benchmarks.report import Table, spread
from benchmarks.setting import GIB, Setting

N_PROMPT = 32_000
LOOKUPS = 20


class Taken(NamedTuple):
    """Seconds, but for ``found``: tokens."""

    ready_s: float
    asked_s: float
    opened_s: float
    first_s: float
    again_s: float
    found: int


async def measure(chosen: Setting) -> list[Table]:
    few, many = (500, 2_000) if chosen.quick else (500, 50_000)
    table = Table("store_scale", "Does a large store slow anything down?")
    for n_objects in (few, many):
        folder = chosen.folder("store")
        await _fill(folder, n_objects)
        table.rows.append(_row(folder, [await _take(folder) for _ in range(chosen.rounds)]))
    return [table]


def _row(folder: Path, taken: list[Taken]) -> dict[str, Any]:
    return {
        "objects": len(list(folder.rglob("*.block.*"))),
        "worker ready, s": spread([one.ready_s for one in taken]),
        "index read, s": spread([one.opened_s for one in taken]),
        "tokens found": taken[0].found,
        "first lookup, ms": spread([one.first_s * 1000 for one in taken]),
        "later lookups, ms": spread([one.again_s * 1000 for one in taken]),
        "asked over the API, ms": spread([one.asked_s * 1000 for one in taken]),
    }


def _text(seed: int) -> list[int]:
    return [(seed * 7919 + position * 31) % 200 for position in range(N_PROMPT)]


async def _fill(folder: Path, n_objects: int) -> None:
    async with AsyncRuntime(RuntimeConfig()) as runtime:
        runtime.start_tier("bench", "disk", folder, 20 * GIB)
        model = await runtime.load_model("fill", **_stub())
        for seed in range(n_objects * BLOCK_TOKENS // N_PROMPT):
            await model.prefill(_text(seed))
            if seed % 4 == 3:  # a pin waits for the writer, whose full queue would drop what follows
                await model.pin(_text(seed))
                await model.unpin(_text(seed))


async def _take(folder: Path) -> Taken:
    async with AsyncRuntime(RuntimeConfig()) as runtime:
        runtime.start_tier("bench", "disk", folder, 20 * GIB)
        began = time.perf_counter()
        model = await runtime.load_model("look", **_stub())
        ready_s = time.perf_counter() - began
        began = time.perf_counter()
        found = await model.lookup(_text(0))
        asked_s = time.perf_counter() - began
    return Taken(ready_s, asked_s, *_within_the_store(folder), found.cached_tokens)


def _within_the_store(folder: Path) -> tuple[float, float, float]:
    """Seconds to read the index, of the first lookup, of a later one (the mean)."""
    about = next(folder.glob("*/ns.json"))
    namespace = msgspec.json.decode(about.read_bytes(), type=Namespace).digest()
    tier = Tier(TierSpec(name="bench", kind="disk", path=str(folder), quota_bytes=20 * GIB))
    tokens = _text(0)
    times = [time.perf_counter()]
    store = Store([tier], None, namespace, Shape(has_blocks=True, n_swa=0, has_state=False))
    times.append(time.perf_counter())
    for _ in range(LOOKUPS + 1):
        lookup.find(store, tokens, limit=lambda at: at)
        times.append(time.perf_counter())
    return times[1] - times[0], times[2] - times[1], (times[-1] - times[2]) / LOOKUPS


def _stub() -> dict[str, Any]:
    return {"backend": "stub", "tier": "disk", "tier_srv": "bench", "context_opts": {"n_ctx": N_PROMPT + 64}}
