"""The worker's view of its namespace in all tiers: what is there, what is on its way, what was lost.

Owns an index of file names for each tier, a hint that the directories correct: what is missing is looked for on disk
once its folder changed, what is gone is a miss. Any thread; one lock guards the index.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from barrel_inference.kvcache.chain import NAME_HEX, unpack_tokens
from barrel_inference.kvcache.record import (
    FIXED,
    MAX_HEADER,
    MAX_PARTS,
    PROVENANCES,
    ROWS,
    CorruptError,
    Name,
    ObjectKind,
    Record,
    decode,
    parse_name,
)
from barrel_inference.kvcache.tier import Tier
from barrel_inference.tally import Tally

RACY_NS = 50_000_000  # a folder's mtime is no proof when it is younger than a clock tick or so
FIRST_READ = 4096


@dataclass(slots=True)
class Entry:
    """The objects of one key in one tier, mostly one; of rests there may be several, which begin at different tails.
    ``best`` and ``rows`` need no lock."""

    names: tuple[Name, ...] = ()

    def best(self, kind: ObjectKind, cold: bool = False) -> Name | None:
        """The prefilled one when there is one; nothing else when ``cold``."""
        generated = None
        for name in self.names:
            if name.kind == kind:
                if name.provenance == "p":
                    return name
                generated = generated or name
        return None if cold else generated

    def rows(self) -> list[Name]:
        """The best first."""
        return sorted((name for name in self.names if name.kind in ROWS), key=_rank)

    def continuing(self, parent: str) -> Name | None:
        """The rows that begin where ``parent`` ends."""
        return next((name for name in self.rows() if name.parent == parent), None)

    def add(self, name: Name) -> None:
        if name not in self.names:
            self.names = (*self.names, name)

    def drop(self, name: Name) -> None:
        self.names = tuple(other for other in self.names if other != name)

    def is_child_of(self, parent: str) -> bool:
        return any(name.parent == parent for name in self.names)


def _rank(name: Name) -> tuple[int, int]:
    return ROWS.index(name.kind), PROVENANCES.index(name.provenance)


class Index:
    """File names of one namespace in one tier, by parent and key. The store's lock must be held."""

    def __init__(self, tier: Tier, namespace: str) -> None:
        self.tier, self.namespace = tier, namespace
        self.by_key: dict[str, Entry] = {}
        self.by_parent: dict[str, dict[str, Entry]] = {}
        self.heads: dict[Name, Record] = {}  # read so far
        self._banned: set[str] = set()
        self._shards: dict[str, tuple[int, set[str]]] = {}
        self._removals = tier.quota.removals()
        self.refresh_all()

    def sync(self) -> None:
        """Objects that were removed since, by an eviction or another worker, are no longer listed."""
        removals = self.tier.quota.removals()
        if removals != self._removals:
            self._removals = removals
            self.refresh_all()

    def refresh_all(self) -> None:
        for shard in {*self.tier.shards(self.namespace), *self._shards}:
            self.refresh(shard)

    def refresh(self, shard: str) -> bool:
        """List a folder again if it has changed; whether it had."""
        seen, files = self._shards.get(shard, (0, set[str]()))
        if seen and self.tier.shard_mtime(self.namespace, shard) == seen:
            return False
        listed, mtime = self.tier.shard(self.namespace, shard)
        now_there = set(listed) - self._banned
        for file in files - now_there:
            self._forget(file)
        for file in now_there - files:
            name = parse_name(file)
            if name is not None:
                self._enter(name)
        self._shards[shard] = (0 if time.time_ns() - mtime < RACY_NS else mtime, now_there)
        return True

    def add(self, name: Name, head: Record | None = None) -> None:
        self._enter(name)
        if head is not None:
            self.heads[name] = head
        self._shards.setdefault(name.shard, (0, set()))[1].add(name.file)

    def ban(self, name: Name) -> None:
        """Never list it again, even if it could not be moved away."""
        self._banned.add(name.file)

    def unban(self, name: Name) -> None:
        """A good one has taken its place."""
        self._banned.discard(name.file)

    def discard(self, name: Name) -> None:
        self._forget(name.file)
        self._shards.get(name.shard, (0, set[str]()))[1].discard(name.file)

    def _enter(self, name: Name) -> None:
        entry = self.by_key.get(name.key)
        if entry is None:
            entry = self.by_key[name.key] = Entry()
        self.by_parent.setdefault(name.parent, {})[name.key] = entry
        entry.add(name)

    def _forget(self, file: str) -> None:
        name = parse_name(file)
        entry = self.by_key.get(name.key) if name else None
        if name is None or entry is None:
            return
        entry.drop(name)
        self.heads.pop(name, None)
        if not entry.names:
            del self.by_key[name.key]
        if not entry.is_child_of(name.parent):
            siblings = self.by_parent.get(name.parent, {})
            siblings.pop(name.key, None)
            if not siblings:
                self.by_parent.pop(name.parent, None)


