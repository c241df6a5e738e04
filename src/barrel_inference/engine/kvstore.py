"""The seam to the KV store: what the engine asks of it, and the null store for models whose cache is off. Owns nothing.

``engine.checkpoints`` implements it over ``kvcache``. Threads: ``find``, ``resume_key`` and ``release`` may be called from any
thread; everything else from the engine thread between decodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq
from typing import Protocol

from barrel_inference.engine.backend import Backend
from barrel_inference.engine.sequence import Sequence
from barrel_inference.types import Exactness

Limit = Callable[[int], int]  # tokens available -> largest position, not above it, at which this request may resume


class Plan(Protocol):
    """What the store can restore for one request. Its reads have started; it must be restored or released exactly once."""

    @property
    def length(self) -> int:
        """Tokens it restores, already limited; 0 = nothing."""

    @property
    def prefill_end(self) -> int:
        """How many of them, from the head, were computed by prefill in the shapes a cold run uses."""

    @property
    def tier(self) -> str | None: ...

    @property
    def first_mismatch(self) -> int | None: ...

    @property
    def ready(self) -> bool:
        """``restore`` would not wait for a read."""


class PrefixStore(Protocol):
    @property
    def layout(self) -> str:
        """plain | swa | recurrent | hybrid | whole | off"""

    def find(self, tokens: Seq[int], *, salt: str, exact: Exactness, limit: Limit) -> Plan | None:
        """The longest stored prefix of ``tokens`` that ``limit`` allows; starts its reads. ``cold``: only prefilled blocks."""

    def resume_key(self, key: str, *, wait_ms: int) -> tuple[int, ...] | None:
        """The tokens behind a finish key, waiting for a save in flight."""

    def release(self, plan: Plan) -> None: ...

    def restore(self, plan: Plan, seq: int) -> int:
        """Load the plan into an empty sequence. Tokens restored: ``plan.length``, or 0 with the sequence left empty."""

    def stops(self, n_prompt: int, boundaries: Seq[int]) -> tuple[int, ...]:
        """Ascending positions where prefill must stop so that a state can be captured."""

    def shareable(self, sequence: Sequence, wanted: int) -> int:
        """How many of its first ``wanted`` tokens may be shared in place, given window and recurrent state."""

    def after_step(self, sequence: Sequence) -> None:
        """``sequence.tokens`` has grown: capture what is complete. Only copies."""

    def finish(self, sequence: Sequence, reason: str) -> str | None:
        """Capture the tail (``finish`` | ``evict`` | ``shutdown``); returns the finish key when everything is saved."""


class NoCheckpoints:
    """Nothing is stored; resident sequences are still shared where the model's memory allows it."""

    layout = "off"

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def find(self, tokens: Seq[int], *, salt: str, exact: Exactness, limit: Limit) -> Plan | None:
        return None

    def resume_key(self, key: str, *, wait_ms: int) -> tuple[int, ...] | None:
        return None

    def release(self, plan: Plan) -> None:
        pass

    def restore(self, plan: Plan, seq: int) -> int:
        return 0

    def stops(self, n_prompt: int, boundaries: Seq[int]) -> tuple[int, ...]:
        return ()

    def shareable(self, sequence: Sequence, wanted: int) -> int:
        info = self._backend.info
        if wanted == len(sequence.tokens):
            return wanted
        if info.is_recurrent or info.is_hybrid:
            return 0
        # llama.cpp cuts behind the window without complaint and is silently wrong afterwards.
        if info.n_swa and self._backend.seq_bounds(sequence.seq)[0] > max(0, wanted - info.n_swa + 1):
            return 0
        return wanted

    def after_step(self, sequence: Sequence) -> None:
        pass

    def finish(self, sequence: Sequence, reason: str) -> str | None:
        return None
