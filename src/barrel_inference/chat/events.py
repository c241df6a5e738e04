"""What a chat answer consists of, piece by piece, in the order it is produced. Values only.

One answer (one ``index`` of n) is: any number of ``Reasoning`` and ``Content`` pieces and of calls, each call being one
``CallStarted``, its ``CallArguments`` pieces (JSON text, concatenated it is a whole object unless the call is
``unfinished``) and one ``CallEnded``; then one ``Finished``.
"""

from __future__ import annotations

from typing import Any, Literal

from barrel_inference.types import CacheReport, Completion, Message, Timings, TokenLogprob, Usage, Value

AnswerEnd = Literal["stop", "length", "tool_calls", "cancelled"]


class Piece(Value, frozen=True, kw_only=True, tag=True):
    """Base of all events. ``index``: which of n answers. ``usage``: of the prompt, with an answer's first event."""

    index: int = 0
    usage: Usage | None = None


class Content(Piece, frozen=True, kw_only=True):
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class Reasoning(Piece, frozen=True, kw_only=True):
    text: str


class CallStarted(Piece, frozen=True, kw_only=True):
    """``call`` counts the calls of one answer from 0."""

    call: int
    name: str
    id: str


class CallArguments(Piece, frozen=True, kw_only=True):
    call: int
    text: str


class CallEnded(Piece, frozen=True, kw_only=True):
    """``unfinished``: of a call whose arguments came out as they were written and never became whole (the generation
    was cut short), all that the model wrote of it."""

    call: int
    unfinished: str = ""


class Finished(Piece, frozen=True, kw_only=True):
    """The last event of an answer. ``completion``: tokens, usage, cache and times of the generation behind it;
    ``message``: all that it said."""

    reason: AnswerEnd
    stop_text: str | None = None
    reasoning_tokens: int = 0  # of thoughts, with the marks that close them
    dropped_messages: int = 0  # the oldest ones, left out because the prompt did not fit
    dropped_tokens: int = 0  # and of what was left, the middle
    completion: Completion
    message: Message = Message(role="assistant")


Event = Content | Reasoning | CallStarted | CallArguments | CallEnded | Finished


class Answer(Value, frozen=True):
    """A whole answer. ``message`` goes to the end of the conversation as it is."""

    message: Message
    finish_reason: AnswerEnd
    completion: Completion
    others: tuple[Answer, ...] = ()  # with n > 1: the second to the last, in the first

    @property
    def content(self) -> str:
        content = self.message.content
        return content if isinstance(content, str) else ""

    @property
    def reasoning(self) -> str:
        return self.message.reasoning_content or ""

    @property
    def tool_calls(self) -> tuple[dict[str, Any], ...]:
        """In OpenAI's form; a call's arguments are JSON text."""
        return self.message.tool_calls

    @property
    def usage(self) -> Usage:
        return self.completion.usage

    @property
    def cache(self) -> CacheReport:
        return self.completion.cache

    @property
    def timings(self) -> Timings:
        return self.completion.timings
