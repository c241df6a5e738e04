"""The machine's memory as a test wants it."""

from __future__ import annotations

from barrel_inference.memory import SystemMemory


class FakeMemory:
    """Numbers set by a test."""

    def __init__(self, total: int = 16 << 30, available: int = 8 << 30) -> None:
        self.total = total
        self.available = available
        self.resident: dict[int, int] = {}

    def system(self) -> SystemMemory:
        return SystemMemory(self.total, self.available)

    def resident_bytes(self, pid: int) -> int:
        return self.resident.get(pid, 0)
