"""The render memory."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barrel_inference.kvcache.render import RELIST_PUTS, RenderMemory, Shelf, shelf_bytes


def test_the_longest_remembered_beginning_is_found(tmp_path: Path) -> None:
    memory = RenderMemory(tmp_path)
    memory.remember("user: hi", [1, 2])
    memory.remember("user: hi bot: hello", [1, 2, 3, 4])
    found = memory.match("user: hi bot: hello user: more")
    assert found is not None
    assert found == (19, (1, 2, 3, 4))
    assert memory.match("user: hi there") == (8, (1, 2))
    assert memory.match("user") is None


def test_it_survives_a_restart_and_forgets_the_oldest(tmp_path: Path) -> None:
    memory = RenderMemory(tmp_path, max_files=3)
    for i in range(5):
        memory.remember(f"text {i}", [i])
    again = RenderMemory(tmp_path, max_files=3)
    assert [again.match(f"text {i}") for i in range(5)] == [None, None, (6, (2,)), (6, (3,)), (6, (4,))]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_damaged_file_is_forgotten(tmp_path: Path) -> None:
    memory = RenderMemory(tmp_path)
    memory.remember("abc", [1])
    memory.remember("abcdef", [1, 2])
    for path in tmp_path.glob("6-*"):
        path.write_bytes(b"12345678junk")
    assert memory.match("abcdefg") == (3, (1,))
    assert memory.match("abcdefg") == (3, (1,))
    assert not list(tmp_path.glob("6-*"))


def test_tenants_do_not_share(tmp_path: Path) -> None:
    memory = RenderMemory(tmp_path)
    memory.remember("abc", [1], salt="one")
    assert memory.match("abc", salt="two") is None
    assert memory.match("abc") is None
    assert memory.match("abc", salt="one") == (3, (1,))


@settings(max_examples=50)
@given(st.text(min_size=1, alphabet=st.characters(exclude_categories=())), st.text())
def test_any_text_even_lone_surrogates(tmp_path_factory: object, text: str, more: str) -> None:
    folder = tmp_path_factory.mktemp("render")  # type: ignore[attr-defined]
    memory = RenderMemory(folder)
    memory.remember(text, [7])
    assert memory.match(text + more) == (len(text), (7,))


def test_a_shelf_gives_back_what_it_got(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "new")
    assert shelf.put("one", b"1") and shelf.put("empty", b"")
    assert (shelf.get("one"), shelf.get("empty"), shelf.get("two")) == (b"1", b"", None)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()] == [0o600, 0o600]
    assert Shelf(tmp_path / "new").get("one") == b"1"
    shelf.forget("one")
    assert shelf.get("one") is None


def test_a_shelf_is_bounded_in_files_and_bytes(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, max_files=3, max_bytes=100)
    for name in "abcd":
        shelf.put(name, b"x")
    assert shelf.names == ["b", "c", "d"]
    shelf.put("big", b"x" * 90)
    assert shelf.names == ["big"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 100


def test_a_shelf_is_small_against_its_tier(tmp_path: Path) -> None:
    assert (shelf_bytes(1 << 20), shelf_bytes(1 << 40)) == (32 << 10, 64 << 20)
    memory = RenderMemory(tmp_path, max_bytes=shelf_bytes(1 << 20))
    for i in range(20):
        memory.remember(f"text {i}", range(1000))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 32 << 10
    assert memory.match("text 0") is None and memory.match("text 19") is not None
    memory.remember("too long", range(10_000))
    assert memory.match("too long") is None and memory.match("text 19") is not None


def test_a_shelf_of_two_stays_bounded(tmp_path: Path) -> None:
    one, two = (Shelf(tmp_path, max_files=10) for _ in range(2))
    for i in range(RELIST_PUTS):
        one.put(f"one {i}", b"x")
        two.put(f"two {i}", b"x")
    assert len(list(tmp_path.iterdir())) <= 20
    assert two.get(f"one {RELIST_PUTS - 1}") == b"x"


@pytest.mark.parametrize("damage", [b"", b"short", b"12345678other", b"12345678"])
def test_a_damaged_file_of_a_shelf_is_none(tmp_path: Path, damage: bytes) -> None:
    shelf = Shelf(tmp_path)
    shelf.put("one", b"something")
    (tmp_path / "one").write_bytes(damage)
    assert shelf.get("one") is None
    assert shelf.put("one", b"again") and shelf.get("one") == b"again"


def test_a_failing_disk_is_told_once_until_it_works_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "shelf"
    folder.write_text("no folder")
    shelf = Shelf(folder)
    memory = RenderMemory(folder)
    for i in range(3):
        assert not shelf.put(f"{i}", b"x")
    memory.remember("text", [1])
    assert memory.match("text") is None
    told = [record.levelno for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 2  # one for each shelf
    folder.unlink()
    assert shelf.put("now", b"x")
    (folder / "now").unlink()
    folder.rmdir()
    folder.write_text("gone again")
    assert not shelf.put("later", b"x")
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 3


def test_what_another_process_forgot_is_forgotten(tmp_path: Path) -> None:
    memory = RenderMemory(tmp_path)
    memory.remember("abc", [1])
    memory.remember("abcdef", [1, 2])
    for path in tmp_path.glob("6-*"):
        path.unlink()
    assert memory.match("abcdefg") == (3, (1,))


def test_a_shelf_that_leads_elsewhere_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for i in range(5):
        (tmp_path / "mine" / f"letter {i}").write_text("precious")
    (tmp_path / "shelf").symlink_to(tmp_path / "mine")
    shelf = Shelf(tmp_path / "shelf", max_files=1)
    assert not shelf.put("text", b"said")
    assert shelf.names == []
    assert len(list((tmp_path / "mine").iterdir())) == 5


def test_what_is_no_file_on_a_shelf_is_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    shelf = Shelf(tmp_path)
    assert [shelf.get(name) for name in ("fifo", "endless", "folder")] == [None] * 3
