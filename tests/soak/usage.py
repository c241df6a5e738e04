"""What a resting server holds, and whether that has grown. Reads /proc; owns nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.soak.daemon import Daemon

MIB = 1 << 20


class Allowed(NamedTuple):
    """Growth that is no leak: a share of what was there, and a bit."""

    share: float
    more: int


@dataclass(frozen=True)
class Usage:
    """``worker``: the one that lived through it all."""

    server_memory: int
    worker_memory: int
    server_descriptors: int
    worker_descriptors: int
    server_threads: int
    worker_threads: int
    processes: int
    tmpfs_bytes: int
    registry_files: int


# Memory: what allocators keep. Descriptors and threads: of a pool that was not yet full, never one a request.
ALLOWED = {
    "server_memory": Allowed(0.10, 16 * MIB),
    "worker_memory": Allowed(0.10, 16 * MIB),
    "server_descriptors": Allowed(0, 4),
    "worker_descriptors": Allowed(0, 4),
    "server_threads": Allowed(0, 8),
    "worker_threads": Allowed(0, 2),
    "processes": Allowed(0, 0),
    "tmpfs_bytes": Allowed(0, 1 * MIB),
    "registry_files": Allowed(0, 0),
}


class Row(NamedTuple):
    name: str
    before: int
    after: int
    limit: int

    @property
    def flat(self) -> bool:
        return self.after <= self.limit


def compared(before: Usage, after: Usage) -> list[Row]:
    rows = []
    for name, allowed in ALLOWED.items():
        first = getattr(before, name)
        rows.append(Row(name, first, getattr(after, name), int(first * (1 + allowed.share)) + allowed.more))
    return rows


def measure(daemon: Daemon) -> Usage:
    """Of a server that rests, with one worker."""
    (worker,) = daemon.workers()
    server = daemon.process
    return Usage(
        server_memory=_rss(server),
        worker_memory=_rss(worker),
        server_descriptors=server.num_fds(),
        worker_descriptors=worker.num_fds(),
        server_threads=server.num_threads(),
        worker_threads=worker.num_threads(),
        processes=1 + len(daemon.workers()),
        tmpfs_bytes=_bytes(daemon.tmpfs),
        registry_files=sum(1 for path in daemon.models_dir.rglob("*") if path.is_file()),
    )


def _rss(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
