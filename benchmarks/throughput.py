"""Decode at 1, 4 and 8 sequences and prefill, beside a bare llama.cpp loop over the same binding in the same run."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

from benchmarks.report import Table, spread
from benchmarks.setting import Setting, ask, loaded, prompt, steady_rate

SEQUENCES = (1, 4, 8)
N_PROMPT = 64


async def measure(chosen: Setting) -> list[Table]:
    n_tokens, n_prefill = (32, 512) if chosen.quick else (192, 2048)
    table = Table("throughput", "Is the engine as fast as the shortest loop over the same binding?")
    for n_sequences in SEQUENCES:
        pairs = [await _decode(chosen, n_sequences, n_tokens, turn) for turn in range(chosen.rounds)]
        table.rows.append(_row(f"decode, {n_sequences} sequences", pairs))
    pairs = [await _prefill(chosen, n_prefill, turn) for turn in range(chosen.rounds)]
    table.rows.append(_row(f"prefill, {n_prefill} tokens", pairs))
    return [table]


async def _decode(chosen: Setting, n_sequences: int, n_tokens: int, turn: int) -> tuple[float, float]:
    """Tokens a second: ours, bare."""
    room = {"n_ctx": N_PROMPT + n_tokens + 64, "n_seq_max": n_sequences}
    async with loaded(chosen, context_opts=room) as model:
        prompts = [await prompt(model, N_PROMPT, seed=turn * 100 + i) for i in range(n_sequences)]
        answers = await asyncio.gather(*(ask(model, tokens, n_tokens) for tokens in prompts))
    sizes = {"sequences": n_sequences, "prompt": N_PROMPT, "tokens": n_tokens}
    return steady_rate(list(answers)), await _bare(chosen, "decode", sizes)


async def _prefill(chosen: Setting, n_prompt: int, turn: int) -> tuple[float, float]:
    async with loaded(chosen, context_opts={"n_ctx": n_prompt + 64}) as model:
        answer = await ask(model, await prompt(model, n_prompt, seed=turn), n_tokens=2)
    return n_prompt / answer.first_token_s, await _bare(chosen, "prefill", {"prefill": n_prompt})


async def _bare(chosen: Setting, figure: str, sizes: dict[str, int]) -> float:
    flags = [f"--{name}={value}" for name, value in sizes.items()]
    command = [sys.executable, "-m", "benchmarks.bare", "--model", chosen.model_path, f"--threads={chosen.threads}"]
    done = await asyncio.to_thread(subprocess.run, [*command, *flags], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)[figure])


def _row(name: str, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """The ratio is taken within each turn, since the machine is not the same from minute to minute."""
    return {
        "what": name,
        "ours, tokens/s": spread([ours for ours, _ in pairs]),
        "bare loop, tokens/s": spread([bare for _, bare in pairs]),
        "ours ÷ bare": spread([ours / bare for ours, bare in pairs]),
    }
