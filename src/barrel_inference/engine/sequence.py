"""One resident sequence: the KV that a sequence id of the context holds. Written by the engine thread alone.

A sequence outlives the request that filled it: idle, it is a donor of its prefix until it is recycled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from barrel_inference.kvcache.chain import Chain
from barrel_inference.types import CacheMode

if TYPE_CHECKING:
    from barrel_inference.engine.requests.generation import Generation


@dataclass(eq=False)
class Sequence:
    """``tokens`` are the ids whose KV is computed, at positions 0 … n-1."""

    seq: int
    tokens: list[int] = field(default_factory=list)
    n_prompt: int = 0  # of the request that filled it last
    prefill_end: int = 0  # the first so many were computed by prefill in the shapes of a cold run
    is_undisturbed: bool = True  # no other has held cells beside it: its own lie where a cold run's do
    boundaries: tuple[int, ...] = ()  # message ends in the prompt, in tokens
    salt: str = ""
    cache: CacheMode = "auto"
    saved: int = 0  # positions the store has captured; the store's to write
    chain: Chain | None = None  # block keys of ``tokens``; the store's to make and write
    stops: tuple[int, ...] = ()  # where its prefill must end a chunk
    cost_us_per_token: float = 0.0  # measured prefill cost
    last_used: float = 0.0
    session: str | None = None  # pinned by it
    generation: Generation | None = None  # running in it

    @property
    def is_idle(self) -> bool:
        return self.generation is None

    @property
    def writes(self) -> bool:
        """May be saved, and shared with other requests."""
        return self.cache in ("auto", "write")

    @property
    def is_unsaved(self) -> bool:
        """Some of it should be in the store and is not."""
        return self.writes and self.saved < len(self.tokens)

    def clear(self) -> None:
        """Forget the content; the caller has removed the KV."""
        self.tokens = []
        self.prefill_end = self.n_prompt = self.saved = 0
        self.is_undisturbed = True
        self.boundaries = self.stops = ()
        self.chain = None

    def adopt(self, tokens: list[int], prefill_end: int) -> None:
        """The KV of exactly ``tokens`` is now in place (restored or shared)."""
        self.clear()
        self.tokens = tokens
        self.prefill_end = min(prefill_end, len(tokens))

    def cut(self, length: int) -> None:
        """Only the first ``length`` tokens are left."""
        del self.tokens[length:]
        self.saved, self.prefill_end = min(self.saved, length), min(self.prefill_end, length)
        if self.chain:
            self.chain.cut(length)

    def extend(self, tokens: tuple[int, ...], *, cold_shape: bool) -> None:
        """A decode has computed ``tokens``; ``cold_shape``: as prefill, with the rows a cold run would use. Attention
        sums in the order of cells, so rows also depend on where they lie."""
        if cold_shape and self.is_undisturbed and self.prefill_end == len(self.tokens):
            self.prefill_end += len(tokens)
        self.tokens.extend(tokens)


def settle(sequence: Sequence, sequences: Iterable[Sequence]) -> None:
    """``sequence`` gets cells in the context: none of those that hold any is undisturbed unless it is the only one."""
    holding = [other for other in sequences if other.tokens or other is sequence]
    if len(holding) > 1:
        for other in holding:
            other.is_undisturbed = False
