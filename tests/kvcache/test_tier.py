"""One tier directory and its quota."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from barrel_inference.errors import ConfigError, TierUnusableError
from barrel_inference.kvcache.quota import Quota
from barrel_inference.kvcache.record import CorruptError, Name
from barrel_inference.kvcache.tier import NS_HEX, SHELVES, STALE_TMP_S, Medium, NoRoomError, Tier
from tests.kvcache.harness import spec
from tests.support.disks import read_only

NS = "ab" * 32


def name(i: int) -> Name:
    return Name(f"{i:032x}", f"{i + 1:032x}", "block", "p")


def test_what_is_put_is_there(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path))
    assert tier.put(NS, name(1), [b"head", memoryview(b"body")])
    assert not tier.put(NS, name(1), [b"head", b"body"])
    place = memoryview(bytearray(20))
    assert tier.read(NS, name(1), [place]) == 8
    assert bytes(place[:8]) == b"headbody"
    assert [one.name for one in tier.objects()] == [name(1)]
    assert tier.quota.used() == tier.allocated() == 4096
    assert tier.remove(NS, name(1)) == 4096
    assert tier.quota.used() == 0
    assert tier.remove(NS, name(1)) == 0
    assert list((tmp_path / "tmp").iterdir()) == []


def test_many_parts_are_written_and_read(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path))
    parts = [bytes([i % 256]) * 7 for i in range(2000)]
    tier.put(NS, name(1), parts)
    places = [memoryview(bytearray(7)) for _ in parts]
    assert tier.read(NS, name(1), places) == 14000
    assert [bytes(place) for place in places] == parts


def test_what_is_no_file_neither_blocks_nor_is_followed(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path))
    path = Path(tier.path(NS, name(1)))
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert tier.read(NS, name(1), [memoryview(bytearray(8))]) == 0
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(CorruptError, match="not a file"):
        tier.read(NS, name(1), [memoryview(bytearray(8))])
    path.unlink()
    path.mkdir()
    with pytest.raises(CorruptError, match="not a file"):
        tier.read(NS, name(1), [memoryview(bytearray(8))])


@pytest.mark.parametrize("quota", [0, -1])
def test_a_quota_of_nothing_is_refused(tmp_path: Path, quota: int) -> None:
    with pytest.raises(ConfigError):
        Tier(spec(tmp_path, quota_bytes=quota))


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TierUnusableError) as caught:
        Tier(spec(tmp_path / "file"))
    assert caught.value.details["tier"] == "disk"


def test_a_path_that_is_not_writable_is_refused(tmp_path: Path) -> None:
    with read_only(tmp_path):
        for path in (tmp_path, tmp_path / "below"):
            with pytest.raises(TierUnusableError, match=r"cannot be used: (read-only file system|permission denied)"):
                Tier(spec(path))


def test_nothing_is_written_beyond_the_quota(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path, quota_bytes=3 * 4096))
    for i in range(3):
        tier.put(NS, name(i), [b"x"])
    with pytest.raises(NoRoomError):
        tier.put(NS, name(9), [b"x"])
    assert not tier.has(NS, name(9))
    tier.remove(NS, name(0))
    assert tier.put(NS, name(9), [b"x"])


class Coarse(Medium):
    """A file system that allocates 64 KiB at a time."""

    def write(self, path: Path, parts: Sequence[memoryview | bytes]) -> int:
        super().write(path, parts)
        return 1 << 16


def test_what_a_file_system_allocates_beyond_its_pages_counts(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path, quota_bytes=1 << 17), Coarse())
    for i in range(2):
        tier.put(NS, name(i), [b"x"])
    assert tier.quota.used() == 1 << 17
    with pytest.raises(NoRoomError):
        tier.put(NS, name(9), [b"x"])


class Failing(Medium):
    def __init__(self, step: str, code: int) -> None:
        self.step, self.code = step, code

    def _fail(self, step: str) -> None:
        if self.step == step:
            raise OSError(self.code, os.strerror(self.code))

    def write(self, path: Path, parts: Sequence[memoryview | bytes]) -> int:
        self._fail("create")
        if self.step == "write":
            path.write_bytes(b"".join(parts)[:5])
        self._fail("write")
        return super().write(path, parts)

    def publish(self, temporary: Path, final: Path) -> None:
        self._fail("publish")
        super().publish(temporary, final)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("step", ["create", "write", "publish"])
def test_mistake_06_a_failed_store_is_never_visible(tmp_path: Path, step: str, code: int) -> None:
    tier = Tier(spec(tmp_path), Failing(step, code))
    with pytest.raises(NoRoomError if code == errno.ENOSPC else OSError):
        tier.put(NS, name(1), [b"x" * 100])
    assert not tier.has(NS, name(1))
    assert list(tier.objects()) == []
    assert list((tmp_path / "tmp").iterdir()) == []
    assert tier.quota.used() == 0


def test_dead_writers_leave_nothing(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path))
    left = tmp_path / "tmp" / "123.0"
    left.write_bytes(b"x" * 5000)
    now = left.stat().st_mtime
    assert tier.sweep(now) == 0
    assert tier.sweep(now + STALE_TMP_S + 1) == 1
    assert not left.exists()
    left.write_bytes(b"of a clock that was set back since")
    assert tier.sweep(left.stat().st_mtime - STALE_TMP_S - 1) == 1


def test_quarantine_is_bounded(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path))
    for i in range(50):
        tier.put(NS, name(i), [b"x"])
        tier.quarantine(NS, name(i))
    assert len(list((tmp_path / "quarantine").iterdir())) == 32
    assert tier.quota.used() == 32 * 4096 == tier.allocated()


def test_what_cannot_be_removed_from_quarantine_hinders_nobody(tmp_path: Path) -> None:
    """Nor does another worker that removes the same file."""
    tier = Tier(spec(tmp_path))
    (tmp_path / "quarantine" / "0").mkdir()
    for i in range(40):
        tier.put(NS, name(i), [b"x"])
        tier.quarantine(NS, name(i))
    assert not any(tier.has(NS, name(i)) for i in range(40))
    shutil.rmtree(tmp_path / "quarantine")
    tier.put(NS, name(1), [b"x"])
    tier.quarantine(NS, name(1))
    assert [path.name.partition(".")[2] for path in (tmp_path / "quarantine").iterdir()] == [name(1).file]


@pytest.mark.parametrize("folder", ["tmp", "quarantine", "pins"])
def test_a_folder_that_leads_elsewhere_is_refused(tmp_path: Path, folder: str) -> None:
    """Old files are removed from it: they must be the tier's own."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "tier").mkdir()
    (tmp_path / "tier" / folder).symlink_to(tmp_path / "mine")
    with pytest.raises(TierUnusableError, match=f"{folder} is a symbolic link"):
        Tier(spec(tmp_path / "tier"))


