"""The machine's memory as psutil sees it."""

from __future__ import annotations

import os

from barrel_inference.worker.memory import PsutilMemory


def test_the_real_reader() -> None:
    memory = PsutilMemory()
    assert 0 < memory.system().available <= memory.system().total
    assert memory.resident_bytes(os.getpid()) > 1 << 20
    assert memory.resident_bytes(2**22 + 1) == 0
