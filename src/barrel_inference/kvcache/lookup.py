"""From a prompt to what it can be restored from: walk the chain, look for what the resume position needs.

A position p can be resumed when all rows below it are there and, if the model needs them, the window rows just below p
or the state of exactly p. The last rows may be lent by any object that continues the last whole block with the same
tokens: the next block, a tail, another conversation's block. A block may lie in parts: a tail, and rests that complete
it. Owns nothing; ``find`` holds the store's lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from barrel_inference.config import BLOCK_TOKENS
from barrel_inference.kvcache.chain import block_keys, pack_tokens, rest_key, root
from barrel_inference.kvcache.record import MAX_PARTS, Expected, Name, ObjectKind, Record, short
from barrel_inference.kvcache.store import Entry, Store
from barrel_inference.kvcache.tier import Tier

MAX_HEADER_READS = 64  # children of one position whose headers one lookup may read

Limit = Callable[[int], int]  # the largest position, not above the given one, at which the request may resume


class Piece(NamedTuple):
    """One object to read: positions [start, stop) of the [first, last) that it holds; its parent ends at ``after``."""

    tier: Tier
    name: Name
    first: int
    last: int
    start: int
    stop: int
    after: int


class Lent(NamedTuple):
    """Objects, each continuing the one before, that hold the wanted tokens up to ``stop``."""

    pieces: tuple[Piece, ...]
    stop: int
    differs: bool  # they go on with another token than the request

    def behind(self, piece: Piece) -> Lent:
        return Lent((piece, *self.pieces), self.stop, self.differs)


@dataclass(frozen=True)
class Found:
    """How to restore ``length`` tokens. ``prefill_end``: the head of them that was computed as a cold run would."""

    namespace: bytes
    keys: tuple[bytes, ...]
    packed: bytes
    length: int = 0
    blocks: tuple[Piece, ...] = ()
    windows: tuple[Piece, ...] = ()
    state: Piece | None = None
    state_bytes: int = 0
    prefill_end: int = 0
    first_mismatch: int | None = None

    @property
    def pieces(self) -> Iterator[Piece]:
        yield from self.blocks
        yield from self.windows
        if self.state is not None:
            yield self.state

    @property
    def window_first(self) -> int:
        return self.windows[0].start if self.windows else self.length

    def expected(self, piece: Piece) -> Expected:
        """What the header of ``piece`` must say."""
        tokens = self.packed[4 * piece.first : 4 * min(piece.last, self.length)]
        return Expected(self.namespace, piece.name.kind, self._key_at(piece.after), piece.first, tokens)

    def _key_at(self, position: int) -> bytes:
        """Of the chain position, or of the tail that ends there."""
        start = position // BLOCK_TOKENS * BLOCK_TOKENS
        key = self.keys[start // BLOCK_TOKENS]
        return key if start == position else rest_key("tail", key, self.packed[4 * start : 4 * position])

    def names(self) -> dict[Tier, list[Name]]:
        """The objects of each tier."""
        names: dict[Tier, list[Name]] = {}
        for piece in self.pieces:
            names.setdefault(piece.tier, []).append(piece.name)
        return names

    def by_tier(self) -> dict[str, int]:
        """Tokens by the name of the tier that holds them."""
        if not self.blocks and self.state is not None:
            return {self.state.tier.name: self.length}
        tokens: dict[str, int] = {}
        for piece in self.blocks:
            tokens[piece.tier.name] = tokens.get(piece.tier.name, 0) + piece.stop - piece.start
        return tokens


def find(
    store: Store,
    tokens: Sequence[int],
    *,
    salt: str = "",
    limit: Limit,
    cold: bool = False,
    tiers: Collection[Tier] | None = None,
) -> Found:
    """The longest prefix of ``tokens`` (at most all but the last) that can be restored and that ``limit`` allows.
    ``cold``: from prefilled whole blocks only. ``tiers``: only these."""
    search = _Search(store, pack_tokens(tokens), salt, cold, store.tiers if tiers is None else tuple(tiers))
    with store.lock:
        store.sync()
        return search.run(limit)


class _Search:
    def __init__(self, store: Store, packed: bytes, salt: str, cold: bool, tiers: tuple[Tier, ...]) -> None:
        self._store, self._packed, self._cold, self._tiers = store, packed, cold, tiers
        self._shape = store.shape
        self._indices = [(tier, store.index(tier).by_key) for tier in tiers]
        first = root(store.namespace, salt)
        self._keys = (first, *block_keys(first, packed))
        self._names = [short(key) for key in self._keys]
        self._reads = MAX_HEADER_READS
        self._n_blocks = 0
        self._rows: list[Piece] = []  # of the whole blocks, then what is lent
        self._lent: Lent | None = None
        self._lends: dict[str, Lent | None] = {}
        self._states: dict[int, dict[int, tuple[Tier, Name, Record]]] = {}

    def run(self, limit: Limit) -> Found:
        n = len(self._packed) // 4
        available = self._walk() if self._shape.has_blocks else n
        at = limit(max(0, min(available, n - 1)))
        while at > 0:
            supported = self._supported(at)
            if supported == at:
                break
            at = limit(supported)
        return self._found(max(0, at))

    # ---- the chain

    def _walk(self) -> int:
        """Collect the whole blocks that are there, then who may lend the rest; tokens available."""
        while rows := self._block(self._n_blocks):
            self._rows += rows
            self._n_blocks += 1
        if self._lent is None or self._cold:
            return self._n_blocks * BLOCK_TOKENS
        self._rows += self._lent.pieces
        return self._lent.stop

    def _block(self, i: int) -> Sequence[Piece]:
        """All rows of block i, or none; then ``_lent`` are those that are there."""
        if i + 1 < len(self._names) and (rows := self._whole(i, self._names[i + 1])):
            return rows
        stop = (i + 1) * BLOCK_TOKENS
        lent = self._lend(self._names[i], i * BLOCK_TOKENS, stop)
        if lent and lent.stop == stop and not self._cold:  # its rests were not listed yet, or lead here by another way
            return lent.pieces
        self._lent = lent
        return ()

    def _whole(self, i: int, key: str) -> list[Piece]:
        if held := self._probe(key, "block") or self._object(i, key, "block"):
            start, stop = i * BLOCK_TOKENS, (i + 1) * BLOCK_TOKENS
            return [Piece(*held, start, stop, start, stop, start)]
        return [] if self._cold else self._in_parts(i, key)

    def _in_parts(self, i: int, key: str) -> list[Piece]:
        """The tail and the rests that make up a block, found from its end."""
        parts: list[Piece] = []
        start, stop = i * BLOCK_TOKENS, (i + 1) * BLOCK_TOKENS
        while len(parts) < MAX_PARTS:
            if held := self._probe(key, "tail"):
                parts.append(Piece(*held, start, stop, start, stop, start))
                return parts[::-1] if held[1].parent == self._names[i] else []
            held = self._probe(key, "rest")
            record = self._store.head(*held) if held else None
            if held is None or record is None or not start < record.first < stop:
                return []
            parts.append(Piece(*held, record.first, stop, record.first, stop, record.first))
            stop, key = record.first, held[1].parent
        return []

    def _object(self, i: int, key: str, kind: ObjectKind) -> tuple[Tier, Name] | None:
        """A child of chain position i; a folder that changed is listed again before it counts as missing."""
        held = self._probe(key, kind)
        if held is None and self._refresh(self._names[i][:2]):
            held = self._probe(key, kind)
        return held

    def _probe(self, key: str, kind: ObjectKind) -> tuple[Tier, Name] | None:
        """In the fastest tier that has it."""
        for tier, by_key in self._indices:
            if (entry := by_key.get(key)) and (name := entry.best(kind, self._cold)):
                return tier, name
        return None

    def _refresh(self, shard: str) -> bool:
        changed = [self._store.index(tier).refresh(shard) for tier in self._tiers]
        return any(changed)

    def _children(self, parent: str) -> Iterator[tuple[Tier, Entry]]:
        for tier in self._tiers:
            for entry in list(self._store.index(tier).by_parent.get(parent, {}).values()):
                yield tier, entry

    def _lend(self, parent: str, start: int, end: int) -> Lent | None:
        """Who continues a chain position, or a tail, with most of the tokens wanted below ``end``."""
        if parent not in self._lends:
            self._refresh(parent[:2])
            self._lends[parent] = max(self._lenders(parent, start, end), key=_usefulness, default=None)
        return self._lends[parent]

    def _lenders(self, parent: str, start: int, end: int) -> Iterator[Lent]:
        wanted = self._packed[4 * start : 4 * end]
        for tier, entry in self._children(parent):
            name = entry.continuing(parent)
            record = self._head(tier, name) if name else None
            if record is not None and name is not None and record.first == start:
                yield self._lent_by(Piece(tier, name, start, start + record.count, start, start, start), record, wanted)

    def _lent_by(self, piece: Piece, record: Record, wanted: bytes) -> Lent:
        stop = piece.first + _common_tokens(record.tokens, wanted)
        end = piece.first + len(wanted) // 4
        piece = piece._replace(stop=stop)
        if stop < piece.last or stop == end or not record.count:
            return Lent((piece,), stop, stop < min(piece.last, end))
        further = self._lend(piece.name.key, stop, end)
        if further and further.stop > stop:
            return further.behind(piece)
        return Lent((piece,), stop, differs=further is not None)

    def _head(self, tier: Tier, name: Name) -> Record | None:
        if name not in self._store.index(tier).heads:
            if self._reads == 0:
                return None
            self._reads -= 1
        return self._store.head(tier, name)

    # ---- what a position needs

    def _supported(self, at: int) -> int:
        """``at`` if window and state for it are there, otherwise the next position worth asking for."""
        if self._shape.n_swa:
            reached = self._window_reach(at)
            if reached != at:
                return reached
        return self._state_below(at) if self._shape.has_state else at

    def _window_reach(self, at: int) -> int:
        need = max(0, at - self._shape.n_swa + 1)
        for i in range((at - 1) // BLOCK_TOKENS, need // BLOCK_TOKENS - 1, -1):
            window = self._window(i, at)
            if window is None or window.first > max(need, i * BLOCK_TOKENS):
                return self._holder(i, at).start
        return at

    def _holder(self, i: int, at: int) -> Piece:
        """Who holds the rows of block i just below ``at``, or at the block's end."""
        return self._rows[bisect_left(self._rows, min(at, (i + 1) * BLOCK_TOKENS), key=lambda piece: piece.stop)]

    def _window(self, i: int, at: int) -> Piece | None:
        """The window rows of block i: the last n_swa positions of the object that holds its rows up to ``at``."""
        holder = self._holder(i, at)
        held = self._object(i, holder.name.key, "window")
        if held is None:
            return None
        start = i * BLOCK_TOKENS
        first = max(start, holder.last - self._shape.n_swa)
        return Piece(*held, first, holder.last, first, holder.last, start)

    def _state_below(self, at: int) -> int:
        for i in range(at // BLOCK_TOKENS, -1, -1):
            below = [position for position in self._states_at(i) if position <= at]
            if below:
                return max(below)
        return 0

    def _states_at(self, i: int) -> dict[int, tuple[Tier, Name, Record]]:
        """States of the positions in block i whose tokens are the request's."""
        if i not in self._states:
            parent = self._names[i]
            self._refresh(parent[:2])
            found: dict[int, tuple[Tier, Name, Record]] = {}
            self._states[i] = found
            for tier, entry in self._children(parent):
                name = entry.best("state", self._cold)
                record = self._head(tier, name) if name else None
                if record is not None and name is not None and self._matches(record, i):
                    found.setdefault(record.first + record.count, (tier, name, record))
        return self._states[i]

    def _matches(self, record: Record, i: int) -> bool:
        is_in_block = (record.first + record.count) // BLOCK_TOKENS == i
        return is_in_block and self._packed.startswith(record.tokens, 4 * record.first)

    # ---- the answer

    def _found(self, at: int) -> Found:
        mismatch = None
        if self._lent is not None and self._lent.differs:
            mismatch = self._lent.stop
        if at == 0:
            return Found(self._store.namespace, self._keys, self._packed, first_mismatch=mismatch)
        blocks = tuple(self._block_pieces(at)) if self._shape.has_blocks else ()
        windows = tuple(self._window_pieces(at)) if self._shape.n_swa else ()
        state = self._states_at(at // BLOCK_TOKENS)[at] if self._shape.has_state else None
        after = at // BLOCK_TOKENS * BLOCK_TOKENS
        piece = Piece(state[0], state[1], state[2].first, at, at, at, after) if state else None
        return Found(
            self._store.namespace,
            self._keys,
            self._packed,
            length=at,
            blocks=blocks,
            windows=windows,
            state=piece,
            state_bytes=state[2].payload_bytes if state else 0,
            prefill_end=_prefill_end(at, blocks, windows, piece),
            first_mismatch=mismatch,
        )

    def _block_pieces(self, at: int) -> Iterator[Piece]:
        for piece in self._rows:
            if piece.start >= at:
                return
            yield piece if piece.stop <= at else piece._replace(stop=at)

    def _window_pieces(self, at: int) -> Iterator[Piece]:
        need = max(0, at - self._shape.n_swa + 1)
        for i in range(need // BLOCK_TOKENS, -(-at // BLOCK_TOKENS)):
            window = self._window(i, at)
            if window is not None:
                yield window._replace(stop=min(window.last, at))


def _prefill_end(at: int, blocks: tuple[Piece, ...], windows: tuple[Piece, ...], state: Piece | None) -> int:
    if state is not None and state.name.provenance != "p":
        return 0
    impure = (piece.start for piece in (*blocks, *windows) if piece.name.provenance != "p" or piece.stop != piece.last)
    return min(impure, default=at)


def _usefulness(lent: Lent) -> tuple[int, int]:
    """The longest; of equal ones what ends there, for its window rows do, too."""
    return lent.stop, -lent.pieces[-1].last


def _common_tokens(a: bytes, b: bytes) -> int:
    """Equal leading tokens of two packed lists."""
    low, high = 0, min(len(a), len(b)) // 4
    while low < high:
        middle = (low + high + 1) // 2
        if a[: 4 * middle] == b[: 4 * middle]:
            low = middle
        else:
            high = middle - 1
    return low