@pytest.mark.parametrize("file", ["usage", "lock"])
def test_a_counter_that_is_a_link_is_not_followed(tmp_path: Path, file: str) -> None:
    (tmp_path / "mine").write_text("precious, and longer than a counter")
    (tmp_path / "tier").mkdir()
    (tmp_path / "tier" / file).symlink_to(tmp_path / "mine")
    with pytest.raises((TierUnusableError, OSError)):
        Tier(spec(tmp_path / "tier")).put(NS, name(1), [b"x"])
    assert (tmp_path / "mine").read_text() == "precious, and longer than a counter"


def test_a_link_takes_the_room_of_a_link(tmp_path: Path) -> None:
    """What it leads to is neither counted nor given back."""
    (tmp_path / "large").write_bytes(bytes(1 << 20))
    tier = Tier(spec(tmp_path / "tier"))
    for i in (1, 2):
        tier.put(NS, name(i), [b"x"])
    Path(tier.path(NS, name(2))).unlink()
    Path(tier.path(NS, name(2))).symlink_to(tmp_path / "large")
    assert tier.allocated() <= 2 * 4096
    tier.remove(NS, name(2))
    assert tier.quota.used() >= 4096
    assert (tmp_path / "large").exists()


def test_shelves_that_lead_elsewhere_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("precious")
    tier = Tier(spec(tmp_path / "tier"))
    tier.folder(NS).mkdir()
    for shelf in SHELVES:
        (tier.folder(NS) / shelf).symlink_to(tmp_path / "mine")
    tier.forget(NS[:NS_HEX], None)
    assert (tmp_path / "mine" / "letter").exists()


def test_threads_never_pass_the_quota(tmp_path: Path) -> None:
    limit = 20 * 4096
    quota = Quota(tmp_path, limit)
    seen: list[int] = []

    def work() -> None:
        for _ in range(50):
            with quota.reserve(4096) as granted:
                seen.append(quota.used())
            if granted:
                quota.add(-4096)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(seen) <= limit
    assert quota.used() == 0


def test_a_recount_waits_for_writers(tmp_path: Path) -> None:
    quota = Quota(tmp_path, 1 << 20)
    with quota.reserve(4096):
        assert quota.recount(lambda: 0) is None
    assert quota.recount(lambda: 12345) == 12345 == quota.used()


def test_pins(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path))
    tier.pin("a", ["1", "2"])
    tier.pin("b", ["2", "3"])
    assert tier.pinned() == {"1", "2", "3"}
    assert tier.unpin("a")
    assert not tier.unpin("a")
    assert tier.pinned() == {"2", "3"}


def test_what_is_no_pin_pins_nothing(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path))
    tier.pin("a", ["1"])
    (tmp_path / "pins" / "torn").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "pins" / "folder").mkdir()
    (tmp_path / "pins" / "endless").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pins" / "fifo")
    assert "1" in tier.pinned()
