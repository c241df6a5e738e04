"""The render memory."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from barrel_inference.kvcache.render import RenderMemory


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
