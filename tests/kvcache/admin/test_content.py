"""Statistics, clear, scrub, pins, export and import."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from barrel_inference.errors import CacheError, CacheFullError
from barrel_inference.kvcache.admin.archive import export, import_file
from barrel_inference.kvcache.admin.content import clear, pin, stats, unpin, verify
from barrel_inference.kvcache.record import VERSION, decode
from barrel_inference.kvcache.render import Shelf
from barrel_inference.kvcache.store import Store
from barrel_inference.kvcache.tier import SHELVES, Tier
from tests.kvcache.fake_backend import FakeBackend
from tests.kvcache.harness import Runner, open_on, options, same, spec

PROMPT = list(range(10, 510))


def runner(path: Path, kind: str = "plain") -> Runner:
    backend = FakeBackend(kind, n_swa=100)
    return Runner(backend, open_on(backend, options(spec(path))))


def store_of(one: Runner) -> Store:
    assert one.checkpoints.store is not None
    return one.checkpoints.store


def test_statistics(tmp_path: Path) -> None:
    one = runner(tmp_path)
    one.run(PROMPT)
    (found,) = stats([Tier(spec(tmp_path))])
    assert found.by_kind == {"block": 7, "tail": 1}
    assert found.objects == 8
    assert found.bytes == 8 * 4096
    assert found.about["architecture"] == "fake"


def test_clear(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path))
    plain, swa = runner(tmp_path), runner(tmp_path, "swa")
    plain.run(PROMPT)
    swa.run(PROMPT)
    with pytest.raises(CacheError):
        clear([tier], namespace="ab")
    assert clear([tier], namespace=plain.checkpoints.namespace).objects == 8
    assert plain.run(PROMPT, cache="read").restored == 0
    assert swa.run(PROMPT, cache="read").restored == len(PROMPT) - 1
    assert clear([tier], older_than=time.time() - 1000).objects == 0
    assert clear([tier], older_than=time.time() + 1000).objects == 16
    assert clear([tier]).objects == 0
    assert tier.quota.used() == 0


def test_scrub_finds_what_is_damaged(tmp_path: Path) -> None:
    one = runner(tmp_path)
    one.run(PROMPT)
    tier = Tier(spec(tmp_path))
    assert (verify([tier]).objects, verify([tier]).corrupt) == (8, 0)
    path = next(tmp_path.glob("*/*/*.block.p"))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert verify([tier]).corrupt == 1
    assert (verify([tier]).objects, verify([tier]).corrupt) == (7, 0)


def test_scrub_takes_no_memory_for_what_is_too_long(tmp_path: Path) -> None:
    runner(tmp_path).run(PROMPT)
    os.truncate(next(tmp_path.glob("*/*/*.block.p")), 1 << 42)
    assert verify([Tier(spec(tmp_path))]).corrupt == 1


def test_scrub_leaves_what_another_version_wrote(tmp_path: Path) -> None:
    one = runner(tmp_path)
    one.run(PROMPT)
    about = tmp_path / one.checkpoints.namespace[:32] / "ns.json"
    about.write_bytes(msgspec.json.encode(msgspec.json.decode(about.read_bytes()) | {"record_version": VERSION + 1}))
    for path in tmp_path.glob("*/*/*.*.p"):
        data = path.read_bytes()
        path.write_bytes(data[:4] + bytes([VERSION + 1]) + data[5:])
    assert verify([Tier(spec(tmp_path))]).objects == 0
    assert len(list(tmp_path.glob("*/*/*.*.p"))) == 8


def test_pins(tmp_path: Path) -> None:
    one = runner(tmp_path)
    with pytest.raises(CacheError):
        pin(store_of(one), PROMPT)
    one.run(PROMPT)
    assert pin(store_of(one), PROMPT) == len(PROMPT) - 1
    tier = Tier(spec(tmp_path))
    assert len(tier.pinned()) == 8
    assert clear([tier], older_than=time.time() + 1000).objects == 0
    assert unpin(store_of(one), PROMPT)
    assert not unpin(store_of(one), PROMPT)
    assert tier.pinned() == frozenset()


@pytest.mark.parametrize("kind", ["plain", "swa", "hybrid", "recurrent", "hybrid_swa"])
def test_a_warmed_prefix_can_be_shipped(tmp_path: Path, kind: str) -> None:
    here, there = runner(tmp_path / "here", kind), runner(tmp_path / "there", kind)
    whole = here.run(PROMPT)
    file = tmp_path / "warm.tar"
    with pytest.raises(CacheError):
        export(store_of(there), PROMPT, file)
    moved = export(store_of(here), PROMPT, file)
    assert moved.tokens >= 448
    tier = Tier(spec(tmp_path / "there"))
    got = import_file(file, tier)
    assert (got.objects, got.bytes, got.refused) == (moved.objects, moved.bytes, 0)
    assert 0 <= got.tokens - moved.tokens <= 1, "a prompt's last token is always decoded, though it may be stored"
    again = import_file(file, tier)
    assert (again.present, again.tokens) == (moved.objects, got.tokens)
    warm = there.run(PROMPT, cache="read")
    assert warm.restored == moved.tokens
    assert same(warm, whole)


def test_what_is_no_archive_is_refused_at_once(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path / "t"))
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "text").write_text("hello" * 1000)
    with gzip.open(tmp_path / "bomb", "wb") as bomb:
        bomb.write(bytes(1 << 20))
    for path in (*(tmp_path / name for name in ("fifo", "text", "bomb", "absent")), tmp_path, Path("/dev/zero")):
        with pytest.raises(CacheError, match="cannot import"):
            import_file(path, tier)


def test_a_tier_that_went_away_holds_nothing(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path / "t"))
    shutil.rmtree(tier.root)
    assert stats([tier]) == []
    assert verify([tier]).objects == clear([tier], older_than=0.0).objects == 0


def test_foreign_members_are_refused(tmp_path: Path) -> None:
    here = runner(tmp_path / "here")
    here.run(PROMPT)
    file = tmp_path / "warm.tar"
    export(store_of(here), PROMPT, file)
    bad = tmp_path / "bad.tar"
    with tarfile.open(file) as good, tarfile.open(bad, "w", format=tarfile.USTAR_FORMAT) as out:
        for i, member in enumerate(good.getmembers()):
            name = {2: "../../evil", 3: f"{'0' * 32}/{member.name.partition('/')[2]}"}.get(i, member.name)
            info = tarfile.TarInfo(name)
            info.size = member.size
            out.addfile(info, good.extractfile(member))
    tier = Tier(spec(tmp_path / "there"))
    moved = import_file(bad, tier)
    assert moved.refused == 2
    assert moved.objects == 6
    assert moved.tokens == 64, "the second block is one of the refused"
    assert not (tmp_path / "evil").exists()
    for wrong in (tmp_path / "missing.tar", tmp_path / "here" / "usage"):
        with pytest.raises(CacheError):
            import_file(wrong, tier)
    with pytest.raises(CacheError):
        import_file(file, Tier(spec(tmp_path / "small", quota_bytes=2 * 4096)))
    with pytest.raises(CacheError):
        export(store_of(here), PROMPT, tmp_path / "nowhere" / "file.tar")


OBJECT = f"{'ab' * 16}/{'0' * 32}-{'1' * 32}.block.p"


def member(name: str, size: int, kind: bytes = tarfile.REGTYPE, data: bytes = b"") -> bytes:
    """Its size says what it likes."""
    info = tarfile.TarInfo(name)
    info.type = kind
    header = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    header[124:136] = tarfile.itn(size, 12, tarfile.GNU_FORMAT)
    if kind == tarfile.GNUTYPE_SPARSE:  # a hole of 8 GiB
        header[386:398], header[398:410] = b"%011o\0" % ((8 << 30) - 512), b"%011o\0" % 0
        header[483:495] = tarfile.itn((8 << 30) - 1, 12, tarfile.GNU_FORMAT)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data.ljust(-(-len(data) // 512) * 512, b"\0")


HOSTILE = {
    "negative size": member(OBJECT, -512),
    "more than there is": member(OBJECT, (8 << 30) - 1, data=b"x"),
    "absurd size": member(OBJECT, 1 << 62),
    "sparse": member(OBJECT, 0, tarfile.GNUTYPE_SPARSE),
    "long names without end": member("././@LongLink", 4, tarfile.GNUTYPE_LONGNAME, b"aaa\0") * 1200,
    "extended header": member("p", 14, tarfile.XHDTYPE, b"99999999 a=bc\n") + member(OBJECT, 1, data=b"x"),
    "symbolic link": member(OBJECT, 0, tarfile.SYMTYPE),
    "hard link": member(OBJECT, 0, tarfile.LNKTYPE),
    "device": member(OBJECT, 0, tarfile.CHRTYPE),
    "no object": member(OBJECT, 3, data=b"abc"),
    "other places": b"".join(
        member(name, 1, data=b"x")
        for name in ("../../x", "/etc/x", f"{'ab' * 16}/../x", f"{'z' * 32}/x", f"a/{OBJECT}")
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_is_refused_in_little_memory(tmp_path: Path, what: str) -> None:
    file, tier = tmp_path / "x.tar", Tier(spec(tmp_path / "tier"))
    file.write_bytes(HOSTILE[what] + bytes(1024))
    tracemalloc.start()
    try:
        moved = import_file(file, tier)
    except CacheError as error:
        assert "cannot import" in str(error)
    else:
        assert moved.objects == 0 < moved.refused
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 64 << 20
    assert list(tier.objects()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"x.tar", "tier"}


def test_an_object_larger_than_the_tier_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "x.tar"
    file.write_bytes(member(OBJECT, 1 << 20))
    os.truncate(file, 2 << 20)
    with pytest.raises(CacheFullError, match="no room"):
        import_file(file, Tier(spec(tmp_path / "tier", quota_bytes=4096)))


def test_what_is_lost_is_left_out_of_an_export(tmp_path: Path) -> None:
    """Damaged, or evicted meanwhile: the prefix ends before it."""
    one = runner(tmp_path / "tier")
    one.run(PROMPT)
    blocks = {decode(path.read_bytes()).first: path for path in (tmp_path / "tier").glob("*/*/*.block.p")}
    assert one.checkpoints.lookup(PROMPT).cached_tokens == len(PROMPT) - 1
    blocks[320].unlink()
    blocks[192].write_bytes(b"damaged")
    assert export(store_of(one), PROMPT, tmp_path / "warm.tar").tokens == 192
    assert import_file(tmp_path / "warm.tar", Tier(spec(tmp_path / "other"))).objects == 3
    assert len(list((tmp_path / "tier" / "quarantine").iterdir())) == 1


def test_an_export_does_without_what_says_whose_it_is(tmp_path: Path) -> None:
    one = runner(tmp_path / "tier")
    one.run(PROMPT)
    (about,) = (tmp_path / "tier").glob("*/ns.json")
    about.unlink()
    os.mkfifo(about)
    assert export(store_of(one), PROMPT, tmp_path / "warm.tar").objects == 8


def test_a_pin_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    one = runner(tmp_path)
    one.run(PROMPT)
    (tmp_path / "pins").rmdir()
    (tmp_path / "pins").touch()
    with pytest.raises(CacheError, match="cannot pin in tier disk"):
        pin(store_of(one), PROMPT)


def test_clearing_forgets_what_was_written(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path))
    namespaces = ("ab" * 16, "cd" * 16)
    for namespace in namespaces:
        for shelf in SHELVES:
            Shelf(tier.folder(namespace) / shelf).put("text", b"said")
    clear([tier], namespace=namespaces[0], older_than=1.0)
    assert len(list(tmp_path.rglob("text"))) == 4
    clear([tier], namespace=namespaces[0])
    assert len(list(tmp_path.rglob("text"))) == 2
    clear([tier])
    assert list(tmp_path.rglob("text")) == []


def test_exports_to_one_file_at_once_do_not_mix(tmp_path: Path) -> None:
    one = runner(tmp_path / "tier")
    one.run(PROMPT)
    with ThreadPoolExecutor(4) as threads:
        moved = list(threads.map(lambda _: export(store_of(one), PROMPT, tmp_path / "warm.tar"), range(8)))
    assert {each.objects for each in moved} == {8}
    assert import_file(tmp_path / "warm.tar", Tier(spec(tmp_path / "other"))).objects == 8
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["warm.tar"]
