"""Finding what a prompt can be restored from, and putting it into a sequence. Plans belong to their request."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from barrel_inference.engine.backend import Backend
from barrel_inference.kvcache import lookup
from barrel_inference.kvcache.layout import Layout
from barrel_inference.kvcache.lookup import Found, Limit
from barrel_inference.kvcache.policy import cold_resume, cold_rows, is_worth
from barrel_inference.kvcache.record import CorruptError, Name
from barrel_inference.kvcache.store import Store
from barrel_inference.kvcache.tier import Tier
from barrel_inference.kvcache.transfer.reader import Reader
from barrel_inference.kvcache.transfer.reading import Reading
from barrel_inference.tally import Tally

logger = logging.getLogger(__name__)

ATTEMPTS = 4  # each failed one gives up at least one bad object

Touched = Callable[[str, tuple[str, ...]], None]
Asked = Callable[["StoredPlan"], bool]


@dataclass(eq=False)
class StoredPlan:
    """One way to get a prompt's prefix from the store; its reads have begun if there was memory for them."""

    tokens: Sequence[int]
    salt: str
    limit: Limit
    chunk: int  # of a solo prefill
    cold: bool
    at_least: int
    found: Found
    tier: str | None = None  # the slowest one read
    reading: Reading | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def length(self) -> int:
        """Tokens that would be restored; 0 = miss. At most len(tokens) - 1."""
        return self.found.length

    @property
    def first_mismatch(self) -> int | None:
        return self.found.first_mismatch

    @property
    def ready(self) -> bool:
        """Whether ``restore`` would not wait for reads that have begun."""
        return self.reading is None or self.reading.ready

    @property
    def has_begun(self) -> bool:
        return not self.length or self.reading is not None

    def read_on(self, *, all_of_it: bool) -> None:
        with self.lock:
            if self.reading is not None and (all_of_it or self.reading.is_slow):
                self.reading.begin_all()

    def prefill_end(self, n_prompt: int) -> int:
        """How many of the restored rows equal those of a cold run of the prompt."""
        return cold_rows(self.found.length, self.found.prefill_end, n_prompt, self.chunk)

    def take_reading(self) -> Reading | None:
        with self.lock:
            reading, self.reading = self.reading, None
            return reading


