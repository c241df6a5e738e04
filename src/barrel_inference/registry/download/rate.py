"""How fast a download may be. A Rate owns the moment at which what was received so far has been paid for."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable


class Rate:
    """All connections of one download share it; 0 bytes a second means no limit."""

    def __init__(
        self, bytes_per_s: int, sleep: Callable[[float], Awaitable[None]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bytes_per_s, self._sleep, self._clock = bytes_per_s, sleep, clock
        self._paid_at = 0.0

    async def spend(self, n_bytes: int) -> None:
        """Wait until that many bytes were due; the socket fills up meanwhile and slows its sender down."""
        if not self._bytes_per_s:
            return
        now = self._clock()
        self._paid_at = max(self._paid_at, now) + n_bytes / self._bytes_per_s
        await self._sleep(self._paid_at - now)
