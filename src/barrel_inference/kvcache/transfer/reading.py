"""The reads of one plan, part by part.

Rows can be loaded part by part: while one part goes into the context, the next ones are read into memory that is in the
processor's caches already. Fresh memory is read into at a tenth of the speed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import groupby
from typing import NamedTuple

from barrel_inference.kvcache.layout import Assembly, Layout
from barrel_inference.kvcache.lookup import Found, Piece
from barrel_inference.kvcache.transfer.buffers import Memory

PART_TOKENS = 512
READ_AHEAD = 3  # parts
HOLD_UP_S = 1.0  # reads that will take longer must not be waited for between parts
HANG_S = 10.0  # a disk that lets the engine wait so long for a part does not answer


class Part(NamedTuple):
    """What is read before anything of it is loaded."""

    pieces: tuple[Piece, ...]
    assembly: Assembly


def parts_of(found: Found, layout: Layout) -> list[Part]:
    """Rows in parts of about PART_TOKENS; everything at once where a window or a state belongs to them."""
    if layout.window is not None or layout.has_state:
        whole = Assembly(layout, found.length, found.window_first, found.state_bytes)
        return [Part(tuple(found.pieces), whole)]
    groups = [tuple(pieces) for _, pieces in groupby(found.pieces, lambda piece: piece.first // PART_TOKENS)]
    return [Part(pieces, Assembly(layout, pieces[-1].stop, first=pieces[0].start)) for pieces in groups]


class Filling(NamedTuple):
    """A part that is being read."""

    buffer: memoryview
    blob: memoryview
    tasks: Sequence[Future[float]]

    @property
    def is_read(self) -> bool:
        return all(task.done() for task in self.tasks)


class Reading:
    """``begin_part`` starts to fill a blob; its results are seconds. Not thread-safe, but for ``ready``."""

    def __init__(
        self, parts: Sequence[Part], memory: Memory, begin_part: Callable[[Part, memoryview], Sequence[Future[float]]]
    ) -> None:
        self._memory = memory
        self._begin_part = begin_part
        self._part_bytes = max(part.assembly.size for part in parts)
        self._todo = deque(parts)
        self._filling: deque[Filling] = deque()
        self._began = time.perf_counter()
        self._first_s = 0.0  # until the first part was read
        self.prefill_s = 0.0  # what computing the rows given out took when they were saved

    def begin(self, n_parts: int = READ_AHEAD) -> bool:
        """Read so many parts more; False when there is no memory even for one."""
        taken = (self._memory.take(self._part_bytes) for _ in range(min(n_parts, len(self._todo))))
        for buffer in list(filter(None, taken)):  # first all: mapping memory waits for those who fill some
            self._go_on(buffer)
        return bool(self._filling)

    def begin_all(self) -> None:
        """As far as there is memory, so that ``blobs`` will not wait once this is ``ready``."""
        self.begin(len(self._todo))

    @property
    def is_slow(self) -> bool:
        """Who waits between the parts will wait long, by what the first one took."""
        return self._first_s * len(self._todo) > HOLD_UP_S

    @property
    def ready(self) -> bool:
        """Of parts that take turns in the same memory the first one is, and known how long it took."""
        if self._todo:
            return self._first_s > 0 and self._filling[0].is_read
        return all(filling.is_read for filling in self._filling)

    def blobs(self) -> Iterator[memoryview]:
        """Part by part, each good until the next is asked for. Raises what went wrong (the bad object is given up), a
        TimeoutError when the disk does not answer."""
        while self._filling:
            filling = self._filling[0]
            self.prefill_s += sum(task.result(HANG_S) for task in filling.tasks)
            yield filling.blob
            self._filling.popleft()
            self._go_on(filling.buffer)

    def close(self) -> None:
        """Give the memory back, each buffer once nothing is read into it any more: a disk may hang."""
        self._todo.clear()
        while self._filling:
            filling = self._filling.popleft()
            for task in filling.tasks:
                task.cancel()
            _after(filling.tasks, partial(self._memory.give, filling.buffer))

    def _go_on(self, buffer: memoryview) -> None:
        if not self._todo:
            self._memory.give(buffer)
            return
        part = self._todo.popleft()
        blob = buffer[: part.assembly.size]
        filling = Filling(buffer, blob, self._begin_part(part, blob))
        filling.tasks[-1].add_done_callback(self._note)
        self._filling.append(filling)

    def _note(self, task: Future[float]) -> None:
        self._first_s = self._first_s or time.perf_counter() - self._began


def _after(tasks: Sequence[Future[float]], then: Callable[[], None]) -> None:
    """Call ``then`` once, when the last of them is over; on its thread, or here."""
    left, lock = set(tasks), threading.Lock()

    def note(task: Future[float]) -> None:
        with lock:
            left.discard(task)
            is_last = not left
        if is_last:
            then()

    for task in tasks:
        task.add_done_callback(note)
