"""Reading what a lookup found: every object is proven, what is wrong is never used."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from barrel_inference.kvcache.lookup import Found, find
from barrel_inference.kvcache.record import CorruptError
from barrel_inference.kvcache.tier import Medium, Tier
from barrel_inference.kvcache.transfer.buffers import Memory
from barrel_inference.kvcache.transfer.reader import ARENAS, STALE_RATE_S, Reader
from barrel_inference.kvcache.transfer.reading import PART_TOKENS, READ_AHEAD, Reading
from tests.kvcache.harness import spec
from tests.kvcache.objects import NAMESPACE, layout, payload, put, store
from tests.support.waiting import until

TOKENS = list(range(600))


class Setup:
    def __init__(self, path: Path, medium: Medium | None = None) -> None:
        self.now = 0.0
        self.tier = Tier(spec(path), medium)
        self.names = put(Tier(spec(path)), TOKENS[:590])
        self.store = store(self.tier)
        self.reader = Reader(self.store, layout(), lambda: self.now)

    def find(self) -> Found:
        return find(self.store, TOKENS, limit=lambda at: at)

    def path(self, index: int) -> Path:
        return Path(self.tier.path(NAMESPACE.hex(), self.names[index]))

    def read(self) -> bytes:
        reading = self.reader.start(self.find())
        assert reading is not None
        try:
            return b"".join(map(bytes, reading.blobs()))
        finally:
            self.reader.finish(reading)


def test_the_rows_are_where_they_belong(tmp_path: Path) -> None:
    one = Setup(tmp_path)
    found = one.find()
    reading = one.reader.start(found)
    assert reading is not None
    spans = []
    for blob in reading.blobs():
        base = layout().parse(blob).base
        assert base is not None
        first, last = base.span()
        spans.append((first, last))
        for start in range(first, last, 64):
            stop = min(start + 64, last)
            assert (
                b"".join(base.rows(start, stop))
                == payload(TOKENS[start : start + 64])[: base.spec.bytes_per_token * (stop - start)]
            )
    assert spans == [(0, PART_TOKENS), (PART_TOKENS, 590)]
    assert reading.prefill_s == pytest.approx(10 * 0.064), "of nine blocks and a tail, as their headers say"
    one.reader.finish(reading)
    one.reader.close()


def test_parts_take_turns_in_the_same_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barrel_inference.kvcache.transfer.reading.PART_TOKENS", 64)
    one = Setup(tmp_path)
    reading = one.reader.start(one.find())
    assert reading is not None
    addresses = [ctypes.addressof(ctypes.c_char.from_buffer(blob)) for blob in reading.blobs()]
    assert len(addresses) == 10
    assert addresses == (addresses[:READ_AHEAD] * 4)[:10]
    one.reader.finish(reading)


def test_all_parts_are_read_before_it_is_ready_when_others_must_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barrel_inference.kvcache.transfer.reading.PART_TOKENS", 64)
    one = Setup(tmp_path)
    medium, reading = held(one)
    medium.let_go.release(READ_AHEAD)
    until(lambda: reading.ready)  # the first part is enough to begin
    reading.begin_all()
    medium.let_go.release(10 - READ_AHEAD - 1)
    time.sleep(0.05)
    assert not reading.ready
    medium.let_go.release()
    until(lambda: reading.ready)
    assert len(list(reading.blobs())) == 10
    one.reader.finish(reading)


def test_who_reads_slowly_says_so_after_the_first_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barrel_inference.kvcache.transfer.reading.PART_TOKENS", 64)
    for hold_up_s, is_slow in ((100.0, False), (0.1, True)):
        monkeypatch.setattr("barrel_inference.kvcache.transfer.reading.HOLD_UP_S", hold_up_s)
        one = Setup(tmp_path)
        medium, reading = held(one)
        assert not reading.is_slow
        time.sleep(0.05)  # seven parts more would take 0.35 s
        medium.let_go.release(READ_AHEAD)
        until(lambda reading=reading: reading.ready)
        assert reading.is_slow is is_slow
        medium.let_go.release(10)
        one.reader.finish(reading)


def test_a_disk_that_hangs_between_two_parts_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barrel_inference.kvcache.transfer.reading.PART_TOKENS", 64)
    monkeypatch.setattr("barrel_inference.kvcache.transfer.reading.HANG_S", 0.1)
    one = Setup(tmp_path)
    medium, reading = held(one)
    medium.let_go.release(READ_AHEAD)
    with pytest.raises(TimeoutError):
        list(reading.blobs())
    one.reader.finish(reading)
    medium.let_go.release(100)
    one.reader.close()
    assert one.reader._memory._out == 0


def held(one: Setup) -> tuple[Held, Reading]:
    """A reading on such a disk; looking up was quick."""
    found = one.find()
    medium = one.tier.medium = Held()
    reading = one.reader.start(found)
    assert reading is not None
    return medium, reading


class Held(Medium):
    """Each read waits to be let go."""

    def __init__(self) -> None:
        self.let_go = threading.Semaphore(0)

    def read(self, path: str, places: Sequence[memoryview]) -> int:
        assert self.let_go.acquire(timeout=30)
        return super().read(path, places)


@pytest.mark.parametrize("change", [-1, 1, -100, 4096])
def test_an_object_of_a_wrong_length_is_corrupt(tmp_path: Path, change: int) -> None:
    one = Setup(tmp_path)
    data = one.path(4).read_bytes()
    one.path(4).write_bytes(data[:change] if change < 0 else data + b"x" * change)
    with pytest.raises(CorruptError):
        one.read()
    assert one.store.counters["corrupt"] == 1 and not one.path(4).exists()
    assert one.find().length == 4 * 64, "the next lookup ends before it"
    one.read()


@pytest.mark.parametrize("at", range(0, 4096, 251))
def test_a_flipped_bit_anywhere_is_found(tmp_path: Path, at: int) -> None:
    one = Setup(tmp_path)
    data = bytearray(one.path(2).read_bytes())
    data[at % len(data)] ^= 1 << at % 8
    one.path(2).write_bytes(data)
    with pytest.raises(CorruptError):
        one.read()
    assert one.store.counters["corrupt"] == 1 and not one.path(2).exists()


class Failing(Medium):
    """From when ``is_failing`` is set."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.is_failing = False

    def read(self, path: str, places: Sequence[memoryview]) -> int:
        if self.is_failing:
            raise OSError(self.code, os.strerror(self.code))
        return super().read(path, places)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT, errno.EACCES, errno.EMFILE])
