"""The queue before one model: so many at a time, so many waiting, and not for ever; the order is that of ``turns``.

Owned by the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from barrel_inference.errors import QueueFullError
from barrel_inference.server.models.turns import Turns

BUSY = "server busy, please try again.  maximum pending requests exceeded"  # Ollama's words


class Gate:
    """``capacity`` requests run, ``depth`` wait for at most ``timeout_s`` (0: as long as it takes)."""

    def __init__(self, capacity: int, depth: int, timeout_s: float) -> None:
        self.capacity = capacity
        self.running = 0
        self.is_open = True
        self._depth = depth
        self._timeout_s = timeout_s
        self._turns: Turns[asyncio.Future[None]] = Turns()
        self._served_s = 1.0  # what one request takes, smoothed: for Retry-After

    @property
    def waiting(self) -> int:
        return len(self._turns)

    @asynccontextmanager
    async def admit(self, client: str = "") -> AsyncIterator[None]:
        """Raises QueueFullError when too many wait, or after ``timeout_s``; its details say when to try again."""
        await self._enter(client)
        clock = asyncio.get_running_loop().time
        started = clock()
        try:
            yield
        finally:
            self._served_s += 0.2 * (clock() - started - self._served_s)
            self._leave()

    def close(self) -> None:
        """Let nobody in until it is opened: who runs goes on, who comes waits."""
        self.is_open = False

    def open(self) -> None:
        self.is_open = True
        self._let_in()

    async def _enter(self, client: str) -> None:
        if self.is_open and self.running < self.capacity and not self.waiting:
            self.running += 1
            return
        if self.waiting >= self._depth:
            self._make_room(client)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.push(client, turn)
        try:
            async with asyncio.timeout(self._timeout_s or None):
                await turn
        except BaseException as error:
            self._give_up(client, turn)
            if isinstance(error, TimeoutError):
                raise self._full(f"server busy: no turn within {self._timeout_s:g} s") from None
            raise

    def _make_room(self, client: str) -> None:
        """In a full queue, at the cost of a client that has more in it. Raises QueueFullError when there is none."""
        bumped = self._turns.bump(client)
        if bumped is None:
            raise self._full(BUSY)
        if not bumped.done():
            bumped.set_exception(self._full(BUSY))

    def _give_up(self, client: str, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled() and turn.exception() is None:  # it came at the same moment: pass it on
            self._leave()
        else:
            self._turns.remove(client, turn)

    def _leave(self) -> None:
        self.running -= 1
        self._let_in()

    def _let_in(self) -> None:
        while self.is_open and self.waiting and self.running < self.capacity:
            turn = self._turns.pop()
            if not turn.done():
                self.running += 1
                turn.set_result(None)

    def _full(self, message: str) -> QueueFullError:
        wait_s = self._served_s * (self.waiting + 1) / self.capacity
        return QueueFullError(message, queued=self.waiting, running=self.running, retry_after_s=min(wait_s, 600.0))
