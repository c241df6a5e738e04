"""The machine's memory as psutil sees it, and the fake that tests use."""

from __future__ import annotations

import os

from barrel_inference.worker.memory import FakeMemory, PsutilMemory, SystemMemory


def test_the_real_reader() -> None:
    memory = PsutilMemory()
    assert 0 < memory.system().available <= memory.system().total
    assert memory.resident_bytes(os.getpid()) > 1 << 20
    assert memory.resident_bytes(2**22 + 1) == 0


def test_the_fraction_in_use() -> None:
    assert SystemMemory(100, 25).used_fraction == 0.75
    assert SystemMemory(0, 0).used_fraction == 0.0


def test_the_fake_says_what_it_is_told() -> None:
    memory = FakeMemory(total=10, available=4)
    memory.resident[7] = 3
    assert memory.system() == SystemMemory(10, 4)
    assert (memory.resident_bytes(7), memory.resident_bytes(8)) == (3, 0)