class Restorer:
    """``find`` and ``release``: any thread. ``restore``: engine thread. At most ``max_tokens`` are restored."""

    def __init__(
        self, backend: Backend, store: Store, reader: Reader, layout: Layout, touched: Touched, max_tokens: int
    ) -> None:
        self._backend, self._store, self._reader, self._layout = backend, store, reader, layout
        self._touched, self._max_tokens = touched, max_tokens
        self.counters = Tally()
        self.prefill_s = 0.0  # per token, as the engine measured last; 0 = not known

    def find(
        self,
        tokens: Sequence[int],
        *,
        salt: str,
        cold: bool,
        limit: Limit | None,
        at_least: int,
        is_resident: Asked = lambda plan: False,
        await_more: Asked = lambda plan: False,
    ) -> StoredPlan:
        """``await_more``: something that continues the plan has been written meanwhile. ``is_resident``: a sequence of
        the context holds as much, so that the plan will hardly be restored; then nothing is read ahead."""
        tokens = tuple(tokens)
        chunk = self._backend.info.solo_chunk
        # Attention sums in the order of cells, and restored rows of a window lie in others than a cold run's.
        most = 0 if cold and self._layout.window is not None else self._max_tokens

        def allowed(at: int) -> int:
            at = min(at, most)
            if cold:
                return cold_resume(at, len(tokens), chunk)
            return limit(at) if limit else at

        plan = StoredPlan(tokens, salt, allowed, chunk, cold, at_least, _nothing(self._store))
        self._locate(plan)
        while await_more(plan):
            self._locate(plan)
        self.counters["lookups"] += 1
        if plan.length:
            plan.reading = None if is_resident(plan) else self._reader.start(plan.found)
            self._tell(plan.found)
            self._reader.touch(plan.found.names())
        else:
            self.counters["misses"] += 1
        return plan

    def look(self, tokens: Sequence[int], salt: str) -> Found:
        """What could be restored, whatever it costs; nothing is read."""
        return lookup.find(self._store, tokens, salt=salt, limit=lambda at: min(at, self._max_tokens))

    def begin(self, plan: StoredPlan) -> None:
        with plan.lock:
            if not plan.has_begun:
                plan.reading = self._reader.start(plan.found, wait=True)

    def release(self, plan: StoredPlan) -> None:
        reading = plan.take_reading()
        if reading is not None:
            self._reader.finish(reading)

    def keep(self, plans: Iterable[StoredPlan]) -> None:
        """They are still needed: as fresh as when they were found, so that no janitor takes them."""
        names: defaultdict[Tier, set[Name]] = defaultdict(set)
        for plan in plans:
            for tier, found in plan.found.names().items():
                names[tier].update(found)
        self._reader.touch(names)

    def restore(self, plan: StoredPlan, seq: int) -> int:
        start = time.perf_counter()
        for _ in range(ATTEMPTS):
            if not plan.length:
                break
            try:
                n = self._read_and_load(plan, seq)
            except TimeoutError:  # the next attempt would wait for the same disk
                logger.warning("a tier does not answer: a prompt is computed that could have been restored")
                self._count(plan, 0, 0.0)
                break
            except (CorruptError, OSError) as error:
                logger.warning("an object of the KV store is lost: %s", error)
                self._locate(plan)
                continue
            self._count(plan, n, time.perf_counter() - start)
            return n
        self._backend.seq_remove(seq, 0, -1)
        return 0

    def _read_and_load(self, plan: StoredPlan, seq: int) -> int:
        reading = plan.take_reading() or self._reader.start(plan.found, wait=True)
        if reading is None:
            return 0
        try:
            n = self._load(reading, plan.found, seq)
            if n:  # a layout without rows knows only what a token costs now
                self.counters["prefill_s_saved"] += reading.prefill_s or n * self.prefill_s
            return n
        finally:
            self._reader.finish(reading)

    def _load(self, reading: Reading, found: Found, seq: int) -> int:
        self._backend.seq_remove(seq, 0, -1)
        are_taken = all(append_state(self._backend, seq, blob) for blob in reading.blobs())
        if are_taken and self._is_in_place(found.length, seq):
            return found.length
        logger.warning("llama.cpp refused a restored state of %d tokens", found.length)
        self._backend.seq_remove(seq, 0, -1)  # a refused state may leave cells behind
        return 0

    def _is_in_place(self, n: int, seq: int) -> bool:
        first, last = self._backend.seq_bounds(seq)
        if last != n - 1:
            return False
        if self._layout.has_state:
            return True
        return first <= (max(0, n - self._layout.n_swa + 1) if self._layout.window else 0)

    def _locate(self, plan: StoredPlan) -> None:
        """The longest prefix whose reading costs less than computing it; slow tiers are left out when they do not."""
        tiers = list(self._store.tiers)
        plan.found, plan.tier = _nothing(self._store), None
        while tiers:
            found = lookup.find(self._store, plan.tokens, salt=plan.salt, limit=plan.limit, cold=plan.cold, tiers=tiers)
            slowest = max((piece.tier for piece in found.pieces), key=tiers.index, default=None)
            if slowest is None or found.length <= plan.at_least:
                plan.found = Found(found.namespace, found.keys, b"", first_mismatch=found.first_mismatch)
                return
            if is_worth(found.length, self.prefill_s, self._reader.expected_s(found)):
                plan.found, plan.tier = found, slowest.name
                return
            self.counters.count("gated", slowest.name)
            tiers.remove(slowest)

    def _tell(self, found: Found) -> None:
        for tier, names in found.names().items():
            self._touched(tier.name, tuple(name.key for name in names))

    def _count(self, plan: StoredPlan, n: int, seconds: float) -> None:
        if not n:
            self.counters.count("restore_failed", plan.tier)
            return
        n_usable = plan.limit(len(plan.tokens) - 1)
        self.counters.count("hits_exact" if n >= n_usable else "hits_partial", plan.tier)
        self.counters["restore_s"] += seconds
        for tier, n_tokens in plan.found.by_tier().items():
            self.counters[f"restored_tokens_{tier}"] += n_tokens
            self.counters.count_of("restored_tokens", tier, n_tokens)  # the engine's own count has the living ones, too


def append_state(backend: Backend, seq: int, blob: memoryview) -> bool:
    """Load rows behind those that ``seq`` holds. A state replaces all of a sequence, so they come by way of another."""
    if backend.seq_bounds(seq)[1] < 0:
        return backend.state_write(seq, blob)
    is_taken = backend.state_write(backend.scratch, blob)
    if is_taken:
        backend.seq_copy(backend.scratch, seq, 0, -1)
        backend.seq_remove(backend.scratch, 0, -1)
    return is_taken


def _nothing(store: Store) -> Found:
    return Found(store.namespace, (), b"")
