"""The seam to the machine's memory: one protocol and the real reader (psutil). Tests have a fake."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class SystemMemory(NamedTuple):
    """Bytes of the whole machine."""

    total: int
    available: int


class MemoryReader(Protocol):
    def system(self) -> SystemMemory: ...

    def resident_bytes(self, pid: int) -> int:
        """Of one process; 0 when it is gone."""


class PsutilMemory:
    def system(self) -> SystemMemory:
        import psutil  # not for those who only import the package

        memory = psutil.virtual_memory()
        return SystemMemory(memory.total, memory.available)

    def resident_bytes(self, pid: int) -> int:
        import psutil

        try:
            return int(psutil.Process(pid).memory_info().rss)
        except psutil.Error:
            return 0
