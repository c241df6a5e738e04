"""The machine's memory as psutil sees it."""

from __future__ import annotations

import os

from barrel_inference.worker.memory import PsutilMemory, SystemMemory


def test_the_real_reader() -> None:
    memory = PsutilMemory()
    assert 0 < memory.system().available <= memory.system().total
    assert memory.resident_bytes(os.getpid()) > 1 << 20
    assert memory.resident_bytes(2**22 + 1) == 0


def test_the_fraction_in_use() -> None:
    assert SystemMemory(100, 25).used_fraction == 0.75
    assert SystemMemory(0, 0).used_fraction == 0.0
