"""The seam to the KV store: what the engine asks of it, and the null store, from which ``engine.checkpoints`` derives.
Owns nothing.

``find`` and ``release`` may be called from any thread, everything else from the engine thread between decodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from barrel_inference.engine import sequence as resident
from barrel_inference.engine.backend import Backend
from barrel_inference.kvcache.lookup import Limit
from barrel_inference.kvcache.policy import SaveReason
from barrel_inference.types import Exactness


class Plan(Protocol):
    """What the store can restore for one request; its reads have begun. Must be restored or released."""

    @property
    def length(self) -> int:
        """Tokens it restores; 0 = a miss."""

    @property
    def tier(self) -> str | None: ...

    @property
    def first_mismatch(self) -> int | None: ...

    @property
    def ready(self) -> bool:
        """``restore`` may be called; it would not wait for a read, or not for long while it has the engine alone."""

    @property
    def has_begun(self) -> bool:
        """Its reads have; not when too many were under way when it was found, until ``KVStore.begin``."""

    def read_on(self, *, all_of_it: bool) -> None:
        """Before ``ready`` is asked. ``all_of_it``: others run, and must not wait for reads; be ready only then."""

    def prefill_end(self, n_prompt: int) -> int:
        """How many of the restored rows equal those of a cold run of the prompt."""


class NoPlan:
    length = 0
    tier = None
    first_mismatch = None
    ready = True
    has_begun = True

    def read_on(self, *, all_of_it: bool) -> None:
        pass

    def prefill_end(self, n_prompt: int) -> int:
        return n_prompt


class KVStore:
    """What the engine asks; this one stores nothing. Resident sequences are still shared where the model's memory
    allows it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def find(
        self,
        tokens: Sequence[int],
        *,
        salt: str = "",
        exact: Exactness | None = None,
        limit: Limit | None = None,
        at_least: int = 0,
        parent_key: str | None = None,
    ) -> Plan:
        """The longest prefix that may be restored, at most len(tokens) - 1, and only so far as ``limit`` allows."""
        return NoPlan()

    def release(self, plan: Plan) -> None:
        pass

    def begin(self, plan: Plan) -> None:
        """It is the turn of a plan that has not begun: its reads begin now, however many are under way. Without memory
        they do not, and ``restore`` gives 0."""

    def keep(self, plans: Iterable[Plan]) -> None:
        """Requests still wait to restore these: what they name must not be evicted for some seconds more."""

    def restore(self, plan: Plan, seq: int) -> int:
        """Tokens now in ``seq``: ``plan.length``, or 0 with the sequence left empty."""
        return 0

    def stops(self, n_prompt: int, boundaries: Sequence[int], start: int = 0) -> tuple[int, ...]:
        """Ascending positions where prefill must stop so that a state can be captured."""
        return ()

    def shareable(self, sequence: resident.Sequence, wanted: int) -> int:
        """How many of its first ``wanted`` tokens may be shared in place, given window and recurrent state."""
        info = self._backend.info
        if wanted == len(sequence.tokens):
            return wanted
        if info.is_recurrent or info.is_hybrid:
            return 0
        # llama.cpp cuts behind the window without complaint and is silently wrong afterwards.
        if info.n_swa and self._backend.seq_bounds(sequence.seq)[0] > max(0, wanted - info.n_swa + 1):
            return 0
        return wanted

    def after_step(self, sequence: resident.Sequence) -> None:
        """``sequence.tokens`` has grown: capture what is complete. Only copies."""

    def holds(self, sequence: resident.Sequence) -> bool:
        """All of it can be restored, now or once it is written."""
        return False

    def finish(self, sequence: resident.Sequence, reason: SaveReason) -> str | None:
        """Capture the rest; the finish key when everything is saved."""
        return None
