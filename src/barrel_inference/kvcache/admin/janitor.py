"""Keeps each tier under its quota and its file system above a floor. Owns one thread, hit counts and recent use.

Workers say what they need (``need_room``) and what they use (``touched``); directories are shared with other runtimes,
so what is there is listed anew for each eviction, and what another janitor removed is simply gone.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from barrel_inference.errors import CacheError
from barrel_inference.files import read_small, write_atomically
from barrel_inference.kvcache.admin import pressure
from barrel_inference.kvcache.policy import Facts, Node, victims
from barrel_inference.kvcache.record import Name
from barrel_inference.kvcache.store import read_header
from barrel_inference.kvcache.tier import Stored, Tier
from barrel_inference.trouble import Trouble

logger = logging.getLogger(__name__)

RECOUNT_S = 600.0
REMEMBER_S = 60.0
MAX_HINTS = 200_000
PRESSURE_SHARE = 0.1  # of the tmpfs tiers, evicted before memory is measured again
UNKNOWN = Facts(0.1, 0)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Fractions of a tier's quota, unless the name says otherwise."""

    interval_s: float = 2.0
    high: float = 0.95  # beyond it the janitor evicts …
    low: float = 0.90  # … down to this
    min_free_bytes: int = 1 << 30  # of the file system; at most a twentieth of it. For tiers that do not say theirs
    namespace_floor: float = 0.05  # which no other model can push a namespace below
    namespace_cap: float = 1.0
    pressure_high: float = 0.85
    pressure_low: float = 0.75
    protect_s: float = 10.0  # what was found or written stays so long at least: it may still have to be read


