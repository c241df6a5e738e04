"""An unfinished download on disk: ``<hash>.part`` and its sidecar ``<hash>.part.state``. A Part owns both files while
it holds the lock on the part; all writes come from one thread at a time.

    sidecar   JSON header, padded to 4096 bytes | a piece after the other: u64 bytes written, u64 bytes synced

Bytes written survive a killed process, bytes synced also a power cut: the header names the boot it was written under,
and after another boot only what had been synced counts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

from barrel_inference.errors import DiskFullError, RegistryError
from barrel_inference.registry.files import writing
from barrel_inference.registry.locks import try_lock

HEADER_BYTES = 4096
MIN_PIECE, MAX_PIECE = 8 << 20, 64 << 20
MAX_PIECES = 1 << 16  # of 4 TiB; larger files have larger pieces
SPARE_BYTES = 64 << 20  # what a download leaves free on the disk
_ROW = struct.Struct("<QQ")
UNKNOWN_SIZE = 1 << 62


class Version(NamedTuple):
    """What tells one content from another: resuming is only right within one version.

    ``fixed`` means that the content is addressed by its digest, so that nothing else matters.
    """

    size: int | None
    etag: str | None = None
    last_modified: str | None = None
    fixed: str | None = None

    @property
    def if_range(self) -> str | None:
        """The validator a ranged request may rely on: a strong ETag, else the date."""
        if self.fixed:
            return None
        return self.etag if self.etag and not self.etag.startswith("W/") else self.last_modified

    def continues(self, other: Version) -> bool:
        if self.size is None or self.size != other.size:
            return False
        if self.fixed or other.fixed:
            return self.fixed == other.fixed
        return self.if_range is not None and self.if_range == other.if_range


class _Header(msgspec.Struct):
    version: Version
    piece_bytes: int
    boot: str


class Piece:
    """One range of the file; ``written`` counts from its start."""

    __slots__ = ("index", "length", "start", "synced", "written")

    def __init__(self, index: int, start: int, length: int) -> None:
        self.index, self.start, self.length = index, start, length
        self.written = self.synced = 0

    @property
    def is_done(self) -> bool:
        return self.written >= self.length


def boot_id() -> str:
    """Names this boot of the machine."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return str(int(psutil.boot_time()))


