"""From generated text back to an answer: content, reasoning and tool calls, as the text arrives. Sans-IO; a parser
belongs to the one who feeds it.

Any split of the text gives the same events (up to where pieces of text are cut). What may be the beginning of a marker
is held back; a call comes out when it is complete; what looked like a call and is none comes out as text. Where a
grammar makes sure that it will be one (``sure_calls``), its JSON arguments come out as they are written.
"""

from __future__ import annotations

import json
import secrets
from typing import Literal, NamedTuple, Protocol

from barrel_inference.chat.events import CallArguments, CallEnded, CallStarted, Content, Piece, Reasoning
from barrel_inference.chat.tools.scan import JsonEnd, MalformedError, first, held_back
from barrel_inference.chat.tools.syntax import Call, SectionEnd, Syntax, Tools, begun_call, next_call


class Thinking(NamedTuple):
    """How a model marks its reasoning."""

    open: str
    close: str


class Shape(NamedTuple):
    """What the answers of a model may be made of. Without a ``syntax`` nothing is taken for a call. ``noise``: marks
    around the content that are no part of it."""

    thinking: Thinking | None = None
    syntax: Syntax | None = None
    noise: tuple[str, ...] = ()


class Parser(Protocol):
    @property
    def thinking(self) -> bool:
        """Whether what comes next is part of a thought."""

    def feed(self, text: str) -> list[Piece]: ...

    def finish(self) -> list[Piece]:
        """The generation has ended: whatever was held back."""


class CallEvents:
    """Numbers the calls of one answer and gives them ids."""

    def __init__(self) -> None:
        self.count = 0

    def of(self, call: Call) -> list[Piece]:
        started = self.start(call.name)
        number = started.call
        return [started, CallArguments(call=number, text=call.arguments), CallEnded(call=number)]

    def start(self, name: str) -> CallStarted:
        self.count += 1
        return CallStarted(call=self.count - 1, name=name, id=f"call_{secrets.token_hex(12)}")


class GrowingCall:
    """A call that comes out while it is written: its arguments stand in the text from ``begin`` on."""

    def __init__(self, number: int, begin: int) -> None:
        self._number = number
        self._begin = begin
        self._search = JsonEnd(begin)
        self._sent = begin
        self.end: int | None = None  # of the arguments

    def grow(self, text: str) -> list[Piece]:
        self.end = self.end or self._search.find(text)
        until = self.end or len(text)
        piece, self._sent = text[self._sent : until], until
        return [CallArguments(call=self._number, text=piece)] if piece else []

    def close(self, text: str, written: str) -> CallEnded:
        """``written``: all of the call, should its arguments not be whole."""
        return CallEnded(call=self._number, unfinished="" if self._is_whole(text) else written)

    def _is_whole(self, text: str) -> bool:
        try:
            return self.end is not None and isinstance(json.loads(text[self._begin : self.end], strict=False), dict)
        except (ValueError, RecursionError):
            return False


