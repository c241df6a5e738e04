"""A backend without weights whose states are real llama.cpp blobs of any layout.

Every row is a digest of all rows its token can see, so that one wrong, missing or misplaced byte changes every later
logit. Cells are kept in memory order with holes reused, rows leave the sliding window as in llama.cpp.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from barrel_inference.engine.backend import BackendInfo, DecodeStatus, Sampler, Slice
from barrel_inference.kvcache.layout import MAGIC
from barrel_inference.types import Sampling

N_EMBD = 4  # channels of V
EL = 2
ROW = N_EMBD * EL
KINDS = ("plain", "swa", "recurrent", "hybrid", "hybrid_swa", "whole")


@dataclass
class Cell:
    pos: int
    seqs: set[int]
    rows: tuple[bytes, ...]  # K of each layer, then V of each layer

    def __post_init__(self) -> None:
        self.seen = struct.pack("<i", self.pos) + b"".join(self.rows)


@dataclass
class Cache:
    """One KV section."""

    n_layer: int
    n_swa: int = 0
    cells: list[Cell | None] = field(default_factory=list)

    def of(self, seq: int) -> list[Cell]:
        return [cell for cell in self.cells if cell is not None and seq in cell.seqs]

    def visible(self, seq: int, pos: int) -> list[Cell]:
        cells = [c for c in self.of(seq) if c.pos < pos and (not self.n_swa or c.pos > pos - self.n_swa)]
        return sorted(cells, key=lambda cell: cell.pos)

    def put(self, cell: Cell) -> None:
        for i, old in enumerate(self.cells):
            if old is None:
                self.cells[i] = cell
                return
        self.cells.append(cell)

    def remove(self, seq: int, start: int, stop: int) -> None:
        for i, cell in enumerate(self.cells):
            if cell is not None and seq in cell.seqs and start <= cell.pos < stop:
                cell.seqs.discard(seq)
                if not cell.seqs:
                    self.cells[i] = None

    def kept(self, seq: int) -> list[Cell]:
        """What a state holds: with a window, only the rows in it."""
        cells = self.of(seq)
        last = max((cell.pos for cell in cells), default=-1)
        return [cell for cell in cells if not self.n_swa or cell.pos > last - self.n_swa]


class FakeBackend:
    def __init__(
        self, kind: str = "plain", *, n_swa: int = 0, v_trans: bool = False, n_ctx: int = 4096, **facts: Any
    ) -> None:
        has_window = kind in ("swa", "hybrid_swa")
        self.kind, self.v_trans = kind, v_trans
        self.base = Cache(2) if kind in ("plain", "swa", "hybrid", "hybrid_swa", "whole") else None
        self.window = Cache(1, n_swa) if has_window else None
        self.state: dict[int, tuple[int, bytes]] | None = {} if kind.startswith(("rec", "hyb")) else None
        self.scratch = 2
        self.fail_writes = False
        self.n_decoded = 0
        self.info = BackendInfo(
            architecture="fake",
            description="",
            n_ctx=n_ctx,
            n_ctx_train=n_ctx,
            n_batch=512,
            n_ubatch=512,
            n_seq_max=2,
            n_vocab=1000,
            n_embd=8,
            n_layer=3,
            n_params=1,
            size_bytes=1,
            n_swa=n_swa if has_window else 0,
            is_recurrent=kind == "recurrent",
            is_hybrid=kind.startswith("hyb"),
            flash_attn=not v_trans,
            **facts,
            rope="none",
            quant_type="F16",
            build="fake-1",
        )
        self._logits: list[NDArray[np.float32]] = []

    def change(self, **facts: object) -> FakeBackend:
        self.info = msgspec.structs.replace(self.info, **facts)
        return self

    # ---- vocabulary (unused)

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        return list(text)

    def piece(self, token: int, *, special: bool) -> bytes:
        return bytes([token % 256])

    def is_eog(self, token: int) -> bool:
        return False

    def is_control(self, token: int) -> bool:
        return False

    # ---- decoding

    def decode(self, slices: list[Slice], budget_s: float | None) -> DecodeStatus:
        self._logits = []
        for piece in slices:
            self._leave_window(piece.seq)
            for offset, token in enumerate(piece.tokens):
                seen = self._step(piece.seq, piece.start + offset, token)
            self._logits.append(np.frombuffer(seen * 4, np.uint8).astype(np.float32))
            self.n_decoded += len(piece.tokens)
        return DecodeStatus.OK

    def _leave_window(self, seq: int) -> None:
        """Rows that were outside the window before this batch may be overwritten by it."""
        if self.window is not None:
            last = max((cell.pos for cell in self.window.of(seq)), default=-1)
            self.window.remove(seq, 0, last - self.window.n_swa + 1)

    def _step(self, seq: int, pos: int, token: int) -> bytes:
        seen = blake2b(struct.pack("<ii", pos, token), digest_size=32)
        for cache in (self.base, self.window):
            if cache is not None:
                seen.update(b"".join([cell.seen for cell in cache.visible(seq, pos)]))
        if self.state is not None:
            seen.update(self.state.get(seq, (-1, b""))[1])
            self.state[seq] = (pos, seen.digest())
        for cache in (self.base, self.window):
            if cache is not None:
                rows = [blake2b(seen.digest() + bytes([i]), digest_size=ROW).digest() for i in range(2 * cache.n_layer)]
                cache.put(Cell(pos, {seq}, tuple(rows)))
        return seen.digest()

    def logits(self, index: int) -> NDArray[np.float32]:
        return self._logits[index]

    def sampler(self, sampling: Sampling, seed: int) -> Sampler:
        raise NotImplementedError

    def embed(self, inputs: list[list[int]]) -> list[NDArray[np.float32]]:
        raise NotImplementedError

    def rebuild(self) -> None:
        raise NotImplementedError

    # ---- memory

    def _caches(self) -> list[Cache]:
        return [cache for cache in (self.base, self.window) if cache is not None]

    def seq_copy(self, src: int, dst: int, start: int, stop: int) -> None:
        for cache in self._caches():
            for cell in cache.of(src):
                if start <= cell.pos and (stop < 0 or cell.pos < stop):
                    cell.seqs.add(dst)
        if self.state is not None and src in self.state:
            self.state[dst] = self.state[src]

    def seq_remove(self, seq: int, start: int, stop: int) -> bool:
        if self.state is not None and seq in self.state and (start > 0 or 0 <= stop <= self.state[seq][0]):
            return False
        for cache in self._caches():
            cache.remove(seq, max(0, start), stop if stop >= 0 else 1 << 30)
        if self.state is not None:
            self.state.pop(seq, None)
        return True

    def seq_bounds(self, seq: int) -> tuple[int, int]:
        if self.state is not None:
            pos = self.state.get(seq, (-1, b""))[0]
            return pos, pos
        cache = self.window or self.base
        positions = [cell.pos for cell in cache.of(seq)] if cache else []
        return (min(positions), max(positions)) if positions else (-1, -1)

    def state_size(self, seq: int) -> int:
        return len(self._blob(seq))

    def state_read(self, seq: int, into: memoryview) -> int:
        blob = self._blob(seq)
        into[: len(blob)] = blob
        return len(blob)

    def state_write(self, seq: int, blob: memoryview) -> bool:
        self.seq_remove(seq, 0, -1)
        if self.fail_writes:
            return False
        at = 8
        if self.kind == "whole":
            at += 4
        for cache in self._caches():
            at = self._load(cache, seq, bytes(blob), at)
        if self.state is not None:
            pos = struct.unpack_from("<iiI", blob, at)[1]
            self.state[seq] = (pos, bytes(blob[at + 32 : at + 64]))
            at += 64
        return at == len(blob)

    def _blob(self, seq: int) -> bytes:
        out = struct.pack("<Ii", MAGIC, seq)
        if self.kind == "whole":
            out += b"\xff\xff\xff\x7f"  # a section nobody knows
        for cache in self._caches():
            out += self._section(cache, seq)
        if self.state is not None:
            pos, state = self.state[seq]
            out += struct.pack("<IiIIIiQ", 1, pos, 0, 0, 2, 0, 32) + state
        return out

    def _section(self, cache: Cache, seq: int) -> bytes:
        cells, n = cache.kept(seq), cache.n_layer
        out = struct.pack("<II", 1, len(cells))
        out += b"".join(struct.pack("<iIi", cell.pos, 1, seq) for cell in cells)
        out += struct.pack("<II", self.v_trans, n)
        for i in range(n):
            out += struct.pack("<iQ", 1, ROW) + b"".join(cell.rows[i] for cell in cells)
        for i in range(n, 2 * n):
            if not self.v_trans:
                out += struct.pack("<iQ", 1, ROW) + b"".join(cell.rows[i] for cell in cells)
                continue
            out += struct.pack("<iII", 1, EL, N_EMBD)
            for channel in range(N_EMBD):
                out += b"".join(cell.rows[i][channel * EL : (channel + 1) * EL] for cell in cells)
        return out

    def _load(self, cache: Cache, seq: int, blob: bytes, at: int) -> int:
        _, count = struct.unpack_from("<II", blob, at)
        positions = [struct.unpack_from("<i", blob, at + 8 + 12 * i)[0] for i in range(count)]
        at += 8 + 12 * count + 8
        rows: list[list[bytes]] = [[] for _ in range(count)]
        for layer in range(2 * cache.n_layer):
            body = blob[at + 12 : at + 12 + count * ROW]
            at += 12 + count * ROW
            for i in range(count):
                if self.v_trans and layer >= cache.n_layer:
                    parts = (body[(c * count + i) * EL : (c * count + i + 1) * EL] for c in range(N_EMBD))
                    rows[i].append(b"".join(parts))
                else:
                    rows[i].append(body[i * ROW : (i + 1) * ROW])
        for pos, cell in zip(positions, rows, strict=True):
            cache.put(Cell(pos, {seq}, tuple(cell)))
        return at

    def close(self) -> None:
        pass
