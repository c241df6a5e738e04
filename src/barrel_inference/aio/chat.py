"""One turn of a conversation with one loaded model: prompt, generation, events, answer. The Python API and the server
stand on it. Owns nothing but the turn in hand; what is known about a chat template is kept with its Dialogue.

Not imported by those who only import the package: jinja2 would double the time that takes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from barrel_inference.aio import params, thinking
from barrel_inference.aio.go import GoTemplate
from barrel_inference.aio.params import ChatOptions, Messages
from barrel_inference.aio.stream import AsyncStream, Streaming, merged
from barrel_inference.aio.thinking import Start
from barrel_inference.chat.dialogue import Dialogue, Prompt, Turn
from barrel_inference.chat.events import (
    Answer,
    AnswerEnd,
    CallArguments,
    CallEnded,
    CallStarted,
    Content,
    Event,
    Finished,
    Piece,
    Reasoning,
)
from barrel_inference.chat.templates import fallbacks
from barrel_inference.chat.templates.template import Template
from barrel_inference.errors import InvalidRequestError
from barrel_inference.kvcache.render import Shelf
from barrel_inference.registry import gotemplate
from barrel_inference.types import Chunk, Completion, Message, ModelInfo, TokenLogprob, Usage

if TYPE_CHECKING:
    from barrel_inference.aio.model import AsyncModel

CHOICES = ("auto", "none", "required")
ROLES = ("system", "developer", "user", "assistant", "tool")


# ---- the model's side


def dialogue_of(info: ModelInfo, chat_template: str | None = None) -> Dialogue:
    """For the model's own template or another (Jinja, or Ollama's Go). Blocking: some milliseconds at the first call
    for a template. Raises TemplateError."""
    source = chat_template or fallbacks.pick(info.chat_template, frozenset((info.bos_token, info.eos_token)))
    calls, thoughts = (_pair(info.loader.get(name)) for name in ("tool_call_markers", "thinking_markers"))
    return _dialogue(source, info.bos_token, info.eos_token, calls, thoughts, info.memory_path, info.memory_bytes)


@lru_cache(maxsize=64)
def _dialogue(source: str, bos: str, eos: str, calls: Any, thoughts: Any, path: str, max_bytes: int) -> Dialogue:
    shelf = Shelf(Path(path) / "turns", max_bytes=max_bytes) if path else None
    template = GoTemplate(source) if gotemplate.is_go(source) else Template(source, bos_token=bos, eos_token=eos)
    return Dialogue(template, tool_call_markers=calls, thinking_markers=thoughts, shelf=shelf)


def _pair(markers: Any) -> tuple[str, str] | None:
    return tuple(markers) if markers else None


def adds_special(info: ModelInfo, text: str) -> bool:
    """Whether the tokenizer must add what begins a text: not where the template has written it."""
    return not (info.bos_token and text.startswith(info.bos_token))


# ---- the turn


def turn_of(messages: Messages, options: ChatOptions, **more: Any) -> Turn:
    """Raises InvalidRequestError."""
    plain = [_message(message) for message in params.sequence(messages)]
    if not plain:
        raise InvalidRequestError("a conversation needs at least one message", option="messages")
    _check_json(options.documents, "documents", str)  # a template of one's own may know what to do with a date
    _check_json(options.template, "template", str)
    choice = options.tool_choice
    return Turn(
        messages=plain,
        tools=[_tool(tool) for tool in options.tools],
        choice=choice if choice in CHOICES else f"named:{choice}",
        parallel=options.parallel_tool_calls,
        think=options.think,
        documents=options.documents,
        template=options.template,
        continue_final=options.continue_final_message,
        **more,
    )


def _message(message: Message | Mapping[str, Any]) -> dict[str, Any]:
    """The field names that templates know, without the fields that say nothing."""
    if isinstance(message, Message):
        plain = said(message)
    elif isinstance(message, Mapping) and isinstance(message.get("role"), str):
        plain = dict(message)
    else:
        raise InvalidRequestError(f"a message is a mapping with a role, not {message!r:.80}")
    _check_role(plain["role"])
    _check_fields(plain)
    return plain


def _check_role(role: str) -> None:
    """A template writes any word, and the model would answer to it."""
    if role not in ROLES:
        raise InvalidRequestError(
            f"role {role!r:.40} is not allowed: expected one of {', '.join(ROLES)}", option="role"
        )


def said(message: Message) -> dict[str, Any]:
    values = {name: value for name, value in msgspec.structs.asdict(message).items() if value not in (None, ())}
    return values | {"tool_calls": list(message.tool_calls)} if message.tool_calls else values


def _check_fields(message: dict[str, Any]) -> None:
    """Templates would stumble over anything else, or write it as Python does."""
    for name in ("reasoning_content", "tool_call_id", "name"):
        if not isinstance(message.get(name), str | None):
            raise InvalidRequestError(f"{name} of a message is text, not {message[name]!r:.80}", option=name)
    content, calls = message.get("content"), message.get("tool_calls")
    if not isinstance(content, str | None) and not (_is_list(content) and all(map(_is_part, content))):
        raise InvalidRequestError(
            f"the content of a message is text or a list of parts, not {content!r:.80}", option="content"
        )
    if calls is not None and not _is_list(calls):
        raise InvalidRequestError(f"the tool calls of a message are a list, not {calls!r:.80}", option="tool_calls")
    for call in calls or ():
        _check_call(call)
    _check_json({name: value for name, value in message.items() if not isinstance(value, str)}, "messages")


def _check_json(value: Any, option: str, default: Callable[[Any], Any] | None = None) -> None:
    """Templates and grammars write it so. ``default``: what stands for objects; by default mappings alone are known."""
    try:
        json.dumps(value, sort_keys=True, default=default or _mapping)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{option} must be JSON: {error}", option=option) from None


def _mapping(value: Any) -> dict[Any, Any]:
    """As templates take it: any, not only a dictionary."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is none")


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_part(part: Any) -> bool:
    return isinstance(part, Mapping) and (part.get("type") != "text" or isinstance(part.get("text"), str))


