"""What saving costs the engine: its own clock around every capture, and prefill with saving beside prefill without."""

from __future__ import annotations

from barrel_inference import AsyncRuntime
from barrel_inference.config import RuntimeConfig
from benchmarks.report import Table, spread
from benchmarks.setting import Setting, ask, prompt


async def measure(chosen: Setting) -> list[Table]:
    n_prompt = 512 if chosen.quick else 2048
    shares, saving, without = [], [], []
    for turn in range(chosen.rounds):
        async with AsyncRuntime(RuntimeConfig()) as runtime:
            model = await runtime.load_model(model_path=chosen.model_path, context_opts={"n_ctx": n_prompt + 64})
            tokens = await prompt(model, n_prompt, seed=turn)
            without.append((await ask(model, tokens, n_tokens=2, cache="off")).first_token_s)
            before = (await runtime.cache.stats()).counters
            saving.append((await ask(model, tokens, n_tokens=2)).first_token_s)
            await runtime.unload(model.id)  # its last counters come with its end
            after = (await runtime.cache.stats()).counters
            shares.append((after["save_copy_s"] - before["save_copy_s"]) / saving[-1])
    row = {
        "prompt tokens": n_prompt,
        "engine time in saving, % of the prefill it saves": spread([share * 100 for share in shares]),
        "prefill while saving, s": spread(saving),
        "prefill without, s": spread(without),
        "saving ÷ without": spread([a / b for a, b in zip(saving, without, strict=True)]),
    }
    return [Table("save_cost", "What does saving cost the engine?", [row])]
