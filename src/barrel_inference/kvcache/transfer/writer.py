"""The writer thread: slices what the engine copied, hashes it, writes it. Owns its queue and the copies in it.

The engine never waits for it: when the copies in flight reach their bound, further ones are dropped and counted. Reads
go first. A tier without room is reported, waited for once, then the object is dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from barrel_inference.kvcache.layout import Cells, Layout, LayoutError, Parsed
from barrel_inference.kvcache.policy import SaveReason
from barrel_inference.kvcache.record import ROWS, Name, ObjectKind, Provenance, Record, encode, payload_hash
from barrel_inference.kvcache.store import Store
from barrel_inference.kvcache.tier import NoRoomError, Tier
from barrel_inference.kvcache.transfer.buffers import Memory
from barrel_inference.tally import Tally
from barrel_inference.trouble import Trouble

logger = logging.getLogger(__name__)

QUEUE_BYTES = 256 << 20
ROOM_WAIT_S = 2.0  # for the janitor, once; then objects are dropped until there is room again
READ_WAIT_S = 1.0  # longest a write gives way to reads
STEP_S = 0.005


@dataclass(frozen=True)
class Item:
    """One object to write: positions [first, first + tokens)."""

    kind: ObjectKind
    provenance: Provenance
    parent: bytes
    key: bytes
    first: int
    tokens: bytes  # packed
    cost_us: int

    @property
    def name(self) -> Name:
        return Name.of(self.parent, self.key, self.kind, self.provenance)


@dataclass(frozen=True)
class Capture:
    """A copied state and the objects it holds. ``buffer`` goes back to the writer's memory."""

    buffer: memoryview
    n_bytes: int
    items: tuple[Item, ...]
    reason: SaveReason


class Writer:
    """Engine thread: ``memory.take``, ``submit``. Any thread: the rest."""

    def __init__(
        self,
        store: Store,
        tier: Tier,
        layout: Layout,
        *,
        need_room: Callable[[str, int], None],
        is_reading: Callable[[], bool],
        queue_bytes: int = QUEUE_BYTES,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.memory = Memory(queue_bytes)
        self.counters = Tally()
        self.is_accepted = True  # the tier took the last object
        self._store, self._tier, self._layout = store, tier, layout
        self._need_room, self._is_reading, self._wall_clock = need_room, is_reading, wall_clock
        self._changed = threading.Condition()
        self._queue: deque[Capture] = deque()
        self._writing: Capture | None = None
        self._rooms = 0  # answers of the janitor so far
        self._is_full = False
        self._trouble = Trouble(logger)
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="kv-write", daemon=True)
        self._thread.start()

    def submit(self, capture: Capture) -> None:
        for item in capture.items:
            self._store.expect(item.name)
        with self._changed:
            self._queue.append(capture)
            self._changed.notify_all()

    def drop(self, n_objects: int) -> None:
        """There was no memory to copy them into."""
        self._count("drops", n_objects)

    def room(self) -> None:
        with self._changed:
            self._rooms += 1
            self._is_full = False
            self._changed.notify_all()

    def wait_for(self, is_done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until ``is_done``, asked after each capture written, or until nothing is left to write."""
        with self._changed:
            self._changed.wait_for(lambda: is_done() or self._is_idle(), timeout_s)
            return is_done()

    def flush(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(self._is_idle, timeout_s)

    def close(self) -> None:
        """Stop after the object being written; what is queued is dropped."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _count(self, name: str, n: float) -> None:
        self.counters.count(name, self._tier.name, n)

    def _is_idle(self) -> bool:
        return self._writing is None and not self._queue

    # ---- the thread

    def _run(self) -> None:
        while (capture := self._next()) is not None:
            try:
                self._write(capture)
            except Exception:  # the thread must outlive anything that one capture does
                logger.exception("a capture could not be saved")
                self._count("save_errors", 1)
            finally:
                for item in capture.items:
                    self._store.dropped(item.name)
                self.memory.give(capture.buffer)
                with self._changed:
                    self._writing = None
                    self._changed.notify_all()

    def _next(self) -> Capture | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closed)
            if self._is_closed:
                return None
            self._writing = self._queue.popleft()
            return self._writing

    def _write(self, capture: Capture) -> None:
        parsed = self._layout.parse(capture.buffer[: capture.n_bytes])
        for item in capture.items:
            if self._is_closed:
                return
            self._give_way()
            start = time.perf_counter()
            try:
                self._put(item, _pieces(parsed, item), capture.reason)
            except LayoutError:
                self.counters["incomplete"] += 1  # rows left the window before they were copied
            self.counters["save_s"] += time.perf_counter() - start

    def _put(self, item: Item, pieces: list[memoryview], reason: SaveReason) -> None:
        record = self._record(item, pieces)
        parts: list[memoryview | bytes] = [encode(record), *pieces]
        try:
            written = self._put_with_room(item.name, parts)
        except NoRoomError:
            self.is_accepted = False
            self._count("drops", 1)
        except OSError as error:
            self._trouble.tell("saving to tier %s failed: %s", self._tier.name, error)
            self.is_accepted = False
            self._count("save_errors", 1)
        else:
            self._trouble.is_over()
            self.is_accepted = True
            self._store.saved(item.name, record, was_written=written)
            if written:
                self._count(f"saves_{reason}", 1)
                self._count("saved_bytes", len(parts[0]) + record.payload_bytes)
                self._count("saved_tokens", record.count if item.kind in ROWS else 0)

    def _put_with_room(self, name: Name, parts: list[memoryview | bytes]) -> bool:
        try:
            return self._tier.put(self._store.folder, name, parts)
        except NoRoomError as error:
            if self._is_full or error.n_bytes > self._tier.quota.limit_bytes:  # nothing need go for what never fits
                raise
            self._ask_for_room(error.n_bytes)
            return self._tier.put(self._store.folder, name, parts)

    def _ask_for_room(self, n_bytes: int) -> None:
        """Wait for the janitor, bounded; ask for as much as is queued, so that one answer serves for all of it."""
        with self._changed:
            seen, queued = self._rooms, sum(capture.n_bytes for capture in self._queue)
            self._is_full = True
        self._need_room(self._tier.name, n_bytes + queued)
        with self._changed:
            self._changed.wait_for(lambda: self._rooms != seen or self._is_closed, ROOM_WAIT_S)

    def _record(self, item: Item, pieces: list[memoryview]) -> Record:
        return Record(
            kind=item.kind,
            provenance=item.provenance,
            namespace=self._store.namespace,
            key=item.key,
            parent=item.parent,
            first=item.first,
            tokens=item.tokens,
            created_us=max(0, int(self._wall_clock() * 1e6)),
            cost_us=item.cost_us,
            payload_bytes=sum(map(len, pieces)),
            payload_hash=payload_hash(pieces),
        )

    def _give_way(self) -> None:
        deadline = time.monotonic() + READ_WAIT_S
        while self._is_reading() and time.monotonic() < deadline:
            time.sleep(STEP_S)


def _pieces(parsed: Parsed, item: Item) -> list[memoryview]:
    if item.kind == "state":
        if parsed.state is None:
            raise LayoutError("no state was copied")
        return [parsed.state]
    cells: Cells | None = parsed.window if item.kind == "window" else parsed.base
    if cells is None:
        raise LayoutError("no such section was copied")
    return cells.rows(item.first, item.first + len(item.tokens) // 4)
