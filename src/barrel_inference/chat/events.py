"""What a chat answer consists of, piece by piece, in the order it is produced. Values only.

One answer (one ``index`` of n) is: any number of ``Reasoning`` and ``Content`` pieces and of calls, each call being one
``CallStarted``, its ``CallArguments`` pieces (JSON text, concatenated it is a whole object) and one ``CallEnded``; then
one ``Finished``.
"""

from __future__ import annotations

from typing import Literal

from barrel_inference.types import Completion, TokenLogprob, Usage, Value

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
    call: int


class Finished(Piece, frozen=True, kw_only=True):
    """The last event of an answer. ``completion``: tokens, usage, cache and times of the generation behind it."""

    reason: AnswerEnd
    stop_text: str | None = None
    dropped_messages: int = 0  # the oldest ones, left out because the prompt did not fit
    completion: Completion


Event = Content | Reasoning | CallStarted | CallArguments | CallEnded | Finished
