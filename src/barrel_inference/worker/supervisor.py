"""Keeps one model's worker alive: start, restart with back-off, resume what was in flight, stop.

    starting -> ready <-> restarting -> failed
                  └-> stopping -> stopped

A failure before the first ready is an answer, raised by ``start``. Owner of all state: the event loop that called
``start``; nothing here is thread-safe.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, assert_never

import msgspec

from barrel_inference.config import LoadOptions
from barrel_inference.errors import (
    BarrelError,
    ExhaustedError,
    InvalidRequestError,
    LoadError,
    NotLoadedError,
    OutOfMemoryError,
    RequestTimeoutError,
    WorkerDiedError,
)
from barrel_inference.types import Chunk, ModelInfo, Phase, Request
from barrel_inference.worker.channel import ChannelError
from barrel_inference.worker.client import Flight, Pending, PendingCall
from barrel_inference.worker.messages import (
    Call,
    Cancel,
    Counters,
    Drain,
    Failed,
    Msg,
    NeedRoom,
    Output,
    Ping,
    Progress,
    Pulse,
    Ready,
    Reply,
    Started,
    Touched,
    Up,
)
from barrel_inference.worker.process import Life, worker_command
from barrel_inference.worker.trial import Trial
from barrel_inference.worker.vigil import Vigil

MAX_START_ATTEMPTS = 3  # of one restart
HEALTHY_LIFE_S = 60.0  # a life this long forgets earlier deaths
MAX_BACKOFF_S = 30.0
EXIT_GRACE_S = 5.0  # beyond what a drain was given
SILENCE_S = 60.0  # of a worker that owes answers, then it counts as hung

_log = logging.getLogger(__name__)

Observer = Callable[[Progress | NeedRoom | Touched], None]


def backoff_s(short_lives: int) -> float:
    """Delay before the next start: none after a first death, then 0.5 s doubling up to MAX_BACKOFF_S."""
    return 0.0 if short_lives <= 1 else min(MAX_BACKOFF_S, 0.5 * 2 ** (short_lives - 2))


def summed(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    """Counters of two workers as those of one."""
    return {key: first.get(key, 0) + second.get(key, 0) for key in first | second}


class Supervisor:
    """One loaded model as the runtime sees it. What is resumed after a death, and when, is for ``Trial`` to say.

    ``observe`` hears what concerns the runtime as a whole. ``ready_timeout_s`` is counted anew from each Progress.
    ``silence_s``: see ``Vigil``.
    """

    def __init__(
        self,
        options: LoadOptions,
        *,
        observe: Observer = lambda message: None,
        ready_timeout_s: float = 60.0,
        silence_s: float = SILENCE_S,
        command: Sequence[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.options = options
        self.phase: Phase = "starting"
        self._observe = observe
        self._ready_timeout_s = ready_timeout_s
        self._silence_s = silence_s
        self._command = worker_command() if command is None else command
        self._clock = clock
        self._sleep = sleep
        self._life: Life | None = None
        self._born = 0.0
        self._task: asyncio.Task[None] | None = None
        self._info = ModelInfo(id=options.id, phase="starting")
        self._flights: dict[str, Flight] = {}
        self._calls: dict[int, PendingCall] = {}
        self._next_call = 0
        self._vigil = Vigil(silence_s, None)  # of the living worker
        self._trial = Trial()
        self._restarts = 0
        self._short_lives = 0
        self._counters: dict[str, float] = {}  # of the living worker
        self._past: dict[str, float] = {}  # of the dead ones
        self._fatal: BarrelError | None = None

    # ---- life

    async def start(self) -> ModelInfo:
        """Returns when the model is usable. Raises what the worker answered, or LoadError when it died or stalled."""
        try:
            await self._begin_life()
        except BaseException:
            self.phase = "stopped"
            raise
        self._task = asyncio.create_task(self._run(), name=f"supervise {self.options.id}")
        return self.info()

    async def stop(self, *, drain_s: float, save_s: float) -> None:
        """Let requests run for ``drain_s``, then cancel them; let the worker save for ``save_s``; then it is gone."""
        self.phase = "stopping"
        if self._task is None:
            return
        if self._life is None:
            self._task.cancel()
        else:
            self._life.channel.send([Drain(drain_s, save_s)])
        await asyncio.wait([self._task], timeout=drain_s + save_s + EXIT_GRACE_S)
        if self._life is not None:
            _log.warning("worker %s did not drain in time and is killed", self.options.id)
            self._life.kill()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        """Listen, bury, restart, until stopped or beyond hope."""
        error: BarrelError = NotLoadedError(f"model {self.options.id!r} was unloaded")
        try:
            while self._life is not None:
                await self._listen(self._life)
                epitaph = await self._bury(self._life)
                if self.phase == "stopping":
                    break
                _log.warning("worker %s died: %s", self.options.id, epitaph)
                await self._restart(epitaph)
        except Exception as failure:
            error = self._fatal = BarrelError.wrap(failure)
            is_bug = not isinstance(failure, BarrelError)
            _log.error("model %s cannot be restarted: %s", self.options.id, error, exc_info=is_bug)
        finally:
            if self._life is not None:  # this task was cancelled, or failed itself
                self._life.kill()
            self.phase = "failed" if self._fatal is not None and self.phase != "stopping" else "stopped"
            self._fail_all(error)

    async def _restart(self, epitaph: str) -> None:
        """A new worker with everything that was in flight. Raises when it will not come up."""
        self.phase = "restarting"
        self._restarts += 1
        self._trial.after_death(self._pending(), epitaph)
        for attempt in range(1, MAX_START_ATTEMPTS + 1):
            await self._sleep(backoff_s(self._short_lives))
            try:
                await self._begin_life()
                break
            except (LoadError, OutOfMemoryError, ExhaustedError) as failure:
                may_pass = failure.details.get("died") or isinstance(failure, ExhaustedError)
                if attempt == MAX_START_ATTEMPTS or not may_pass:
                    raise
                _log.warning("worker %s cannot be started again yet: %s", self.options.id, failure)
                self._short_lives += 1
        self._submit()

    async def _begin_life(self) -> None:
        self._life, self._info = await Life.begin(
            self.options, self._command, ready_timeout_s=self._ready_timeout_s, on_progress=self._observe
        )
        self._born = self._clock()
        self.phase = "ready"

    async def _bury(self, life: Life) -> str:
        """Reap the worker; returns how it ended."""
        life.channel.close()
        if self.phase != "stopping":
            life.process.kill()  # its end of the socket is closed: nothing it still does is of use
        await life.process.end(EXIT_GRACE_S)
        self._life = None
        self._past = summed(self._past, self._counters)
        self._counters = {}
        lived_s = self._clock() - self._born
        self._short_lives = 1 if lived_s >= HEALTHY_LIFE_S else self._short_lives + 1
        return life.epitaph()

    # ---- messages

    async def _listen(self, life: Life) -> None:
        """Until the worker closes its end, breaks the protocol or has hung."""
        self._vigil = Vigil.over(self._silence_s, self.options.context_opts.decode_budget_ms)
        watching = asyncio.create_task(self._watch(life, self._vigil), name=f"watch {self.options.id}")
        try:
            await life.channel.listen(self._hear)
        except ChannelError as error:
            _log.error("worker %s: %s", self.options.id, error)
        finally:
            watching.cancel()

    def _hear(self, batch: list[Up]) -> None:
        self._vigil.heard()
        for message in batch:
            self._dispatch(message)
        self._submit()

    async def _watch(self, life: Life, vigil: Vigil) -> None:
        """Kill a worker that has hung; its requests go on in another one, as after any other death."""
        last = self._clock()
        while True:
            await asyncio.sleep(vigil.tick_s)
            last, before = self._clock(), last
            owes = any(each.sent and not each.done for each in self._pending())
            if wrong := vigil.tick(last - before, owes=owes):
                _log.error("worker %s %s and is killed", self.options.id, wrong)
                life.kill(f"it {wrong} and was killed")
                return
            if owes:
                self._send([Ping()])

    def _dispatch(self, message: Up) -> None:
        match message:
            case Started() if (flight := self._flights.get(message.request_id)) is not None:
                flight.start(message)
            case Output() if (flight := self._flights.get(message.request_id)) is not None:
                flight.output(message)
                if self._trial.is_on(flight) and flight.recall():
                    self._send([Cancel(flight.id)])
            case Reply() if (call := self._calls.pop(message.call_id, None)) is not None:
                call.reply(message)
            case Counters(counters, info):
                self._counters = counters
                self._info = info
            case NeedRoom() | Touched() | Progress():
                self._observe(message)
            case Pulse(step):
                self._vigil.pulse(step)
            case Started() | Output() | Reply():
                pass  # of a request that was given up in the meantime
            case Ready() | Failed():
                _log.warning("worker %s sent a second %s", self.options.id, type(message).__name__)
            case _:
                assert_never(message)

    def _send(self, messages: Sequence[Msg]) -> None:
        if self._life is not None and messages:
            self._life.channel.send(messages)

    def send(self, message: Msg) -> None:
        """Tell the worker something that needs no answer; dropped while there is none."""
        self._send([message])

    # ---- requests

    async def generate(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Chunks up to and including the one with the completion. Closing it early cancels the request."""
        flight = self._launch(request)
        timer = self._arm_timeout(flight, request.timeout_s)
        try:
            while True:
                chunk = await flight.next()
                yield chunk
                if chunk.completion is not None:
                    return
        finally:
            if timer is not None:
                timer.cancel()
            self._land(flight)

    def cancel(self, request_id: str) -> None:
        """End a request within one step, with finish reason ``cancelled``; unknown ids are finished ones."""
        flight = self._flights.get(request_id)
        if flight is None or flight.done:
            return
        flight.cancelled = True
        if flight.sent:
            self._send([Cancel(request_id)])
        else:
            flight.finish_cancelled()
        self._submit()

    async def call(self, op: str, **args: Any) -> Any:
        """Ask the worker and wait for its reply, over a restart if need be. Raises its error."""
        self._require_usable()
        self._next_call += 1
        pending = self._calls[self._next_call] = PendingCall(Call(self._next_call, op, args))
        self._submit()
        try:
            return await pending.answer
        finally:
            pending.done = True
            self._calls.pop(pending.id, None)
            self._submit()

    def info(self) -> ModelInfo:
        """The last known facts; does not ask the worker."""
        pid = None if self._life is None else self._life.process.pid
        return msgspec.structs.replace(
            self._info, phase=self.phase, restarts=self._restarts, worker_pid=pid, id=self.options.id
        )

    def counters(self) -> dict[str, float]:
        """Over all workers of this model."""
        return summed(self._past, self._counters)

    def _launch(self, request: Request) -> Flight:
        self._require_usable()
        if request.id in self._flights:
            raise InvalidRequestError(f"request id {request.id!r} is in use", id=request.id)
        flight = self._flights[request.id] = Flight(request, self._clock)
        self._submit()
        return flight

    def _land(self, flight: Flight) -> None:
        if not flight.done:
            self._send([Cancel(flight.id)])
            flight.done = True
        self._flights.pop(flight.id, None)
        self._submit()

    def _arm_timeout(self, flight: Flight, timeout_s: float | None) -> asyncio.TimerHandle | None:
        if timeout_s is None:
            return None
        return asyncio.get_running_loop().call_later(timeout_s, self._expire, flight, timeout_s)

    def _expire(self, flight: Flight, timeout_s: float) -> None:
        if not flight.done:
            self._send([Cancel(flight.id)])
            flight.fail(RequestTimeoutError(f"the request was not finished after {timeout_s:g} s", timeout_s=timeout_s))
            self._submit()

    def _submit(self) -> None:
        """Send what the worker should have; without one, the restart will. What cannot be sent gets an error."""
        for pending in self._trial.due(self._pending()) if self._life else ():
            try:
                self._send([pending.message()])
                pending.sent = True
            except (ChannelError, msgspec.MsgspecError, UnicodeError, OverflowError, TypeError) as error:
                pending.fail(InvalidRequestError(f"the request cannot be sent to the worker: {error}"))

    def _require_usable(self) -> None:
        if self._fatal is not None:
            raise WorkerDiedError(f"model {self.options.id!r} has failed: {self._fatal}", cause=self._fatal.code)
        if self.phase in ("stopping", "stopped"):
            state = "is being unloaded" if self.phase == "stopping" else "is not loaded any more"
            raise NotLoadedError(f"model {self.options.id!r} {state}", id=self.options.id)

    def _pending(self) -> list[Pending]:
        return [*self._flights.values(), *self._calls.values()]

    def _fail_all(self, error: BarrelError) -> None:
        for pending in self._pending():
            pending.fail(error)
