"""Events of a chat to a response and its stream of events. A Writer owns the state of one response."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import msgspec
from msgspec import UNSET

from barrel_inference.errors import BarrelError
from barrel_inference.server import failures
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
from barrel_inference.server.openai.chunks import logprob
from barrel_inference.server.openai.failure import problem
from barrel_inference.server.openai.responses import wire
from barrel_inference.server.openai.responses.tools import Known, Tools, input_of
from barrel_inference.server.thoughts import pack
from barrel_inference.types import TokenLogprob

Events = Iterator[wire.StreamEvent]
E_ = TypeVar("E_", bound=wire.Event)
S = TypeVar("S", bound=msgspec.Struct)

_NO_TOOLS = Tools()


class Writer:
    """Feed it the events in order: ``begin``, ``take`` for each, and it has ended with the Finished one."""

    def __init__(
        self, body: wire.ResponseRequest, tools: Tools = _NO_TOOLS, clock: Callable[[], float] = time.time
    ) -> None:
        self.response = _empty(body, int(clock()))
        self._clock = clock
        self._tools = tools
        self._summarised = bool(body.reasoning and (body.reasoning.summary or body.reasoning.generate_summary))
        self._logprobs = bool(body.top_logprobs) or "message.output_text.logprobs" in (body.include or ())
        self._encrypted = "reasoning.encrypted_content" in (body.include or ())
        self._sequence = 0
        self._written = ""  # arguments of the call under construction
        self._item: wire.Item | None = None  # the one under construction

    def begin(self) -> Events:
        yield self._numbered(wire.Created(response=self._snapshot()))
        yield self._numbered(wire.InProgress(response=self._snapshot()))

    def take(self, event: Event) -> Events:
        match event:
            case Content(text=text, logprobs=logprobs):
                yield from self._content(text, logprobs)
            case Reasoning(text=text):
                yield from self._reasoning(text)
            case CallStarted(name=name, id=call_id):
                yield from self._open(_call(self._tools.known.get(name, Known(name)), call_id))
            case CallArguments(text=text):
                yield from self._arguments(text)
            case CallEnded(unfinished=text):
                yield from self._close("incomplete" if text else "completed")
            case Finished():
                yield from self._close("incomplete" if event.reason == "length" else "completed")
                yield self._end(event)

    def failed(self, error: BarrelError) -> Events:
        told = problem(error)
        self.response.status = "failed"
        self.response.error = wire.ResponseError(code=_code(error), message=told.message)
        yield self._numbered(wire.Failure(code=told.code, message=told.message, param=told.param))
        yield self._numbered(wire.FailedEnd(response=self._snapshot()))

    # ---- the kinds of pieces

    def _content(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> Events:
        if not isinstance(self._item, wire.OutputMessage):
            yield from self._open(wire.OutputMessage(id=ids.new("msg_"), status="in_progress"))
        message, index = self._current(wire.OutputMessage)
        if not message.content:
            message.content.append(wire.OutputText())
            yield self._numbered(wire.PartAdded(item_id=message.id, output_index=index, part=wire.OutputText()))
        shown = [logprob(each) for each in logprobs] if self._logprobs else []
        message.content[0].text += text
        message.content[0].logprobs += shown
        yield self._numbered(wire.TextDelta(item_id=message.id, output_index=index, delta=text, logprobs=shown))

    def _reasoning(self, text: str) -> Events:
        if not isinstance(self._item, wire.ReasoningItem):
            yield from self._open(wire.ReasoningItem(id=ids.new("rs_"), status="in_progress"))
        item, index = self._current(wire.ReasoningItem)
        if self._summarised:
            yield from self._summary(item, index, text)
            return
        if not item.content:
            item.content.append(wire.ReasoningText())
            yield self._numbered(wire.PartAdded(item_id=item.id, output_index=index, part=wire.ReasoningText()))
        item.content[0].text += text
        yield self._numbered(wire.ReasoningDelta(item_id=item.id, output_index=index, delta=text))

    def _summary(self, item: wire.ReasoningItem, index: int, text: str) -> Events:
        """The reasoning itself is the summary of a model that makes no other."""
        if not item.summary:
            item.summary.append(wire.SummaryText())
            yield self._numbered(wire.SummaryAdded(item_id=item.id, output_index=index, part=wire.SummaryText()))
        item.summary[0].text += text
        yield self._numbered(wire.SummaryDelta(item_id=item.id, output_index=index, delta=text))

    def _arguments(self, text: str) -> Events:
        """Those of a custom tool hold its input, which is known when they are complete."""
        self._written += text
        if isinstance(self._item, wire.FunctionCall):
            call, index = self._current(wire.FunctionCall)
            call.arguments = self._written
            yield self._numbered(wire.ArgumentsDelta(item_id=call.id, output_index=index, delta=text))

    # ---- items

    def _open(self, item: wire.Item) -> Events:
        yield from self._close()
        self._item, self._written = item, ""
        self.response.output.append(item)
        index = len(self.response.output) - 1
        yield self._numbered(wire.ItemAdded(output_index=index, item=_copy(item)))

    def _close(self, status: wire.Status = "completed") -> Events:
        item, self._item = self._item, None
        if item is None:
            return
        index = len(self.response.output) - 1
        where: dict[str, Any] = {"item_id": item.id, "output_index": index}
        match item:
            case wire.OutputMessage(content=[part]):
                yield self._numbered(wire.TextDone(**where, text=part.text, logprobs=part.logprobs))
                yield self._numbered(wire.PartDone(**where, part=_copy(part)))
            case wire.ReasoningItem(content=[thought]):
                yield self._numbered(wire.ReasoningDone(**where, text=thought.text))
                yield self._numbered(wire.PartDone(**where, part=_copy(thought)))
            case wire.ReasoningItem(summary=[summary]):
                yield self._numbered(wire.SummaryTextDone(**where, text=summary.text))
                yield self._numbered(wire.SummaryDone(**where, part=_copy(summary)))
            case wire.FunctionCall(arguments=arguments, name=name):
                yield self._numbered(wire.ArgumentsDone(**where, arguments=arguments, name=name))
            case wire.CustomCall():
                item.input = input_of(self._written)
                yield self._numbered(wire.InputDelta(**where, delta=item.input))
                yield self._numbered(wire.InputDone(**where, input=item.input))
        if self._encrypted and isinstance(item, wire.ReasoningItem):
            item.encrypted_content = pack("".join(part.text for part in item.content or item.summary))
        item.status = status
        yield self._numbered(wire.ItemDone(output_index=index, item=_copy(item)))

    def _current(self, kind: type[S]) -> tuple[S, int]:
        return cast(S, self._item), len(self.response.output) - 1

    # ---- the end

    def _end(self, event: Finished) -> wire.StreamEvent:
        self.response.usage = _usage(event)
        if event.reason == "length":
            self.response.status = "incomplete"
            self.response.incomplete_details = wire.Incomplete(reason="max_output_tokens")
            return self._numbered(wire.IncompleteEnd(response=self._snapshot()))
        self.response.status = "completed"
        self.response.completed_at = int(self._clock())
        return self._numbered(wire.Completed(response=self._snapshot()))

    def _snapshot(self) -> wire.Response:
        return msgspec.structs.replace(self.response, output=[_copy(item) for item in self.response.output])

    def _numbered(self, event: E_) -> E_:
        event.sequence_number = self._sequence
        self._sequence += 1
        return event


def _call(tool: Known, call_id: str) -> wire.FunctionCall | wire.CustomCall:
    fields: dict[str, Any] = {"call_id": call_id, "name": tool.name, "namespace": tool.namespace or UNSET}
    if tool.custom:
        return wire.CustomCall(id=ids.new("ctc_"), status="in_progress", **fields)
    return wire.FunctionCall(id=ids.new("fc_"), status="in_progress", **fields)


def _code(error: BarrelError) -> Any:
    """The API knows three for a model that fails."""
    status = failures.status(error)
    return "rate_limit_exceeded" if status == 429 else "server_error" if status >= 500 else "invalid_prompt"


def _usage(event: Finished) -> wire.Usage:
    counted = event.completion.usage
    written = counted.prompt_tokens - counted.cached_tokens if event.completion.finish_key is not None else 0
    return wire.Usage(
        input_tokens=counted.prompt_tokens,
        output_tokens=counted.completion_tokens,
        total_tokens=counted.total_tokens,
        input_tokens_details=wire.CachedTokens(cached_tokens=counted.cached_tokens, cache_write_tokens=written),
        output_tokens_details=wire.ReasoningTokens(reasoning_tokens=event.reasoning_tokens),
    )


def _copy(value: S) -> S:
    """What is sent must not change afterwards."""
    return msgspec.convert(msgspec.to_builtins(value), type(value))


def _empty(body: wire.ResponseRequest, created_at: int) -> wire.Response:
    text = msgspec.to_builtins(body.text) if body.text else {}
    return wire.Response(
        id=ids.new("resp_"),
        created_at=created_at,
        model=body.model,
        status="in_progress",
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=body.reasoning or wire.Reasoning(),
        safety_identifier=body.safety_identifier,
        store=body.store is not False,
        temperature=body.temperature,
        text={"format": {"type": "text"}} | {key: value for key, value in text.items() if value},
        tool_choice=msgspec.to_builtins(body.tool_choice) or "auto",
        tools=[{"strict": None, "parameters": None, **tool} for tool in body.tools or ()],
        top_logprobs=body.top_logprobs or 0,
        top_p=body.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
        service_tier="default",
    )
