"""What happened so far, and what of it should not have. Belongs to the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.soak.asking import Reply

MAX_FAULTS = 20  # are told; all are counted


class Tally:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.n_replies = 0
        self._more = asyncio.Condition()

    async def reply(self, what: str, reply: Reply, solo: str) -> None:
        """Of a question whose answer, asked alone, is ``solo``."""
        self.counts[f"{what}, {reply.outcome}"] += 1
        if reply.outcome in ("wrong", "unanswered"):
            self.fault(f"{what}: {reply.outcome}: {reply.detail}")
        elif reply.text != solo if reply.outcome == "whole" else not solo.startswith(reply.text):
            self.fault(f"{what}: {reply.outcome} answer {reply.text!r} differs from the solo run's {solo!r}")
        self.n_replies += 1
        async with self._more:
            self._more.notify_all()

    def done(self, what: str) -> None:
        self.counts[what] += 1

    def fault(self, text: str) -> None:
        self.counts["faults"] += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(text)

    async def more_replies(self, count: int) -> None:
        """Wait until there are so many more of them."""
        wanted = self.n_replies + count
        async with self._more:
            await self._more.wait_for(lambda: self.n_replies >= wanted)
