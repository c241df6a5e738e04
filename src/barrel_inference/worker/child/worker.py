"""One worker's life: load, say Ready, run until drained or orphaned. Owns everything in the process; ``run`` is called
on the main thread, which becomes the engine thread."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import assert_never

from barrel_inference.config import LoadOptions
from barrel_inference.engine.checkpoints import Checkpoints
from barrel_inference.engine.engine import Engine
from barrel_inference.errors import BarrelError, LoadError, OutOfMemoryError
from barrel_inference.worker.channel import BlockingChannel, ChannelError
from barrel_inference.worker.child.assembly import Assembly, assemble
from barrel_inference.worker.messages import (
    Call,
    Cancel,
    Down,
    Drain,
    Failed,
    Load,
    Msg,
    Ping,
    Pulse,
    Ready,
    Room,
    Submit,
)

ORPHAN_FLUSH_S = 1.0  # for what was captured already, when the runtime is gone

log = logging.getLogger(__name__)


class Worker:
    def __init__(self, channel: BlockingChannel[Down], options: LoadOptions) -> None:
        self._channel = channel
        self._options = options
        self._parts: Assembly | None = None
        self._loaded = threading.Event()
        self._save_s = 0.0

    def run(self) -> None:
        threading.excepthook = self._thread_failed
        threading.Thread(target=self._read, name="reader", daemon=True).start()
        try:
            parts = self._parts = assemble(self._options, self.send)
        except Exception as error:
            if not isinstance(error, BarrelError):
                log.exception("loading failed")
            self.send([Failed(_typed(error).to_dict())])
            return
        gc.freeze()  # walking the index of a large store takes the collector 0.2 s, which some token would wait for
        self.send([Ready(parts.facts.info())])
        self._loaded.set()
        try:
            parts.engine.run()
        except Exception:
            log.exception("the engine failed")  # the runtime starts another worker and resumes there
            self._exit(1)
        save_rest(parts.engine, parts.store, self._save_s)
        parts.reporter.report()
        self._exit(0)

    def send(self, messages: Sequence[Msg]) -> None:
        """Any thread."""
        try:
            self._channel.send(messages)
        except OSError:
            self._orphaned()

    # ---- reader thread

    def _read(self) -> None:
        try:
            while (batch := self._channel.receive()) is not None:
                self._loaded.wait()
                for message in batch:
                    self._handle(message)
        except ChannelError as error:
            log.error("the runtime broke the protocol: %s", error)
        self._orphaned()

    def _handle(self, message: Down) -> None:
        parts = self._parts
        assert parts is not None
        match message:
            case Submit(request):
                parts.intake.submit(request)
            case Cancel(request_id):
                parts.intake.cancel(request_id)
            case Call():
                parts.intake.call(message)
            case Ping():
                self.send([Pulse(parts.engine.current_step)])
            case Room(tier):
                parts.store.room(tier)
            case Drain(deadline_s, save_s):
                self._save_s = save_s
                parts.intake.drain(deadline_s)
            case Load():
                log.error("a second Load is ignored")
            case _:
                assert_never(message)

    def _thread_failed(self, what: threading.ExceptHookArgs) -> None:
        """A worker without one of its threads would hold its clients for ever; another one takes its requests over."""
        name = what.thread.name if what.thread else "a thread"
        try:
            log.error("the %s thread failed", name, exc_info=what.exc_value)
        finally:  # without memory nothing can be told either
            self._exit(1)

    def _orphaned(self) -> None:
        """The runtime is gone, and so is every client; only what is in the writer's hands is still worth something."""
        try:
            if self._parts is not None:
                self._parts.store.flush(ORPHAN_FLUSH_S)
        finally:
            self._exit(0)

    def _exit(self, code: int) -> None:
        """Without destructors: other threads may be inside llama.cpp, and the system frees memory faster."""
        try:
            logging.shutdown()
        finally:
            os._exit(code)


def save_rest(engine: Engine, store: Checkpoints, save_s: float) -> None:
    """Write what is unsaved, within ``save_s``: as often as the queue is empty again, what it had no room for."""
    until = time.monotonic() + save_s
    while store.flush(max(0.0, until - time.monotonic())):
        n_drops = store.counters["drops"]
        engine.save_idle()
        if store.counters["drops"] == n_drops:
            break
    store.flush(max(0.0, until - time.monotonic()))


def _typed(error: Exception) -> BarrelError:
    """Why a load failed."""
    if isinstance(error, MemoryError):
        return OutOfMemoryError("not enough memory to load the model")
    return LoadError.wrap(error)
