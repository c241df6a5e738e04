"""Events of a chat to Anthropic's message and its stream of events. A Writer owns the state of one response."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

import msgspec
from msgspec import UNSET

from barrel_inference.server.anthropic import signature, wire
from barrel_inference.server.http import ids
from barrel_inference.server.neutral import (
    CallArguments,
    CallEnded,
    CallStarted,
    Content,
    Event,
    Finished,
    Reasoning,
)
from barrel_inference.types import Completion, Usage

Events = Iterator[wire.StreamEvent]


class Writer:
    """``take`` each event; ``message`` grows to the whole answer.

    ``stops``: the stop sequences that the client gave. ``marked``: it marked something for the cache.
    """

    def __init__(
        self,
        model: str,
        *,
        stops: Collection[str] = (),
        marked: bool = False,
        hides_thinking: bool = False,
        reports_edits: bool = False,
    ) -> None:
        usage = wire.Usage(input_tokens=0, output_tokens=0)
        self.message = wire.Message(id=ids.new("msg_"), model=model, content=[], usage=usage)
        self._edits = wire.Edits() if reports_edits else UNSET
        self._stops = stops
        self._marked = marked
        self._hides_thinking = hides_thinking
        self._begun = False
        self._block: wire.BlockOut | None = None
        self._written: list[str] = []  # of the block

    def take(self, event: Event) -> Events:
        """What to send."""
        if not self._begun:
            self._begun = True
            yield from self._begin(event)
        match event:
            case Content(text=text):
                yield from self._continue(wire.Text, wire.TextDelta(text=text), text)
            case Reasoning(text=text):
                yield from self._continue(wire.Thinking, self._thinking_delta(text), text)
            case CallStarted(name=name, id=call_id):
                yield from self._open(wire.ToolUse(id=call_id, name=name))
            case CallArguments(text=text):
                self._written.append(text)
                yield self._delta(wire.InputDelta(partial_json=text))
            case CallEnded(unfinished=text):
                yield from self._close(unfinished=text)
            case Finished():
                yield from self._close()
                yield from self._end(event)

    def _begin(self, event: Event) -> Events:
        counted = event.completion.usage if isinstance(event, Finished) else event.usage or Usage()
        usage = wire.Usage(
            input_tokens=counted.prompt_tokens - counted.cached_tokens,
            cache_read_input_tokens=counted.cached_tokens,
            output_tokens=0,
        )
        yield wire.MessageStart(
            message=wire.Message(id=self.message.id, model=self.message.model, content=[], usage=usage)
        )

    # ---- blocks

    def _continue(self, kind: type[wire.Text | wire.Thinking], delta: Any, text: str) -> Events:
        if not isinstance(self._block, kind):
            yield from self._open(kind())
        self._written.append(text)
        if delta is not None:
            yield self._delta(delta)

    def _thinking_delta(self, text: str) -> wire.ThinkingDelta | None:
        return None if self._hides_thinking else wire.ThinkingDelta(thinking=text)

    def _open(self, block: wire.BlockOut) -> Events:
        yield from self._close()
        self._block, self._written = block, []
        self.message.content.append(block)
        yield wire.BlockStart(index=self._index, content_block=msgspec.structs.replace(block))

    def _close(self, *, unfinished: str = "") -> Events:
        """``unfinished``: the text of a call that was cut off. Who reads the stream has its pieces; a whole message,
        whose calls have objects as input, holds it as text."""
        block, self._block = self._block, None
        written = "".join(self._written)
        match block:
            case None:
                return
            case wire.Text():
                block.text = written
            case wire.Thinking():
                block.thinking = "" if self._hides_thinking else written
                block.signature = signature.sign(written, shown=not self._hides_thinking)
                yield self._delta(wire.SignatureDelta(signature=block.signature))
            case wire.ToolUse() if unfinished:
                self.message.content[-1] = wire.Text(text=unfinished)
            case wire.ToolUse():
                block.input = json.loads(written or "{}")
        yield wire.BlockStop(index=self._index)

    @property
    def _index(self) -> int:
        return len(self.message.content) - 1

    def _delta(self, delta: Any) -> wire.BlockDelta:
        return wire.BlockDelta(index=self._index, delta=delta)

    # ---- the end

    def _end(self, event: Finished) -> Events:
        message = self.message
        message.usage = usage(event.completion, marked=self._marked)
        message.stop_reason = self._reason(event)
        message.stop_sequence = event.stop_text if message.stop_reason == "stop_sequence" else None
        message.context_management = self._edits
        stop = wire.Stop(stop_reason=message.stop_reason, stop_sequence=message.stop_sequence)
        yield wire.MessageDelta(delta=stop, usage=message.usage, context_management=self._edits)
        yield wire.MessageStop()

    def _reason(self, event: Finished) -> wire.StopReason:
        """A stop string of the model's own is an end like any other."""
        match event.reason:
            case "tool_calls":
                return "tool_use"
            case "length" if event.completion.finish_reason == "context_full":
                return "model_context_window_exceeded"
            case "length":
                return "max_tokens"
        return "stop_sequence" if event.stop_text in self._stops else "end_turn"


def usage(completion: Completion, *, marked: bool) -> wire.Usage:
    """What was read counts as put into the cache when the client marked something for it and it was saved."""
    counted = completion.usage
    read = counted.prompt_tokens - counted.cached_tokens
    created = read if marked and completion.finish_key is not None else 0
    return wire.Usage(
        input_tokens=read - created,
        cache_creation_input_tokens=created,
        cache_read_input_tokens=counted.cached_tokens,
        output_tokens=counted.completion_tokens,
    )
