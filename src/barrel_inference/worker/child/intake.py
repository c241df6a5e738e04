"""What arrives, made ready for the engine one by one on a thread of its own: a long prompt or a slow lookup delays
neither a decode step nor a cancellation.

Owner of the waiting list; ``submit``, ``call``, ``cancel`` and ``drain`` are for the reader thread.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from barrel_inference.engine.engine import Engine
from barrel_inference.engine.requests.generation import Generation
from barrel_inference.errors import BarrelError, InvalidRequestError
from barrel_inference.types import Request
from barrel_inference.worker.channel import ChannelError
from barrel_inference.worker.messages import Call, Msg, Output, Reply

Send = Callable[[list[Msg]], None]

log = logging.getLogger(__name__)


class Intake:
    """``prepare`` and ``answer`` may raise BarrelError; ``answer`` may return a Future. ``await_first`` says what a
    request needs before it can be prepared: meanwhile others are."""

    def __init__(
        self,
        engine: Engine,
        send: Send,
        *,
        prepare: Callable[[Request], Generation],
        await_first: Callable[[Request], Future[Any] | None] = lambda request: None,
        answer: Callable[[str, dict[str, Any]], Any],
    ) -> None:
        self._engine = engine
        self._send = send
        self._prepare = prepare
        self._await_first = await_first
        self._answer = answer
        self._queue: queue.SimpleQueue[Request | Call | float | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting: set[str] = set()
        self._answering: set[int] = set()  # calls that are answered later
        self._cancelled: set[str] = set()
        self._drain_until: float | None = None
        threading.Thread(target=self._run, name="intake", daemon=True).start()

    def submit(self, request: Request) -> None:
        with self._lock:
            self._waiting.add(request.id)
        self._queue.put(request)

    def call(self, call: Call) -> None:
        self._queue.put(call)

    def cancel(self, request_id: str) -> None:
        """At once, or as soon as the engine has it."""
        with self._lock:
            if request_id in self._waiting:
                self._cancelled.add(request_id)
            else:
                self._engine.cancel(request_id)

    def drain(self, deadline_s: float) -> None:
        """The engine drains when it has all that came before; if that takes too long, without it."""
        timer = threading.Timer(deadline_s, self._engine.drain, [0.0])
        timer.daemon = True
        timer.start()
        self._queue.put(time.monotonic() + deadline_s)

    def _run(self) -> None:
        while True:
            match self._queue.get():
                case Request() as request:
                    self._take(request)
                case Call() as call:
                    self._reply(call)
                case float() as drain_until:
                    self._drain_until = drain_until
                case None:
                    pass
            if self._drain_until is not None and not self._waiting and not self._answering:
                self._engine.drain(max(0.0, self._drain_until - time.monotonic()))
                self._drain_until = None

    def _take(self, request: Request) -> None:
        try:
            if (first := self._await_first(request)) is not None:
                first.add_done_callback(lambda _: self._queue.put(request))
                return
            generation = self._prepare(request)
        except Exception as error:
            self._forget(request.id)
            self._send([Output(request.id, error=_wrap(error).to_dict())])
            return
        with self._lock:
            self._waiting.discard(request.id)
            self._engine.submit(generation)
            if request.id in self._cancelled:
                self._cancelled.discard(request.id)
                self._engine.cancel(request.id)

    def _forget(self, request_id: str) -> None:
        with self._lock:
            self._waiting.discard(request_id)
            self._cancelled.discard(request_id)

    def _reply(self, call: Call) -> None:
        try:
            result = self._answer(call.op, call.args)
        except Exception as error:
            self._send([Reply(call.call_id, error=_wrap(error).to_dict())])
            return
        if isinstance(result, Future):
            self._answering.add(call.call_id)
            result.add_done_callback(lambda future: self._reply_later(call, future))
        else:
            self._reply_with(call, result)

    def _reply_later(self, call: Call, future: Future[Any]) -> None:
        error = future.exception()
        if isinstance(error, Exception):
            self._send([Reply(call.call_id, error=_wrap(error).to_dict())])
        else:
            self._reply_with(call, future.result())
        self._answering.discard(call.call_id)
        self._queue.put(None)  # a drain may wait for it

    def _reply_with(self, call: Call, result: Any) -> None:
        try:
            self._send([Reply(call.call_id, result)])
        except ChannelError as error:
            too_large = InvalidRequestError(f"the answer cannot be sent, ask for less at once: {error}")
            self._send([Reply(call.call_id, error=too_large.to_dict())])


def _wrap(error: Exception) -> BarrelError:
    """Ours as they are; anything else is a bug of ours and not the request's fault, told in full only to the log."""
    if not isinstance(error, BarrelError):
        log.error("a request failed unexpectedly", exc_info=error)
    return BarrelError.wrap(error)