def _check_call(call: Any) -> None:
    try:
        arguments = call["function"].get("arguments")
        is_call = isinstance(call["function"]["name"], str) and isinstance(arguments, str | Mapping | None)
        is_call = is_call and isinstance(call.get("id"), str | None)
    except (TypeError, KeyError, AttributeError):
        is_call = False
    if not is_call:
        raise InvalidRequestError(f"a tool call has a function with a name and arguments, not {call!r:.80}")


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function", tool)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequestError(f"a tool is a function with a name, not {tool!r:.80}", option="tools")
    _check_json(tool, "tools")
    return tool


# ---- the generation


async def events(
    model: AsyncModel,
    dialogue: Dialogue,
    prompt: Prompt,
    options: Mapping[str, Any],
    *,
    think_budget: int | None = None,
    start: Start | None = None,
) -> AsyncGenerator[Event, None]:
    """The answers to one prompt as they come; what they say is remembered (on another thread: disks may be slow).
    Closing the generator stops the work. ``start``: in place of the model's ``stream``."""
    answers: dict[int, _Answer] = {}
    chunks = _chunks(model, prompt, _options(model, prompt, options), think_budget, start or model.stream)
    async with aclosing(chunks):
        async for chunk in chunks:
            answer = answers.setdefault(chunk.index, _Answer(prompt, chunk.index))
            for event in answer.take(chunk):
                yield event
            if chunk.completion is not None:
                finished = answer.finished(chunk.completion)
                on_shelf = options.get("cache", "auto") in ("auto", "write")
                await asyncio.to_thread(
                    dialogue.remember, prompt, said(finished.message), answer.written, on_shelf=on_shelf
                )
                yield finished


def _options(model: AsyncModel, prompt: Prompt, given: Mapping[str, Any]) -> dict[str, Any]:
    options = {"add_special": adds_special(model.info(), prompt.text), **given}
    if prompt.constraint is not None:
        options |= {name: value for name, value in msgspec.structs.asdict(prompt.constraint).items() if value}
    structured = prompt.shape.syntax or prompt.shape.thinking or prompt.shape.noise
    return options | {"keep_special": bool(structured)}


