"""Which pages of the model file stay in memory: read ahead, locked, counted. On POSIX; elsewhere it does nothing.

llama.cpp maps the file itself. Our mapping of the same file shares its pages in the page cache, so what is advised,
locked or counted here holds for llama.cpp's mapping too. Owned by the engine thread.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from barrel_inference.config import ModelOpts
from barrel_inference.engine.backend import WeightsInMemory

PAGE = mmap.PAGESIZE
FRESH_S = 5.0
_LAZY_NOTE = "llama.cpp reads the file ahead by itself while it loads; afterwards pages are taken in on first touch"


def resolved(opts: ModelOpts) -> ModelOpts:
    """``weight_residency`` spelled out in the three options it stands for."""
    match opts.weight_residency:
        case None:
            return opts
        case "eager":
            changes = {"use_mmap": True, "use_mlock": False, "prefetch": True}
        case "lazy":
            changes = {"use_mmap": True, "use_mlock": False, "prefetch": False}
        case "pinned":
            changes = {"use_mmap": True, "use_mlock": True, "prefetch": True}
        case "lazy_then_pin_resident":
            changes = {"use_mmap": True, "prefetch": False, "pin_resident_after_first_request": True}
    return msgspec.structs.replace(opts, **changes)


class Residency:
    """The mapped weight files of one model. ``warnings`` says what the system or the binding would not do."""

    def __init__(self, paths: Sequence[Path], opts: ModelOpts, clock: Callable[[], float] = time.monotonic) -> None:
        self._opts = opts
        self._clock = clock
        self._stale_at = -math.inf
        self._resident_bytes = 0
        self._maps = [_Mapped(path) for path in paths if opts.use_mmap and _can_map()]
        self._pinned = False
        self.warnings: list[str] = []

    def advise(self) -> None:
        """Before loading: read the whole file ahead, or only what is touched."""
        for each in self._maps:
            each.map.madvise(mmap.MADV_WILLNEED if self._opts.prefetch else mmap.MADV_RANDOM)
        if self._maps and not self._opts.prefetch:
            self.warnings.append(_LAZY_NOTE)

    def pin_resident(self) -> None:
        """Lock the pages that are in memory now, once; for after the first request."""
        if self._pinned or not self._opts.pin_resident_after_first_request:
            return
        self._pinned = True
        for each in self._maps:
            if (refused := each.lock_resident()) is not None:
                self.warnings.append(f"the touched weights could not all be locked in memory: {refused}")
                return

    def measure(self) -> WeightsInMemory:
        """Counted by mincore; the last count while it is fresh, since it takes some milliseconds for tens of GB."""
        now = self._clock()
        if now >= self._stale_at:
            self._stale_at = now + FRESH_S
            self._resident_bytes = sum(each.resident_bytes() for each in self._maps)
        return WeightsInMemory(self._resident_bytes, tuple(self.warnings))

    def close(self) -> None:
        for each in self._maps:
            each.close()
        self._maps = []


class _Mapped:
    """One file, mapped read-only: locking a private writable mapping would lock copies of its pages."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._address = np.frombuffer(self.map, np.uint8).ctypes.data
        self._libc = ctypes.CDLL(None, use_errno=True)
        for name in ("mlock", "munlock"):
            getattr(self._libc, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]

    def _resident(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """One flag a page; all False when the system does not tell."""
        flags = np.zeros(-(-len(self.map) // PAGE), np.uint8)
        if self._libc.mincore(self._address, len(self.map), flags.ctypes.data) != 0:
            return np.zeros(len(flags), np.bool_)
        return (flags & 1).astype(np.bool_)

    def resident_bytes(self) -> int:
        return min(int(self._resident().sum()) * PAGE, len(self.map))

    def lock_resident(self) -> str | None:
        """Why it could not be done, if so."""
        for first, last in _runs(self._resident()):
            start = first * PAGE
            n_bytes = min(last * PAGE, len(self.map)) - start
            if self._libc.mlock(self._address + start, n_bytes) != 0:
                return os.strerror(ctypes.get_errno())
        return None

    def close(self) -> None:
        self._libc.munlock(self._address, len(self.map))
        self.map.close()


def _runs(flags: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Iterator[tuple[int, int]]:
    """[first, last) of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False]))))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _can_map() -> bool:
    return hasattr(mmap, "MADV_WILLNEED") and os.name == "posix"
