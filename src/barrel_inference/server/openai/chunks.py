"""Events of a chat to OpenAI's chat completion, whole or in chunks. A Writer owns the state of one response."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET

from barrel_inference.server.http import ids
from barrel_inference.server.neutral import (
    AnswerEnd,
    CallArguments,
    CallStarted,
    Content,
    Event,
    Finished,
    Reasoning,
)
from barrel_inference.server.openai import wire
from barrel_inference.types import TokenLogprob
from barrel_inference.types import Usage as Counted

FINGERPRINT = "fp_barrel_inference"


@dataclass
class _Answer:
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[wire.ToolCall] = field(default_factory=list)
    logprobs: list[wire.Logprob] = field(default_factory=list)
    end: Finished | None = None


class Writer:
    """``functions``: the client speaks the older form, one ``function_call`` in place of ``tool_calls``."""

    def __init__(
        self,
        model: str,
        *,
        logprobs: bool = False,
        usage: bool = False,
        functions: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._head: dict[str, Any] = {
            "id": ids.new("chatcmpl-"),
            "created": int(clock()),
            "model": model,
            "system_fingerprint": FINGERPRINT,
        }
        self._logprobs = logprobs
        self._usage = usage
        self._functions = functions
        self._answers: dict[int, _Answer] = {}

    # ---- in chunks

    def chunks(self, event: Event) -> list[wire.ChatCompletionChunk]:
        """The first chunk of every answer tells the role."""
        chunks = []
        if event.index not in self._answers:
            self._answers[event.index] = _Answer()
            chunks.append(self._chunk(event.index, wire.Delta(role="assistant", content="")))
        answer = self._answers[event.index]
        match event:
            case Content(text=text, logprobs=logprobs):
                chunks.append(self._chunk(event.index, wire.Delta(content=text), logprobs=logprobs))
            case Reasoning(text=text):
                chunks.append(self._chunk(event.index, wire.Delta(reasoning_content=text)))
            case CallStarted(call=call, name=name, id=call_id):
                chunks.append(self._chunk(event.index, self._call_delta(call, name=name, call_id=call_id)))
            case CallArguments(call=call, text=text):
                chunks.append(self._chunk(event.index, self._call_delta(call, arguments=text)))
            case Finished(reason=reason):
                answer.end = event
                chunks.append(self._chunk(event.index, wire.Delta(), finish_reason=self._reason(reason)))
        return chunks

    def last_chunk(self) -> wire.ChatCompletionChunk | None:
        """The usage, when the client asked for it."""
        if not self._usage:
            return None
        return wire.ChatCompletionChunk(**self._head, choices=[], usage=self._total())

    def _chunk(
        self, index: int, delta: wire.Delta, *, finish_reason: Any = None, logprobs: Sequence[TokenLogprob] = ()
    ) -> wire.ChatCompletionChunk:
        shown = wire.Logprobs(content=[logprob(each) for each in logprobs]) if self._logprobs and logprobs else None
        choice = wire.ChunkChoice(index=index, delta=delta, finish_reason=finish_reason, logprobs=shown)
        return wire.ChatCompletionChunk(**self._head, choices=[choice], usage=None if self._usage else UNSET)

    def _call_delta(
        self, call: int, *, name: str | None = None, call_id: str | None = None, arguments: str = ""
    ) -> Any:
        function = wire.CalledFunction(name=name, arguments=arguments)
        if self._functions:
            return wire.Delta(function_call=function)
        kind = "function" if call_id else None
        return wire.Delta(tool_calls=[wire.ToolCallDelta(index=call, id=call_id, type=kind, function=function)])

    # ---- as one

    def whole(self, events: Sequence[Event]) -> wire.ChatCompletion:
        for event in events:
            self._add(self._answers.setdefault(event.index, _Answer()), event)
        choices = [self._choice(index, answer) for index, answer in sorted(self._answers.items())]
        return wire.ChatCompletion(**self._head, choices=choices, usage=self._total())

    @staticmethod
    def _add(answer: _Answer, event: Event) -> None:
        match event:
            case Content(text=text, logprobs=logprobs):
                answer.text.append(text)
                answer.logprobs += map(logprob, logprobs)
            case Reasoning(text=text):
                answer.reasoning.append(text)
            case CallStarted(name=name, id=call_id):
                called = wire.CalledFunction(name=name, arguments="")
                answer.calls.append(wire.ToolCall(id=call_id, function=called))
            case CallArguments(call=call, text=text):
                function = answer.calls[call].function
                function.arguments = (function.arguments or "") + text
            case Finished():
                answer.end = event

    def _choice(self, index: int, answer: _Answer) -> wire.Choice:
        text = "".join(answer.text)
        message = wire.Answer(content=text if text or not answer.calls else None)
        if answer.reasoning:
            message.reasoning_content = "".join(answer.reasoning)
        if answer.calls and self._functions:
            message.function_call = answer.calls[0].function
        elif answer.calls:
            message.tool_calls = answer.calls
        return wire.Choice(
            index=index,
            message=message,
            finish_reason=self._reason(answer.end.reason if answer.end else "stop"),
            logprobs=wire.Logprobs(content=answer.logprobs) if self._logprobs else None,
        )

    def _reason(self, reason: AnswerEnd) -> wire.FinishReason:
        if reason == "tool_calls":
            return "function_call" if self._functions else "tool_calls"
        return "length" if reason == "length" else "stop"

    def _total(self) -> wire.Usage:
        ends = [answer.end for _, answer in sorted(self._answers.items()) if answer.end]
        return usage([end.completion.usage for end in ends], sum(end.reasoning_tokens for end in ends))


def usage(ends: Sequence[Counted], thought: int = 0) -> wire.Usage:
    """Of several answers to one prompt, which counts once."""
    prompt = ends[0].prompt_tokens if ends else 0
    completion = sum(each.completion_tokens for each in ends)
    return wire.Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=wire.CachedTokens(cached_tokens=ends[0].cached_tokens if ends else 0),
        completion_tokens_details=wire.ReasoningTokens(reasoning_tokens=thought),
    )


def logprob(entry: TokenLogprob) -> wire.Logprob:
    top = [wire.TopLogprob(token=each.text, logprob=each.logprob, bytes=list(each.bytes)) for each in entry.top]
    return wire.Logprob(token=entry.text, logprob=entry.logprob, bytes=list(entry.bytes), top_logprobs=top)
