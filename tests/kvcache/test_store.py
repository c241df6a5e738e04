"""The index of a namespace: what is there, what is on its way, what was lost."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from barrel_inference.kvcache.record import CorruptError, encode
from barrel_inference.kvcache.store import read_header
from barrel_inference.kvcache.tier import Medium, Tier
from tests.kvcache.harness import spec
from tests.kvcache.objects import NAMESPACE, put, records, store

TOKENS = list(range(150))  # two blocks and a tail


def path_of(tier: Tier, index: int) -> Path:
    return Path(tier.path(NAMESPACE.hex(), records(TOKENS)[index].name))


def test_what_is_on_its_way_is_known(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path))
    one = store(tier)
    record = records(TOKENS)[0]
    assert not one.is_known(record.name)
    one.expect(record.name)
    assert one.is_known(record.name) and one.is_pending(record.name.key)
    one.dropped(record.name)
    assert not one.is_known(record.name) and not one.is_pending(record.name.key)
    one.expect(record.name)
    one.saved(record.name, record, was_written=True)
    assert one.is_known(record.name) and not one.is_pending(record.name.key)


def test_without_a_tier_to_save_to_nothing_is_wanted() -> None:
    one = store()
    name = records(TOKENS)[0].name
    assert one.is_known(name)
    one.saved(name, records(TOKENS)[0], was_written=True)
    assert one.tokens_behind(name.key) is None


def test_a_prefilled_object_replaces_a_generated_one(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path))
    (generated, *_) = put(tier, TOKENS, "g")
    one = store(tier)
    (record, *_) = records(TOKENS, "p")
    assert one.is_known(generated) and not one.is_known(record.name)
    put(tier, TOKENS[:64], "p")
    one.saved(record.name, record, was_written=True)
    assert one.is_known(record.name)
    assert not tier.has(NAMESPACE.hex(), generated) and tier.has(NAMESPACE.hex(), record.name)


def test_a_finish_key_stands_for_its_tokens(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path))
    names = put(tier, TOKENS)
    one = store(tier)
    assert one.tokens_behind(names[2].key) == tuple(TOKENS)
    assert one.tokens_behind(names[1].key) == tuple(TOKENS[:128])
    assert one.tokens_behind("00" * 16) is None
    tier.remove(NAMESPACE.hex(), names[0])
    assert one.tokens_behind(names[2].key) is None


def test_what_others_wrote_and_removed_is_seen(tmp_path: Path) -> None:
    mine, others = Tier(spec(tmp_path)), Tier(spec(tmp_path))
    one = store(mine)
    names = put(others, TOKENS)
    one.sync()
    assert one.index(mine).refresh(names[0].shard)
    assert one.is_known(names[0])
    for name in names:
        others.remove(NAMESPACE.hex(), name)
    one.sync()
    assert not any(map(one.is_known, names))


def test_a_tier_that_is_gone_is_an_empty_one(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path / "tier"))
    names = put(tier, TOKENS)
    one = store(tier)
    shutil.rmtree(tmp_path / "tier")
    one.sync()
    assert one.tokens_behind(names[0].key) is None
    assert put(tier, TOKENS) == names
    one.sync()
    assert one.tokens_behind(names[2].key) == tuple(TOKENS)


@pytest.mark.parametrize("how", ["folder", "fifo", "empty", "nothing"])
def test_a_counter_that_is_no_counter_hides_nothing(tmp_path: Path, how: str) -> None:
    """Every lookup looks at it: it must neither fail nor wait."""
    tier = Tier(spec(tmp_path))
    names = put(tier, TOKENS)
    one = store(tier)
    usage = tmp_path / "usage"
    usage.unlink()
    make = {"folder": usage.mkdir, "fifo": lambda: os.mkfifo(usage), "empty": usage.touch, "nothing": lambda: None}
    make[how]()
    for each in (one, store(tier)):
        assert each.tokens_behind(names[-1].key) == tuple(TOKENS)


def test_a_chain_that_bites_its_tail_stands_for_nothing(tmp_path: Path) -> None:
    """Only by hand: as whoever imports it, so that a parent key would be followed for ever."""
    tier = Tier(spec(tmp_path))
    template = records(TOKENS[:128])[1]
    a, b = b"a" * 32, b"b" * 32
    for key, parent in ((a, b), (b, a)):
        made = dataclasses.replace(template, key=key, parent=parent)
        tier.put(NAMESPACE.hex(), made.name, [encode(made), bytes(made.payload_bytes)])
    assert store(tier).tokens_behind(a.hex()) is None


@pytest.mark.parametrize("at", range(0, 400, 7))
def test_any_flipped_bit_of_a_header_is_found_once(tmp_path: Path, at: int) -> None:
    tier = Tier(spec(tmp_path))
    names = put(tier, TOKENS[:64])
    path = path_of(tier, 0)
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << at % 8
    path.write_bytes(data)
    one = store(tier)
    assert one.tokens_behind(names[0].key) is None
    assert one.counters["corrupt"] == 1
    assert not path.exists() and len(list((tmp_path / "quarantine").iterdir())) == 1
    assert one.tokens_behind(names[0].key) is None
    assert one.counters["corrupt"] == 1


def test_a_corrupt_object_that_cannot_be_moved_is_never_tried_again(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path))
    (name,) = put(tier, TOKENS[:64])
    one = store(tier)
    (tmp_path / "quarantine").rmdir()
    (tmp_path / "quarantine").touch()
    one.lost(tier, name, corrupt=True)
    assert tier.has(NAMESPACE.hex(), name)
    one.index(tier).refresh_all()
    (tmp_path / name.shard).mkdir()  # something changes
    one.sync()
    assert not one.is_known(name)


def test_an_object_under_anothers_name_or_of_another_namespace_is_corrupt(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path))
    put(tier, TOKENS)
    path_of(tier, 1).write_bytes(path_of(tier, 0).read_bytes())
    one = store(tier)
    assert one.head(tier, records(TOKENS)[1].name) is None
    assert one.head(tier, records(TOKENS)[0].name) is not None
    assert one.counters["corrupt"] == 1


class FailingReads(Medium):
    def __init__(self, code: int) -> None:
        self.code = code

    def read(self, path: str, places: Sequence[memoryview]) -> int:
        raise OSError(self.code, os.strerror(self.code))


def test_an_object_that_cannot_be_read_is_a_miss_and_stays(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path))
    (name,) = put(tier, TOKENS[:64])
    failing = Tier(spec(tmp_path), FailingReads(errno.EIO))
    one = store(failing)
    assert one.tokens_behind(name.key) is None
    assert one.counters["corrupt"] == 0
    assert store(tier).tokens_behind(name.key) == tuple(TOKENS[:64])


@pytest.mark.parametrize("length", [0, 1, 147, 148, 200])
def test_a_header_that_is_cut_short_is_corrupt(tmp_path: Path, length: int) -> None:
    tier = Tier(spec(tmp_path))
    (name,) = put(tier, TOKENS[:64])
    path = path_of(tier, 0)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CorruptError):
        read_header(tier, NAMESPACE.hex(), name)


def test_a_long_header_is_read_whole(tmp_path: Path) -> None:
    tier = Tier(spec(tmp_path))
    (record, *_) = records(TOKENS)
    long = record.__class__(**{**vars(record), "kind": "state", "tokens": bytes(4 * 5000)})
    tier.put(NAMESPACE.hex(), long.name, [encode(long), b"x" * long.payload_bytes])
    assert read_header(tier, NAMESPACE.hex(), long.name) == long
