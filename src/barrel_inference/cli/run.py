"""``barrel-inference run``: one answer to one prompt, streamed; or, on a terminal without a prompt, a conversation."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any, NamedTuple

import typer

from barrel_inference.aio import AsyncModel, AsyncStream
from barrel_inference.aio.chat import AsyncChatStream
from barrel_inference.chat.events import Content, Finished, Reasoning
from barrel_inference.cli import local, wishes
from barrel_inference.cli.client import Client
from barrel_inference.cli.private import check_loading, running
from barrel_inference.cli.report import Json, print_json
from barrel_inference.cli.session import limited
from barrel_inference.server.models.catalog import Entry
from barrel_inference.server.models.parameters import OLLAMA_DEFAULTS, merge, translate
from barrel_inference.types import CacheReport, Chunk, Completion, Timings, Usage

N_CTX = 4096  # unless the model or the user says otherwise


def register(app: typer.Typer) -> None:
    app.command(cls=wishes.Command)(run)


def run(
    model: Annotated[str, typer.Argument(help="A GGUF file, or a name such as smollm2:135m.")],
    prompt: Annotated[list[str] | None, typer.Argument(help="What to ask. Piped input comes before it.")] = None,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False,
    max_tokens: Annotated[int | None, typer.Option(min=0, help="Stop after this many tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 always picks the likeliest token.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed and prompt give the same text.")] = None,
    ctx: Annotated[int | None, typer.Option(min=1, help="Tokens of prompt and answer together.")] = None,
    gpu_layers: Annotated[int | None, typer.Option(help="Layers on the GPU; 99 is all of them.")] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="The answer's form: json, a JSON schema, or the file of one.")
    ] = None,
    think: Annotated[
        str | None, typer.Option("--think", metavar="[LEVEL]", help="Let it think first: low, medium, high, max.")
    ] = None,
    no_think: Annotated[bool, typer.Option("--no-think", help="Let it answer without thinking.")] = False,
    keep_alive: Annotated[
        str | None, typer.Option("--keepalive", help="How long a server keeps the model loaded: 10m, -1.")
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Do not use saved state, and save none.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also print token counts and times.")] = False,
    json: Json = False,
) -> None:
    """Answer a prompt with a model; no server is needed.

    If a server is running on this machine and has the model, or BARREL_INFERENCE_HOST names one, the server answers.
    Otherwise the model is loaded for this command alone. A long prompt is read once: it is kept on disk, and the next
    run that begins in the same way continues from there. Without a prompt this starts a conversation.

    Example: barrel-inference run smollm2:135m "Why is the sky blue?"

    Example: barrel-inference run model.gguf "Summarise this." < report.txt

    Example: barrel-inference run smollm2:135m --format schema.json "Name three rivers."

    Example: barrel-inference run qwen3:4b --think low --keepalive 1h "Why is the sky blue?"
    """
    wished = wishes.wishes(form, think, no_think, keep_alive, raw=raw)
    given = _given(num_predict=max_tokens, temperature=temperature, seed=seed, num_ctx=ctx, num_gpu=gpu_layers)
    if not prompt and sys.stdin.isatty() and not (raw or json):
        from barrel_inference.cli.repl import converse

        converse(model, system=system, options=given, cache=not no_cache, verbose=verbose, wishes=wished)
        return
    question = local.question(" ".join(prompt or ()))  # no quotes needed, as in Ollama
    if (found := running(model)) is not None:
        check_loading(*found, given)
        body = {"options": given, **({"cache": "off"} if no_cache else {}), **wished.body()}
        body |= _said(question, system, raw)
        completion = _ask_there(*found, body, silent=json)
    else:
        params = _given(max_tokens=max_tokens, temperature=temperature, seed=seed) | wished.params()
        context, layers = _given(n_ctx=ctx), _given(n_gpu_layers=gpu_layers)
        options = {"context_opts": context, "model_opts": layers, "cache": not no_cache}
        completion = asyncio.run(_answer(model, Asked(question, system, raw, params), options, silent=json))
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


def _ask_there(server: Client, model: str, body: dict[str, Any], silent: bool) -> Completion:
    """Stream to standard output unless ``silent``. As in a process of our own, a prompt that is too long is an error,
    and the answer ends where the context does."""
    path = "/api/chat" if "messages" in body else "/api/generate"
    text, piece = "", {}
    for piece in server.lines(path, body | {"model": model, "truncate": False, "shift": False}):
        said = piece.get("message", piece)
        answer, thought = said.get("content") or said.get("response") or "", said.get("thinking") or ""
        text += thought + answer
        if not silent:
            typer.echo(thought, nl=False, err=True)
            typer.echo(answer, nl=False)
    if not silent:
        typer.echo()
    if note := limited(piece):
        typer.echo(note, err=True)
    return told(text, piece)


def told(text: str, final: dict[str, Any]) -> Completion:
    """The last piece of a server's answer as a runtime of our own would say it, but for the token ids, which the server
    keeps to itself."""
    seconds = {name: final.get(f"{name}_duration", 0) / 1e9 for name in ("total", "load", "prompt_eval", "eval")}
    prompt, cached = final.get("prompt_eval_count", 0), final.get("prompt_eval_cached_count") or 0
    cache = final.get("cache") or {}
    return Completion(
        text=text,
        tokens=(),
        finish_reason=final.get("done_reason") or "stop",
        finish_key=final.get("finish_key"),
        cache=CacheReport(**cache | {"prefilled_tokens": prompt - cached}),
        usage=Usage(prompt_tokens=prompt, completion_tokens=final.get("eval_count", 0), cached_tokens=cached),
        timings=Timings(
            prefill_s=seconds["prompt_eval"],
            decode_s=seconds["eval"],
            first_token_s=max(0.0, seconds["total"] - seconds["load"] - seconds["eval"]),
            total_s=seconds["total"],
        ),
    )


async def _answer(name: str, asked: Asked, options: dict[str, Any], silent: bool) -> Completion:
    """Stream to standard output unless ``silent``."""
    entry = await local.find(name)
    own = translate(entry.parameters)
    configuration = local.configuration()
    context = {"context_opts": {"n_ctx": own.n_ctx or configuration.server.context_size or N_CTX}}
    loaded = local.loaded(entry, configuration, **merge(merge(context, own.load), options))
    completion = None
    async with loaded as model, _stream(model, entry, asked, OLLAMA_DEFAULTS | own.request | asked.params) as stream:
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
    own = local.template(entry)
    if asked.raw or (model.info().chat_template is None and not own and "think" not in asked.params):
        return model.stream(asked.question, **params)
    return model.chat_stream(local.conversation(entry, asked.question, asked.system), **params | own)


def summary(completion: Completion) -> str:
    """One line: how much of the prompt was known, and how fast the rest was."""
    usage, cache, times = completion.usage, completion.cache, completion.timings
    restored = f"{cache.restored_tokens} restored from {cache.tier}, " if cache.restored_tokens else ""
    rate = (usage.completion_tokens - 1) / times.decode_s if times.decode_s else 0.0
    return (
        f"{usage.prompt_tokens} prompt tokens ({restored}{cache.prefilled_tokens} read), "
        f"first token after {times.first_token_s:.3f} s, {usage.completion_tokens} tokens at {rate:.1f}/s"
    )
