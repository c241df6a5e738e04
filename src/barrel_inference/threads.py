"""Threads for what may wait long: whole files to read, locks of other processes, names to resolve. The executor that
asyncio has by itself is small, and every chat is rendered in it, so nothing of that kind may go there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """At most ``size`` of them, made as they are needed; what comes then waits its turn."""

    def __init__(self, size: int, name: str) -> None:
        self._make = partial(ThreadPoolExecutor, size, name)
        self._pool = self._make()

    def close(self) -> None:
        """Each ends with what it does, or has still to do; for what comes later new ones are made."""
        pool, self._pool = self._pool, self._make()
        pool.shutdown(wait=False)

    async def run(self, work: Callable[..., T], /, *args: Any, undo: Callable[[T], object] | None = None) -> T:
        """``undo``: what becomes of a result whose caller has left meanwhile, since nobody else hears of it."""
        future = self._pool.submit(work, *args)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if undo is not None:
                future.add_done_callback(lambda done: _came(done) and undo(done.result()))
            raise


async def alone(work: Callable[..., T], /, *args: Any) -> T:
    """On a thread of its own, which keeps nobody waiting: no other work, and not the end of the process."""
    return await asyncio.wrap_future(start(getattr(work, "__name__", "alone"), work, *args))


def start(name: str, work: Callable[..., T], /, *args: Any) -> Future[T]:
    """The same for who is on no event loop. Raises RuntimeError when the system has no thread to give."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _came(done: Future[Any]) -> bool:
    return not done.cancelled() and done.exception() is None
