"""One chat request on one model: what of the conversation fits, prompt, events. Owns nothing; the turn itself is
``aio.chat``'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from barrel_inference.aio import AsyncModel, AsyncStream
from barrel_inference.aio.chat import adds_special, dialogue_of, events, said
from barrel_inference.chat.dialogue import Dialogue, Prompt, Turn
from barrel_inference.chat.events import Event, Finished
from barrel_inference.errors import InvalidRequestError
from barrel_inference.server.fitting import shortened
from barrel_inference.server.http import record
from barrel_inference.server.neutral import ChatRequest, Think, ToolChoice
from barrel_inference.types import ModelInfo

Messages = Sequence[Mapping[str, Any]]


class Features(NamedTuple):
    """What a model's template lets it do."""

    tools: bool
    thinking: bool


class Fitted(NamedTuple):
    """``tokens``: what the model reads in place of the prompt's text. ``dropped``: what was left out of it."""

    prompt: Prompt
    dropped_messages: int = 0
    tokens: tuple[int, ...] | None = None
    dropped_tokens: int = 0


def features(info: ModelInfo, chat_template: str | None = None) -> Features:
    """Blocking: some milliseconds at the first call for a template."""
    dialogue = dialogue_of(info, chat_template)
    return Features(dialogue.has_native_tools, dialogue.can_think)


async def render(model: AsyncModel, request: ChatRequest) -> str:
    """As the model reads it, behind an earlier conversation too."""
    before = await model.detokenize(request.context) if request.context else ""
    return before + (await _prompt(model, request)).prompt.text


async def count_tokens(model: AsyncModel, request: ChatRequest) -> int:
    """Of the prompt that ``chat_events`` would read."""
    prompt = (await _prompt(model, request)).prompt
    return await _count(model, prompt.text)


async def chat_events(model: AsyncModel, request: ChatRequest) -> AsyncGenerator[Event, None]:
    """The answer as it comes. Closing the generator stops the work."""
    fitted = await _prompt(model, request)
    dialogue = dialogue_of(model.info(), request.chat_template)

    def start(asked: str | Sequence[int], **options: Any) -> AsyncStream:
        if isinstance(asked, str) and fitted.tokens is not None:
            asked, options = fitted.tokens, options | {"boundaries": ()}
        stream = model.stream(asked, **options)
        record.current().streams.append(stream)
        return stream

    found = events(model, dialogue, fitted.prompt, request.options, think_budget=request.think_budget, start=start)
    dropped = {"dropped_messages": fitted.dropped_messages, "dropped_tokens": fitted.dropped_tokens}
    async with aclosing(found):
        async for event in found:
            yield msgspec.structs.replace(event, **dropped) if isinstance(event, Finished) else event


# ---- the prompt


async def _prompt(model: AsyncModel, request: ChatRequest) -> Fitted:
    """Rendered on another thread: long conversations take milliseconds, a hostile template all its time."""
    dialogue = await asyncio.to_thread(dialogue_of, model.info(), request.chat_template)
    turn = await asyncio.to_thread(_turn, request, dialogue)
    prompt = await asyncio.to_thread(dialogue.prompt, turn)
    n_before = len(request.context)
    fitted, fits = Fitted(prompt), True
    if request.truncate and not await _fits(model, prompt, n_before):
        fitted, fits = await _without_old(model, dialogue, turn, fitted, n_before)
    if fits and not request.context:
        return fitted
    return await _as_tokens(model, request, fitted, cut=not fits)


async def _as_tokens(model: AsyncModel, request: ChatRequest, fitted: Fitted, *, cut: bool) -> Fitted:
    """Behind those of an earlier conversation and, with ``cut``, without its middle where that is wanted."""
    text, n_ctx = fitted.prompt.text, model.info().n_ctx
    adds = not request.context and adds_special(model.info(), text)
    tokens = (*request.context, *await model.tokenize(text, add_special=adds))
    if not cut or request.num_keep is None:
        return fitted._replace(tokens=tokens)
    shorter = shortened(tokens, n_ctx, request.num_keep, request.options.get("max_tokens"))
    return fitted._replace(tokens=shorter, dropped_tokens=len(tokens) - len(shorter))


async def _without_old(
    model: AsyncModel, dialogue: Dialogue, turn: Turn, whole: Fitted, n_before: int
) -> tuple[Fitted, bool]:
    """Without as many of the oldest messages as needed, and whether it fits then."""
    low, high = 1, len(_old(turn.messages))
    best, fits = whole, False
    while low <= high:
        middle = (low + high) // 2
        kept = _without(turn.messages, middle)
        prompt = await asyncio.to_thread(dialogue.prompt, turn._replace(messages=kept))
        found = Fitted(prompt, len(turn.messages) - len(kept))
        if await _fits(model, prompt, n_before):
            best, fits, high = found, True, middle - 1
        else:
            best, low = best if fits else found, middle + 1
    return best, fits


def _old(messages: Messages) -> list[int]:
    """Which may be left out, the oldest first: not the system's nor the last one, with the call that it is the result
    of."""
    last = max((index for index, message in enumerate(messages) if message["role"] != "tool"), default=0)
    return [index for index in range(last) if messages[index]["role"] not in ("system", "developer")]


def _without(messages: Messages, count: int) -> Messages:
    """Without the oldest ``count`` that may be left out, and without results whose calls are among them."""
    old = _old(messages)
    while count < len(old) and messages[old[count]]["role"] == "tool":
        count += 1
    return [message for index, message in enumerate(messages) if index not in old[:count]]


async def _fits(model: AsyncModel, prompt: Prompt, n_before: int) -> bool:
    room = model.info().n_ctx - n_before
    return len(prompt.text.encode()) < room or await _count(model, prompt.text) < room  # a token has a byte or more


async def _count(model: AsyncModel, text: str) -> int:
    return len(await model.tokenize(text, add_special=adds_special(model.info(), text)))


def _turn(request: ChatRequest, dialogue: Dialogue) -> Turn:
    if not request.messages:
        raise InvalidRequestError("a conversation needs at least one message", option="messages")
    return Turn(
        messages=[said(message) for message in request.messages],
        tools=request.tools,
        choice=_choice(request.tool_choice),
        parallel=request.parallel_tool_calls,
        constraint=request.constraint,
        think=_think(request, dialogue),
        documents=request.documents,
        template=request.template,
        continue_final=request.continue_final,
        salt=str(request.options.get("salt", "")),
    )


def _think(request: ChatRequest, dialogue: Dialogue) -> Think:
    if request.think_if_able and request.think and not dialogue.can_think:
        record.current().ignored += ("thinking",)
        return None
    return request.think


def _choice(choice: ToolChoice) -> str:
    return f"named:{choice.name}" if choice.mode == "named" else choice.mode
