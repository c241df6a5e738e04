"""Reading what a lookup found straight into blobs that llama.cpp takes. Owns a small pool of threads and the reused
memory.

Reads begin when a request arrives and are waited for when its sequence is free. Every object is proven (length,
header, tokens, checksum) before its blob may be used.
"""

from __future__ import annotations

import errno
import os
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
from barrel_inference.kvcache.transfer.buffers import Memory, allocate
from barrel_inference.kvcache.transfer.reading import Part, Reading, parts_of

PIECES_A_TASK = 8
ARENAS = 2  # plans being read or waiting for a sequence; requests beyond them read when it is their turn
STALE_RATE_S = 60.0  # a tier measured slow is tried again after this


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
        reading = Reading(
            parts_of(found, self._layout), self._memory, lambda part, blob: self._begin(found, part, blob)
        )
        if reading.begin():
            return reading
        self.finish(reading)
        return None

    def finish(self, reading: Reading) -> None:
        """Its memory comes back once the reads that have begun are over; who finishes does not wait for them."""
        reading.close()
        with self._lock:
            self._arenas -= 1

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

    def _begin(self, found: Found, part: Part, blob: memoryview) -> list[Future[float]]:
        part.assembly.write_headers(blob)
        groups = [part.pieces[at : at + PIECES_A_TASK] for at in range(0, len(part.pieces), PIECES_A_TASK)]
        return [self._threads.submit(self._read_all, found, group, part.assembly, blob) for group in groups]

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
            buffer = self._local.buffer = allocate(n_bytes)
        return buffer[:n_bytes]
