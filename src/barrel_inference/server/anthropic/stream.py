"""Events of a chat to Anthropic's message and its stream of events. A Writer owns the state of one response."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from barrel_inference.server import ids
from barrel_inference.server.anthropic import wire
from barrel_inference.server.neutral import (
    CallArguments,
    CallEnded,
    CallStarted,
    Content,
    Event,
    Finished,
    Reasoning,
)
from barrel_inference.types import Usage

Events = Iterator[wire.StreamEvent]


class Writer:
    """``begin``, ``take`` for each event; ``message`` grows to the whole answer."""

    def __init__(self, model: str) -> None:
        self.message = wire.Message(id=ids.new("msg_"), model=model, content=[], usage=usage(Usage()))
        self._block: wire.BlockOut | None = None
        self._arguments = ""

    def begin(self, event: Event) -> Events:
        """``event``: the first one, which knows the prompt's usage."""
        known = usage(event.usage or Usage())
        start = wire.Message(id=self.message.id, model=self.message.model, content=[], usage=known)
        yield wire.MessageStart(message=start)
        yield wire.Ping()

    def take(self, event: Event) -> Events:
        match event:
            case Content(text=text):
                yield from self._text(text)
            case Reasoning(text=text):
                yield from self._thinking(text)
            case CallStarted(name=name, id=call_id):
                self._arguments = ""
                yield from self._open(wire.ToolUse(id=call_id, name=name))
            case CallArguments(text=text):
                self._arguments += text
                yield self._delta(wire.InputDelta(partial_json=text))
            case CallEnded():
                yield from self._close()
            case Finished():
                yield from self._close()
                yield from self._end(event)

    def _text(self, text: str) -> Events:
        if not isinstance(self._block, wire.Text):
            yield from self._open(wire.Text())
        if isinstance(self._block, wire.Text):
            self._block.text += text
        yield self._delta(wire.TextDelta(text=text))

    def _thinking(self, text: str) -> Events:
        if not isinstance(self._block, wire.Thinking):
            yield from self._open(wire.Thinking())
        if isinstance(self._block, wire.Thinking):
            self._block.thinking += text
        yield self._delta(wire.ThinkingDelta(thinking=text))

    def _open(self, block: wire.BlockOut) -> Events:
        yield from self._close()
        self._block = block
        self.message.content.append(block)
        yield wire.BlockStart(index=self._index, content_block=_empty(block))

    def _close(self) -> Events:
        block, self._block = self._block, None
        match block:
            case None:
                return
            case wire.Thinking(thinking=thinking):
                block.signature = signature(thinking)
                yield self._delta(wire.SignatureDelta(signature=block.signature))
            case wire.ToolUse():
                block.input = json.loads(self._arguments or "{}")
        yield wire.BlockStop(index=self._index)

    def _end(self, event: Finished) -> Events:
        self.message.usage = usage(event.completion.usage)
        self.message.stop_reason, self.message.stop_sequence = _stop(event)
        stop = wire.Stop(stop_reason=self.message.stop_reason, stop_sequence=self.message.stop_sequence)
        yield wire.MessageDelta(delta=stop, usage=self.message.usage)
        yield wire.MessageStop()

    @property
    def _index(self) -> int:
        return len(self.message.content) - 1

    def _delta(self, delta: Any) -> wire.BlockDelta:
        return wire.BlockDelta(index=self._index, delta=delta)


def usage(counted: Usage) -> wire.Usage:
    return wire.Usage(
        input_tokens=counted.prompt_tokens - counted.cached_tokens,
        output_tokens=counted.completion_tokens,
        cache_read_input_tokens=counted.cached_tokens,
        cache_creation_input_tokens=0,
    )


def signature(thinking: str) -> str:
    """Names the thought; nothing here depends on a client sending it back unchanged."""
    return hashlib.sha256(thinking.encode()).hexdigest()


def _empty(block: wire.BlockOut) -> wire.BlockOut:
    return wire.ToolUse(id=block.id, name=block.name) if isinstance(block, wire.ToolUse) else type(block)()


def _stop(event: Finished) -> tuple[wire.StopReason, str | None]:
    if event.reason == "tool_calls":
        return "tool_use", None
    if event.reason == "length":
        return "max_tokens", None
    return ("stop_sequence", event.stop_text) if event.stop_text is not None else ("end_turn", None)
