"""From a prompt to what it can be restored from: walk the chain, look for what the resume position needs.

A position p can be resumed when all rows below it are there and, if the model needs them, the window rows just below p
or the state of exactly p. The last rows may be lent by any object that continues the last whole block with the same
tokens: the next block, a tail, another conversation's block. Owns nothing; ``find`` holds the store's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from barrel_inference.config import BLOCK_TOKENS
from barrel_inference.kvcache.chain import block_keys, pack_tokens, root
from barrel_inference.kvcache.record import Expected, Name, ObjectKind, Record, short
from barrel_inference.kvcache.store import Entry, Store
from barrel_inference.kvcache.tier import Tier

MAX_HEADER_READS = 64  # children of one position whose headers one lookup may read
BLOCK_BYTES = BLOCK_TOKENS * 4

Limit = Callable[[int], int]  # the largest position, not above the given one, at which the request may resume


class Piece(NamedTuple):
    """One object to read: positions [start, stop) of the [first, last) that it holds."""

    tier: Tier
    name: Name
    first: int
    last: int
    start: int
    stop: int


class Lender(NamedTuple):
    """An object that continues a chain position with ``shared`` of the wanted tokens; ``held`` tokens in all."""

    tier: Tier
    name: Name
    held: int
    shared: int
    differs: bool  # it goes on with another token than the request


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
        parent = self.keys[piece.last // BLOCK_TOKENS if piece is self.state else piece.first // BLOCK_TOKENS]
        tokens = self.packed[4 * piece.first : 4 * min(piece.last, self.length)]
        return Expected(self.namespace, piece.name.kind, parent, piece.first, tokens)

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
        self._blocks: list[tuple[Tier, Name]] = []
        self._lender: Lender | None = None
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
        for i, key in enumerate(self._names[1:]):
            held = self._probe(key, "block") or self._object(i, key, "block")
            if held is None:
                break
            self._blocks.append(held)
        i = len(self._blocks)
        self._lender = self._best_lender(i)
        shared = self._lender.shared if self._lender and not self._cold else 0
        return i * BLOCK_TOKENS + shared

    def _object(self, i: int, key: str, kind: ObjectKind) -> tuple[Tier, Name] | None:
        """A child of chain position i; a folder that changed is listed again before it counts as missing."""
        held = self._probe(key, kind)
        if held is None and self._refresh(self._names[i][:2]):
            held = self._probe(key, kind)
        return held

    def _probe(self, key: str, kind: ObjectKind) -> tuple[Tier, Name] | None:
        """In the fastest tier that has it."""
        for tier, by_key in self._indices:
            entry = by_key.get(key)
            if entry is not None and (name := entry.best(kind, self._cold)) is not None:
                return tier, name
        return None

    def _refresh(self, shard: str) -> bool:
        changed = [self._store.index(tier).refresh(shard) for tier in self._tiers]
        return any(changed)

    def _children(self, parent: str) -> Iterator[tuple[Tier, Entry]]:
        for tier in self._tiers:
            for entry in list(self._store.index(tier).by_parent.get(parent, {}).values()):
                yield tier, entry

    def _best_lender(self, i: int) -> Lender | None:
        rest = self._packed[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES]
        self._refresh(self._names[i][:2])
        best: Lender | None = None
        for tier, entry in self._children(self._names[i]):
            name = entry.best("block") or entry.best("tail")
            record = self._head(tier, entry, name) if name else None
            if record is None or name is None:
                continue
            shared = _common_tokens(record.tokens, rest)
            if best is None or shared > best.shared:
                best = Lender(tier, name, record.count, shared, shared < min(record.count, len(rest) // 4))
        return best

    def _head(self, tier: Tier, entry: Entry, name: Name) -> Record | None:
        if name not in entry.heads:
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
            window = self._window(i)
            if window is None or window.first > max(need, i * BLOCK_TOKENS):
                return i * BLOCK_TOKENS
        return at

    def _window(self, i: int) -> Piece | None:
        """The window rows of block i, or of whoever lends it: the last n_swa positions of the object."""
        start = i * BLOCK_TOKENS
        if i < len(self._blocks):
            count, key = BLOCK_TOKENS, self._names[i + 1]
        elif self._lender is not None:
            count, key = self._lender.held, self._lender.name.key
        else:
            return None
        held = self._object(i, key, "window")
        if held is None:
            return None
        first, last = start + count - min(count, self._shape.n_swa), start + count
        return Piece(*held, first, last, first, last)

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
                record = self._head(tier, entry, name) if name else None
                if record is not None and name is not None and self._matches(record, i):
                    found.setdefault(record.first + record.count, (tier, name, record))
        return self._states[i]

    def _matches(self, record: Record, i: int) -> bool:
        is_in_block = (record.first + record.count) // BLOCK_TOKENS == i
        return is_in_block and self._packed.startswith(record.tokens, 4 * record.first)

    # ---- the answer

    def _found(self, at: int) -> Found:
        mismatch = None
        if self._lender is not None and self._lender.differs:
            mismatch = len(self._blocks) * BLOCK_TOKENS + self._lender.shared
        if at == 0:
            return Found(self._store.namespace, self._keys, self._packed, first_mismatch=mismatch)
        blocks = tuple(self._block_pieces(at)) if self._shape.has_blocks else ()
        windows = tuple(self._window_pieces(at)) if self._shape.n_swa else ()
        state = self._states_at(at // BLOCK_TOKENS)[at] if self._shape.has_state else None
        piece = Piece(state[0], state[1], state[2].first, at, at, at) if state else None
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
        for i, (tier, name) in enumerate(self._blocks[: -(-at // BLOCK_TOKENS)]):
            start = i * BLOCK_TOKENS
            stop = start + BLOCK_TOKENS
            yield Piece(tier, name, start, stop, start, stop if stop < at else at)
        start = len(self._blocks) * BLOCK_TOKENS
        if self._lender is not None and start < at:
            yield Piece(self._lender.tier, self._lender.name, start, start + self._lender.held, start, at)

    def _window_pieces(self, at: int) -> Iterator[Piece]:
        need = max(0, at - self._shape.n_swa + 1)
        for i in range(need // BLOCK_TOKENS, -(-at // BLOCK_TOKENS)):
            window = self._window(i)
            if window is not None:
                yield window._replace(stop=min(window.last, at))


def _prefill_end(at: int, blocks: tuple[Piece, ...], windows: tuple[Piece, ...], state: Piece | None) -> int:
    if state is not None and state.name.provenance != "p":
        return 0
    impure = (piece.start for piece in (*blocks, *windows) if piece.name.provenance != "p" or piece.stop != piece.last)
    return min(impure, default=at)


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