class Part:
    """Open with ``acquire``. ``begin`` decides between resuming and starting again; then write, sync, release."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.pieces: list[Piece] = []
        self._fd = fd
        self._state_path = path.with_name(path.name + ".state")
        self._state_fd = -1

    @classmethod
    def acquire(cls, path: Path) -> Part | None:
        """The part at ``path``, or None while another download holds it."""
        while True:
            fd = try_lock(path)
            if fd is None:
                return None
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(fd).st_ino:
                    return cls(path, fd)
            os.close(fd)  # it was finished and renamed between our opening and locking it

    @property
    def completed(self) -> int:
        return sum(piece.written for piece in self.pieces)

    @property
    def frontier(self) -> int:
        """All bytes below are on disk."""
        for piece in self.pieces:
            if not piece.is_done:
                return piece.start + piece.written
        return self.completed

    def begin(self, version: Version, *, ranges: bool = True) -> bool:
        """Whether bytes of an earlier try are kept. A server without ``ranges`` can only start again."""
        header = self._read_header()
        if ranges and header and header.version.continues(version):
            self._open_state()
            self._plan(version.size, header.piece_bytes)
            self._load_table(trust_written=header.boot == boot_id())
            if header.boot != boot_id():
                self._write_state(_Header(version, header.piece_bytes, boot_id()))
            return self.completed > 0
        self.restart(version, ranges=ranges)
        return False

    def restart(self, version: Version, *, ranges: bool = True) -> None:
        """Forget everything; the next byte is the first."""
        piece_bytes = UNKNOWN_SIZE if version.size is None or not ranges else piece_size(version.size)
        with writing(self.path):
            self._state_path.unlink(missing_ok=True)
            os.ftruncate(self._fd, 0)
        self._open_state()
        self._plan(version.size, piece_bytes)
        self._write_state(_Header(version, piece_bytes, boot_id()))

    def require_room(self, size: int) -> None:
        """``DiskFullError`` with both numbers unless the rest fits with a little to spare."""
        missing = size - self.completed
        free = shutil.disk_usage(self.path.parent).free
        if missing > free - SPARE_BYTES:
            raise DiskFullError(
                f"not enough space: {missing:,} bytes are missing, {free:,} are free; run: barrel-inference gc",
                needed=missing,
                free=free,
            )

    def write(self, piece: Piece, data: bytes) -> None:
        """Append to a piece: first the bytes, then the count that vouches for them."""
        with writing(self.path):
            _write_at(self._fd, piece.start + piece.written, data)
            piece.written += len(data)
            self._write_row(piece)

    def end_at_written(self) -> None:
        """The stream of unknown length has ended."""
        self.pieces[0].length = self.pieces[0].written

    def sync(self) -> None:
        """Make what is written so far survive a power cut. Slow; may run beside ``write``."""
        reached = [(piece, piece.written) for piece in self.pieces if piece.written != piece.synced]
        with writing(self.path):
            os.fsync(self._fd)
            for piece, written in reached:
                piece.synced = written
                self._write_row(piece)
            os.fsync(self._state_fd)

    def release(self) -> Path:
        """Drop the sidecar; the caller, who has found the file right, renames it at once, then closes."""
        with writing(self._state_path):
            self._state_path.unlink(missing_ok=True)
        return self.path

    def discard(self) -> None:
        with writing(self.path):
            self.path.unlink(missing_ok=True)
            self._state_path.unlink(missing_ok=True)

    def give_up(self) -> None:
        """Close one that was not completed; without a byte there is nothing to go on with, and it is removed."""
        with contextlib.suppress(OSError, RegistryError):
            status = os.fstat(self._fd)
            if not status.st_size and self.path.stat().st_ino == status.st_ino:
                self.discard()
        self.close()

    def close(self) -> None:
        for fd in (self._state_fd, self._fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._state_fd = -1

    def _plan(self, size: int | None, piece_bytes: int) -> None:
        total = UNKNOWN_SIZE if size is None else size
        starts = range(0, total, piece_bytes)
        self.pieces = [Piece(i, start, min(piece_bytes, total - start)) for i, start in enumerate(starts)]

    def _read_header(self) -> _Header | None:
        try:
            with self._state_path.open("rb") as file:
                return msgspec.json.decode(file.read(HEADER_BYTES).rstrip(b"\0"), type=_Header)
        except (OSError, msgspec.MsgspecError, RecursionError):
            return None

    def _open_state(self) -> None:
        if self._state_fd >= 0:
            os.close(self._state_fd)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        with writing(self._state_path):
            self._state_fd = os.open(self._state_path, flags, 0o644)

    def _load_table(self, *, trust_written: bool) -> None:
        rows = read_state(self._state_path)
        on_disk = os.fstat(self._fd).st_size
        for piece, (written, synced) in zip(self.pieces, rows, strict=False):
            count = written if trust_written else min(synced, written)
            possible = max(0, min(piece.length, on_disk - piece.start))
            piece.written = count if count <= possible else 0
            piece.synced = min(synced, piece.written)

    def _write_state(self, header: _Header) -> None:
        content = msgspec.json.encode(header).ljust(HEADER_BYTES, b"\0")
        with writing(self._state_path):
            _write_at(self._state_fd, 0, content[:HEADER_BYTES])
            for piece in self.pieces:
                self._write_row(piece)

    def _write_row(self, piece: Piece) -> None:
        _write_at(self._state_fd, HEADER_BYTES + piece.index * _ROW.size, _ROW.pack(piece.written, piece.synced))


def piece_size(size: int) -> int:
    """Large enough that a connection's round trip is cheap, small enough that hashing keeps close behind; never so
    small that a size which no disk holds, and any server may claim, makes more pieces than memory holds."""
    return max(min(max(size // 64, MIN_PIECE), MAX_PIECE), -(-size // MAX_PIECES))


def read_state(state_path: Path) -> list[tuple[int, int]]:
    """(written, synced) of every piece in a sidecar; also for watching a download of another process."""
    try:
        with state_path.open("rb") as file:
            file.seek(HEADER_BYTES)
            table = file.read()
    except OSError:
        return []
    return list(_ROW.iter_unpack(table[: len(table) // _ROW.size * _ROW.size]))


if hasattr(os, "pwrite"):

    def _write_at(fd: int, offset: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            n_bytes = os.pwrite(fd, view, offset)
            view, offset = view[n_bytes:], offset + n_bytes
else:  # pragma: no cover - Windows; safe because one thread writes

    def _write_at(fd: int, offset: int, data: bytes) -> None:
        os.lseek(fd, offset, os.SEEK_SET)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
