"""``barrel-inference run``: one answer to one prompt, streamed; or, on a terminal without a prompt, a conversation."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import typer

from barrel_inference.aio import AsyncModel, AsyncStream
from barrel_inference.cli import local
from barrel_inference.cli.report import Json, print_json
from barrel_inference.errors import ConfigError
from barrel_inference.types import Completion


def register(app: typer.Typer) -> None:
    app.command()(run)


def run(
    model: Annotated[str, typer.Argument(help="A GGUF file, or a name such as smollm2:135m.")],
    prompt: Annotated[str | None, typer.Argument(help="What to ask. Piped input comes before it.")] = None,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False,
    max_tokens: Annotated[int | None, typer.Option(help="Stop after so many tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 always takes the likeliest token.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed and prompt give the same text.")] = None,
    ctx: Annotated[int, typer.Option(help="Tokens of prompt and answer together.")] = 4096,
    gpu_layers: Annotated[int, typer.Option(help="Layers on the GPU; 99 is all of them.")] = 0,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Neither look for saved state nor save any.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say afterwards what it took.")] = False,
    json: Json = False,
) -> None:
    """Answer a prompt with a model, without a server.

    A long prompt is read once: what was read is kept on disk, and the next run with the same beginning starts there.

    Example: barrel-inference run smollm2:135m "Why is the sky blue?"

    Example: barrel-inference run model.gguf "Summarise this." < report.txt
    """
    question = _question(prompt)
    sampling = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    params = {name: value for name, value in sampling.items() if value is not None}
    options = {"context_opts": {"n_ctx": ctx}, "model_opts": {"n_gpu_layers": gpu_layers}, "cache": not no_cache}
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": question})
    completion = asyncio.run(_answer(model, question if raw else messages, params, options, silent=json))
    if json:
        print_json(completion)
    elif verbose:
        typer.echo(summary(completion), err=True)


def _question(prompt: str | None) -> str:
    """Piped input first: a document stays the same while the questions about it change."""
    piped = "" if sys.stdin.isatty() else sys.stdin.read().strip("\n")
    question = "\n\n".join(part for part in (piped, prompt) if part)
    if not question:
        raise ConfigError('there is nothing to ask: barrel-inference run MODEL "a question"', option="prompt")
    return question


async def _answer(
    model_name: str, asked: str | list[dict[str, str]], params: dict[str, Any], options: dict[str, Any], silent: bool
) -> Completion:
    """Stream to standard output unless ``silent``."""
    loaded = local.loaded(model_name, local.configuration(), **options)
    async with loaded as model, await _stream(model, asked, params) as stream:
        async for chunk in stream:
            if not silent:
                typer.echo(chunk.text, nl=False)
            completion = chunk.completion
    if not silent:
        typer.echo()
    assert completion is not None  # the last chunk of a stream that did not raise
    return completion


async def _stream(model: AsyncModel, asked: str | list[dict[str, str]], params: dict[str, Any]) -> AsyncStream:
    """A conversation as the model's template writes it; where it has none, its last message as plain text."""
    if isinstance(asked, str):
        return model.stream(asked, **params)
    if model.info().chat_template is None:
        return model.stream(asked[-1]["content"], **params)
    return await model.chat_stream(asked, **params)


def summary(completion: Completion) -> str:
    """One line: how much of the prompt was known, and how fast the rest was."""
    usage, cache, times = completion.usage, completion.cache, completion.timings
    rate = (usage.completion_tokens - 1) / times.decode_s if times.decode_s else 0.0
    return (
        f"{usage.prompt_tokens} prompt tokens ({cache.restored_tokens} restored from {cache.tier or 'nowhere'}, "
        f"{cache.prefilled_tokens} read), first token after {times.first_token_s:.3f} s, "
        f"{usage.completion_tokens} tokens at {rate:.1f}/s"
    )
