"""``barrel-inference bench``: how fast this model runs on this machine, in the three figures that matter: reading a
prompt, having read it before, and writing answers side by side. Owns a private runtime; nothing of it stays."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import msgspec
import typer

from barrel_inference.aio import AsyncModel
from barrel_inference.cli import local
from barrel_inference.cli.report import Json, print_json
from barrel_inference.config import RuntimeConfig

WARM_UP_TOKENS = 8
SHORT_PROMPT = 16


class Figures(msgspec.Struct, kw_only=True):
    """Tokens a second, except where the name says seconds."""

    model: str
    prompt_tokens: int
    read_tokens_s: float
    read_s: float
    again_s: float
    restored_tokens: int
    write_tokens_s: dict[int, float]  # by answers side by side, all of them together


def register(app: typer.Typer) -> None:
    app.command()(bench)


def bench(
    model: Annotated[str, typer.Argument(help="A GGUF file, or a name.")],
    prompt_tokens: Annotated[int, typer.Option(min=64, metavar="<int>", help="Length of the prompt to read.")] = 1024,
    tokens: Annotated[int, typer.Option(min=8, metavar="<int>", help="Length of each answer.")] = 64,
    sequences: Annotated[
        list[int] | None, typer.Option(metavar="<int>", help="Answers side by side; repeatable. [default: 1 4]")
    ] = None,
    gpu_layers: Annotated[int, typer.Option(help="Layers on the GPU; 99 is all of them.")] = 0,
    json: Json = False,
) -> None:
    """Measure a model on this machine: reading, reading again, writing.

    Example: barrel-inference bench smollm2:135m --sequences 1 --sequences 8
    """
    widths = sequences or [1, 4]
    figures = asyncio.run(_measure(model, prompt_tokens, tokens, widths, gpu_layers))
    if json:
        print_json(figures)
    else:
        typer.echo(text(figures))


async def _measure(name: str, n_prompt: int, n_tokens: int, widths: list[int], gpu_layers: int) -> Figures:
    context = {"n_ctx": max(n_prompt, SHORT_PROMPT) + n_tokens, "n_seq_max": max(widths)}
    options = {"model_opts": {"n_gpu_layers": gpu_layers}, "context_opts": context}
    async with local.loaded(await local.find(name), RuntimeConfig(), **options) as model:
        await _ask(model, _prompt(model, SHORT_PROMPT, 0), WARM_UP_TOKENS, cache="off")
        prompt = _prompt(model, n_prompt, 1)
        read_s, _ = await _ask(model, prompt, 1)
        again_s, restored = await _ask(model, prompt, 1)
        rates = {width: await _write_rate(model, width, n_tokens) for width in widths}
    return Figures(
        model=name,
        prompt_tokens=n_prompt,
        read_tokens_s=n_prompt / read_s,
        read_s=read_s,
        again_s=again_s,
        restored_tokens=restored,
        write_tokens_s=rates,
    )


def _prompt(model: AsyncModel, n_tokens: int, seed: int) -> list[int]:
    """Token ids from the middle of the vocabulary, where ordinary words are."""
    n_vocab = model.info().n_vocab
    return [n_vocab // 4 + (seed * 7919 + position * 104_729) % (n_vocab // 2) for position in range(n_tokens)]


async def _ask(model: AsyncModel, prompt: list[int], n_tokens: int, **params: Any) -> tuple[float, int]:
    """Seconds it took, tokens restored."""
    began = time.perf_counter()
    done = await model.complete(prompt, max_tokens=n_tokens, temperature=0.0, ignore_eos=True, **params)
    return time.perf_counter() - began, done.cache.restored_tokens


async def _write_rate(model: AsyncModel, width: int, n_tokens: int) -> float:
    prompts = [_prompt(model, SHORT_PROMPT, 100 + index) for index in range(width)]
    began = time.perf_counter()
    await asyncio.gather(*(_ask(model, prompt, n_tokens, cache="off") for prompt in prompts))
    return width * n_tokens / (time.perf_counter() - began)


def text(figures: Figures) -> str:
    lines = [
        f"reads     {figures.read_tokens_s:,.0f} tokens/s  ({figures.prompt_tokens:,} in {figures.read_s:.2f} s)",
        f"again     {figures.again_s:.3f} s  ({figures.restored_tokens:,} tokens restored, "
        f"{figures.read_s / figures.again_s:.0f} × sooner)",
    ]
    for width, rate in figures.write_tokens_s.items():
        lines.append(f"writes    {rate:,.0f} tokens/s  ({width} side by side)")
    return "\n".join(lines)
