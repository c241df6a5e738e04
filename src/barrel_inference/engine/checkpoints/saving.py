"""What to copy out of a sequence, and when. Engine thread only; slicing, hashing and writing are the writer's."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator

from barrel_inference.config import BLOCK_TOKENS, Policy
from barrel_inference.engine.backend import Backend
from barrel_inference.engine.sequence import Sequence
from barrel_inference.kvcache.chain import Chain, pack_tokens, rest_key
from barrel_inference.kvcache.layout import Layout
from barrel_inference.kvcache.policy import SaveReason, cold_limit, save_limit, whole_blocks
from barrel_inference.kvcache.record import MAX_PARTS, ObjectKind, Provenance, short
from barrel_inference.kvcache.store import Store
from barrel_inference.kvcache.transfer.writer import Capture, Item, Writer

RUN_TOKENS = 512  # rows copied at once


class Saver:
    """``max_tokens``: at most so many of a sequence are kept."""

    def __init__(
        self, backend: Backend, store: Store, writer: Writer, layout: Layout, policy: Policy, max_tokens: int
    ) -> None:
        self._backend, self._store, self._writer = backend, store, writer
        self._layout, self._policy, self._max_tokens = layout, policy, max_tokens
        self.counters: defaultdict[str, float] = defaultdict(float)

    def after_step(self, sequence: Sequence) -> None:
        if not sequence.writes:
            return
        n = min(len(sequence.tokens), self._max_tokens)
        if self._layout.base is not None and (self._layout.window or not self._layout.has_state):
            limit, reason = save_limit(self._policy, sequence.n_prompt, n, sequence.saved, self._layout.n_swa)
            if limit > sequence.saved:
                self._save(sequence, limit, reason, with_state=False)
        if self._layout.has_state and n == len(sequence.tokens) and self._is_state_due(sequence, n):
            self._save(sequence, n, "cold" if n < sequence.n_prompt else "continued", with_state=True)

    def finish(self, sequence: Sequence, reason: SaveReason) -> str | None:
        """Everything not saved yet, tail and state included; the finish key (hex), None when it is not kept."""
        n = min(len(sequence.tokens), self._max_tokens)
        if not sequence.writes or n < self._policy.min_tokens:
            return None
        is_all = n == len(sequence.tokens)
        is_kept = self._save(sequence, n, reason, with_state=is_all and self._layout.has_state)
        return self._finish_key(sequence).hex() if is_all and is_kept else None

    def holds(self, sequence: Sequence) -> bool:
        """All that is kept of it is stored, or copied and on its way to a tier that takes what it is given."""
        if len(sequence.tokens) < self._policy.min_tokens:
            return True
        if sequence.saved < len(sequence.tokens):
            return False
        key = short(self._finish_key(sequence))
        return self._store.is_listed(key) or (self._writer.is_accepted and self._store.is_pending(key))

    def _is_state_due(self, sequence: Sequence, n: int) -> bool:
        if n <= sequence.n_prompt:
            return n in sequence.stops and n <= cold_limit(self._policy, sequence.n_prompt)
        return n >= self._policy.min_tokens and n % self._policy.boundary_align_tokens == 0

    def _finish_key(self, sequence: Sequence) -> bytes:
        keys, n = self._keys(sequence), len(sequence.tokens)
        start = whole_blocks(n)
        if self._layout.base is None:
            return rest_key("state", keys[start // BLOCK_TOKENS], pack_tokens(sequence.tokens))
        if start == n:
            return keys[n // BLOCK_TOKENS]
        return rest_key("tail", keys[start // BLOCK_TOKENS], pack_tokens(sequence.tokens[start:]))

    def _keys(self, sequence: Sequence) -> list[bytes]:
        if sequence.chain is None:
            sequence.chain = Chain(self._store.namespace, sequence.salt)
        return sequence.chain.extend(sequence.tokens)

    # ---- copying

    def _save(self, sequence: Sequence, stop: int, reason: SaveReason, *, with_state: bool) -> bool:
        """Copy what is not known yet of the positions up to ``stop``; False when something had to be dropped."""
        began = time.perf_counter()
        items = self._new_items(sequence, stop)
        runs = list(_runs(items, self._run_tokens()))
        if with_state:
            runs = self._with_state(sequence, stop, runs)
        is_kept = all(self._copy(sequence.seq, run, reason) for run in runs)
        if is_kept:
            sequence.saved = max(sequence.saved, stop)
        self.counters["save_copy_s"] += time.perf_counter() - began
        return is_kept

    def _run_tokens(self) -> int:
        """A copied range must not be longer than the window, or its first rows are left out."""
        if self._layout.window is not None:
            return max(BLOCK_TOKENS, min(RUN_TOKENS, whole_blocks(self._layout.n_swa)))
        return 1 << 30 if self._layout.has_state else RUN_TOKENS

    def _new_items(self, sequence: Sequence, stop: int) -> list[Item]:
        if self._layout.base is None:
            return []
        keys = self._keys(sequence)
        items: list[Item] = []
        for start in range(whole_blocks(sequence.saved), stop, BLOCK_TOKENS):
            end = min(start + BLOCK_TOKENS, stop)
            items += self._items_of(sequence, keys, start, end)
        return items

    def _items_of(self, sequence: Sequence, keys: list[bytes], start: int, end: int) -> Iterator[Item]:
        """A block or a tail and its window, unless they are stored already."""
        i = start // BLOCK_TOKENS
        packed = pack_tokens(sequence.tokens[start:end])
        kind: ObjectKind = "block" if end - start == BLOCK_TOKENS else "tail"
        key = keys[i + 1] if kind == "block" else rest_key("tail", keys[i], packed)
        provenance = _provenance(sequence, end)
        cost_us = int(sequence.cost_us_per_token * (end - start))
        rows = Item(kind, provenance, keys[i], key, start, packed, cost_us)
        if not self._store.is_known(rows.name):
            yield self._without_tail(rows, sequence.saved - start)
        if self._layout.window is not None:
            first = max(start, end - self._layout.n_swa)
            window = Item("window", provenance, keys[i], key, first, packed[4 * (first - start) :], cost_us)
            if not self._store.is_known(window.name):
                yield window

    def _without_tail(self, rows: Item, n: int) -> Item:
        """Only what the tail of its first ``n`` tokens does not hold, if that is stored. What was prefilled
        stays whole, for cold runs."""
        if rows.provenance == "p" or not 0 < n < len(rows.tokens) // 4:
            return rows
        tail = rest_key("tail", rows.parent, rows.tokens[: 4 * n])
        if not 0 < self._store.parts(short(tail)) < MAX_PARTS:
            return rows
        cost_us = rows.cost_us * (len(rows.tokens) // 4 - n) // (len(rows.tokens) // 4)
        return Item("rest", "g", tail, rows.key, rows.first + n, rows.tokens[4 * n :], cost_us)

    def _with_state(self, sequence: Sequence, stop: int, runs: list[list[Item]]) -> list[list[Item]]:
        """Add the state of ``stop`` to the last run if that ends there, otherwise as a run of its own."""
        i = stop // BLOCK_TOKENS
        first = i * BLOCK_TOKENS if self._layout.base is not None else 0
        packed, parent = pack_tokens(sequence.tokens[first:stop]), self._keys(sequence)[i]
        cost_us = int(sequence.cost_us_per_token * max(1, stop - whole_blocks(sequence.saved)))
        key = rest_key("state", parent, packed)
        state = Item("state", _provenance(sequence, stop), parent, key, first, packed, cost_us)
        if self._store.is_known(state.name):
            return runs
        if runs and _end(runs[-1][-1]) == stop:
            return [*runs[:-1], [*runs[-1], state]]
        return [*runs, [state]]

    def _copy(self, seq: int, items: list[Item], reason: SaveReason) -> bool:
        first, last = min(item.first for item in items), max(map(_end, items))
        if self._layout.base is None:
            return self._read(seq, items, reason)
        scratch = self._backend.scratch
        self._backend.seq_copy(seq, scratch, min(first, last - 1), last)
        try:
            return self._read(scratch, items, reason)
        finally:
            self._backend.seq_remove(scratch, 0, -1)

    def _read(self, seq: int, items: list[Item], reason: SaveReason) -> bool:
        size = self._backend.state_size(seq)
        buffer = self._writer.memory.take(size)
        if buffer is None:
            self._writer.drop(len(items))
            return False
        n = self._backend.state_read(seq, buffer[:size])
        if n == 0:
            self._writer.memory.give(buffer)
            self._writer.drop(len(items))
            return False
        self._writer.submit(Capture(buffer, n, tuple(items), reason))
        return True


def _provenance(sequence: Sequence, end: int) -> Provenance:
    return "p" if end <= sequence.prefill_end else "g"


def _end(item: Item) -> int:
    return item.first + len(item.tokens) // 4


def _runs(items: list[Item], longest: int) -> Iterator[list[Item]]:
    """Items of adjacent positions, together no longer than ``longest``."""
    run: list[Item] = []
    for item in items:
        first = min(one.first for one in (*run, item))  # a window begins before the rest that it belongs to
        if run and (item.first > _end(run[-1]) or _end(item) - first > longest):
            yield run
            run = []
        run.append(item)
    if run:
        yield run
