"""The identity of a model: what its files hold, never where they lie.

``safe`` hashes every byte; ``gguf_chunked`` the metadata and the head of the first tensor, which catches accidents, not
malice; ``fast_unsafe`` believes the caller. What was hashed once is remembered by (device, inode, size, mtime, ctime)
of every file, in one small JSON file that belongs to whoever writes it last: losing an entry only costs a second hash.
The mtime alone proves nothing: copies keep it, and inodes are used again.
"""

from __future__ import annotations

import hashlib
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from barrel_inference.config import FingerprintMode
from barrel_inference.errors import ConfigError, InvalidModelError, os_reason
from barrel_inference.files import write_atomically
from barrel_inference.registry import gguf

READ_BYTES = 4 << 20
FIRST_TENSOR_BYTES = 8 << 20
MAX_REMEMBERED = 1000
RACY_NS = 2_000_000_000  # a file that changed so lately may change again without another time stamp


class _FileId(NamedTuple):
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: Path) -> _FileId:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a FIFO would never end
            raise InvalidModelError(f"{path.name}: not a regular file")
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def identity(path: Path) -> str:
    """Tells whether a path still leads to the same content, for as long as nobody forges time stamps. Without the
    ctime, which a new link to the file changes. Raises InvalidModelError."""
    try:
        return ":".join(map(str, _FileId.of(path)[:-1]))
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> InvalidModelError:
    return InvalidModelError(f"{path.name}: {os_reason(error)}")


def check_identity(files: Iterable[tuple[str, str]]) -> None:
    """Of paths with what ``identity`` said of them. Raises InvalidModelError."""
    for path, known in files:
        try:
            is_same = identity(Path(path)) == known
        except InvalidModelError:
            is_same = False
        if not is_same:
            name = Path(path).name
            raise InvalidModelError(f"{name} has been replaced since its fingerprint was taken: load the model again")


class Fingerprints:
    """``memory`` is the file to remember in. Any thread; ``close`` makes running computations give up."""

    def __init__(self, memory: Path, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._memory = memory
        self._clock_ns = clock_ns
        self._closed = threading.Event()

    def close(self) -> None:
        self._closed.set()

    def of_model(self, paths: Sequence[Path], mode: FingerprintMode, given: str | None) -> str:
        """64 hex digits for all files of a model. Raises InvalidModelError, or ConfigError when ``given`` differs."""
        if mode == "fast_unsafe":
            if given is None:
                raise ConfigError(
                    "fingerprint_mode='fast_unsafe' needs a fingerprint", option="fingerprint", value="None"
                )
            return given
        found = self._remembered(paths, mode)
        if given is not None and given != found:
            raise ConfigError(
                f"fingerprint={given!r} does not match the model file, whose fingerprint is {found!r}",
                option="fingerprint",
                value=given,
                allowed=found,
            )
        return found

    def of_file(self, path: Path) -> str:
        """SHA-256 of one file (a LoRA adapter)."""
        return self._remembered([path], "safe")

    def _remembered(self, paths: Sequence[Path], mode: FingerprintMode) -> str:
        try:
            key = _key(paths, mode)
            known = self._load().get(key)
            if known is not None:
                return known
            digest = self._whole(paths) if mode == "safe" else self._chunked(paths)
            if _key(paths, mode) != key:
                raise InvalidModelError(f"{paths[0].name} changed while it was read")
        except OSError as error:
            raise _unreadable(paths[0], error) from error
        if all(self._clock_ns() - path.stat().st_ctime_ns > RACY_NS for path in paths):
            self._remember(key, digest)
        return digest

    def _whole(self, paths: Sequence[Path]) -> str:
        digest = hashlib.sha256()
        for path in paths:
            for part in self._read(path, 0, path.stat().st_size):
                digest.update(part)
        return digest.hexdigest()

    def _chunked(self, paths: Sequence[Path]) -> str:
        digest = hashlib.sha256(b"gguf_chunked 1")
        for number, path in enumerate(paths):
            header, size = gguf.read_file(path)
            digest.update(size.to_bytes(8, "little"))
            parts = [(0, header.data_offset)]
            if number == 0 and header.tensors:
                first = header.tensors[0]
                parts.append((header.data_offset + first.offset, min(first.size_bytes, FIRST_TENSOR_BYTES)))
            for start, length in parts:
                for part in self._read(path, start, length):
                    digest.update(part)
        return digest.hexdigest()

    def _read(self, path: Path, start: int, length: int) -> Iterator[bytes]:
        with path.open("rb") as file:
            file.seek(start)
            while length > 0 and (part := file.read(min(READ_BYTES, length))):
                if self._closed.is_set():
                    raise InvalidModelError(f"{path.name}: the runtime closed while its fingerprint was computed")
                length -= len(part)
                yield part

    def _load(self) -> dict[str, str]:
        try:
            return msgspec.json.decode(self._memory.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.MsgspecError):
            return {}

    def _remember(self, key: str, digest: str) -> None:
        """Best effort: a read-only home must not stop a load."""
        entries = [*self._load().items(), (key, digest)][-MAX_REMEMBERED:]
        with suppress(OSError):
            write_atomically(self._memory, msgspec.json.encode(dict(entries)))


def _key(paths: Sequence[Path], mode: FingerprintMode) -> str:
    return " ".join([mode, *(":".join(map(str, _FileId.of(path))) for path in paths)])
