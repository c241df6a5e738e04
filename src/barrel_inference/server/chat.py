"""One chat request on one model: prompt, generation, events. Owns nothing but the request in hand; what is known about
a chat template is kept with its Dialogue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import lru_cache
from typing import Any, NamedTuple, cast

import msgspec

from barrel_inference.aio import AsyncModel
from barrel_inference.chat import fallbacks
from barrel_inference.chat.dialogue import Dialogue, Prompt, Turn
from barrel_inference.chat.events import (
    AnswerEnd,
    CallArguments,
    CallStarted,
    Content,
    Event,
    Finished,
    Piece,
    Reasoning,
)
from barrel_inference.chat.template import Template
from barrel_inference.errors import InvalidRequestError
from barrel_inference.registry import gotemplate
from barrel_inference.server import thinking
from barrel_inference.server.http import record
from barrel_inference.server.models.go import GoTemplate
from barrel_inference.server.neutral import ChatRequest, Think, ToolChoice
from barrel_inference.types import Chunk, Completion, Message, ModelInfo, TokenLogprob, Usage


class Features(NamedTuple):
    """What a model's template lets it do."""

    tools: bool
    thinking: bool


class Fitted(NamedTuple):
    prompt: Prompt
    dropped: int = 0  # messages


def features(info: ModelInfo, chat_template: str | None = None) -> Features:
    """Blocking: some milliseconds at the first call for a template."""
    dialogue = _dialogue_of(info, chat_template)
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
    dialogue = _dialogue_of(model.info(), request.chat_template)
    answers: dict[int, _Answer] = {}
    async with aclosing(_generate(model, request, prompt)) as chunks:
        async for chunk in chunks:
            answer = answers.setdefault(chunk.index, _Answer(prompt, chunk.index))
            for event in answer.take(chunk):
                yield event
            if chunk.completion is not None:
                dialogue.remember(prompt, answer.message(), answer.written)
                yield answer.finished(chunk.completion, dropped)


# ---- the prompt


@lru_cache(maxsize=64)
def _dialogue(source: str, bos: str, eos: str, calls: Any, thinking: Any) -> Dialogue:
    template = GoTemplate(source) if gotemplate.is_go(source) else Template(source, bos_token=bos, eos_token=eos)
    return Dialogue(template, tool_call_markers=calls, thinking_markers=thinking)


def _dialogue_of(info: ModelInfo, chat_template: str | None) -> Dialogue:
    source = chat_template or fallbacks.pick(info.chat_template, frozenset((info.bos_token, info.eos_token)))
    loader = info.loader
    calls, thinking = (_pair(loader.get(name)) for name in ("tool_call_markers", "thinking_markers"))
    return _dialogue(source, info.bos_token, info.eos_token, calls, thinking)


def _pair(markers: Any) -> tuple[str, str] | None:
    return tuple(markers) if markers else None


async def _prompt(model: AsyncModel, request: ChatRequest) -> Fitted:
    """Rendered on another thread: long conversations take milliseconds, a hostile template all its time."""
    dialogue = await asyncio.to_thread(_dialogue_of, model.info(), request.chat_template)
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
    return len(await model.tokenize(text, add_special=_adds_special(model, text)))


def _adds_special(model: AsyncModel, text: str) -> bool:
    bos = model.info().bos_token
    return not (bos and text.startswith(bos))


def _turn(request: ChatRequest, dialogue: Dialogue) -> Turn:
    if not request.messages:
        raise InvalidRequestError("a conversation needs at least one message", option="messages")
    return Turn(
        messages=[_plain(message) for message in request.messages],
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


def _plain(message: Message) -> dict[str, Any]:
    values = {name: value for name, value in msgspec.structs.asdict(message).items() if value not in (None, ())}
    return values | {"tool_calls": list(message.tool_calls)} if message.tool_calls else values


# ---- the generation


def _options(request: ChatRequest, prompt: Prompt) -> dict[str, Any]:
    options = dict(request.options)
    if prompt.constraint is not None:
        options |= {name: value for name, value in msgspec.structs.asdict(prompt.constraint).items() if value}
    structured = prompt.shape.syntax or prompt.shape.thinking or prompt.shape.noise
    return options | {"keep_special": bool(structured)}


def _generate(model: AsyncModel, request: ChatRequest, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
    options = _options(request, prompt)
    options.setdefault("add_special", _adds_special(model, prompt.text))
    budget = request.think_budget
    if budget is not None and prompt.think_end and options.get("n", 1) == 1:
        return thinking.within_budget(model, prompt, options, budget)
    return _plainly(model, prompt, options)


async def _plainly(model: AsyncModel, prompt: Prompt, options: dict[str, Any]) -> AsyncGenerator[Chunk, None]:
    async with model.stream(prompt.text, boundaries=prompt.boundaries, **options) as stream:
        async for chunk in stream:
            yield chunk


class _Answer:
    """One answer under construction."""

    def __init__(self, prompt: Prompt, index: int) -> None:
        self._parser = prompt.parser()
        self._index = index
        self._logprobs: list[TokenLogprob] = []  # of text that the parser still holds back
        self._usage: Usage | None = None  # until the first event
        self.written = ""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, Any]] = []

    def take(self, chunk: Chunk) -> list[Event]:
        if not self.written:  # later ones are of a generation that goes on behind a budget
            self._usage = chunk.usage or self._usage
        self.written += chunk.text
        self._logprobs += chunk.logprobs
        pieces = self._parser.feed(chunk.text) if chunk.text else []
        if chunk.completion is not None:
            pieces += self._parser.finish()
        return [self._event(piece) for piece in pieces]

    def _event(self, piece: Piece) -> Event:
        match piece:
            case Content(text=text):
                self._content.append(text)
                piece = msgspec.structs.replace(piece, logprobs=tuple(self._logprobs))
            case Reasoning(text=text):
                self._reasoning.append(text)
            case CallStarted(name=name, id=call_id):
                self._calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}})
            case CallArguments(call=call, text=text):
                self._calls[call]["function"]["arguments"] += text
        self._logprobs.clear()
        usage, self._usage = self._usage, None
        return cast(Event, msgspec.structs.replace(piece, index=self._index, usage=usage))

    def message(self) -> dict[str, Any]:
        """What the client has been given."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._content)}
        return message | ({"tool_calls": self._calls} if self._calls else {})

    def finished(self, completion: Completion, dropped: int) -> Finished:
        return Finished(
            index=self._index,
            reason=_reason(completion, bool(self._calls)),
            stop_text=completion.stop_text,
            completion=completion,
            dropped_messages=dropped,
        )


def _reason(completion: Completion, called: bool) -> AnswerEnd:
    match completion.finish_reason:
        case "stop":
            return "tool_calls" if called else "stop"
        case "cancelled":
            return "cancelled"
        case _:
            return "length"