@dataclass(frozen=True)
class Shape:
    """What a model's layout asks of the store."""

    has_blocks: bool
    n_swa: int
    has_state: bool


class Store:
    """See the module. ``tiers``: fastest first; saves go to ``save_tier``."""

    def __init__(self, tiers: Sequence[Tier], save_tier: Tier | None, namespace: bytes, shape: Shape) -> None:
        self.namespace, self.shape = namespace, shape
        self.tiers, self.save_tier = tuple(tiers), save_tier
        self.counters = Tally()
        self.lock = threading.RLock()
        self._pending: set[Name] = set()
        self.folder = namespace.hex()
        self._indices = {tier.name: Index(tier, self.folder) for tier in self.tiers}

    # ---- saving

    def is_known(self, name: Name) -> bool:
        """Whether the save tier has this object, or it is on its way there. A prefilled one replaces a generated."""
        if self.save_tier is None or name in self._pending:
            return True
        entry = self._saved_entry(name.key)
        if entry is not None and entry.best(name.kind, cold=name.provenance == "p") is not None:
            return True
        return name.kind in ROWS and name.provenance == "g" and self.parts(name.key) > 0

    def expect(self, name: Name) -> None:
        """``name`` was captured; call ``saved`` or ``dropped`` later."""
        self._pending.add(name)

    def parts(self, key: str) -> int:
        """Of how many objects of the save tier, or on their way there, a block or tail is made up; 0 if one is missing,
        or it takes more than MAX_PARTS. Each key is asked once, however many ways lead there."""
        reached, seen = {key}, {key}
        for n in range(1, MAX_PARTS + 1):
            names = [name for each in reached for name in self._rows(each)]
            if any(name.kind != "rest" for name in names):
                return n
            reached = {name.parent for name in names} - seen
            seen |= reached
        return 0

    def _saved_entry(self, key: str) -> Entry | None:
        """Without the lock: the engine must not wait."""
        return self._indices[self.save_tier.name].by_key.get(key) if self.save_tier is not None else None

    def _rows(self, key: str) -> list[Name]:
        entry = self._saved_entry(key)
        listed = entry.rows() if entry is not None else []
        return listed or [name for name in list(self._pending) if name.key == key and name.kind in ROWS]

    def is_listed(self, key: str) -> bool:
        """The save tier has it, as far as is known."""
        entry = self._saved_entry(key)
        return entry is not None and (not entry.rows() or self.parts(key) > 0)

    def is_pending(self, key: str) -> bool:
        return any(name.key == key for name in list(self._pending))

    def pending_keys(self) -> set[str]:
        return {name.key for name in list(self._pending)}

    def saved(self, name: Name, head: Record, *, was_written: bool) -> None:
        """It is in the save tier now; ``was_written``: by us, and not there already."""
        tier = self.save_tier
        if tier is None:
            return
        with self.lock:
            self._pending.discard(name)
            if was_written:
                self._indices[tier.name].unban(name)
            self._indices[tier.name].add(name, head)
            for weaker in self._weaker(tier, name):
                self._indices[tier.name].discard(weaker)
                tier.remove(self.folder, weaker)

    def dropped(self, name: Name) -> None:
        self._pending.discard(name)

    def _weaker(self, tier: Tier, name: Name) -> list[Name]:
        """What a prefilled object replaces."""
        if name.provenance != "p":
            return []
        kinds = ROWS if name.kind in ROWS else (name.kind,)
        names = self._indices[tier.name].by_key[name.key].names
        return [other for other in names if other.provenance == "g" and other.kind in kinds]

    # ---- trouble

    def lost(self, tier: Tier, name: Name, *, corrupt: bool) -> None:
        """A read failed: forget the object, and if it is corrupt move it away. It is never tried again."""
        with self.lock:
            index = self._indices[tier.name]
            index.discard(name)
            if corrupt:
                index.ban(name)
                self.counters.count("corrupt", tier.name)
            else:
                index.refresh_all()  # where one is gone, more may be
        if corrupt:
            tier.quarantine(self.folder, name)

    def head(self, tier: Tier, name: Name) -> Record | None:
        """The object's header, read once; None (and the object given up) when it is corrupt or gone."""
        index = self._indices[tier.name]
        if name.key not in index.by_key:
            return None
        known = index.heads.get(name)
        if known is None and (known := self._read_head(tier, name)) is not None:
            index.heads[name] = known
        return known

    def _read_head(self, tier: Tier, name: Name) -> Record | None:
        try:
            record = read_header(tier, self.folder, name)
            if record.name != name or record.namespace != self.namespace:
                raise CorruptError("the object is not what its name says")
            return record
        except (OSError, CorruptError) as error:
            self.lost(tier, name, corrupt=isinstance(error, CorruptError))
            return None

    # ---- looking up (with the lock held)

    def index(self, tier: Tier) -> Index:
        return self._indices[tier.name]

    def sync(self) -> None:
        for index in self._indices.values():
            index.sync()

    def tokens_behind(self, key: str) -> tuple[int, ...] | None:
        """The token list that ends with the object named by a finish key, from the headers: of ways that lead there
        one that begins at the beginning."""
        with self.lock:
            self.sync()
            ways, seen = self._ways(key[:NAME_HEX], None), set[str]()
            while ways:
                tier, name, behind = ways.pop()
                record = self.head(tier, name)
                if record is None or not _is_before(record, behind):
                    continue
                way = _Way(record, behind)
                if record.first == 0:
                    return unpack_tokens(b"".join(way.tokens()))
                if name.parent not in seen:
                    seen.add(name.parent)
                    ways += self._ways(name.parent, way)
        return None

    def _ways(self, key: str, behind: _Way | None) -> list[tuple[Tier, Name, _Way | None]]:
        """What ends with ``key``, the best last."""
        found: list[tuple[Tier, Name, _Way | None]] = []
        for tier in self.tiers:
            if (entry := self._indices[tier.name].by_key.get(key)) is not None:
                state = entry.best("state")
                found += [(tier, name, behind) for name in entry.rows() or ([state] if state else [])]
        return found[::-1]


class _Way(NamedTuple):
    """Headers from one on to the end of a chain."""

    record: Record
    behind: _Way | None

    def tokens(self) -> Iterator[bytes]:
        way: _Way | None = self
        while way is not None:
            yield way.record.tokens
            way = way.behind


def _is_before(record: Record, behind: _Way | None) -> bool:
    """It ends where that begins, and begins before it: a chain made by hand may have no end."""
    return behind is None or record.first < behind.record.first == record.first + record.count


def read_header(tier: Tier, namespace: str, name: Name) -> Record:
    """CorruptError or OSError."""
    buffer = memoryview(bytearray(FIRST_READ))
    n = tier.read(namespace, name, [buffer])
    if n < FIXED.size:
        raise CorruptError("the header is cut short")
    size = FIXED.unpack_from(buffer)[-1]
    if FIRST_READ < size <= MAX_HEADER:
        buffer = memoryview(bytearray(size))
        n = tier.read(namespace, name, [buffer])
    return decode(buffer[:n])
