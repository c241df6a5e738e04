"""What the model really wrote in earlier turns, so that the next prompt repeats it letter by letter: reasoning that
templates drop, calls that clients send back in another spelling. Thread-safe; belongs to one Dialogue.

The most recent conversations are held in memory; a Shelf, where there is one, finds the others again after a restart.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from barrel_inference.chat.messages import arguments_of, text_of


class Remembered(NamedTuple):
    """``n_messages`` are what ``text`` (prompt and answer) stands for."""

    n_messages: int
    text: str


class Shelf(Protocol):
    """Small files that outlive the process; a name that was forgotten or damaged is None."""

    def put(self, name: str, data: bytes) -> bool: ...

    def get(self, name: str) -> bytes | None: ...


class Memory:
    """The most recently used conversations, up to ``max_chars``. An answer is known again by the ids of its calls (by
    what they say where a client leaves those out), or else by its text; everything before it must be the same.
    ``of``: whose texts they are; others on the same shelf are not mistaken for them."""

    def __init__(self, max_chars: int = 64 << 20, *, shelf: Shelf | None = None, of: str = "") -> None:
        self._max_chars = max_chars
        self._shelf = shelf
        self._of = of
        self._chars = 0
        self._texts: OrderedDict[bytes, str] = OrderedDict()
        self._lock = threading.Lock()

    def remember(
        self, setting: Any, messages: Sequence[Mapping[str, Any]], text: str, *, on_shelf: bool = True
    ) -> None:
        """``messages`` end with the answer; ``setting``: all else that the prompt depends on, as JSON values."""
        for known_as in _spellings(messages[-1]):
            *_, key = _keys(setting, [*messages[:-1], known_as])
            self._hold(key, text)
            if self._shelf is not None and on_shelf:
                self._shelf.put(self._name(key), text.encode(errors="surrogatepass"))

    def recall(self, setting: Any, messages: Sequence[Mapping[str, Any]]) -> Remembered | None:
        """The longest beginning of the conversation that ends with a remembered answer."""
        keys = list(_keys(setting, messages[:-1]))
        for count in range(len(keys), 0, -1):
            if messages[count - 1]["role"] == "assistant" and (text := self._text(keys[count - 1])) is not None:
                return Remembered(count, text)
        return None

    def _text(self, key: bytes) -> str | None:
        with self._lock:
            text = self._texts.get(key)
        if text is None and self._shelf is not None and (data := self._shelf.get(self._name(key))) is not None:
            text = data.decode(errors="surrogatepass")
        if text is not None:
            self._hold(key, text)
        return text

    def _name(self, key: bytes) -> str:
        return hashlib.blake2b(self._of.encode(), key=key, digest_size=16).hexdigest()

    def _hold(self, key: bytes, text: str) -> None:
        """As the most recent one."""
        with self._lock:
            self._chars += len(text) - len(self._texts.pop(key, ""))
            self._texts[key] = text
            while self._chars > self._max_chars:
                _, old = self._texts.popitem(last=False)
                self._chars -= len(old)


def _keys(setting: Any, messages: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """One key for each message: of everything up to it."""
    key = json.dumps(setting, sort_keys=True, default=str).encode()
    for message in messages:
        key = hashlib.blake2b(_identity(message), key=hashlib.blake2b(key, digest_size=32).digest()).digest()
        yield key


def _spellings(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """As clients send it back: some leave out the ids of calls (Ollama's)."""
    if not (calls := answer.get("tool_calls")):
        return [answer]
    return [answer, {**answer, "tool_calls": [{**call, "id": ""} for call in calls]}]


def _identity(message: Mapping[str, Any]) -> bytes:
    said = text_of(message.get("content"))
    if message["role"] != "assistant":
        return json.dumps([message["role"], said, message.get("tool_call_id")]).encode()
    calls = message.get("tool_calls")
    if not calls:
        return json.dumps(["answer", said.strip()]).encode()
    if all(call.get("id") for call in calls):
        return json.dumps(["calls", [call["id"] for call in calls]]).encode()
    named = [(call["function"]["name"], arguments_of(call["function"].get("arguments"))) for call in calls]
    return json.dumps(["calls", named, said.strip()], sort_keys=True).encode()
