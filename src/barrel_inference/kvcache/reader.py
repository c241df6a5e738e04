"""Reading what a lookup found straight into one blob. Owns a small pool of threads and the reused memory.

Reads begin when a request arrives and are waited for when its sequence is free. Every object is proven (length,
header, tokens, checksum) before its blob may be used.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from barrel_inference.kvcache.layout import Assembly, Layout, SectionTarget
from barrel_inference.kvcache.lookup import Found, Piece
from barrel_inference.kvcache.policy import Rate
from barrel_inference.kvcache.record import CorruptError, Name, Record, decode, header_bytes, payload_hash, verify
from barrel_inference.kvcache.store import Store
from barrel_inference.kvcache.tier import Tier

PIECES_A_TASK = 8
ARENAS = 2  # blobs being filled or waiting for a sequence; requests beyond them read when it is their turn
MAX_IDLE_BYTES = 512 << 20  # memory kept for reuse: a fresh allocation copies at a tenth of the speed
STALE_RATE_S = 60.0  # a tier measured slow is tried again after this


class Memory:
    """Reused buffers. ``take`` gives None when more than ``limit_bytes`` would be out, or the system has no more. Any
    thread."""

    def __init__(self, limit_bytes: int = sys.maxsize) -> None:
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._idle: list[memoryview] = []
        self._out = 0

    def take(self, n_bytes: int) -> memoryview | None:
        """A buffer of at least ``n_bytes``."""
        with self._lock:
            if self._out + n_bytes > self._limit:
                return None
            fitting = [buffer for buffer in self._idle if len(buffer) >= n_bytes]
            try:
                buffer = min(fitting, key=len) if fitting else _allocate(n_bytes)
            except (OSError, MemoryError, OverflowError):  # mmap says it with an OSError
                return None
            if fitting:
                self._idle = [idle for idle in self._idle if idle is not buffer]
            self._out += len(buffer)
            return buffer

    def give(self, buffer: memoryview) -> None:
        with self._lock:
            self._out -= len(buffer)
            self._idle.append(buffer)
            self._idle.sort(key=len)
            while sum(map(len, self._idle)) > MAX_IDLE_BYTES:
                self._idle.pop(0)


def _allocate(n_bytes: int) -> memoryview:
    size = 1 << max(16, (n_bytes - 1).bit_length())
    if size - n_bytes > 64 << 20:  # powers of two waste too much of large blobs
        size = -(-n_bytes // (64 << 20)) * (64 << 20)
    return memoryview(mmap.mmap(-1, size))  # numpy would ask for huge pages: up to 5 ms for the first byte of each


class Reading:
    """The reads of one plan. ``wait`` gives the blob, or raises what went wrong (the bad object is given up)."""

    def __init__(self, found: Found, assembly: Assembly, buffer: memoryview, tasks: Sequence[Future[float]]) -> None:
        self.found = found
        self.buffer = buffer
        self._blob = buffer[: assembly.size]
        self._tasks = tasks

    @property
    def ready(self) -> bool:
        return all(task.done() for task in self._tasks)

    def wait(self) -> memoryview:
        errors = [error for task in self._tasks if (error := task.exception()) is not None]
        if errors:
            raise errors[0]
        return self._blob

    def prefill_s(self) -> float:
        """What computing the same tokens took when they were saved. After ``wait``."""
        return sum(task.result() for task in self._tasks)


class Reader:
    """Any thread may start reads; ``active`` is read by the writer, which gives way."""

    def __init__(self, store: Store, layout: Layout, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._layout, self._clock = store, layout, clock
        self._threads = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="kv-read")
        self._memory = Memory()
        self._lock = threading.Lock()
        self._local = threading.local()
        self._arenas = 0
        self.active = 0
        self._rates: dict[str, Rate] = {tier.name: Rate() for tier in store.tiers}

    def start(self, found: Found, *, wait: bool = False) -> Reading | None:
        """Begin to read. None when all arenas are in use (``wait``: then a further one is made) or memory is short."""
        with self._lock:
            if self._arenas >= ARENAS and not wait:
                return None
            self._arenas += 1
        assembly = Assembly(self._layout, found.length, found.window_first, found.state_bytes)
        buffer = self._memory.take(assembly.size)
        if buffer is None:
            with self._lock:
                self._arenas -= 1
            return None
        blob = buffer[: assembly.size]
        assembly.write_headers(blob)
        pieces = list(found.pieces)
        groups = [pieces[at : at + PIECES_A_TASK] for at in range(0, len(pieces), PIECES_A_TASK)]
        tasks = [self._threads.submit(self._read_all, found, group, assembly, blob) for group in groups]
        return Reading(found, assembly, buffer, tasks)

    def finish(self, reading: Reading) -> None:
        """Give the memory back, once the reads are over."""
        for task in reading._tasks:
            if not task.cancel():
                task.exception()
        with self._lock:
            self._arenas -= 1
        self._memory.give(reading.buffer)

    def expected_s(self, found: Found) -> float:
        """How long reading will take by what was measured; 0 for tiers never measured, or not lately."""
        now, total = self._clock(), 0.0
        for piece in found.pieces:
            rate = self._rates[piece.tier.name]
            if now - rate.at < STALE_RATE_S:
                total += rate.value * self._payload_bytes(found, piece)
        return total

    def touch(self, names_by_tier: Mapping[Tier, Iterable[Name]]) -> None:
        """Mark the objects as used, in the background."""
        for tier, names in names_by_tier.items():
            self._threads.submit(tier.touch, self._store.folder, names)

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    # ---- one object

    def _read_all(self, found: Found, pieces: Sequence[Piece], assembly: Assembly, blob: memoryview) -> float:
        with self._lock:
            self.active += 1
        try:
            return sum(self._read(found, piece, assembly, blob) for piece in pieces)
        finally:
            with self._lock:
                self.active -= 1

    def _read(self, found: Found, piece: Piece, assembly: Assembly, blob: memoryview) -> float:
        """Seconds of prefill that the rows of this piece stand for."""
        start = self._clock()
        n_bytes = self._payload_bytes(found, piece)
        target = self._target(assembly, piece)
        is_direct = target is None or (target.is_contiguous and (piece.start, piece.stop) == (piece.first, piece.last))
        if target is None:
            places = [assembly.state(blob)]
        elif is_direct:
            places = target.places(blob, piece.start, piece.stop)
        else:
            places = [self._staging(n_bytes)]
        try:
            record = self._fill(found, piece, places, n_bytes)
        except (OSError, CorruptError) as error:
            is_bad = isinstance(error, CorruptError) or error.errno == errno.EIO
            self._store.lost(piece.tier, piece.name, corrupt=is_bad)
            raise
        if target is not None and not is_direct:
            target.put(blob, places[0], (piece.first, piece.last), piece.start, piece.stop)
        with self._lock:
            now = self._clock()
            self._rates[piece.tier.name].add(now - start, n_bytes, now)
        is_window_or_state = target is not assembly.base
        share = (piece.stop - piece.start) / max(1, piece.last - piece.first)
        return 0.0 if is_window_or_state else record.cost_us * share / 1e6

    def _fill(self, found: Found, piece: Piece, places: list[memoryview], n_bytes: int) -> Record:
        """Read and prove one object; CorruptError or OSError."""
        n_tokens = piece.last - piece.first
        header = memoryview(bytearray(header_bytes(n_tokens)))
        spill = memoryview(bytearray(1))  # a file that goes on is not ours
        n = piece.tier.read(self._store.folder, piece.name, [header, *places, spill])
        if n != len(header) + n_bytes:
            raise CorruptError(f"the object has {n} bytes instead of {len(header) + n_bytes}")
        record = decode(header)
        verify(record, found.expected(piece))
        if record.name != piece.name or record.payload_bytes != n_bytes:
            raise CorruptError("the object is not what its name says")
        if payload_hash(places) != record.payload_hash:
            raise CorruptError("the payload's checksum is wrong")
        return record

    def _target(self, assembly: Assembly, piece: Piece) -> SectionTarget | None:
        if piece.name.kind == "state":
            return None
        return assembly.window if piece.name.kind == "window" else assembly.base

    def _payload_bytes(self, found: Found, piece: Piece) -> int:
        if piece.name.kind == "state":
            return found.state_bytes
        spec = self._layout.window if piece.name.kind == "window" else self._layout.base
        return (piece.last - piece.first) * spec.bytes_per_token if spec is not None else 0

    def _staging(self, n_bytes: int) -> memoryview:
        """Memory of this thread, for objects that must be rearranged."""
        buffer: memoryview | None = getattr(self._local, "buffer", None)
        if buffer is None or len(buffer) < n_bytes:
            buffer = self._local.buffer = _allocate(n_bytes)
        return buffer[:n_bytes]
