"""What the runtime has asked of a worker and not yet been answered, in a form that outlives the worker.

A ``Flight`` is one generation: it knows how to submit itself again after a crash, continuing behind the last token that
it delivered. A ``PendingCall`` is one question. Both belong to the event loop of their supervisor.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import msgspec

from barrel_inference.errors import BarrelError, from_dict
from barrel_inference.types import CacheReport, Chunk, Completion, Request, Resume, TokenLogprob, Usage
from barrel_inference.worker.messages import Call, Msg, Output, Reply, Started, Submit


class Pending(ABC):
    """Something a worker owes an answer to. ``name``: for messages."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent = False  # the living worker has it
        self.is_running = False  # and has begun with it
        self.done = False  # it has its answer or its error, or nobody waits for it any more
        self.deaths = 0  # of workers that had it, since another was found guilty of one
        self.is_acquitted = False  # of the death that it is suspected of

    @abstractmethod
    def message(self) -> Msg:
        """What to send to a (new) worker."""

    @abstractmethod
    def fail(self, error: BarrelError) -> None:
        """End it with an error."""

    def bereave(self) -> None:
        """Its worker has died."""
        self.sent = self.is_running = False
        self.deaths += 1


class Flight(Pending):
    """One request in flight. Chunks come out once, in order, whatever happens to workers in between."""

    def __init__(self, request: Request, clock: Callable[[], float]) -> None:
        super().__init__("this request")
        self._request = request
        self._clock = clock
        self._arrived = clock()
        self._first_token_s: float | None = None
        self._started: Started | None = None
        self._emitted: list[int] = []
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._resumed = 0
        self._delivered = False  # anything yet
        self._has_grown = False  # since the last death
        self._is_recalled = False
        self._queue: asyncio.Queue[Chunk | BarrelError] = asyncio.Queue()
        self.cancelled = False
        self.was_recalled = False

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

    def bereave(self) -> None:
        """A cancelled request ends here."""
        super().bereave()
        self._resumed += 1
        self._has_grown = self._is_recalled = False
        if self.cancelled:
            self.finish_cancelled()

    def recall(self) -> bool:
        """Whether it is to be cancelled in the worker now, to go on later: it got past where the last one died.
        Once only."""
        if self.was_recalled or not self._has_grown:
            return False
        self.was_recalled = self._is_recalled = True
        return True

    def fail(self, error: BarrelError) -> None:
        if not self.done:
            self.done = True
            self._queue.put_nowait(error)

    def finish_cancelled(self) -> None:
        """End it without a worker's help, with what was delivered so far."""
        if self.done:
            return
        started = self._started or Started("", (), 0, 0, CacheReport())
        usage = msgspec.structs.replace(_of_prompt(started), completion_tokens=len(self._emitted))
        completion = Completion(
            text="".join(self._text),
            tokens=tuple(self._emitted),
            finish_reason="cancelled",
            seed=started.seed,
            cache=started.cache,
            usage=usage,
            prompt_tokens=started.prompt_tokens,
        )
        self._deliver(Chunk(completion=completion))

    def start(self, message: Started) -> None:
        """Keep the first one: the cuts of the original prefill are what a resume must repeat."""
        self.is_running = True
        if self._started is None:
            self._started = message

    def output(self, message: Output) -> None:
        if message.error is not None:
            self.fail(from_dict(message.error))
        elif message.chunk is not None and self._is_recall(message.chunk):
            self._is_recalled = self.sent = self.is_running = False
            self.is_acquitted = True
        elif message.chunk is not None and not self.done:
            self._deliver(message.chunk)

    def _is_recall(self, chunk: Chunk) -> bool:
        completion = chunk.completion
        return (
            self._is_recalled
            and not self.cancelled
            and completion is not None
            and completion.finish_reason == "cancelled"
        )

    def _deliver(self, chunk: Chunk) -> None:
        if not self._delivered and self._started is not None:
            chunk = msgspec.structs.replace(chunk, usage=_of_prompt(self._started))
        self._delivered = True
        self._has_grown |= bool(chunk.tokens)
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
        if self._resumed and self._started is not None:  # what the first worker found, not what a resume did
            cached = self._started.cache.restored_tokens
            usage = msgspec.structs.replace(completion.usage, cached_tokens=cached)
            completion = msgspec.structs.replace(completion, cache=self._started.cache, usage=usage)
        return msgspec.structs.replace(completion, timings=timings, logprobs=logprobs, resumed=self._resumed)

    async def next(self) -> Chunk:
        """The next chunk; raises the request's error. Not to be called after either end."""
        item = await self._queue.get()
        if isinstance(item, BarrelError):
            raise item
        return item


def _of_prompt(started: Started) -> Usage:
    return Usage(prompt_tokens=len(started.prompt_tokens), cached_tokens=started.cache.restored_tokens)


class PendingCall(Pending):
    """One call; every op may be asked again of a new worker."""

    def __init__(self, call: Call) -> None:
        super().__init__(repr(call.op))
        self._call = call
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def id(self) -> int:
        return self._call.call_id

    def message(self) -> Call:
        return self._call

    def fail(self, error: BarrelError) -> None:
        self.done = True
        if not self.answer.done():
            self.answer.set_exception(error)

    def reply(self, message: Reply) -> None:
        if message.error is not None:
            self.fail(from_dict(message.error))
        elif not self.answer.done():
            self.answer.set_result(message.result)
        self.done = True
