"""One tier: a directory of object files. Owns nothing in memory; what is on the file system is the truth.

<root>/<namespace, 32 hex>/<first 2 of parent>/<parent>-<key>.<kind>.<provenance>
<root>/<namespace>/ns.json, selftest.json
<root>/<namespace>/render, turns/   the shelves of kvcache.render: bounded, beside the quota
<root>/tmp/         being written; published by rename
<root>/quarantine/  found corrupt; bounded
<root>/pins/        one file for each pinned prompt: its keys
<root>/usage, lock  the quota's
"""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from barrel_inference.config import TierSpec
from barrel_inference.errors import ConfigError, TierUnusableError, os_reason
from barrel_inference.files import is_full, read_small, write_atomically
from barrel_inference.kvcache.quota import Quota, allocation
from barrel_inference.kvcache.record import CorruptError, Name, parse_name

IOV_MAX = 512
QUARANTINE_FILES = 32
STALE_TMP_S = 600.0
NS_HEX = 32
SHELVES = ("render", "turns")
NO_FILE = (errno.ELOOP, errno.EISDIR, errno.ENXIO)  # a link, a folder or a socket where an object should be

_serial = itertools.count()


class NoRoomError(OSError):
    """The tier is at its quota, or its file system is full."""

    def __init__(self, n_bytes: int) -> None:
        super().__init__(errno.ENOSPC, "no room in the tier")
        self.n_bytes = n_bytes


class Stored(NamedTuple):
    """One object file as the janitor sees it."""

    namespace: str
    name: Name
    allocated: int
    used_at: float  # seconds since 1970: written or last hit


class Medium:
    """The system calls that move objects: the seam at which tests inject faults and slowness."""

    def write(self, path: Path, parts: Sequence[memoryview | bytes]) -> int:
        """Create ``path``; bytes allocated."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            written = sum(os.writev(fd, parts[at : at + IOV_MAX]) for at in range(0, len(parts), IOV_MAX))
            if written != sum(len(part) for part in parts):
                raise OSError(errno.ENOSPC, "short write")
            return os.fstat(fd).st_blocks * 512
        finally:
            os.close(fd)

    def publish(self, temporary: Path, final: Path) -> None:
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary.rename(final)

    def read(self, path: str, places: Sequence[memoryview]) -> int:
        """Fill ``places`` from the start of the file; fewer bytes than they hold when it is shorter. What someone put
        there that is no file (a FIFO, a link to a device) neither blocks nor is followed."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            return sum(os.readv(fd, places[at : at + IOV_MAX]) for at in range(0, len(places), IOV_MAX))
        finally:
            os.close(fd)