class Janitor:
    """Any thread. ``on_room(tier)`` is called from its thread after a ``need_room`` was dealt with."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        on_room: Callable[[str], None] = lambda tier: None,
        memory: pressure.Source = pressure.none,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._limits, self._on_room, self._memory, self._clock = limits or Limits(), on_room, memory, clock
        self.counters: Counter[str] = Counter()
        self.evicted: Counter[tuple[str, str, str]] = Counter()  # the same by tier, namespace and name
        self._tiers: dict[str, Tier] = {}
        self._hits: dict[str, Counter[Node]] = {}
        self._protected: dict[Node, float] = {}
        self._facts: dict[Name, Facts] = {}
        self._recounted: dict[str, float] = {}
        self._remembered = clock()
        self._wanted: dict[str, int] = {}
        self._troubles: defaultdict[str, Trouble] = defaultdict(lambda: Trouble(logger))  # by tier
        self._blindness = Trouble(logger)
        self._wake = threading.Condition()
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    # ---- what others tell it

    def add_tier(self, tier: Tier) -> None:
        with self._wake:
            self._tiers[tier.name] = tier
            self._hits[tier.name] = _remembered_hits(tier)

    def need_room(self, tier: str, n_bytes: int) -> None:
        """A writer found ``tier`` full; answered by ``on_room``."""
        with self._wake:
            self._wanted[tier] = max(n_bytes, self._wanted.get(tier, 0))
            self._wake.notify_all()

    def touched(self, tier: str, keys: Iterable[str]) -> None:
        """A request found these: one more hit for each, and they are kept for it for a while."""
        until = self._clock() + self._limits.protect_s
        with self._wake:
            hits = self._hits.get(tier, Counter())
            for key in keys:
                hits[key] += 1
                self._protected[key] = until

    # ---- its thread

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="kv-janitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and leave the hit counts for the next start. Once: afterwards a tier may be gone."""
        with self._wake:
            if self._is_stopping:
                return
            self._is_stopping = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._remember()

    def _run(self) -> None:
        while not self._is_stopping:
            try:
                self.run_once()
            except Exception:  # a tier may vanish under it; the others still need care
                logger.exception("the janitor's pass failed")
            with self._wake:
                self._wake.wait_for(lambda: self._wanted or self._is_stopping, self._limits.interval_s)

    def run_once(self) -> None:
        """One pass over all tiers; answers the writers that wait."""
        now = self._clock()
        with self._wake:
            wanted, self._wanted = self._wanted, {}
            tiers = list(self._tiers.values())
            longest = now + self._limits.protect_s  # beyond it: the clock was set back since
            self._protected = {key: until for key, until in self._protected.items() if now < until <= longest}
        for tier in tiers:
            try:
                self._care_for(tier, wanted.get(tier.name, 0), now)
                self._troubles[tier.name].is_over()
            except OSError as error:
                self._troubles[tier.name].tell("tier %s: %s", tier.name, error)
        for name in wanted:
            self._on_room(name)
        self._relieve(tiers)
        if abs(now - self._remembered) > REMEMBER_S:
            self._remember()

    def _care_for(self, tier: Tier, wanted: int, now: float) -> None:
        if abs(now - self._recounted.get(tier.name, -RECOUNT_S)) >= RECOUNT_S:
            tier.sweep(now)
            if tier.quota.recount(tier.allocated) is not None:
                self._recounted[tier.name] = now
        limits, quota, used = self._limits, tier.quota.limit_bytes, tier.quota.used()
        if wanted or used > limits.high * quota:
            self._evict(tier, int(used + wanted - limits.low * quota), "quota")
        lacking = self._floor_bytes(tier) + wanted - tier.free_bytes()
        if lacking > 0:
            self._evict(tier, lacking, "free_space")
        if limits.namespace_cap < 1.0:
            self._cap(tier)

    def _floor_bytes(self, tier: Tier) -> int:
        if tier.spec.min_free_bytes is not None:
            return tier.spec.min_free_bytes
        stat = os.statvfs(tier.root)
        return min(self._limits.min_free_bytes, stat.f_blocks * stat.f_frsize // 20)

    def _cap(self, tier: Tier) -> None:
        cap = int(self._limits.namespace_cap * tier.quota.limit_bytes)
        for namespace in tier.namespaces():
            stored = list(tier.objects(namespace))
            excess = sum(one.allocated for one in stored) - cap
            if excess > 0:
                self._remove(tier, self._choose(tier, stored, excess, floors={}), "cap")

    def _relieve(self, tiers: list[Tier]) -> None:
        """Memory is short: shrink the tmpfs tiers step by step until it is not, or nothing is left."""
        in_memory = [tier for tier in tiers if tier.spec.kind != "disk"]
        used = self._memory_used()
        if used < self._limits.pressure_high:
            return
        while used > self._limits.pressure_low:
            if not sum(map(self._shrink, in_memory)):
                return
            used = self._memory_used()

    def _memory_used(self) -> float:
        """The user's own source may fail: then memory is not short, and that is told once."""
        try:
            used = float(self._memory())
        except Exception as error:
            self._blindness.tell("memory pressure cannot be measured: %r", error)
            return 0.0
        self._blindness.is_over()
        return used

    def _shrink(self, tier: Tier) -> int:
        with suppress(OSError):
            return self._evict(tier, int(tier.quota.used() * PRESSURE_SHARE) + 1, "pressure")
        return 0

    # ---- evicting

    def _evict(self, tier: Tier, n_bytes: int, reason: str) -> int:
        """Bytes freed."""
        if n_bytes <= 0:
            return 0
        floor = int(self._limits.namespace_floor * tier.quota.limit_bytes)
        floors = dict.fromkeys(tier.namespaces(), floor)
        freed = self._remove(tier, self._choose(tier, tier.objects(), n_bytes, floors), reason)
        if freed < n_bytes:  # floors hold between models, they do not keep the tier full
            freed += self._remove(tier, self._choose(tier, tier.objects(), n_bytes - freed, {}), reason)
        return freed

    def _choose(self, tier: Tier, stored: Iterable[Stored], n_bytes: int, floors: dict[str, int]) -> list[Stored]:
        with self._wake:
            hits, protected = Counter(self._hits.get(tier.name, {})), frozenset(self._protected)
        return list(
            victims(
                stored,
                n_bytes,
                now=self._clock(),
                facts=lambda one: self._facts_of(tier, one),
                hits=hits,
                pinned=tier.pinned(),
                protected=protected,
                fresh_s=self._limits.protect_s,
                floors=floors,
                is_elsewhere=self._others(tier),
            )
        )

    def _others(self, tier: Tier) -> Callable[[Node], bool]:
        """Whether a tier beside this one has a node: a conversation goes on in the tier that is saved to, wherever it
        began. They are listed when that is first asked."""
        with self._wake:
            others = [other for other in self._tiers.values() if other is not tier]

        @functools.cache
        def nodes() -> frozenset[Node]:
            return frozenset(key for each in tier.namespaces() for other in others for key in other.keys(each))

        return lambda node: node in nodes()

    def _remove(self, tier: Tier, chosen: list[Stored], reason: str) -> int:
        freed = 0
        for one in chosen:
            n_bytes = tier.remove(one.namespace, one.name)
            freed += n_bytes
            self.evicted[tier.name, one.namespace, f"evictions_{reason}"] += 1
            self.evicted[tier.name, one.namespace, "evicted_bytes"] += n_bytes
            self._facts.pop(one.name, None)
        with self._wake:
            for one in chosen:
                self._hits.get(tier.name, Counter()).pop(one.name.key, None)
        self.counters[f"evictions_{reason}"] += len(chosen)
        self.counters["evicted_bytes"] += freed
        return freed

    def _facts_of(self, tier: Tier, one: Stored) -> Facts:
        """From its header, read once."""
        if one.name not in self._facts:
            facts = UNKNOWN
            with suppress(OSError, CacheError):
                record = read_header(tier, one.namespace, one.name)
                facts = Facts(record.cost_us / 1e6 or UNKNOWN.cost_s, record.first)
            self._facts[one.name] = facts
        return self._facts[one.name]

    def _remember(self) -> None:
        self._remembered = self._clock()
        with self._wake:
            copies = [(tier, dict(self._hits[tier.name].most_common(MAX_HINTS))) for tier in self._tiers.values()]
        for tier, hits in copies:
            with suppress(OSError):
                write_atomically(tier.root / "hits.json", msgspec.json.encode(hits))


def _remembered_hits(tier: Tier) -> Counter[Node]:
    """A hint from an earlier run: missing or unreadable, it is empty."""
    try:
        return Counter(msgspec.json.decode(read_small(tier.root / "hits.json"), type=dict[str, int]))
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return Counter()
