"""The engine's handle on the KV store: one object per loaded model. Owns store, reader pool and writer thread.

The engine thread alone calls ``restore``, ``stops``, ``after_step``, ``finish`` and ``shareable``; the rest is safe on
any thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from barrel_inference.config import BLOCK_TOKENS, Policy
from barrel_inference.engine import sequence as resident
from barrel_inference.engine.backend import Backend
from barrel_inference.engine.checkpoints.restoring import Restorer, StoredPlan
from barrel_inference.engine.checkpoints.saving import Saver
from barrel_inference.engine.kvstore import KVStore, Plan
from barrel_inference.kvcache.chain import pack_tokens, rest_key
from barrel_inference.kvcache.layout import Layout
from barrel_inference.kvcache.lookup import Limit
from barrel_inference.kvcache.policy import SaveReason, state_stops
from barrel_inference.kvcache.record import short
from barrel_inference.kvcache.render import shelf_bytes
from barrel_inference.kvcache.store import Store
from barrel_inference.kvcache.transfer.reader import Reader
from barrel_inference.kvcache.transfer.writer import Writer
from barrel_inference.types import CacheLookup, Exactness

PENDING_WAIT_S = 0.5  # for blocks that are on their way to the store
COUNTERS = (
    "lookups",
    "misses",
    "hits_exact",
    "hits_partial",
    "gated",  # lookups whose restore would have cost more than computing
    "restore_failed",
    "restore_s",
    "prefill_s_saved",
    "saves_cold",  # objects, by the reason they were saved for
    "saves_continued",
    "saves_finish",
    "saves_evict",
    "saves_shutdown",
    "saved_bytes",
    "saved_tokens",
    "save_s",  # of the writer thread
    "save_copy_s",  # of the engine thread
    "drops",  # objects for which there was no memory or no room
    "save_errors",
    "incomplete",  # objects whose rows had left the window
    "corrupt",
)  # and restored_tokens_<tier> for each tier


class Checkpoints(KVStore):
    """The null store. ``layout`` (plain | swa | recurrent | hybrid | whole | off) and ``verdict`` ("exact", or why the
    cache is off) are for info()."""

    layout: str = "off"
    namespace: str = ""  # hex
    bytes_per_token: int = 0

    def __init__(self, backend: Backend, verdict: str) -> None:
        super().__init__(backend)
        self.verdict = verdict

    @property
    def counters(self) -> dict[str, float]:
        """A snapshot; cumulative."""
        return dict.fromkeys(COUNTERS, 0.0)

    @property
    def store(self) -> Store | None:
        """For kvcache.admin."""
        return None

    @property
    def memory_folder(self) -> Path | None:
        """Where what was written is remembered, beside the blocks; None where nothing is saved."""
        store = self.store
        return store.save_tier.folder(store.folder) if store is not None and store.save_tier is not None else None

    @property
    def memory_bytes(self) -> int:
        """The most that may be remembered there."""
        tier = self.store.save_tier if self.store is not None else None
        return shelf_bytes(tier.quota.limit_bytes) if tier is not None else 0

    def lookup(self, tokens: Sequence[int], *, salt: str = "") -> CacheLookup:
        """What ``find`` would restore, without reading."""
        return CacheLookup(prompt_tokens=len(tokens), cached_tokens=0)

    def tokens_behind(self, key: str, wait_s: float = 0.0) -> tuple[int, ...] | None:
        """The token list that a finish key stands for; waits for its save in flight."""
        return None

    def room(self, tier: str) -> None:
        """The janitor has answered: a waiting writer looks again."""

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything captured is written; False when time ran out."""
        return True

    def close(self) -> None:
        """Stop reader and writer threads; unsaved objects are dropped (``flush`` first)."""


