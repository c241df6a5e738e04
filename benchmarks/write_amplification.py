"""Bytes on disk per unique token over a conversation that grows turn by turn and is asked again."""

from __future__ import annotations

from benchmarks.report import Table
from benchmarks.setting import Setting, ask, loaded, objects, prompt

N_FIRST, N_TURN, N_ANSWER = 500, 60, 40


async def measure(chosen: Setting) -> list[Table]:
    turns = 4 if chosen.quick else 20
    n_ctx = N_FIRST + turns * (N_TURN + N_ANSWER) + 64
    folder = chosen.folder("writes")
    async with loaded(chosen, tier="disk", folder=folder, context_opts={"n_ctx": n_ctx}) as model:
        history = await prompt(model, N_FIRST, seed=1)
        for turn in range(turns):
            history += await prompt(model, N_TURN, seed=2 + turn)
            answer = await ask(model, history, N_ANSWER)
            history += answer.completion.tokens
            await ask(model, history[: len(history) - N_ANSWER], N_ANSWER)  # a retry writes nothing new
        bytes_per_token = model.info().kv_bytes_per_token
    files = objects(folder)
    written = sum(path.stat().st_size for path in files)
    ideal = len(history) * bytes_per_token
    row = {
        "turns": turns,
        "unique tokens": len(history),
        "bytes a token": bytes_per_token,
        "objects": len(files),
        "bytes kept": written,
        "kept ÷ (unique tokens × bytes a token)": written / ideal,
    }
    return [Table("write_amplification", "How many bytes are written for each unique token?", [row])]
