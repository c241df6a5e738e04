"""An edit in the middle of a long history: how much before it is reused."""

from __future__ import annotations

from typing import Any

from benchmarks.report import Table, spread
from benchmarks.setting import Answer, Setting, ask, loaded, prompt

PLACES = (0.1, 0.25, 0.5, 0.75, 0.95)


async def measure(chosen: Setting) -> list[Table]:
    n_history = 512 if chosen.quick else 4000
    table = Table("edits", "What does an edit in the middle of a history cost?")
    taken: dict[float, list[tuple[Answer, Answer]]] = {place: [] for place in PLACES}
    for turn in range(chosen.rounds):
        for index, place in enumerate(PLACES):
            taken[place].append(await _edit(chosen, n_history, place, seed=turn * 100 + index))
    table.rows = [_row(n_history, place, pairs) for place, pairs in taken.items()]
    return [table]


async def _edit(chosen: Setting, n_history: int, place: float, seed: int) -> tuple[Answer, Answer]:
    """Cold, then with one token exchanged at ``place`` after a restart of the runtime."""
    folder, room = chosen.folder("edits"), {"n_ctx": n_history + 64}
    async with loaded(chosen, tier="disk", folder=folder, context_opts=room) as model:
        history = await prompt(model, n_history, seed)
        cold = await ask(model, history)
    position = int(n_history * place)
    history[position] = history[position] + 1
    async with loaded(chosen, tier="disk", folder=folder, context_opts=room) as model:
        return cold, await ask(model, history)


def _row(n_history: int, place: float, pairs: list[tuple[Answer, Answer]]) -> dict[str, Any]:
    position = int(n_history * place)
    restored = min(edited.restored for _, edited in pairs)
    return {
        "edit at token": position,
        "of": n_history,
        "restored": restored,
        "of what was reusable": f"{restored / position:.1%}",
        "cold, s": spread([cold.first_token_s for cold, _ in pairs]),
        "edited, s": spread([edited.first_token_s for _, edited in pairs]),
        "edited ÷ cold": spread([edited.first_token_s / cold.first_token_s for cold, edited in pairs]),
    }