def _chunks(
    model: AsyncModel, prompt: Prompt, options: dict[str, Any], budget: int | None, start: Start
) -> AsyncGenerator[Chunk, None]:
    if budget is None or not prompt.think_end:
        return _plainly(prompt, options, start)
    n, seed = options.get("n", 1), options.get("seed")
    each = [options | {"n": 1, "seed": None if seed is None else params.nth_seed(seed, index)} for index in range(n)]
    answers = [thinking.within_budget(model, prompt, own, budget, start) for own in each]
    return answers[0] if n == 1 else merged(answers)


async def _plainly(prompt: Prompt, options: dict[str, Any], start: Start) -> AsyncGenerator[Chunk, None]:
    async with start(prompt.text, boundaries=prompt.boundaries, **options) as stream:
        async for chunk in stream:
            yield chunk


class _Answer:
    """One answer under construction."""

    def __init__(self, prompt: Prompt, index: int) -> None:
        self._parser = prompt.parser()
        self._index = index
        self._logprobs: list[TokenLogprob] = []  # of text that the parser still holds back
        self._usage: Usage | None = None  # until the first event
        self._n_thought = 0  # tokens
        self.written = ""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, Any]] = []

    def take(self, chunk: Chunk) -> list[Event]:
        if self._parser.thinking:
            self._n_thought += len(chunk.tokens)
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
            case CallEnded(unfinished=text) if text:  # the last: the generation was cut short
                self._calls.pop()
                self._content.append(text)
        self._logprobs.clear()
        usage, self._usage = self._usage, None
        return cast(Event, msgspec.structs.replace(piece, index=self._index, usage=usage))

    def finished(self, completion: Completion) -> Finished:
        message = Message(
            role="assistant",
            content="".join(self._content),
            reasoning_content="".join(self._reasoning) or None,
            tool_calls=tuple(self._calls),
        )
        return Finished(
            index=self._index,
            reason=_reason(completion, bool(self._calls)),
            stop_text=completion.stop_text,
            reasoning_tokens=self._n_thought,
            completion=completion,
            message=message,
        )


def _reason(completion: Completion, called: bool) -> AnswerEnd:
    match completion.finish_reason:
        case "stop":
            return "tool_calls" if called else "stop"
        case "cancelled":
            return "cancelled"
        case _:
            return "length"


class AsyncChatStream(Streaming[Event, Answer]):
    """The events of one turn; its result is an Answer."""

    def __init__(self, model: AsyncModel, messages: Messages, options: Mapping[str, Any]) -> None:
        """Raises InvalidRequestError."""
        self._model = model
        self._chat, self._rest, constraint = params.chat(options)
        self._turn = turn_of(messages, self._chat, constraint=constraint, salt=self._rest.get("salt", ""))
        self._streams: list[AsyncStream] = []
        self._is_cancelled = False
        super().__init__(self._run(), self._rest.get("n", 1))

    def _whole(self, item: Event) -> tuple[int, Answer] | None:
        if not isinstance(item, Finished):
            return None
        return item.index, Answer(message=item.message, finish_reason=item.reason, completion=item.completion)

    def cancel(self) -> None:
        self._is_cancelled = True
        for stream in self._streams:
            stream.cancel()

    async def _run(self) -> AsyncGenerator[Event, None]:
        """Rendered on another thread: long conversations take milliseconds, a hostile template all its time."""
        dialogue = await asyncio.to_thread(dialogue_of, self._model.info(), self._chat.chat_template)
        prompt = await asyncio.to_thread(dialogue.prompt, self._turn)
        found = events(
            self._model, dialogue, prompt, self._rest, think_budget=self._chat.think_budget, start=self._start
        )
        async with aclosing(found):
            async for event in found:
                yield event

    def _start(self, *args: Any, **options: Any) -> AsyncStream:
        stream = self._model.stream(*args, **options)
        self._streams.append(stream)
        if self._is_cancelled:
            stream.cancel()
        return stream


async def prompt_text(model: AsyncModel, messages: Messages, options: Mapping[str, Any]) -> str:
    chat, rest, constraint = params.chat(options)
    turn = turn_of(messages, chat, constraint=constraint, salt=rest.get("salt", ""))
    dialogue = await asyncio.to_thread(dialogue_of, model.info(), chat.chat_template)
    return (await asyncio.to_thread(dialogue.prompt, turn)).text
