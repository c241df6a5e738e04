"""What saving costs the engine: its own clock around every capture, and prefill with saving beside prefill without."""

from __future__ import annotations

from benchmarks.report import Table, spread
from benchmarks.setting import Setting, ask, loaded, prompt


async def measure(chosen: Setting) -> list[Table]:
    n_prompt = 512 if chosen.quick else 2048
    shares, saving, without = [], [], []
    for turn in range(chosen.rounds):
        async with loaded(chosen, context_opts={"n_ctx": n_prompt + 64}) as model:
            tokens = await prompt(model, n_prompt, seed=turn)
            without.append((await ask(model, tokens, n_tokens=2, cache="off")).first_token_s)
            answer = await ask(model, tokens, n_tokens=2)
            saving.append(answer.first_token_s)
            counters = await model.counters()
            shares.append(counters["capture_s"] / answer.completion.timings.prefill_s)
    row = {
        "prompt tokens": n_prompt,
        "engine time in saving ÷ prefill it saves": spread([share * 100 for share in shares]),
        "prefill while saving, s": spread(saving),
        "prefill without, s": spread(without),
        "saving ÷ without": spread([a / b for a, b in zip(saving, without, strict=True)]),
    }
    return [Table("save_cost", "What does saving cost the engine?", [row])]
