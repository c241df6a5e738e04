"""Tokens to text, as a stream: whole characters only, stop strings found across token borders. The engine thread's."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol


class Pieces(Protocol):
    """Of a vocabulary: the bytes of a token, which need not be whole characters."""

    def piece(self, token: int, *, special: bool) -> bytes: ...


class StopFinder:
    """Passes text on, holding back only what may be the beginning of a stop string. Any split gives the same text."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        if not self._stops:
            return text
        if self.found is not None:
            return ""
        text = self._held + text
        if found := [(text.index(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]:
            end, _, stop = min(found)  # the one complete first, the longest of those: as if it came byte by byte
            self._held, self.found = "", stop
            return text[: end - len(stop)]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


class IncrementalText:
    """The text of one answer. Bytes that are no UTF-8 become U+FFFD, once it is certain."""

    def __init__(self, pieces: Pieces, stops: Sequence[str] = (), *, keep_special: bool = False) -> None:
        self._piece = pieces.piece
        self._keep_special = keep_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = StopFinder(stops)

    @property
    def stopped(self) -> str | None:
        return self._stops.found

    def push(self, token: int) -> str:
        return self._stops.push(self._decoder.decode(self._piece(token, special=self._keep_special)))

    def finish(self) -> str:
        """What was still held back: no stop string came of it."""
        return self._stops.push(self._decoder.decode(b"", final=True)) + self._stops.finish()


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
