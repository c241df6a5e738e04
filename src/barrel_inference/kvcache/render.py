"""The render memory: texts whose exact tokens are known, because a model sampled them.

An answer that comes back as text in the next prompt may tokenise differently; then its blocks would not match. So the
tokens of a whole conversation are remembered under its text, and a new prompt that begins with that text begins with
those tokens. One small file for each text, beside the blocks; owns their directory, oldest go first. Any thread.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import xxhash

from barrel_inference.kvcache.chain import pack_tokens, unpack_tokens
from barrel_inference.kvcache.namespace import write_atomically

MAX_FILES = 4096
MAX_TEXT_BYTES = 16 << 20
CHECKSUM = struct.Struct("<Q")


class Remembered(NamedTuple):
    n_chars: int  # of the prompt's text that ``tokens`` stand for
    tokens: tuple[int, ...]


class RenderMemory:
    def __init__(self, folder: Path, *, max_files: int = MAX_FILES) -> None:
        """An unreadable folder is an empty memory."""
        self._folder, self._max_files = folder, max_files
        self._lock = threading.Lock()
        self._names: dict[int, set[str]] = {}  # digests by text length in bytes
        self._order: list[tuple[int, str]] = []  # oldest first
        for length, name in _listed(folder):
            self._add(length, name)

    def remember(self, text: str, tokens: Sequence[int], *, salt: str = "") -> None:
        """``tokens`` are what ``text``, from the start of the prompt, was made of. OSError when it cannot be kept."""
        data = text.encode(errors="surrogatepass")
        if not data or len(data) > MAX_TEXT_BYTES:
            return
        name = _hash(salt, data).hexdigest()
        packed = pack_tokens(tokens)
        write_atomically(self._folder / f"{len(data)}-{name}", CHECKSUM.pack(xxhash.xxh3_64_intdigest(packed)) + packed)
        with self._lock:
            self._add(len(data), name)
            while len(self._order) > self._max_files:
                self._forget(*self._order[0])

    def match(self, text: str, *, salt: str = "") -> Remembered | None:
        """The longest remembered text that ``text`` begins with."""
        data = text.encode(errors="surrogatepass")
        with self._lock:
            found = self._found(data, salt)
        for length, name in found:
            tokens = self._read(length, name)
            if tokens is not None:
                return Remembered(len(data[:length].decode(errors="surrogatepass")), tokens)
        return None

    def _found(self, data: bytes, salt: str) -> list[tuple[int, str]]:
        """Longest first. One pass over the text, whatever the number of lengths."""
        state, at, found = _hash(salt, b""), 0, []
        for length in sorted(length for length in self._names if length <= len(data)):
            state.update(data[at:length])
            at = length
            name = state.copy().hexdigest()
            if name in self._names[length]:
                found.append((length, name))
        return found[::-1]

    def _read(self, length: int, name: str) -> tuple[int, ...] | None:
        path = self._folder / f"{length}-{name}"
        try:
            data = path.read_bytes()
            if CHECKSUM.unpack_from(data)[0] == xxhash.xxh3_64_intdigest(data[CHECKSUM.size :]):
                return unpack_tokens(data[CHECKSUM.size :])
        except (OSError, struct.error, ValueError):
            pass
        with self._lock:
            self._forget(length, name)
        return None

    def _add(self, length: int, name: str) -> None:
        names = self._names.setdefault(length, set())
        if name not in names:
            names.add(name)
            self._order.append((length, name))

    def _forget(self, length: int, name: str) -> None:
        names = self._names.get(length, set())
        names.discard(name)
        if not names:
            self._names.pop(length, None)
        if (length, name) in self._order:
            self._order.remove((length, name))
        (self._folder / f"{length}-{name}").unlink(missing_ok=True)


def _hash(salt: str, data: bytes) -> blake2b:
    return blake2b(data, digest_size=16, key=blake2b(salt.encode(), digest_size=16).digest())


def _listed(folder: Path) -> list[tuple[int, str]]:
    """(length, digest) of each file, oldest first."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.stat().st_mtime_ns)
    except OSError:
        return []
    parts = (entry.name.partition("-") for entry in entries)
    return [(int(length), name) for length, dash, name in parts if dash and length.isdecimal()]
