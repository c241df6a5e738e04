"""The bytes of a llama.cpp sequence state: found section by section, cut into rows of positions, put together again.
Pure; nothing here owns mutable state but the arrays it is handed.

    blob     u32 magic | i32 seq_id | KV(base)? | KV(window)? | REC?
    KV       u32 n_stream=1 | u32 cells | cells × (i32 pos, u32 1, i32 seq_id) | u32 v_trans | u32 n_layer
             n_layer × (i32 type, u64 row_size, cells × row)                                     K
             n_layer × (i32 type, u64 row_size, cells × row)                                     V
      or     n_layer × (i32 type, u32 el_size, u32 n_embd, n_embd × cells × el)                  V, transposed
    REC      u32 cells | cells × (i32 pos, u32 n, n × i32) | u32 s_trans | u32 n_layer
             one (i32 type, u64 row_size, cells × row) per tensor                                opaque to us

Our payload of positions [a, b) of a KV section: for each layer its K rows, then for each layer its V rows (channels ×
positions when transposed), in position order and without headers. Cells come in memory order, which need not be
position order; they are always written back in position order.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from barrel_inference.errors import CacheError

MAGIC = 0xAF143CD8
ENVELOPE = struct.Struct("<Ii")
MAX_LAYERS = 4096
CELL = np.dtype([("pos", "<i4"), ("n_seq", "<u4"), ("seq", "<i4")])

Kind = Literal["plain", "swa", "recurrent", "hybrid", "whole"]
Bytes = NDArray[np.uint8]


class LayoutError(CacheError):
    """A blob that is not what its layout says."""


@dataclass(frozen=True)
class Run:
    """The rows of one layer. ``channels`` 1: one row of ``width`` bytes a cell; more: that many rows, one for each
    channel, of ``width`` bytes a cell."""

    type: int
    width: int
    channels: int = 1
    transposed: bool = False

    @property
    def header(self) -> bytes:
        if self.transposed:
            return struct.pack("<iII", self.type, self.width, self.channels)
        return struct.pack("<iQ", self.type, self.width)

    @property
    def bytes_per_token(self) -> int:
        return self.width * self.channels


@dataclass(frozen=True)
class KvSpec:
    """The shape of one KV section: K of all layers, then V of all layers."""

    v_trans: bool
    n_layer: int
    runs: tuple[Run, ...]

    @property
    def bytes_per_token(self) -> int:
        return sum(run.bytes_per_token for run in self.runs)


@dataclass(frozen=True)
class Cells:
    """A KV section found in a blob: the position of each cell, and where each run begins."""

    spec: KvSpec
    blob: memoryview
    positions: NDArray[np.int32]
    offsets: tuple[int, ...]

    def span(self) -> tuple[int, int]:
        """[first, last + 1) of the positions held; (0, 0) if none."""
        return (int(self.positions.min()), int(self.positions.max()) + 1) if len(self.positions) else (0, 0)

    def rows(self, start: int, stop: int) -> list[memoryview]:
        """The payload of [start, stop) as pieces of memory, views of the blob where it lies in order."""
        ordinals = self._ordinals(start, stop)
        first, count, cells = int(ordinals[0]), stop - start, len(self.positions)
        in_order = bool((ordinals == np.arange(first, first + count)).all())
        pieces: list[memoryview] = []
        for run, offset in zip(self.spec.runs, self.offsets, strict=True):
            if in_order and not run.transposed:
                begin = offset + first * run.width
                pieces.append(self.blob[begin : begin + count * run.width])
                continue
            grid = _grid(self.blob, offset, run, cells)
            if in_order:
                rows = grid[:, first * run.width : (first + count) * run.width]
            else:
                rows = grid.reshape(run.channels, cells, run.width)[:, ordinals]
            pieces.append(np.ascontiguousarray(rows).reshape(-1).data)
        return pieces

    def _ordinals(self, start: int, stop: int) -> NDArray[np.intp]:
        order = np.argsort(self.positions, kind="stable")
        sorted_positions = self.positions[order]
        at = int(np.searchsorted(sorted_positions, start))
        wanted = sorted_positions[at : at + stop - start]
        if stop <= start or not np.array_equal(wanted, np.arange(start, stop)):
            raise LayoutError(f"the state does not hold positions {start} to {stop}")
        return order[at : at + stop - start]


@dataclass(frozen=True)
class Parsed:
    base: Cells | None
    window: Cells | None
    state: memoryview | None


@dataclass(frozen=True)
class Layout:
    """Which sections the states of a model have. ``has_state``: what follows the KV sections is opaque and belongs to
    one position; for kind ``whole`` that is everything."""

    kind: Kind
    base: KvSpec | None = None
    window: KvSpec | None = None
    n_swa: int = 0
    has_state: bool = False

    @property
    def bytes_per_token(self) -> int:
        return sum(spec.bytes_per_token for spec in (self.base, self.window) if spec)

    def parse(self, blob: memoryview) -> Parsed:
        """Find the sections; LayoutError unless they are exactly ours and end with the blob."""
        at = _envelope(blob)
        found: list[Cells | None] = []
        for spec in (self.base, self.window):
            cells = None
            if spec is not None:
                cells, at = _read_kv(blob, at, has_v=len(spec.runs) > spec.n_layer)
                if cells.spec != spec:
                    raise LayoutError("the state has another shape than the layout")
            found.append(cells)
        if self.has_state:
            return Parsed(found[0], found[1], blob[at:])
        if at != len(blob):
            raise LayoutError(f"{len(blob) - at} bytes left over in the state")
        return Parsed(found[0], found[1], None)


def detect(blob: memoryview, *, n_swa: int) -> Layout:
    """The layout of a model from the state of a short sequence; ``whole`` when it cannot be read to the last byte."""
    for window in (False, True):
        for has_v in (True, False):
            try:
                return _try(blob, n_swa if window else 0, window, has_v)
            except LayoutError:
                continue
    return Layout("recurrent", has_state=True) if _is_recurrent(blob) else Layout("whole", has_state=True)


def _try(blob: memoryview, n_swa: int, window: bool, has_v: bool) -> Layout:
    base, at = _read_kv(blob, _envelope(blob), has_v=has_v)
    swa = None
    if window:
        if n_swa == 0:
            raise LayoutError("two KV sections without a sliding window")
        swa, at = _read_kv(blob, at, has_v=has_v)
    has_state = at != len(blob)
    if has_state:
        _skip_recurrent(blob, at)
    kind: Kind = "hybrid" if has_state else "swa" if window else "plain"
    return Layout(kind, base.spec, swa.spec if swa else None, n_swa, has_state)


def _is_recurrent(blob: memoryview) -> bool:
    try:
        _skip_recurrent(blob, _envelope(blob))
    except LayoutError:
        return False
    return True


def _unpack(form: str, blob: memoryview, at: int) -> tuple[int, ...]:
    try:
        return struct.unpack_from(form, blob, at)
    except struct.error as error:
        raise LayoutError(f"the state ends early: {error}") from None


def _envelope(blob: memoryview) -> int:
    if _unpack("<I", blob, 0)[0] != MAGIC:
        raise LayoutError("the state has an unknown magic")
    return ENVELOPE.size


def _read_kv(blob: memoryview, at: int, *, has_v: bool) -> tuple[Cells, int]:
    n_stream, count = _unpack("<II", blob, at)
    if n_stream != 1:
        raise LayoutError(f"{n_stream} streams: not a unified cache")
    at += 8
    if count * CELL.itemsize > len(blob) - at:
        raise LayoutError(f"{count} cells do not fit the state")
    cells = np.frombuffer(blob, CELL, count, at)
    if (cells["n_seq"] != 1).any():
        raise LayoutError("cells carry more than a position and a sequence")
    at += count * CELL.itemsize
    v_trans, n_layer = _unpack("<II", blob, at)
    if v_trans > 1 or n_layer > MAX_LAYERS:
        raise LayoutError("not a KV section")
    runs, offsets, at = _read_runs(blob, at + 8, n_layer * (1 + has_v), n_layer if v_trans else None, count)
    return Cells(KvSpec(bool(v_trans), n_layer, tuple(runs)), blob, cells["pos"].copy(), tuple(offsets)), at


def _read_runs(
    blob: memoryview, at: int, n_runs: int, transposed_from: int | None, count: int
) -> tuple[list[Run], list[int], int]:
    runs: list[Run] = []
    offsets: list[int] = []
    for index in range(n_runs):
        if transposed_from is not None and index >= transposed_from:
            kind, width, channels = _unpack("<iII", blob, at)
            run = Run(kind, width, channels, transposed=True)
        else:
            kind, width = _unpack("<iQ", blob, at)
            run = Run(kind, width)
        runs.append(run)
        offsets.append(at + 12)
        at += 12 + count * run.bytes_per_token
        if at > len(blob):
            raise LayoutError("a layer does not fit the state")
    return runs, offsets, at


def _skip_recurrent(blob: memoryview, at: int) -> None:
    (count,) = _unpack("<I", blob, at)
    at += 4
    for _ in range(min(count, 2)):
        at += 8 + 4 * _unpack("<iI", blob, at)[1]
    s_trans, n_layer = _unpack("<II", blob, at)
    if count > 1 or s_trans > 1 or n_layer > MAX_LAYERS:
        raise LayoutError("not a recurrent section")
    at += 8
    while at < len(blob):
        at += 12 + count * _unpack("<iQ", blob, at)[1]
    if at != len(blob):
        raise LayoutError("the recurrent section ends elsewhere")


def _grid(blob: memoryview, offset: int, run: Run, cells: int) -> Bytes:
    """One line for each channel, the cells side by side in it: a range of cells is copied line by line."""
    flat = np.frombuffer(blob, np.uint8, run.bytes_per_token * cells, offset)
    return flat.reshape(run.channels, cells * run.width)


class SectionTarget:
    """Where one KV section of a blob under assembly goes: positions [first, stop) in order, from byte ``at`` on."""

    def __init__(self, spec: KvSpec, first: int, stop: int, at: int) -> None:
        self.spec, self.first, self.count = spec, first, stop - first
        self._at = at
        self._offsets: list[int] = []
        at += 8 + self.count * CELL.itemsize + 8
        for run in spec.runs:
            self._offsets.append(at + 12)
            at += 12 + self.count * run.bytes_per_token
        self.end = at

    def write_headers(self, blob: memoryview) -> None:
        struct.pack_into("<II", blob, self._at, 1, self.count)
        cells = np.frombuffer(blob, CELL, self.count, self._at + 8)
        cells["pos"] = np.arange(self.first, self.first + self.count)
        cells["n_seq"], cells["seq"] = 1, 0
        after = self._at + 8 + self.count * CELL.itemsize
        struct.pack_into("<II", blob, after, self.spec.v_trans, self.spec.n_layer)
        for run, offset in zip(self.spec.runs, self._offsets, strict=True):
            blob[offset - 12 : offset] = run.header

    @property
    def is_contiguous(self) -> bool:
        """Whether a payload's rows are contiguous in the blob, so that ``places`` can be read into."""
        return not self.spec.v_trans

    def places(self, blob: memoryview, start: int, stop: int) -> list[memoryview]:
        """The memory for the payload of [start, stop), piece by piece; for sections that are ``is_contiguous``."""
        skip, count = start - self.first, stop - start
        pairs = zip(self.spec.runs, self._offsets, strict=True)
        return [blob[at + skip * run.width : at + (skip + count) * run.width] for run, at in pairs]

    def put(self, blob: memoryview, payload: memoryview, held: tuple[int, int], start: int, stop: int) -> None:
        """Copy positions [start, stop) of a payload that holds positions ``held``."""
        source, n_held = 0, held[1] - held[0]
        for run, offset in zip(self.spec.runs, self._offsets, strict=True):
            width = run.width
            rows = _grid(payload, source, run, n_held)[:, (start - held[0]) * width : (stop - held[0]) * width]
            to = slice((start - self.first) * width, (stop - self.first) * width)
            _grid(blob, offset, run, self.count)[:, to] = rows
            source += run.bytes_per_token * n_held


class Assembly:
    """The blob of a sequence of ``n`` tokens, or of its rows from ``first`` on: window rows from ``window_first`` on,
    an opaque state of ``state_bytes`` at the end. Reserves nothing: ``write_headers`` and the targets fill a buffer of
    ``size`` bytes."""

    def __init__(self, layout: Layout, n: int, window_first: int = 0, state_bytes: int = 0, *, first: int = 0) -> None:
        at = ENVELOPE.size
        self.base = self.window = None
        if layout.base is not None:
            self.base = SectionTarget(layout.base, first, n, at)
            at = self.base.end
        if layout.window is not None:
            self.window = SectionTarget(layout.window, window_first, n, at)
            at = self.window.end
        self._state = at
        self.size = at + state_bytes

    def write_headers(self, blob: memoryview) -> None:
        ENVELOPE.pack_into(blob, 0, MAGIC, 0)
        for target in (self.base, self.window):
            if target is not None:
                target.write_headers(blob)

    def state(self, blob: memoryview) -> memoryview:
        return blob[self._state : self.size]
