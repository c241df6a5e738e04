"""Memory for models: what a load needs, and which others make way for it. Owns the claims of the loads that wait;
belongs to the event loop.

Idle models go at once, the least valuable first. While all are busy a load waits for ``fit.TURN_S``; then the least
valuable that has had its own turn lets nobody in any more. What runs on it ends, what queues waits for its next load,
behind the newcomer: so two models that have room for one both get on, and never change places faster than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from barrel_inference.config import ContextOpts
from barrel_inference.errors import OutOfMemoryError
from barrel_inference.registry import gguf
from barrel_inference.server.models import fit
from barrel_inference.server.models.keepalive import Timers
from barrel_inference.server.models.slot import Slot, no_room
from barrel_inference.worker.memory import MemoryReader


class _Claim(NamedTuple):
    """``making_way``: whose gates were closed for it."""

    needed: int
    since: float
    making_way: list[Slot]


class Room:
    """``slots`` are all there are; ``max_models`` of them at a time, 0: as many as fit."""

    def __init__(
        self, memory: MemoryReader, timers: Timers, slots: Callable[[], Iterable[Slot]], max_models: int
    ) -> None:
        self.changed = asyncio.Event()  # to be set whenever a slot falls idle or gives memory back
        self._memory = memory
        self._timers = timers
        self._slots = slots
        self._max_models = max_models
        self._claims: dict[Slot, _Claim] = {}  # the oldest first

    async def needed(self, slot: Slot, n_ctx: int) -> int:
        """Bytes. Raises OutOfMemoryError for what this machine can never hold."""
        needed = await _need(slot, n_ctx)
        if needed > self._memory.system().total * (1 - fit.RESERVE):
            raise self._too_large(slot, needed)
        return needed

    async def make(self, slot: Slot, needed: int) -> None:
        """Reserve ``needed`` bytes, as long as anybody waits for them. Raises OutOfMemoryError, QueueFullError."""
        claim = self._claims[slot] = _Claim(needed, self._timers.time(), [])
        try:
            while not self._reserve(slot, needed):
                if not slot.keep.active:
                    raise no_room(slot.entry)
                await self._evict(slot, claim)
        finally:
            del self._claims[slot]
            for each in claim.making_way:
                each.gate.open()
            self.changed.set()  # what was kept for it

    def _reserve(self, slot: Slot, needed: int) -> bool:
        others, before = self._others(slot), self._before(slot)
        staying = [each.bytes for each in others if each.gate.is_open] + [claim.needed for claim in before]
        if not self._fits(needed, [each.bytes for each in others]) or (before and not self._fits(needed, staying)):
            return False
        slot.bytes = needed
        return True

    def _others(self, slot: Slot) -> list[Slot]:
        return [each for each in self._slots() if each.bytes and each is not slot]

    def _before(self, slot: Slot) -> list[_Claim]:
        """Older claims, for which somebody makes way: not for who comes later."""
        older = list(self._claims)[: list(self._claims).index(slot)]
        return [self._claims[each] for each in older if self._claims[each].making_way]

    def _fits(self, needed: int, others: list[int]) -> bool:
        is_one_too_many = 0 < self._max_models <= len(others)
        return not is_one_too_many and needed <= fit.headroom(self._memory.system(), sum(others))

    async def _evict(self, slot: Slot, claim: _Claim) -> None:
        """The least valuable idle model; or, while all are busy, wait until one is not."""
        others = self._others(slot)
        if self._fits(claim.needed, [each.bytes for each in others]):  # there is room, kept for who came before
            await self._wait(None)
        elif idle := [each for each in others if each.is_idle]:
            await self._least_valuable(idle).unloaded()
        elif others:
            await self._wait(self._next_turn(claim, others))
        else:
            raise self._too_large(slot, claim.needed)

    def _least_valuable(self, slots: list[Slot]) -> Slot:
        now = self._timers.time()
        return min(slots, key=lambda each: fit.value(each.load_s, now - each.keep.last_used))

    def _next_turn(self, claim: _Claim, others: list[Slot]) -> float | None:
        """Closes the gate of one whose turn is over, or tells when it will be; None while somebody makes way."""
        busy = [each for each in others if each.is_settled and each.gate.is_open]
        if not busy or any(each.bytes for each in claim.making_way):
            return None
        now = self._timers.time()
        ends = {each: max(claim.since + fit.TURN_S, each.loaded_at + fit.turn_s(each.load_s)) for each in busy}
        if over := [each for each in busy if ends[each] <= now]:
            least = self._least_valuable(over)
            least.gate.close()
            claim.making_way.append(least)
            return None
        return min(ends.values()) - now

    async def _wait(self, at_most_s: float | None) -> None:
        self.changed.clear()
        timer = None if at_most_s is None else self._timers.call_later(at_most_s, self.changed.set)
        try:
            await self.changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _too_large(self, slot: Slot, needed: int) -> OutOfMemoryError:
        memory = self._memory.system()
        return OutOfMemoryError(
            f"model '{slot.entry.name}' needs {needed / 1e9:.1f} GB of memory; {memory.available / 1e9:.1f} of"
            f" {memory.total / 1e9:.1f} GB are free",
            needed=needed,
            free=memory.available,
        )


async def _need(slot: Slot, n_ctx: int) -> int:
    if slot.entry.path is None:
        return fit.WORKER_BYTES
    info = await asyncio.to_thread(gguf.read, slot.entry.path)
    given = slot.load["context_opts"]
    context = ContextOpts()
    per_token = fit.kv_bytes_per_token(
        dict(info.metadata), given.get("type_k", context.type_k), given.get("type_v", context.type_v)
    )
    return fit.need(info.size_bytes, per_token, n_ctx, given["n_seq_max"])