class Tier:
    """Any thread. Creates its folders when opened; TierUnusableError when it cannot."""

    def __init__(self, spec: TierSpec, medium: Medium | None = None) -> None:
        if spec.quota_bytes <= 0:
            raise ConfigError(
                f"tier {spec.name}: quota_bytes is {spec.quota_bytes}, it must be positive",
                option="quota_bytes",
                value=spec.quota_bytes,
                allowed="> 0",
            )
        self.spec = spec
        self.name = spec.name
        self.medium = medium or Medium()
        self.root = Path(spec.path)
        self.quota = Quota(self.root, spec.quota_bytes)
        self._open()

    def _open(self) -> None:
        try:
            self._make_folders()
            self.quota.add(0)
            test = self._temporary()
            test.touch(0o600, exist_ok=False)
            test.unlink()
        except OSError as error:
            words = f"tier {self.name}: {self.root} cannot be used: {os_reason(error)}"
            raise TierUnusableError(words, tier=self.name, path=str(self.root)) from error

    def _make_folders(self) -> None:
        for folder in ("tmp", "quarantine", "pins"):
            path = self.root / folder
            path.mkdir(parents=True, exist_ok=True)
            if path.is_symlink():  # what is old there is removed: it must be ours
                raise NotADirectoryError(errno.ENOTDIR, f"{folder} is a symbolic link", str(path))

    # ---- objects

    def folder(self, namespace: str) -> Path:
        return self.root / namespace[:NS_HEX]

    def path(self, namespace: str, name: Name) -> str:
        return f"{self.root}/{namespace[:NS_HEX]}/{name.shard}/{name.file}"

    def has(self, namespace: str, name: Name) -> bool:
        return os.path.lexists(self.path(namespace, name))

    def put(self, namespace: str, name: Name, parts: Sequence[memoryview | bytes]) -> bool:
        """Write and publish one object; False when it is already there. NoRoomError at the quota or on a full file
        system, OSError when the medium fails; then nothing of it is visible."""
        if self.has(namespace, name):
            return False
        try:
            self._put(namespace, name, parts)
        except FileNotFoundError:  # deleting files is always safe, the tier's own folders too
            self._make_folders()
            self._put(namespace, name, parts)
        return True

    def _put(self, namespace: str, name: Name, parts: Sequence[memoryview | bytes]) -> None:
        size = sum(len(part) for part in parts)
        with self.quota.reserve(size) as granted:
            if not granted:
                raise NoRoomError(size)
            extra = self._publish(Path(self.path(namespace, name)), parts, size)
        if extra:
            self.quota.add(extra)

    def _publish(self, final: Path, parts: Sequence[memoryview | bytes], size: int) -> int:
        """Bytes allocated beyond what was reserved."""
        temporary = self._temporary()
        try:
            allocated = self.medium.write(temporary, parts)
            self.medium.publish(temporary, final)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            if is_full(error):
                raise NoRoomError(size) from error
            raise
        return max(0, allocated - allocation(size))

    def read(self, namespace: str, name: Name, places: Sequence[memoryview]) -> int:
        """Scatter a whole object into ``places``; bytes read, less when the file is shorter. OSError when it is gone
        or unreadable, CorruptError when it is no file."""
        try:
            return self.medium.read(self.path(namespace, name), places)
        except OSError as error:
            if error.errno in NO_FILE:
                raise CorruptError("the object is not a file") from error
            raise

    def _temporary(self) -> Path:
        return self.root / "tmp" / f"{os.getpid()}.{next(_serial)}"

    def size(self, namespace: str, name: Name) -> int:
        return Path(self.path(namespace, name)).lstat().st_size

    def remove(self, namespace: str, name: Name) -> int:
        """Bytes given back; 0 when it was gone already."""
        path = Path(self.path(namespace, name))
        try:
            freed = path.lstat().st_blocks * 512
            path.unlink()
        except OSError:
            return 0
        self.quota.add(-freed, removed=1)
        return freed

    def quarantine(self, namespace: str, name: Name) -> None:
        """Move a corrupt object out of the way, keeping the newest few for inspection."""
        path = Path(self.path(namespace, name))
        jail = self.root / "quarantine"
        with suppress(OSError):
            self._make_folders()
            path.rename(jail / f"{time.time_ns()}.{name.file}")
            self.quota.add(0, removed=1)
            for old in sorted(jail.iterdir())[:-QUARANTINE_FILES]:
                self._let_go(old)

    def _let_go(self, jailed: Path) -> None:
        with suppress(OSError):  # others do the same
            freed = jailed.lstat().st_blocks * 512
            jailed.unlink()
            self.quota.add(-freed)

    def touch(self, namespace: str, names: Iterable[Name]) -> None:
        """A hit: recency outlives the process and is seen by others."""
        for name in names:
            try:
                os.utime(self.path(namespace, name))
            except OSError:
                continue

    def forget(self, namespace: str, older_than: float | None) -> None:
        """Remove what is remembered of what was written (before ``older_than``)."""
        shelves = [self.folder(namespace) / shelf for shelf in SHELVES]
        for path in itertools.chain.from_iterable(shelf.glob("*") for shelf in shelves if not shelf.is_symlink()):
            with suppress(OSError):
                if older_than is None or path.lstat().st_mtime < older_than:
                    path.unlink()

    # ---- pins

    def pin(self, pin: str, keys: Iterable[str]) -> None:
        """Keep these (names' keys) longer than anything else, until ``unpin`` of the same ``pin``."""
        write_atomically(self.root / "pins" / pin, "\n".join(keys).encode())

    def unpin(self, pin: str) -> bool:
        """Whether there was such a pin."""
        try:
            (self.root / "pins" / pin).unlink()
        except OSError:
            return False
        return True

    def pinned(self) -> frozenset[str]:
        keys: set[str] = set()
        for pin in (self.root / "pins").glob("*"):
            with suppress(OSError):
                keys.update(read_small(pin).decode(errors="replace").split())
        return frozenset(keys)

    # ---- listings

    def namespaces(self) -> list[str]:
        try:
            return [entry.name for entry in os.scandir(self.root) if entry.is_dir() and len(entry.name) == NS_HEX]
        except OSError:
            return []

    def shard(self, namespace: str, shard: str) -> tuple[list[str], int]:
        """File names of one folder and the folder's mtime before they were read (0: it does not exist)."""
        path = self.folder(namespace) / shard
        try:
            mtime = path.stat().st_mtime_ns
            return [entry.name for entry in os.scandir(path)], mtime
        except OSError:
            return [], 0

    def shard_mtime(self, namespace: str, shard: str) -> int:
        try:
            return os.stat(f"{self.root}/{namespace[:NS_HEX]}/{shard}").st_mtime_ns  # noqa: PTH116 (hot path)
        except OSError:
            return 0

    def shards(self, namespace: str) -> list[str]:
        try:
            return [entry.name for entry in os.scandir(self.folder(namespace)) if len(entry.name) == 2]
        except OSError:
            return []

    def keys(self, namespace: str) -> Iterator[str]:
        """Of its objects; they themselves are not looked at."""
        for shard in self.shards(namespace):
            yield from (name.key for name in map(parse_name, self.shard(namespace, shard)[0]) if name is not None)

    def objects(self, only: str | None = None) -> Iterator[Stored]:
        """All objects of all namespaces, or of one, with real allocation."""
        for namespace in self.namespaces() if only is None else [only]:
            for shard in self.shards(namespace):
                yield from self._stored(namespace, shard)

    def _stored(self, namespace: str, shard: str) -> Iterator[Stored]:
        try:
            entries = list(os.scandir(self.folder(namespace) / shard))
        except OSError:
            return
        for entry in entries:
            name = parse_name(entry.name)
            try:
                stat = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if name is not None:
                yield Stored(namespace, name, stat.st_blocks * 512, stat.st_mtime)

    def allocated(self) -> int:
        """Real bytes of everything that counts: objects, temporaries, quarantine."""
        total = sum(stored.allocated for stored in self.objects())
        for folder in ("tmp", "quarantine"):
            for entry in os.scandir(self.root / folder):
                try:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                except OSError:
                    continue
        return total

    # ---- care

    def sweep(self, now: float) -> int:
        """Remove temporaries that a dead writer left; how many."""
        removed = 0
        for entry in os.scandir(self.root / "tmp"):
            try:
                if abs(now - entry.stat(follow_symlinks=False).st_mtime) > STALE_TMP_S:  # clocks are set back, too
                    Path(entry.path).unlink()
                    removed += 1
            except OSError:
                continue
        return removed

    def free_bytes(self) -> int:
        stat = os.statvfs(self.root)
        return stat.f_bavail * stat.f_frsize