def test_a_failing_disk_is_a_miss_and_a_bad_sector_is_given_up(tmp_path: Path, code: int) -> None:
    medium = Failing(code)
    one = Setup(tmp_path, medium)
    found = one.find()
    medium.is_failing = True
    reading = one.reader.start(found)
    assert reading is not None
    with pytest.raises(OSError, match=os.strerror(code)):
        list(reading.blobs())
    one.reader.finish(reading)
    assert (one.store.counters["corrupt"] > 0) is (code == errno.EIO)


class Short(Medium):
    """The system returns less than was asked for."""

    def read(self, path: str, places: Sequence[memoryview]) -> int:
        return super().read(path, places) - 1


def test_a_partial_read_is_never_used(tmp_path: Path) -> None:
    one = Setup(tmp_path)
    found = one.find()
    one.tier.medium = Short()
    reading = one.reader.start(found)
    assert reading is not None
    with pytest.raises(CorruptError):
        list(reading.blobs())
    one.reader.finish(reading)


def test_a_file_removed_between_lookup_and_read_is_a_miss(tmp_path: Path) -> None:
    one = Setup(tmp_path)
    found = one.find()
    one.path(5).unlink()
    reading = one.reader.start(found)
    assert reading is not None
    with pytest.raises(FileNotFoundError):
        list(reading.blobs())
    one.reader.finish(reading)
    assert one.store.counters["corrupt"] == 0
    assert one.find().length == 5 * 64


def test_arenas_are_bounded_unless_it_is_someones_turn(tmp_path: Path) -> None:
    one = Setup(tmp_path)
    readings = [one.reader.start(one.find()) for _ in range(ARENAS + 1)]
    assert readings[-1] is None
    turn = one.reader.start(one.find(), wait=True)
    assert turn is not None
    for reading in [*readings[:-1], turn]:
        assert reading is not None
        list(reading.blobs())
        one.reader.finish(reading)
    assert one.reader.start(one.find()) is not None


def test_a_measured_tier_is_measured_anew_after_a_while(tmp_path: Path) -> None:
    class Slow(Medium):
        def read(self, path: str, places: Sequence[memoryview]) -> int:
            one.now += 1.0
            return super().read(path, places)

    one = Setup(tmp_path)
    assert one.reader.expected_s(one.find()) == 0.0
    one.tier.medium = Slow()
    one.read()
    assert one.reader.expected_s(one.find()) > 1.0
    one.now += STALE_RATE_S + 1
    assert one.reader.expected_s(one.find()) == 0.0


def test_memory_is_reused_and_bounded() -> None:
    memory = Memory(limit_bytes=200_000)
    first = memory.take(100_000)
    assert first is not None and len(first) >= 100_000
    assert memory.take(100_000) is None
    memory.give(first)
    again = memory.take(50_000)
    assert again is first


def test_memory_that_the_system_has_not_is_none() -> None:
    """mmap says so with an OSError; a number too large for it with another error."""
    memory = Memory()
    assert memory.take(1 << 60) is None
    assert memory.take(1 << 80) is None
    small = memory.take(100)
    assert small is not None
    memory.give(small)


def test_who_finishes_does_not_wait_for_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barrel_inference.kvcache.transfer.reading.PART_TOKENS", 64)
    one = Setup(tmp_path)
    found = one.find()
    medium = one.tier.medium = Held()
    reading = one.reader.start(found)
    assert reading is not None
    began = time.monotonic()
    one.reader.finish(reading)
    assert time.monotonic() - began < 5
    other = one.reader.start(found)
    assert other is not None
    medium.let_go.release(100)
    addresses = {ctypes.addressof(ctypes.c_char.from_buffer(blob)) for blob in other.blobs()}
    one.reader.finish(other)
    assert len(addresses) == READ_AHEAD
    one.reader.close()
    assert one.reader._memory._out == 0
