"""Text streams: whatever the split of bytes into tokens, the same text, whole characters, the same stop."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from barrel_inference.engine.text import IncrementalText, StopFinder

STOPS = st.lists(st.text("ab\n€", min_size=1, max_size=4), max_size=3)


class Pieces:
    """A vocabulary whose tokens are the pieces of one text."""

    def __init__(self, pieces: list[bytes], control: frozenset[int] = frozenset()) -> None:
        self._pieces, self._control = pieces, control

    def piece(self, token: int, *, special: bool) -> bytes:
        return b"" if token in self._control and not special else self._pieces[token]


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:stop] for start, stop in pairwise(edges)]


def stream(pieces: list[bytes], stops: list[str] | tuple[str, ...] = ()) -> tuple[list[str], str | None]:
    text = IncrementalText(Pieces(pieces), stops)
    chunks = []
    for token in range(len(pieces)):
        chunks.append(text.push(token))
        if text.stopped:
            return chunks, text.stopped
    return [*chunks, text.finish()], text.stopped


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition: the stop string that is complete first ends the text where it begins."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(st.text("ab\nc€😀", max_size=20), STOPS, st.lists(st.integers(0, 100), max_size=12))
@example("abcd", ["bc", "abcd"], [])
@example("abc", ["ab", "abc"], [])
@example("aab", ["ab"], [1, 2])
def test_any_split_gives_the_same_text_and_stop(text: str, stops: list[str], cuts: list[int]) -> None:
    chunks, stopped = stream(cut(text.encode(), cuts), stops)
    assert ("".join(chunks), stopped) == first_stop(text, stops)


@given(st.binary(max_size=24), st.lists(st.integers(0, 100), max_size=12))
def test_any_bytes_become_the_same_text_however_they_are_split(data: bytes, cuts: list[int]) -> None:
    chunks, _ = stream(cut(data, cuts))
    assert "".join(chunks) == data.decode(errors="replace")


@given(st.text("é€😀a", max_size=12), st.lists(st.integers(0, 100), max_size=30))
def test_no_chunk_breaks_a_character(text: str, cuts: list[int]) -> None:
    chunks, _ = stream(cut(text.encode(), cuts))
    assert "\ufffd" not in "".join(chunks)
    assert "".join(chunks) == text


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    finder = StopFinder(["</end>"])
    assert finder.push("a <b") == "a <b"
    assert finder.push("x </e") == "x "
    assert finder.push("vil>") == "</evil>"
    assert finder.push("<") == ""
    assert finder.finish() == "<"


def test_nothing_follows_a_stop_string() -> None:
    finder = StopFinder(["STOP"])
    assert finder.push("one ST") == "one "
    assert finder.push("OP two") == ""
    assert (finder.found, finder.push("three"), finder.finish()) == ("STOP", "", "")


def test_empty_stop_strings_are_none() -> None:
    finder = StopFinder([""])
    assert (finder.push("text"), finder.found) == ("text", None)


def test_an_unfinished_character_at_the_end_becomes_a_replacement() -> None:
    assert stream(["€".encode()[:2]]) == (["", "\ufffd"], None)


def test_control_tokens_appear_only_when_kept() -> None:
    backend = Pieces([b"a", b"<|im_end|>"], control=frozenset({1}))
    shown, hidden = IncrementalText(backend, keep_special=True), IncrementalText(backend)
    assert shown.push(0) + shown.push(1) == "a<|im_end|>"
    assert hidden.push(0) + hidden.push(1) == "a"
