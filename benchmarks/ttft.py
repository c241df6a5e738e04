"""Time to first token over prompt length: cold, then warm from each tier, after a restart, after a worker's death, each
beside its floor: bytes ÷ measured read bandwidth + one decode."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from barrel_inference import AsyncModel
from barrel_inference.types import TierKind
from benchmarks.report import Table, spread
from benchmarks.setting import Answer, Setting, ask, forget_pages, loaded, prompt, read_bandwidth, tmpfs_folder

LENGTHS = (256, 512, 1024, 2048, 4096, 7000)
ROOM = 64  # tokens of context beside the prompt
COLD = "cold"


class Sample(NamedTuple):
    """One answer. ``floor_s`` is 0 where there is nothing to read."""

    arm: str
    first_token_s: float
    floor_s: float
    restored: int
    text: str


async def measure(chosen: Setting) -> list[Table]:
    rows = []
    same_text = True
    for n_tokens in chosen.lengths or (LENGTHS[:2] if chosen.quick else LENGTHS):
        samples: list[Sample] = []
        for turn in range(chosen.rounds):
            mine = await _turn(chosen, n_tokens, seed=n_tokens * 1000 + turn)
            same_text &= len({sample.text for sample in mine}) == 1
            samples += mine
        rows += _rows(n_tokens, samples)
    table = Table("ttft", "How long until the first token, and how close is that to the floor?", rows)
    table.reading.append(f"Every warm answer was {'' if same_text else 'NOT '}the text of the cold one.")
    return [table]


async def _turn(chosen: Setting, n_tokens: int, seed: int) -> list[Sample]:
    samples = await _within_one_runtime(chosen, n_tokens, seed)
    with tmpfs_folder() as folder:
        samples += await _across_runtimes(chosen, n_tokens, seed, "ram_file", folder)
    return samples + await _across_runtimes(chosen, n_tokens, seed, "disk", chosen.folder("disk"))


async def _within_one_runtime(chosen: Setting, n_tokens: int, seed: int) -> list[Sample]:
    """Cold, again at once, after unload and load, and after the worker was killed: the ram tier."""
    with tmpfs_folder() as folder:
        async with loaded(chosen, folder=folder, tier="ram_file", context_opts={"n_ctx": n_tokens + ROOM}) as model:
            tokens = await prompt(model, n_tokens, seed)
            cold, again = await ask(model, tokens), await ask(model, tokens)
            respawn_s = await _kill_worker(model)
            killed = await ask(model, tokens)
            floor_s = _floor(model, killed, read_bandwidth(folder))
    return [
        _sample(COLD, cold),
        _sample("again at once", again, _decode_s(again)),
        _sample("worker killed", killed, floor_s),
        _sample("worker killed, its respawn included", killed, floor_s + respawn_s, respawn_s),
    ]


async def _across_runtimes(chosen: Setting, n_tokens: int, seed: int, tier: TierKind, folder: Path) -> list[Sample]:
    """Cold in one runtime, then new runtimes on the same directory."""

    async def life(arm: str, prepare: Callable[[Path], None]) -> Sample:
        async with loaded(chosen, folder=folder, tier=tier, context_opts={"n_ctx": n_tokens + ROOM}) as model:
            tokens = await prompt(model, n_tokens, seed)
            prepare(folder)
            answer = await ask(model, tokens)
            prepare(folder)
            return _sample(arm, answer, _floor(model, answer, read_bandwidth(folder)) if answer.restored else 0.0)

    samples = [await life(COLD, _leave), await life(f"{tier}, runtime restarted", _leave)]
    if tier == "disk":
        samples.append(await life("disk, restarted, page cache dropped", forget_pages))
    return samples


def _leave(folder: Path) -> None:
    """The page cache stays as it is."""


async def _kill_worker(model: AsyncModel) -> float:
    """SIGKILL; seconds until another one is ready."""
    pid = model.info().worker_pid
    if pid is None:
        raise RuntimeError("the model has no worker")
    began = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    while (info := model.info()).phase != "ready" or info.worker_pid == pid:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0.002)
    respawn_s = time.perf_counter() - began
    await model.complete("Once upon a time", max_tokens=4, cache="off")  # touches the weights, as ``loaded`` does
    return respawn_s


def _sample(arm: str, answer: Answer, floor_s: float = 0.0, extra_s: float = 0.0) -> Sample:
    return Sample(arm, answer.first_token_s + extra_s, floor_s, answer.restored, answer.completion.text)


def _decode_s(answer: Answer) -> float:
    return statistics.median(answer.gaps())


def _floor(model: AsyncModel, answer: Answer, bandwidth: float) -> float:
    return answer.restored * model.info().kv_bytes_per_token / bandwidth + _decode_s(answer)


def _rows(n_tokens: int, samples: list[Sample]) -> list[dict[str, object]]:
    by_arm: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_arm[sample.arm].append(sample)
    cold_s = statistics.median(sample.first_token_s for sample in by_arm[COLD])
    return [_row(n_tokens, arm, mine, cold_s) for arm, mine in by_arm.items()]


def _row(n_tokens: int, arm: str, mine: list[Sample], cold_s: float) -> dict[str, object]:
    first_token = spread([sample.first_token_s for sample in mine])
    floor_s = statistics.median(sample.floor_s for sample in mine)
    return {
        "prompt tokens": n_tokens,
        "from": arm,
        "restored": min(sample.restored for sample in mine),
        "first token, s": first_token,
        "cold ÷ this": cold_s / first_token.median,
        "floor, s": floor_s or "",
        "this ÷ floor": first_token.median / floor_s if floor_s else "",
    }