class OutputParser:
    """``thinking``: the prompt ends inside an opened thought."""

    def __init__(
        self,
        shape: Shape,
        tools: Tools | None = None,
        *,
        thinking: bool = False,
        sure_calls: bool = False,
    ) -> None:
        self._thinking = shape.thinking
        self._noise = shape.noise
        self._syntax = shape.syntax
        self._tools = tools or {}
        self._sure_calls = sure_calls
        self._call_events = CallEvents()
        self._growing: GrowingCall | None = None
        self._text = ""  # not yet decided
        self._mode: Literal["thinking", "content", "call", "between"] = "thinking" if thinking else "content"
        self._events: list[Piece] = []
        self._blank = ""  # white space that is dropped if a marker follows it
        self._fresh = True  # no content yet, or none since the last thought or call
        self._trims = thinking  # white space at the beginning of this part is no part of it
        self._waiting = False  # for the rest of a call

    @property
    def thinking(self) -> bool:
        return self._mode == "thinking"

    def feed(self, text: str) -> list[Piece]:
        self._text += text
        if self._waiting and self._syntax and not any(mark in text for mark in self._syntax.wake):
            return []  # nothing has come that could complete it: looking again at every token would be quadratic
        return self._run(final=False)

    def finish(self) -> list[Piece]:
        return self._run(final=True)

    def _run(self, *, final: bool) -> list[Piece]:
        steps = {"thinking": self._think, "content": self._read_content, "call": self._call, "between": self._between}
        self._waiting = False
        while self._text and steps[self._mode](final):
            pass
        if final and self._blank:
            self._emit_blank()
        events, self._events = self._events, []
        return events

    # ---- one step of each mode: takes what it can off the text; False when it needs more

    def _think(self, final: bool) -> bool:
        close = self._thinking.close.strip() if self._thinking else ""
        at = self._text.find(close) if close else -1
        if at < 0:
            return self._release(Reasoning, (close,) if close else (), final)
        self._emit(Reasoning, self._text[:at])
        self._begin_part("content", at + len(close))
        return True

    def _read_content(self, final: bool) -> bool:
        if self._begins_bare_call():
            self._mode = "call"
            return True
        markers = self._markers()
        hit = first(self._text, markers)
        if hit is None:
            return self._release(Content, markers, final)
        at, mark = hit
        if at:
            self._emit(Content, self._text[:at])
            self._text = self._text[at:]
            return True  # once more: after content other markers count
        if not final and any(len(other) > len(self._text) and other.startswith(self._text) for other in markers):
            return False  # it may become a longer marker
        if self._syntax and mark in self._syntax.triggers:
            self._mode = "call"
        else:
            opens = self._thinking is not None and mark == self._thinking.open.strip()
            self._begin_part("thinking" if opens else "content", len(mark))
        return True

    def _call(self, final: bool) -> bool:
        """The text begins with the mark of a call."""
        if (read := self._next_call(first=True, final=final)) is None:
            return False
        if isinstance(read, MalformedError) and not self._cut_off(final):
            self._give_up_call()
        return True

    def _between(self, final: bool) -> bool:
        """Calls were read; their section may go on."""
        if (read := self._next_call(first=False, final=final)) is None:
            return False
        if isinstance(read, MalformedError) and not self._cut_off(final):
            is_end = final and self._syntax and self._syntax.section[1].strip().startswith(self._text.strip())
            self._begin_part("content", len(self._text) if is_end else 0)
        return True

    # ---- calls

    def _next_call(self, *, first: bool, final: bool) -> Call | SectionEnd | MalformedError | None:
        if self._syntax is None:
            return MalformedError()
        if not self._may_be_complete(first):
            return MalformedError() if final else None
        try:
            read = next_call(self._syntax, self._text, self._tools, first=first, final=final)
        except MalformedError as error:
            return error
        if read is None:
            self._waiting = not final
            return MalformedError() if final else None
        self._blank = ""
        if read.call:
            self._emit_call(read.call)
        self._begin_part("between" if read.call and self._syntax.goes_on else "content", read.end)
        return read.call or SectionEnd()

    def _may_be_complete(self, first: bool) -> bool:
        """Brings out what there is of a sure call's arguments: without all of them it is not complete."""
        if self._growing is None and self._sure_calls and self._syntax:
            begun = begun_call(self._syntax, self._text, first=first)
            if begun is not None:
                started = self._call_events.start(begun.name)
                self._events.append(started)
                self._growing = GrowingCall(started.call, begun.at)
        if self._growing is None:
            return True
        self._events += self._growing.grow(self._text)
        return self._growing.end is not None

    def _emit_call(self, call: Call) -> None:
        growing, self._growing = self._growing, None
        self._events += self._call_events.of(call) if growing is None else [growing.close(self._text, "")]

    def _cut_off(self, final: bool) -> bool:
        """The call that was coming out is not ended as it should be."""
        growing, self._growing = self._growing, None
        if growing is None:
            return False
        end = len(self._text) if final or growing.end is None else growing.end
        self._events.append(growing.close(self._text, self._text[:end]))
        self._begin_part("content", end)
        return True

    def _give_up_call(self) -> None:
        """No call after all: its mark is text, and the search goes on behind it."""
        hit = first(self._text, self._syntax.triggers if self._syntax else ())
        blank = len(self._text) - len(self._text.lstrip())
        size = len(hit[1]) if hit and hit[0] == 0 else blank + 1
        self._emit(Content, self._text[:size])
        self._text = self._text[size:]
        self._mode = "content"

    def _begins_bare_call(self) -> bool:
        bare = self._syntax is not None and self._syntax.only_at_start and not self._call_events.count
        return bare and self._fresh and self._text.lstrip()[:1] in ("{", "[")

    # ---- text

    def _markers(self) -> tuple[str, ...]:
        """What is looked for in content; a thought begins only where no content has."""
        marks = [*self._noise, *(self._syntax.triggers if self._syntax else ())]
        if self._thinking and self._fresh:
            marks += self._thinking
        return tuple(dict.fromkeys(stripped for mark in marks if (stripped := mark.strip())))

    def _release(self, kind: type[Content | Reasoning], markers: tuple[str, ...], final: bool) -> bool:
        keep = 0 if final else held_back(self._text, markers)
        ready = len(self._text) - keep
        self._emit(kind, self._text[:ready])
        self._text = self._text[ready:]
        return False

    def _emit(self, kind: type[Content | Reasoning], text: str) -> None:
        """White space at the end waits for what follows it."""
        text = self._blank + text
        if self._trims:
            text = text.lstrip()
        solid = text.rstrip()
        self._blank = text[len(solid) :]
        if solid:
            self._events.append(kind(text=solid))
            self._trims = False
            self._fresh = self._fresh and kind is Reasoning

    def _emit_blank(self) -> None:
        kind = Reasoning if self._mode == "thinking" else Content
        self._events.append(kind(text=self._blank))
        self._blank = ""

    def _begin_part(self, mode: Literal["thinking", "content", "between"], at: int) -> None:
        self._text = self._text[at:]
        self._mode = mode
        self._blank = ""
        self._trims = True
        self._fresh = True
