"""One chat request on one model: what of the conversation fits, prompt, events. Owns nothing; the turn itself is
``aio.chat``'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from barrel_inference.aio import AsyncModel
from barrel_inference.aio.chat import adds_special, dialogue_of, events, said
from barrel_inference.chat.dialogue import Dialogue, Prompt, Turn
from barrel_inference.chat.events import Event, Finished
from barrel_inference.errors import InvalidRequestError
from barrel_inference.server.http import record
from barrel_inference.server.neutral import ChatRequest, Think, ToolChoice
from barrel_inference.types import ModelInfo


class Features(NamedTuple):
    """What a model's template lets it do."""

    tools: bool
    thinking: bool


class Fitted(NamedTuple):
    prompt: Prompt
    dropped: int = 0  # messages


def features(info: ModelInfo, chat_template: str | None = None) -> Features:
    """Blocking: some milliseconds at the first call for a template."""
    dialogue = dialogue_of(info, chat_template)
    return Features(dialogue.has_native_tools, dialogue.can_think)


async def render(model: AsyncModel, request: ChatRequest) -> str:
    return (await _prompt(model, request)).prompt.text


async def count_tokens(model: AsyncModel, request: ChatRequest) -> int:
    """Of the prompt that ``chat_events`` would read."""
    prompt = (await _prompt(model, request)).prompt
    return await _count(model, prompt.text)


async def chat_events(model: AsyncModel, request: ChatRequest) -> AsyncGenerator[Event, None]:
    """The answer as it comes. Closing the generator stops the work."""
    prompt, dropped = await _prompt(model, request)
    dialogue = dialogue_of(model.info(), request.chat_template)
    found = events(model, dialogue, prompt, request.options, think_budget=request.think_budget)
    async with aclosing(found):
        async for event in found:
            yield msgspec.structs.replace(event, dropped_messages=dropped) if isinstance(event, Finished) else event


# ---- the prompt


async def _prompt(model: AsyncModel, request: ChatRequest) -> Fitted:
    """Rendered on another thread: long conversations take milliseconds, a hostile template all its time."""
    dialogue = await asyncio.to_thread(dialogue_of, model.info(), request.chat_template)
    turn = await asyncio.to_thread(_turn, request, dialogue)
    prompt = await asyncio.to_thread(dialogue.prompt, turn)
    if not request.truncate or await _fits(model, prompt):
        return Fitted(prompt)
    return await _shortened(model, dialogue, turn)


async def _shortened(model: AsyncModel, dialogue: Dialogue, turn: Turn) -> Fitted:
    """Without as many of the oldest messages as needed; system messages and the last message stay."""
    old = [index for index, message in enumerate(turn.messages[:-1]) if message["role"] not in ("system", "developer")]
    low, high = 1, len(old)
    best = Fitted(await asyncio.to_thread(dialogue.prompt, turn))
    while low <= high:
        middle = (low + high) // 2
        gone = set(old[:middle])
        kept = [message for index, message in enumerate(turn.messages) if index not in gone]
        while kept and kept[0]["role"] == "tool":
            del kept[0]
        prompt = await asyncio.to_thread(dialogue.prompt, turn._replace(messages=kept))
        if await _fits(model, prompt):
            best, high = Fitted(prompt, len(turn.messages) - len(kept)), middle - 1
        else:
            low = middle + 1
    return best


async def _fits(model: AsyncModel, prompt: Prompt) -> bool:
    n_ctx = model.info().n_ctx
    return len(prompt.text.encode()) < n_ctx or await _count(model, prompt.text) < n_ctx  # a token has a byte or more


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
    )


def _think(request: ChatRequest, dialogue: Dialogue) -> Think:
    if request.think_if_able and request.think and not dialogue.can_think:
        record.current().ignored += ("thinking",)
        return None
    return request.think


def _choice(choice: ToolChoice) -> str:
    return f"named:{choice.name}" if choice.mode == "named" else choice.mode
