"""Responses that can be continued. In memory: a restart forgets them. Owned by the routes, used on their event loop."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

from barrel_inference.server.failures import NotFoundError
from barrel_inference.server.openai.responses.wire import Response
from barrel_inference.types import Message

MAX_RESPONSES = 1000
MAX_CHARS = 64 << 20


class Stored(NamedTuple):
    """``messages``: the whole conversation up to and with this response, without instructions."""

    response: Response
    items: list[dict[str, Any]]
    messages: tuple[Message, ...]

    @property
    def chars(self) -> int:
        return sum(len(str(message.content or "")) + 200 for message in self.messages)


class Store:
    """The most recently made ones, up to a number and a size."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_chars: int = MAX_CHARS) -> None:
        self._max_responses = max_responses
        self._max_chars = max_chars
        self._chars = 0
        self._stored: OrderedDict[str, Stored] = OrderedDict()

    def put(self, stored: Stored) -> None:
        self._stored[stored.response.id] = stored
        self._chars += stored.chars
        while len(self._stored) > self._max_responses or (self._chars > self._max_chars and len(self._stored) > 1):
            _, oldest = self._stored.popitem(last=False)
            self._chars -= oldest.chars

    def get(self, response_id: str) -> Stored:
        """Raises NotFoundError."""
        stored = self._stored.get(response_id)
        if stored is None:
            raise NotFoundError(f"Response with id '{response_id}' not found.", option="response_id")
        return stored

    def delete(self, response_id: str) -> None:
        """Raises NotFoundError."""
        self._chars -= self.get(response_id).chars
        del self._stored[response_id]
