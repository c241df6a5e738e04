"""Bytes on disk per unique token: of one long prompt with its answer, and of a conversation that grows turn by turn,
each turn asked twice."""

from __future__ import annotations

from typing import Any

from barrel_inference import AsyncModel, AsyncRuntime
from barrel_inference.config import RuntimeConfig
from benchmarks.report import Table
from benchmarks.setting import GIB, Setting, ask, objects, prompt

N_FIRST, N_TURN, N_ANSWER = 500, 60, 40


async def measure(chosen: Setting) -> list[Table]:
    n_long, n_answer, turns = (500, 50, 4) if chosen.quick else (2048, 200, 20)

    async def document(model: AsyncModel) -> int:
        await ask(model, await prompt(model, n_long, seed=1), n_answer)
        return n_long + n_answer

    async def conversation(model: AsyncModel) -> int:
        history = await prompt(model, N_FIRST, seed=1)
        for turn in range(turns):
            history += await prompt(model, N_TURN, seed=2 + turn)
            answer = await ask(model, history, N_ANSWER)
            await ask(model, history, N_ANSWER)  # a retry writes nothing new
            history += answer.completion.tokens
        return len(history)

    table = Table("write_amplification", "How many bytes are written for each unique token?")
    table.rows = [
        await _scenario(chosen, f"a prompt of {n_long} tokens, {n_answer} answered", document),
        await _scenario(chosen, f"{turns} turns of {N_TURN} + {N_ANSWER} tokens after {N_FIRST}", conversation),
    ]
    return [table]


async def _scenario(chosen: Setting, name: str, work: Any) -> dict[str, Any]:
    folder = chosen.folder("writes")
    async with AsyncRuntime(RuntimeConfig()) as runtime:
        runtime.start_tier("bench", "disk", folder, 20 * GIB)
        options: dict[str, Any] = {"tier": "disk", "tier_srv": "bench", "context_opts": {"n_ctx": 4096}}
        model = await runtime.load_model(model_path=chosen.model_path, **options)
        unique = await work(model)
        ideal = unique * model.info().kv_bytes_per_token
        await runtime.unload(model.id)
        written = (await runtime.cache.stats()).counters["saved_bytes"]
    kept = sum(path.stat().st_size for path in objects(folder))
    return {
        "what": name,
        "unique tokens": unique,
        "objects": len(objects(folder)),
        "MiB written": written / 2**20,
        "written ÷ (unique tokens × bytes a token)": written / ideal,
        "kept ÷ (unique tokens × bytes a token)": kept / ideal,
    }
