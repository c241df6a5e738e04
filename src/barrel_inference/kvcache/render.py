"""The render memory: texts whose exact tokens are known, because a model sampled them.

An answer that comes back as text in the next prompt may tokenise differently; then its blocks would not match. So the
tokens of a whole conversation are remembered under its text, and a new prompt that begins with that text begins with
those tokens. One small file for each text on a Shelf beside the blocks. Any thread.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import threading
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import xxhash

from barrel_inference.files import read_small, write_atomically
from barrel_inference.kvcache.chain import pack_tokens, unpack_tokens
from barrel_inference.trouble import Trouble

MAX_FILES = 4096
MAX_BYTES = 64 << 20
QUOTA_SHARE = 32  # a shelf is beside its tier's quota, and small against it
MAX_FILE_BYTES = 16 << 20
RELIST_PUTS = 256  # after so many, what other processes put there is counted too
CHECKSUM = struct.Struct("<Q")

logger = logging.getLogger(__name__)


def shelf_bytes(quota_bytes: int) -> int:
    """How much a shelf beside a tier of that quota may hold."""
    return min(MAX_BYTES, quota_bytes // QUOTA_SHARE)


class Shelf:
    """Small files with checksums in one folder, which it owns (other processes may too); the oldest go first. It is
    only ever a help: a failing disk is told once, until it works again. Any thread."""

    def __init__(self, folder: Path, *, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES) -> None:
        """An unreadable folder is an empty shelf, and one that is a link (to what is not ours) stays so."""
        self._folder, self._max_files, self._max_bytes = folder, max_files, max_bytes
        self._lock = threading.Lock()
        self._files = _listed(folder)  # name: bytes; oldest first
        self._n_puts = 0
        self._trouble = Trouble(logger)

    @property
    def names(self) -> list[str]:
        with self._lock:
            return list(self._files)

    def put(self, name: str, data: bytes) -> bool:
        """Whether it is there now."""
        if len(data) + CHECKSUM.size > min(MAX_FILE_BYTES, self._max_bytes):
            return False
        try:
            if self._folder.is_symlink():
                raise NotADirectoryError(errno.ENOTDIR, "a symbolic link")
            write_atomically(self._folder / name, CHECKSUM.pack(xxhash.xxh3_64_intdigest(data)) + data)
        except OSError as error:
            self._trouble.tell("what was written cannot be remembered in %s: %s", self._folder, error)
            return False
        self._trouble.is_over()
        with self._lock:
            self._enter(name, len(data) + CHECKSUM.size)
        return True

    def get(self, name: str) -> bytes | None:
        """None when it is not there, or damaged; then it is removed."""
        try:
            data = read_small(self._folder / name)
        except OSError:
            data = b""
        if len(data) >= CHECKSUM.size:
            body = data[CHECKSUM.size :]
            if CHECKSUM.unpack_from(data)[0] == xxhash.xxh3_64_intdigest(body):
                return body
        if data:
            self.forget(name)
        return None

    def forget(self, name: str) -> None:
        with self._lock:
            self._remove(name)

    def _enter(self, name: str, size: int) -> None:
        self._files.pop(name, None)
        self._files[name] = size
        self._n_puts += 1
        if self._n_puts % RELIST_PUTS == 0:
            self._files = _listed(self._folder)
        total = sum(self._files.values())
        while len(self._files) > self._max_files or total > self._max_bytes:
            oldest = next(iter(self._files))
            total -= self._files[oldest]
            self._remove(oldest)

    def _remove(self, name: str) -> None:
        self._files.pop(name, None)
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            logger.debug("%s cannot be removed: %s", name, error)


class Remembered(NamedTuple):
    n_chars: int  # of the prompt's text that ``tokens`` stand for
    tokens: tuple[int, ...]


class RenderMemory:
    def __init__(self, folder: Path, *, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES) -> None:
        self._shelf = Shelf(folder, max_files=max_files, max_bytes=max_bytes)
        self._lock = threading.Lock()
        self._names: dict[int, set[str]] = {}  # digests by text length in bytes; a hint, the shelf forgets
        for name in self._shelf.names:
            length, dash, digest = name.partition("-")
            if dash and length.isdecimal():
                self._names.setdefault(int(length), set()).add(digest)

    def remember(self, text: str, tokens: Sequence[int], *, salt: str = "") -> None:
        """``tokens`` are what ``text``, from the start of the prompt, was made of."""
        data = text.encode(errors="surrogatepass")
        digest = _hash(salt, data).hexdigest()
        if data and self._shelf.put(f"{len(data)}-{digest}", pack_tokens(tokens)):
            with self._lock:
                self._names.setdefault(len(data), set()).add(digest)

    def match(self, text: str, *, salt: str = "") -> Remembered | None:
        """The longest remembered text that ``text`` begins with."""
        data = text.encode(errors="surrogatepass")
        with self._lock:
            found = self._found(data, salt)
        for length, digest in found:
            packed = self._shelf.get(f"{length}-{digest}")
            if packed is not None and len(packed) % 4 == 0:
                return Remembered(len(data[:length].decode(errors="surrogatepass")), unpack_tokens(packed))
            self._forget(length, digest)
        return None

    def _found(self, data: bytes, salt: str) -> list[tuple[int, str]]:
        """Longest first. One pass over the text, whatever the number of lengths."""
        state, at, found = _hash(salt, b""), 0, []
        for length in sorted(length for length in self._names if length <= len(data)):
            state.update(data[at:length])
            at = length
            digest = state.copy().hexdigest()
            if digest in self._names[length]:
                found.append((length, digest))
        return found[::-1]

    def _forget(self, length: int, digest: str) -> None:
        with self._lock:
            digests = self._names.get(length, set())
            digests.discard(digest)
            if not digests:
                self._names.pop(length, None)


def _hash(salt: str, data: bytes) -> blake2b:
    return blake2b(data, digest_size=16, key=blake2b(salt.encode(), digest_size=16).digest())


def _listed(folder: Path) -> dict[str, int]:
    """Name to bytes of each file, oldest first."""
    found: list[tuple[int, str, int]] = []
    try:
        entries = [] if folder.is_symlink() else list(os.scandir(folder))
    except OSError:
        return {}
    for entry in entries:
        try:
            stat = entry.stat(follow_symlinks=False)
        except OSError:  # another process forgot it
            continue
        found.append((stat.st_mtime_ns, entry.name, stat.st_size))
    return {name: size for _, name, size in sorted(found)}
