"""``barrel-inference run``: one answer to one prompt, streamed; or, on a terminal without a prompt, a conversation."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any, NamedTuple

import typer

from barrel_inference.aio import AsyncModel, AsyncStream
from barrel_inference.aio.chat import AsyncChatStream
from barrel_inference.chat.events import Content, Finished, Reasoning
from barrel_inference.cli import local, remote, session
from barrel_inference.cli.client import Client
from barrel_inference.cli.report import Json, print_json
from barrel_inference.server.models.catalog import Entry
from barrel_inference.server.models.parameters import merge, translate
from barrel_inference.types import Chunk, Completion

N_CTX = 4096  # unless the model or the user says otherwise


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
    ctx: Annotated[int | None, typer.Option(help="Tokens of prompt and answer together.")] = None,
    gpu_layers: Annotated[int | None, typer.Option(help="Layers on the GPU; 99 is all of them.")] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Neither look for saved state nor save any.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say afterwards what it took.")] = False,
    json: Json = False,
) -> None:
    """Answer a prompt with a model; no server is needed.

    Where BARREL_INFERENCE_HOST names a server, that one answers. A long prompt is read once: what was read is kept on
    disk, and the next run with the same beginning starts there.

    Example: barrel-inference run smollm2:135m "Why is the sky blue?"

    Example: barrel-inference run model.gguf "Summarise this." < report.txt
    """
    if prompt is None and sys.stdin.isatty() and not (raw or json):
        from barrel_inference.cli.repl import converse

        converse(
            model,
            system=system,
            options=_given(num_predict=max_tokens, temperature=temperature, seed=seed, num_ctx=ctx),
        )
        return
    if (server := remote.named()) is not None:
        options = _given(num_predict=max_tokens, temperature=temperature, seed=seed, num_ctx=ctx, num_gpu=gpu_layers)
        body = {"model": model, "options": options, **({"cache": "off"} if no_cache else {})}
        final = _ask_there(server, body | _said(local.question(prompt), system, raw), silent=json)
        if json:
            print_json(final)
        elif verbose:
            typer.echo(session.summary(final), err=True)
        return
    params = _given(max_tokens=max_tokens, temperature=temperature, seed=seed)
    context, layers = _given(n_ctx=ctx), _given(n_gpu_layers=gpu_layers)
    asked = Asked(local.question(prompt), system, raw, params)
    options = {"context_opts": context, "model_opts": layers, "cache": not no_cache}
    completion = asyncio.run(_answer(model, asked, options, silent=json))
    if json:
        print_json(completion)
    elif verbose:
        typer.echo(summary(completion), err=True)


class Asked(NamedTuple):
    """What the user wants; ``params`` are of aio.params."""

    question: str
    system: str | None
    raw: bool
    params: dict[str, Any]


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _said(question: str, system: str | None, raw: bool) -> dict[str, Any]:
    if raw:
        return {"prompt": question, "raw": True}
    messages = [{"role": "system", "content": system}] if system else []
    return {"messages": [*messages, {"role": "user", "content": question}]}


def _ask_there(server: Client, body: dict[str, Any], silent: bool) -> dict[str, Any]:
    """Stream to standard output unless ``silent``; the server's last piece."""
    path = "/api/chat" if "messages" in body else "/api/generate"
    if silent:
        return dict(server.ask("POST", path, body | {"stream": False}))
    piece: dict[str, Any] = {}
    for piece in server.lines(path, body):
        said = piece.get("message", piece)
        typer.echo(said.get("thinking") or "", nl=False, err=True)
        typer.echo(said.get("content") or said.get("response") or "", nl=False)
    typer.echo()
    return piece


async def _answer(name: str, asked: Asked, options: dict[str, Any], silent: bool) -> Completion:
    """Stream to standard output unless ``silent``."""
    entry = await local.find(name)
    own = translate(entry.parameters)
    configuration = local.configuration()
    context = {"context_opts": {"n_ctx": own.n_ctx or configuration.server.context_size or N_CTX}}
    loaded = local.loaded(entry, configuration, **merge(merge(context, own.load), options))
    completion = None
    async with loaded as model, _stream(model, entry, asked, own.request | asked.params) as stream:
        async for item in stream:
            if isinstance(item, Chunk | Content | Reasoning) and not silent:
                typer.echo(item.text, nl=False, err=isinstance(item, Reasoning))
            if isinstance(item, Chunk | Finished):
                completion = item.completion
    if not silent:
        typer.echo()
    assert completion is not None  # the last one of a stream that did not raise
    return completion


def _stream(model: AsyncModel, entry: Entry, asked: Asked, params: dict[str, Any]) -> AsyncStream | AsyncChatStream:
    """A conversation as the model's template writes it; where it has none, the question as plain text."""
    if asked.raw or model.info().chat_template is None:
        return model.stream(asked.question, **params)
    return model.chat_stream(local.conversation(entry, asked.question, asked.system), **params)


def summary(completion: Completion) -> str:
    """One line: how much of the prompt was known, and how fast the rest was."""
    usage, cache, times = completion.usage, completion.cache, completion.timings
    restored = f"{cache.restored_tokens} restored from {cache.tier}, " if cache.restored_tokens else ""
    rate = (usage.completion_tokens - 1) / times.decode_s if times.decode_s else 0.0
    return (
        f"{usage.prompt_tokens} prompt tokens ({restored}{cache.prefilled_tokens} read), "
        f"first token after {times.first_token_s:.3f} s, {usage.completion_tokens} tokens at {rate:.1f}/s"
    )
