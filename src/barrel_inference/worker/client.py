"""What the runtime has asked of a worker and not yet been answered, in a form that outlives the worker.

A ``Flight`` is one generation: it knows how to submit itself again after a crash, continuing behind the last token that
it delivered. A ``PendingCall`` is one question. Both belong to the event loop of their supervisor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from barrel_inference.errors import BarrelError, WorkerDiedError, from_dict
from barrel_inference.types import Chunk, Completion, Request, Resume, TokenLogprob, Usage
from barrel_inference.worker.messages import Call, Msg, Output, Reply, Started, Submit

MAX_DEATHS = 2
MAX_DEATHS_WAITING = 3  # of a request that had not begun: most likely another is to blame


class Pending(Protocol):
    """Something a worker owes an answer to."""

    def message(self) -> Msg:
        """What to send to a (new) worker."""

    def survive(self, epitaph: str) -> bool:
        """The worker died. False when this was one death too many; it has then been failed."""

    def fail(self, error: BarrelError) -> None:
        """End it with an error."""


class Flight:
    """One request in flight. Chunks come out once, in order, whatever happens to workers in between."""

    def __init__(self, request: Request, clock: Callable[[], float]) -> None:
        self._request = request
        self._clock = clock
        self._arrived = clock()
        self._first_token_s: float | None = None
        self._started: Started | None = None
        self._emitted: list[int] = []
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._deaths = 0
        self._delivered = False  # anything yet
        self._queue: asyncio.Queue[Chunk | BarrelError] = asyncio.Queue()
        self.cancelled = False
        self.done = False  # its last chunk or its error has been queued

    @property
    def id(self) -> str:
        return self._request.id

    def message(self) -> Submit:
        if self._started is None:
            return Submit(self._request)
        resume = Resume(
            prompt_tokens=self._started.prompt_tokens, emitted=tuple(self._emitted), start=self._started.start
        )
        return Submit(msgspec.structs.replace(self._request, resume=resume))

    def survive(self, epitaph: str) -> bool:
        """A cancelled request ends here."""
        if self.cancelled:
            self.finish_cancelled()
        self._deaths += 1
        if self._deaths >= (MAX_DEATHS_WAITING if self._started is None else MAX_DEATHS):
            self.fail(WorkerDiedError(f"the worker died {self._deaths} times during this request ({epitaph})"))
        return not self.done

    def fail(self, error: BarrelError) -> None:
        if not self.done:
            self.done = True
            self._queue.put_nowait(error)

    def finish_cancelled(self) -> None:
        """End it without a worker's help, with what was delivered so far."""
        if not self.done:
            text, tokens = "".join(self._text), tuple(self._emitted)
            self._deliver(Chunk(completion=Completion(text=text, tokens=tokens, finish_reason="cancelled")))

    def start(self, message: Started) -> None:
        """Keep the first one: the cuts of the original prefill are what a resume must repeat."""
        if self._started is None:
            self._started = message

    def output(self, message: Output) -> None:
        if message.error is not None:
            self.fail(from_dict(message.error))
        elif message.chunk is not None and not self.done:
            self._deliver(message.chunk)

    def _deliver(self, chunk: Chunk) -> None:
        if not self._delivered and self._started is not None:
            chunk = msgspec.structs.replace(chunk, usage=_of_prompt(self._started))
        self._delivered = True
        self._emitted += chunk.tokens
        self._text.append(chunk.text)
        self._logprobs += chunk.logprobs
        if chunk.tokens and self._first_token_s is None:
            self._first_token_s = self._clock() - self._arrived
        if chunk.completion is not None:
            self.done = True
            chunk = msgspec.structs.replace(chunk, completion=self._complete(chunk.completion))
        self._queue.put_nowait(chunk)

    def _complete(self, completion: Completion) -> Completion:
        """Times and log probabilities as the caller saw them, over all workers."""
        total = self._clock() - self._arrived
        first = total if self._first_token_s is None else self._first_token_s
        timings = msgspec.structs.replace(completion.timings, first_token_s=first, total_s=total)
        logprobs = tuple(self._logprobs)
        return msgspec.structs.replace(completion, timings=timings, logprobs=logprobs, resumed=self._deaths)

    async def next(self) -> Chunk:
        """The next chunk; raises the request's error. Not to be called after either end."""
        item = await self._queue.get()
        if isinstance(item, BarrelError):
            raise item
        return item


def _of_prompt(started: Started) -> Usage:
    return Usage(prompt_tokens=len(started.prompt_tokens), cached_tokens=started.cache.restored_tokens)


class PendingCall:
    """One call; every op may be asked again of a new worker."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._deaths = 0
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def message(self) -> Call:
        return self._call

    def survive(self, epitaph: str) -> bool:
        self._deaths += 1
        if self._deaths < MAX_DEATHS:
            return True
        self.fail(WorkerDiedError(f"the worker died {self._deaths} times during {self._call.op!r} ({epitaph})"))
        return False

    def fail(self, error: BarrelError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def reply(self, message: Reply) -> None:
        if message.error is not None:
            self.fail(from_dict(message.error))
        elif not self.answer.done():
            self.answer.set_result(message.result)
