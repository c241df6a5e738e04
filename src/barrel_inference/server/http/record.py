"""What is known about the request in hand: filled in by whoever learns it, read by the log line and the metrics.

One mutable Record per request, reached through a context variable; owned by the request's task.
"""

from __future__ import annotations

import re
import time
from contextvars import ContextVar
from dataclasses import dataclass, field

from barrel_inference.aio import AsyncStream
from barrel_inference.server.http import ids
from barrel_inference.types import Completion, Usage

CLIENT_CLOSED_REQUEST = 499  # nobody sees it but logs and metrics: Ollama's number, and nginx's
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(slots=True)
class Record:
    id: str
    method: str = ""
    path: str = ""
    client: str = ""  # who asks, as far as it matters for whose turn it is: a key's digest, or an address
    route: str = "other"  # the pattern, for metrics: paths of clients must not become labels
    started: float = field(default_factory=time.perf_counter)
    status: int = 0
    model: str = ""
    model_known: bool = False  # names that clients make up must not become labels
    error: str = ""
    queued_s: float = 0.0
    load_s: float = 0.0
    prompt_tokens: int = 0
    too_long: dict[str, int] = field(default_factory=dict)  # tokens of a prompt that does not fit, and the limit
    cached_tokens: int = 0
    completion_tokens: int = 0
    cache: str = ""
    tier: str = ""
    first_token_s: float = 0.0
    disconnected: bool = False
    ignored: tuple[str, ...] = ()  # options that nobody knows, or that have no effect here
    capped: dict[str, int] = field(default_factory=dict)  # options that were too large, and what was given
    streams: list[AsyncStream] = field(default_factory=list)

    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started

    def complete(self, completion: Completion) -> None:
        """Add one generation; a request may have several."""
        self._add(completion.usage)
        self.cache = completion.cache.kind
        self.tier = completion.cache.tier or ""
        self.first_token_s = self.first_token_s or completion.timings.first_token_s

    def end(self) -> None:
        """Add what came of the generations that were left before their end."""
        for stream in self.streams:
            for usage in stream.under_way:
                self._add(usage)
        self.streams.clear()

    def _add(self, usage: Usage) -> None:
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.completion_tokens += usage.completion_tokens


_current: ContextVar[Record] = ContextVar("record")


def begin(record: Record) -> None:
    _current.set(record)


def current() -> Record:
    """The request in hand; outside of one, a record that nobody reads."""
    return _current.get(None) or Record(id="none")


def request_id(wanted: str | None) -> str:
    """The client's own id when it is harmless, otherwise a new one."""
    return wanted if wanted and _ID.fullmatch(wanted) else ids.new("req_")
