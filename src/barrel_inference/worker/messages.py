"""What crosses the border between the runtime and a worker: tagged, typed, one file. KV bytes never do.

    frame on the socket:  u32 little-endian payload length | msgpack array of messages

The first frame down is ``[Load]``; the worker answers ``Progress``* then ``Ready`` or ``Failed`` (an answer, never
retried).
``PROTOCOL`` is compared in Load: parent and child are always the same installation, so a difference is an error.
"""

from __future__ import annotations

from typing import Any

import msgspec

from barrel_inference.config import LoadOptions
from barrel_inference.types import CacheReport, Chunk, ModelInfo, Request

PROTOCOL = 1
MAX_FRAME_BYTES = 256 << 20


class Msg(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Base of all messages."""


# ---- parent to worker


class Load(Msg, frozen=True):
    protocol: int
    options: LoadOptions


class Submit(Msg, frozen=True):
    """Start a request, or continue it when ``request.resume`` is set. Answered by ``Outputs`` entries with its id."""

    request: Request


class Cancel(Msg, frozen=True):
    request_id: str


class Call(Msg, frozen=True):
    """Ask something that is not a generation; answered by one ``Reply``. ``op``: see worker.child.calls
    (tokenize, detokenize, embed, cache_*, …)."""

    call_id: int
    op: str
    args: dict[str, Any]


class Drain(Msg, frozen=True):
    """Accept nothing more; finish or cancel running requests within ``deadline_s``, save what is unsaved within
    ``save_s``, then exit 0."""

    deadline_s: float
    save_s: float


class Ping(Msg, frozen=True):
    """Answered by a ``Pulse`` at once, whatever the engine does; asked only while answers are owed."""


class Room(Msg, frozen=True):
    """The janitor has made room (or could not): a writer waiting on this tier looks again."""

    tier: str


# ---- worker to parent


class Progress(Msg, frozen=True):
    """Loading goes on; extends the ready deadline. ``fraction`` 0…1 of the weights."""

    stage: str
    fraction: float


class Ready(Msg, frozen=True):
    info: ModelInfo


class Failed(Msg, frozen=True):
    """The model could not be loaded; ``error`` is ``BarrelError.to_dict()``."""

    error: dict[str, Any]


class Started(Msg, frozen=True):
    """Prefill of a request begins. The parent keeps it: a resume needs prompt tokens and start position."""

    request_id: str
    prompt_tokens: tuple[int, ...]
    start: int
    seed: int
    cache: CacheReport


class Output(Msg, frozen=True):
    """New text of one request; the last one has ``chunk.completion`` or ``error``, never both."""

    request_id: str
    chunk: Chunk | None = None
    error: dict[str, Any] | None = None


class Reply(Msg, frozen=True):
    call_id: int
    result: Any = None
    error: dict[str, Any] | None = None


class NeedRoom(Msg, frozen=True):
    """A writer found a tier at its quota."""

    tier: str
    bytes: int


class Pulse(Msg, frozen=True):
    """The process lives. ``step``: the number of the step that its engine is in, 0 between two."""

    step: int


class Counters(Msg, frozen=True):
    """Cumulative counters of this worker and the facts of ``info()`` that change; at most four a second, and before
    exit."""

    counters: dict[str, float]
    info: ModelInfo


class Touched(Msg, frozen=True):
    """Blocks that served a hit (hex keys, head first): recency and hit counts for the janitor."""

    tier: str
    keys: tuple[str, ...]


Down = Load | Submit | Cancel | Call | Drain | Ping | Room
Up = Progress | Ready | Failed | Started | Output | Reply | NeedRoom | Pulse | Counters | Touched