class StoredCheckpoints(Checkpoints):
    def __init__(
        self,
        backend: Backend,
        store: Store,
        layout: Layout,
        policy: Policy,
        *,
        exact: Exactness,
        restorer: Restorer,
        reader: Reader,
        saver: Saver | None,
        writer: Writer | None,
    ) -> None:
        super().__init__(backend, "exact")
        self.layout, self.namespace = layout.kind, store.namespace.hex()
        self.bytes_per_token = layout.bytes_per_token
        self._store, self._layout, self._policy, self._exact = store, layout, policy, exact
        self._restorer, self._reader = restorer, reader
        self._saver, self._writer = saver, writer
        self._residents: dict[int, resident.Sequence] = {}  # read by other threads, as a hint

    @property
    def counters(self) -> dict[str, float]:
        total = dict.fromkeys(COUNTERS, 0.0)
        for part in (self._store, self._restorer, self._saver, self._writer):
            total.update(part.counters if part else {})
        return total

    @property
    def store(self) -> Store | None:
        return self._store

    def find(
        self,
        tokens: Sequence[int],
        *,
        salt: str = "",
        exact: Exactness | None = None,
        limit: Limit | None = None,
        at_least: int = 0,
        parent_key: str | None = None,
    ) -> StoredPlan:
        if parent_key is not None:
            self._wait_for(parent_key, self._policy.session_resume_wait_ms / 1000)
        is_cold = (exact or self._exact) == "cold"
        deadline = time.monotonic() + PENDING_WAIT_S
        return self._restorer.find(
            tokens,
            salt=salt,
            cold=is_cold,
            limit=limit,
            at_least=at_least,
            is_resident=lambda plan: self._is_resident(plan, plan.length),
            await_more=lambda plan: self._await_more(plan, deadline),
        )

    def release(self, plan: Plan) -> None:
        if isinstance(plan, StoredPlan):
            self._restorer.release(plan)

    def begin(self, plan: Plan) -> None:
        if isinstance(plan, StoredPlan):
            self._restorer.begin(plan)

    def keep(self, plans: Iterable[Plan]) -> None:
        self._restorer.keep(plan for plan in plans if isinstance(plan, StoredPlan))

    def restore(self, plan: Plan, seq: int) -> int:
        return self._restorer.restore(plan, seq) if isinstance(plan, StoredPlan) else 0

    def stops(self, n_prompt: int, boundaries: Sequence[int], start: int = 0) -> tuple[int, ...]:
        if not self._layout.has_state or self._saver is None:
            return ()
        return tuple(at for at in state_stops(self._policy, n_prompt, boundaries) if at > start)

    def after_step(self, sequence: resident.Sequence) -> None:
        self._residents[sequence.seq] = sequence
        if sequence.cost_us_per_token:
            self._restorer.prefill_s = sequence.cost_us_per_token / 1e6
        if self._saver is not None:
            self._saver.after_step(sequence)

    def holds(self, sequence: resident.Sequence) -> bool:
        return self._saver is not None and self._saver.holds(sequence)

    def finish(self, sequence: resident.Sequence, reason: SaveReason) -> str | None:
        return self._saver.finish(sequence, reason) if self._saver is not None else None

    def lookup(self, tokens: Sequence[int], *, salt: str = "") -> CacheLookup:
        found = self._restorer.look(tokens, salt)
        return CacheLookup(
            prompt_tokens=len(tokens),
            cached_tokens=found.length,
            by_tier=found.by_tier(),
            first_mismatch=found.first_mismatch,
        )

    def tokens_behind(self, key: str, wait_s: float = 0.0) -> tuple[int, ...] | None:
        self._wait_for(key, wait_s)
        return self._store.tokens_behind(key)

    def room(self, tier: str) -> None:
        if self._writer is not None:
            self._writer.room()

    def flush(self, timeout_s: float) -> bool:
        return self._writer.flush(timeout_s) if self._writer is not None else True

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader.close()

    def _await_more(self, plan: StoredPlan, deadline: float) -> bool:
        """The next block or tail was on its way, and is there now: its sequence may have left the context already."""
        if self._writer is None or (found := self._on_its_way(plan)) is None or self._is_resident(plan, found[1]):
            return False
        key, left_s = found[0], deadline - time.monotonic()
        return self._writer.wait_for(lambda: not self._store.is_pending(key), max(0.0, left_s))

    def _on_its_way(self, plan: StoredPlan) -> tuple[str, int] | None:
        """The key of what continues the plan and is being written, and how many tokens it leads to."""
        n_blocks, keys = plan.length // BLOCK_TOKENS, plan.found.keys
        pending = self._store.pending_keys()
        if not pending or n_blocks >= len(keys):
            return None
        start = n_blocks * BLOCK_TOKENS
        if n_blocks + 1 < len(keys) and (block := short(keys[n_blocks + 1])) in pending:
            return block, start + BLOCK_TOKENS
        rest = plan.tokens[start : start + BLOCK_TOKENS]
        for n in range(len(rest), plan.length - start, -1):  # the longest tail first
            if (tail := short(rest_key("tail", keys[n_blocks], pack_tokens(rest[:n])))) in pending:
                return tail, start + n
        return None

    def _is_resident(self, plan: StoredPlan, n: int) -> bool:
        """A sequence of the context holds the first ``n`` tokens, as far as is known."""
        return any(
            sequence.salt == plan.salt and tuple(sequence.tokens[:n]) == plan.tokens[:n]
            for sequence in list(self._residents.values())
        )

    def _wait_for(self, key: str, wait_s: float) -> None:
        if self._writer is not None:
            name = short(bytes.fromhex(key)) if _is_hex(key) else key
            self._writer.wait_for(lambda: not self._store.is_pending(name), wait_s)


def _is_hex(text: str) -> bool:
    try:
        bytes.fromhex(text)
    except ValueError:
        return False
    return True
