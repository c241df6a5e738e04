"""What the model really wrote in earlier turns, so that the next prompt repeats it letter by letter: reasoning that
templates drop, calls that clients send back in another spelling. Thread-safe; belongs to one Dialogue.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from barrel_inference.chat.messages import text_of


class Remembered(NamedTuple):
    """``n_messages`` are what ``text`` (prompt and answer) stands for."""

    n_messages: int
    text: str


class Memory:
    """The most recently used conversations, up to ``max_chars``. An answer is known again by the ids of its calls, or
    else by its text; everything before it must be the same."""

    def __init__(self, max_chars: int = 64 << 20) -> None:
        self._max_chars = max_chars
        self._chars = 0
        self._texts: OrderedDict[bytes, str] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, setting: Any, messages: Sequence[Mapping[str, Any]], text: str) -> None:
        """``messages`` end with the answer; ``setting``: all else that the prompt depends on, as JSON values."""
        *_, key = _keys(setting, messages)
        with self._lock:
            self._chars += len(text) - len(self._texts.pop(key, ""))
            self._texts[key] = text
            while self._chars > self._max_chars:
                _, old = self._texts.popitem(last=False)
                self._chars -= len(old)

    def recall(self, setting: Any, messages: Sequence[Mapping[str, Any]]) -> Remembered | None:
        """The longest beginning of the conversation that ends with a remembered answer."""
        keys = list(_keys(setting, messages[:-1]))
        with self._lock:
            for count in range(len(keys), 0, -1):
                text = self._texts.get(keys[count - 1])
                if text is not None:
                    self._texts.move_to_end(keys[count - 1])
                    return Remembered(count, text)
        return None


def _keys(setting: Any, messages: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """One key for each message: of everything up to it."""
    key = json.dumps(setting, sort_keys=True, default=str).encode()
    for message in messages:
        key = hashlib.blake2b(_identity(message), key=hashlib.blake2b(key, digest_size=32).digest()).digest()
        yield key


def _identity(message: Mapping[str, Any]) -> bytes:
    calls = message.get("tool_calls")
    if message["role"] == "assistant" and calls:
        return json.dumps(["calls", [call.get("id") for call in calls]]).encode()
    said = text_of(message.get("content"))
    return json.dumps([message["role"], said.strip(), message.get("tool_call_id")]).encode()
