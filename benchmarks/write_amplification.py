"""Bytes on disk per unique token: of one long prompt with its answer, and of conversations that grow turn by turn, each
turn asked twice (the second answer may differ from the first: then its tokens are unique, too)."""

from __future__ import annotations

from functools import partial
from typing import Any

from barrel_inference import AsyncModel, AsyncRuntime
from barrel_inference.config import RuntimeConfig
from benchmarks.report import Table
from benchmarks.setting import GIB, Setting, ask, objects, prompt

N_FIRST = 500
TURNS = ((60, 40), (12, 8))  # tokens asked and answered


async def measure(chosen: Setting) -> list[Table]:
    n_long, n_answer, turns = (500, 50, 4) if chosen.quick else (2048, 200, 20)

    async def document(model: AsyncModel) -> int:
        text = await prompt(model, n_long, seed=1)
        answer = await ask(model, text, n_answer)
        return _unique([(*text, *answer.completion.tokens)])

    async def conversation(model: AsyncModel, n_turn: int, n_answer: int) -> int:
        history, said = await prompt(model, N_FIRST, seed=1), []
        for turn in range(turns):
            history += await prompt(model, n_turn, seed=2 + turn)
            answers = [(await ask(model, history, n_answer)).completion.tokens for _ in range(2)]
            said += [(*history, *answer) for answer in answers]
            history += answers[0]
        return _unique(said)

    table = Table("write_amplification", "How many bytes are written for each unique token?")
    table.rows = [await _scenario(chosen, f"a prompt of {n_long} tokens, {n_answer} answered", document)]
    for sizes in TURNS:
        name = f"{turns} turns of {sizes[0]} + {sizes[1]} tokens after {N_FIRST}"
        table.rows.append(await _scenario(chosen, name, partial(conversation, n_turn=sizes[0], n_answer=sizes[1])))
    return [table]


def _unique(said: list[tuple[int, ...]]) -> int:
    """Nodes of the trie of all that was said."""
    trie: dict[tuple[int, int], int] = {}
    for tokens in said:
        node = 0
        for token in tokens:
            node = trie.setdefault((node, token), len(trie) + 1)
    return len(trie)


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
