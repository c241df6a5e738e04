"""The writer thread: what is captured is written, or dropped and counted; nobody waits for it."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from barrel_inference.engine.backend import Slice
from barrel_inference.kvcache.tier import Medium, Tier
from barrel_inference.kvcache.transfer.writer import Capture, Item, Writer
from tests.kvcache.fake_backend import FakeBackend
from tests.kvcache.harness import spec
from tests.kvcache.objects import NAMESPACE, layout, records, store
from tests.support.waiting import until

TOKENS = list(range(320))
TIMEOUT_S = 60.0


class Setup:
    def __init__(self, path: Path, *, medium: Medium | None = None, quota_bytes: int = 1 << 20) -> None:
        self.tier = Tier(spec(path, quota_bytes=quota_bytes), medium)
        self.store = store(self.tier)
        self.asked: list[tuple[str, int]] = []
        self.answers = True
        self.writer = Writer(
            self.store, self.tier, layout(), need_room=self._need_room, is_reading=lambda: False, queue_bytes=1 << 20
        )

    def _need_room(self, tier: str, n_bytes: int) -> None:
        self.asked.append((tier, n_bytes))
        if self.answers:
            self.writer.room()

    def capture(self, *, stop: int = 320) -> Capture:
        capture = self.copy(stop=stop)
        assert capture is not None
        return capture

    def copy(self, *, stop: int = 320) -> Capture | None:
        """The blocks of the first tokens, copied out of a sequence; None without memory for them."""
        backend = FakeBackend()
        backend.decode([Slice(0, 0, tuple(TOKENS[:stop]), want_logits=False)], None)
        n = backend.state_size(0)
        buffer = self.writer.memory.take(n)
        if buffer is None:
            return None
        backend.state_read(0, buffer[:n])
        items = [
            Item(one.kind, "p", one.parent, one.key, one.first, one.tokens, 1000) for one in records(TOKENS[:stop])
        ]
        return Capture(buffer, n, tuple(items), "cold")

    def write(self, capture: Capture) -> None:
        self.writer.submit(capture)
        assert self.writer.flush(TIMEOUT_S)

    def stored(self) -> int:
        return len(list(self.tier.objects()))


def test_what_is_captured_is_written_once(tmp_path: Path) -> None:
    one = Setup(tmp_path)
    capture = one.capture()
    one.write(capture)
    assert one.stored() == 5
    assert one.writer.counters["saves_cold"] == 5 and one.writer.counters["saved_tokens"] == 320
    assert all(one.store.is_known(item.name) and not one.store.is_pending(item.name.key) for item in capture.items)
    one.write(one.capture())
    assert one.writer.counters["saves_cold"] == 5, "what is there is not written again"
    one.writer.close()


def test_a_quota_that_refuses_is_asked_about_once(tmp_path: Path) -> None:
    one = Setup(tmp_path, quota_bytes=2 * 8192)
    one.write(one.capture())
    assert one.stored() + one.writer.counters["drops"] == 5 and one.writer.counters["drops"] > 0
    assert one.tier.allocated() <= 2 * 8192
    assert one.asked and all(tier == "disk" and n_bytes > 0 for tier, n_bytes in one.asked)
    assert one.writer.counters["save_errors"] == 0
    capture = one.capture()
    one.write(capture)
    assert not any(one.store.is_pending(item.name.key) for item in capture.items)
    for stored in list(one.tier.objects()):
        one.tier.remove(stored.namespace, stored.name)
    one.store.sync()
    one.writer.room()
    before = one.writer.counters["saves_cold"]
    one.write(one.capture(stop=64))
    assert one.writer.counters["saves_cold"] == before + 1


def test_nothing_has_to_go_for_what_can_never_fit(tmp_path: Path) -> None:
    one = Setup(tmp_path, quota_bytes=1024)
    one.write(one.capture())
    assert one.writer.counters["drops"] == 5
    assert one.asked == []


class Failing(Medium):
    def __init__(self, code: int) -> None:
        self.code: int | None = code

    def write(self, path: Path, parts: Sequence[memoryview | bytes]) -> int:
        if self.code is not None:
            path.write_bytes(b"half")
            raise OSError(self.code, os.strerror(self.code))
        return super().write(path, parts)


@pytest.mark.parametrize(
    ("code", "counter"),
    [(errno.ENOSPC, "drops"), (errno.EDQUOT, "drops"), (errno.EIO, "save_errors"), (errno.EROFS, "save_errors")],
)
def test_a_failing_disk_loses_saves_and_nothing_else(
    tmp_path: Path, code: int, counter: str, caplog: pytest.LogCaptureFixture
) -> None:
    medium = Failing(code)
    one = Setup(tmp_path, medium=medium)
    one.write(one.capture())
    assert (one.stored(), one.writer.counters[counter]) == (0, 5)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert one.tier.quota.used() == 0
    assert len([each for each in caplog.records if each.levelno >= logging.WARNING]) <= 1, "told once"
    medium.code = None
    one.writer.room()
    one.write(one.capture())
    assert one.stored() == 5


def test_a_tier_whose_folders_were_deleted_makes_them_again(tmp_path: Path) -> None:
    one = Setup(tmp_path / "tier")
    one.write(one.capture(stop=64))
    (tmp_path / "tier").rename(tmp_path / "away")
    one.store.sync()
    one.write(one.capture(stop=128))
    assert one.stored() == 2 and one.writer.counters["save_errors"] == 0


def test_a_capture_that_is_no_state_is_counted_and_the_next_one_written(tmp_path: Path) -> None:
    one = Setup(tmp_path)
    bad = one.capture()
    bad.buffer[:8] = b"notastat"
    one.write(bad)
    assert one.stored() == 0 and one.writer.counters["save_errors"] == 1
    one.write(one.capture())
    assert one.stored() == 5


class Stuck(Medium):
    """Writes wait until they are let go."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def write(self, path: Path, parts: Sequence[memoryview | bytes]) -> int:
        self.begun.set()
        assert self.go.wait(TIMEOUT_S)
        return super().write(path, parts)


