"""The automatic tier lives and dies with its runtime; named tiers are checked when started and when used."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from pathlib import Path

import msgspec
import pytest

from barrel_inference.aio.tiers import PrivateDirectory, Tiers
from barrel_inference.config import RuntimeConfig, TierSpec
from barrel_inference.errors import ConfigError, TierMismatchError, TierUnknownError, TierUnusableError
from barrel_inference.types import TierKind
from tests.support.memory import FakeMemory


def tiers(tmp_path: Path, total: int = 16 << 30, **config: int) -> Tiers:
    return Tiers(RuntimeConfig(ram_dir=str(tmp_path), **config), FakeMemory(total=total))


def spec(path: Path, name: str = "d", kind: TierKind = "disk", quota_bytes: int = 1 << 20) -> TierSpec:
    return TierSpec(name=name, kind=kind, path=str(path), quota_bytes=quota_bytes)


def test_the_automatic_tier_is_private_and_removed_at_the_end(tmp_path: Path) -> None:
    own = tiers(tmp_path)
    path = Path(own.resolve("ram", None).path)
    assert path.is_dir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert own.resolve("ram", "ram").path == str(path)
    (path / "object").write_bytes(b"x")
    own.close()
    assert list(path.parent.iterdir()) == []
    own.close()
    assert list(path.parent.iterdir()) == []


def test_its_quota_is_the_configured_one_or_a_quarter_of_memory_or_half_of_the_tmpfs(tmp_path: Path) -> None:
    small = tiers(tmp_path, total=4 << 20)
    assert small.resolve("ram", None).quota_bytes == 1 << 20
    large = tiers(tmp_path, total=1 << 60)
    status = os.statvfs(tmp_path)
    assert large.resolve("ram", None).quota_bytes == status.f_blocks * status.f_frsize // 2
    fixed = tiers(tmp_path, ram_quota_bytes=12345)
    assert fixed.resolve("ram", None).quota_bytes == 12345
    for each in (small, large, fixed):
        each.close()


def test_what_dead_runtimes_left_is_swept_and_what_living_ones_own_is_not(tmp_path: Path) -> None:
    alive = PrivateDirectory(tmp_path)
    home = alive.path.parent
    (home / "1-dead").mkdir()
    (home / "1-dead" / "object").write_bytes(b"x")
    (home / "1-dead.lock").touch()
    (home / "3-written-to-when-it-was-gone").mkdir()
    (home / "3-written-to-when-it-was-gone" / "hits.json").write_bytes(b"{}")
    (home / "2-held").mkdir()
    with (home / "2-held.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        later = PrivateDirectory(tmp_path)
    assert sorted(path.name for path in home.iterdir() if path.is_dir()) == sorted(
        [alive.path.name, later.path.name, "2-held"]
    )
    alive.remove()
    later.remove()


def test_a_folder_that_others_may_write_to_is_not_trusted(tmp_path: Path) -> None:
    home = tmp_path / f"barrel-inference-{os.getuid()}"
    home.mkdir()
    home.chmod(0o777)
    own = PrivateDirectory(tmp_path)
    assert own.path.parent != home
    own.remove()


def test_an_unusable_tmpfs_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TierUnusableError, match="automatic tier cannot be made"):
        tiers(tmp_path / "file").resolve("ram", None)


def test_a_named_tier_is_found_by_kind_and_name(tmp_path: Path) -> None:
    own = tiers(tmp_path)
    own.start(spec(tmp_path / "a", "fast", "ram_file"))
    own.start(spec(tmp_path / "b", "slow", "disk"))
    assert own.resolve("disk", "slow").path == str(tmp_path / "b")
    own.resolve("ram", None)
    assert [tier.name for tier in own.readable()] == ["ram", "fast", "slow"]
    own.close()


def test_wrong_tiers_fail_with_their_own_errors(tmp_path: Path) -> None:
    own = tiers(tmp_path)
    own.start(spec(tmp_path / "slow", "slow"))
    with pytest.raises(TierMismatchError, match="'slow' is a disk tier, but tier='ram_file'"):
        own.resolve("ram_file", "slow")
    with pytest.raises(TierUnknownError, match=r"tier_srv='slow' is not started$"):
        tiers(tmp_path).resolve("disk", "slow")
    with pytest.raises(TierUnknownError, match="did you mean 'slow'"):
        own.resolve("disk", "slwo")
    with pytest.raises(TierUnknownError, match=r"needs tier_srv, .*started: slow"):
        own.resolve("disk", None)
    with pytest.raises(TierUnknownError, match="none is started"):
        own.resolve("ram_file", None)
    for name in ("slow", "ram"):
        with pytest.raises(ConfigError, match="started already"):
            own.start(spec(tmp_path / "other", name))
    own.close()


def test_a_path_that_cannot_hold_a_tier_is_refused_when_started_and_when_used(tmp_path: Path) -> None:
    own = tiers(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(TierUnusableError):
        own.start(spec(tmp_path / "file"))
    with pytest.raises(ConfigError, match="quota"):
        own.start(spec(tmp_path / "zero", quota_bytes=0))
    own.start(spec(tmp_path / "later", "later"))
    (tmp_path / "later").rename(tmp_path / "gone")
    (tmp_path / "later").touch()
    with pytest.raises(TierUnusableError):
        own.resolve("disk", "later")


def test_a_tier_that_went_away_is_shown_as_unusable(tmp_path: Path) -> None:
    some = tiers(tmp_path)
    some.start(spec(tmp_path / "d"))
    some.janitor.stop()
    shutil.rmtree(tmp_path / "d")
    (info,) = some.infos()
    assert (info.writable, info.used_bytes, info.objects) == (False, 0, 0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pressure_low": 0.9, "pressure_high": 0.5}, "pressure_low=0.9 .* at most pressure_high=0.5"),
        ({"namespace_floor": 0.3, "namespace_cap": 0.2}, "namespace_floor=0.3 .* at most namespace_cap=0.2"),
    ],
)
def test_limits_must_be_in_order(values: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Tiers(RuntimeConfig(**values), FakeMemory())


def test_room_that_no_file_system_has_cannot_be_left_free(tmp_path: Path) -> None:
    own = tiers(tmp_path)
    greedy = msgspec.structs.replace(spec(tmp_path / "d"), min_free_bytes=1 << 60)
    with pytest.raises(ConfigError, match=r"min_free_bytes=\d+ .* less than the \d+ bytes"):
        own.start(greedy)
    own.close()


def test_a_source_of_memory_pressure_is_callable() -> None:
    with pytest.raises(ConfigError, match=r"memory_pressure='system' .* expected a callable"):
        Tiers(RuntimeConfig(), FakeMemory(), memory_pressure="system")  # type: ignore[arg-type]
