"""The memory that this process may use: the machine's, or less where its control group has a limit (a container's, a
service's). The one place that asks for it. Owns nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")
_GROUPS = "sys/fs/cgroup"
_SHORTAGE = re.compile(
    r"insufficient memory|out of memory|cannot allocate memory|(failed|unable) to allocate|bad_alloc", re.IGNORECASE
)


class SystemMemory(NamedTuple):
    """Bytes in all, and those that could be had now."""

    total: int
    available: int


class _Files(NamedTuple):
    """Where a version of control groups keeps its numbers."""

    limit: str
    used: str
    caches: tuple[str, ...]  # of memory.stat: file pages that the kernel gives back before it kills anybody


# The kernel counts the host's available memory in the same way. What lies in tmpfs is in neither.
_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_V2 = _Files("memory.max", "memory.current", ("inactive_file", "active_file"))


def system_memory() -> SystemMemory:
    """Of this moment."""
    import psutil  # not for those who only import the package

    memory = psutil.virtual_memory()
    return within_groups(SystemMemory(memory.total, memory.available))


def within_groups(host: SystemMemory, root: Path = ROOT) -> SystemMemory:
    """The lowest of the host's numbers and those of our control group and all above it. ``root``: of the file system,
    another one for tests."""
    total, available = host
    for folder, files in _own_groups(root):
        limit = _number(folder / files.limit)
        if limit is None or limit >= host.total:
            continue
        used = (_number(folder / files.used) or 0) - _caches(folder / "memory.stat", files.caches)
        total, available = min(total, limit), min(available, max(0, limit - used))
    return SystemMemory(total, available)


def oom_kills(root: Path = ROOT) -> int | None:
    """How many processes the kernel has killed for want of memory, here and in all groups; None: it does not tell."""
    found = re.search(r"^oom_kill (\d+)$", _text(root / "proc/vmstat"), re.MULTILINE)
    return int(found[1]) if found else None


def tells_of_shortage(text: str) -> bool:
    """Whether these words of a program mean that it could not allocate. Refused locks are warnings, and none."""
    return any(_SHORTAGE.search(line) and "mlock" not in line for line in text.splitlines())


def _own_groups(root: Path) -> Iterator[tuple[Path, _Files]]:
    """Our group and all above it, of each hierarchy that counts memory. In a container the path may be the host's, of
    which only the last parent, the mounted folder itself, is seen."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield from _upwards(root / _GROUPS, path, _V2)
        elif "memory" in controllers.split(","):
            yield from _upwards(root / _GROUPS / "memory", path, _V1)


def _upwards(base: Path, path: str, files: _Files) -> Iterator[tuple[Path, _Files]]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for length in range(len(parts), -1, -1):
        yield base.joinpath(*parts[:length]), files


def _caches(path: Path, names: tuple[str, ...]) -> int:
    numbers = dict(line.split(" ", 1) for line in _text(path).splitlines() if " " in line)
    return sum(int(numbers[name]) for name in names if numbers.get(name, "").isdecimal())


def _number(path: Path) -> int | None:
    """None where there is none: ``max``, or no such file."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