def test_a_stuck_disk_holds_up_nobody_and_memory_stays_bounded(tmp_path: Path) -> None:
    medium = Stuck()
    one = Setup(tmp_path, medium=medium)
    captures = 0
    while (capture := one.copy()) is not None:
        one.writer.submit(capture)
        captures += 1
    assert 0 < captures < 32, "there is no memory for another copy: the engine drops it"
    one.writer.drop(5)
    assert one.writer.counters["drops"] == 5
    assert not one.writer.flush(0.0)
    key = records(TOKENS)[0].name.key
    assert not one.writer.wait_for(lambda: not one.store.is_pending(key), 0.0)
    medium.go.set()
    assert one.writer.flush(TIMEOUT_S)
    assert one.stored() == 5


def test_closing_drops_what_is_queued(tmp_path: Path) -> None:
    medium = Stuck()
    one = Setup(tmp_path, medium=medium)
    one.writer.submit(one.capture())
    assert medium.begun.wait(TIMEOUT_S)
    closing = threading.Thread(target=one.writer.close)
    closing.start()
    until(lambda: one.writer._is_closed)
    medium.go.set()
    closing.join(TIMEOUT_S)
    assert not closing.is_alive()
    assert one.stored() == 1, "the one that was being written"
    assert not any(one.store.is_pending(record.name.key) for record in records(TOKENS))


def test_objects_belong_to_their_owner(tmp_path: Path) -> None:
    one = Setup(tmp_path)
    one.write(one.capture(stop=64))
    (stored,) = one.tier.objects()
    assert Path(one.tier.path(NAMESPACE.hex(), stored.name)).stat().st_mode & 0o777 == 0o600
