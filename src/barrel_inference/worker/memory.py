"""The seam to the machine's memory: one protocol and the real reader. Tests have a fake."""

from __future__ import annotations

from typing import Protocol

from barrel_inference.memory import SystemMemory, system_memory


class MemoryReader(Protocol):
    def system(self) -> SystemMemory: ...

    def resident_bytes(self, pid: int) -> int:
        """Of one process; 0 when it is gone."""


class PsutilMemory:
    def system(self) -> SystemMemory:
        return system_memory()

    def resident_bytes(self, pid: int) -> int:
        import psutil

        try:
            return int(psutil.Process(pid).memory_info().rss)
        except psutil.Error:
            return 0
