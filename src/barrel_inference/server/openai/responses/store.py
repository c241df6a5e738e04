"""Responses that can be continued. In memory: a restart forgets them. Owned by the routes, used on their event loop."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import msgspec

from barrel_inference.errors import InvalidRequestError
from barrel_inference.server.failures import NotFoundError
from barrel_inference.server.openai.responses.wire import Response
from barrel_inference.types import Message

MAX_RESPONSES = 1000
MAX_BYTES = 64 << 20


class Stored(NamedTuple):
    """``messages``: the whole conversation up to and with this response, without instructions."""

    response: Response
    items: list[dict[str, Any]]
    messages: tuple[Message, ...]


class Store:
    """The most recently made ones, up to a number and a size."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._bytes = 0
        self._stored: OrderedDict[str, tuple[Stored, int]] = OrderedDict()

    def put(self, stored: Stored) -> None:
        size = len(msgspec.json.encode(stored))
        self._stored[stored.response.id] = stored, size
        self._bytes += size
        while len(self._stored) > self._max_responses or (self._bytes > self._max_bytes and len(self._stored) > 1):
            _, (_, oldest) = self._stored.popitem(last=False)
            self._bytes -= oldest

    def get(self, response_id: str) -> Stored:
        """Raises NotFoundError."""
        if response_id not in self._stored:
            raise NotFoundError(f"Response with id '{response_id}' not found.", option="response_id")
        return self._stored[response_id][0]

    def previous(self, response_id: str) -> Stored:
        """The one that a request continues. Raises InvalidRequestError, as a request for the wrong thing."""
        try:
            return self.get(response_id)
        except NotFoundError:
            raise InvalidRequestError(
                f"Previous response with id '{response_id}' not found.",
                option="previous_response_id",
                error_code="previous_response_not_found",
            ) from None

    def delete(self, response_id: str) -> None:
        """Raises NotFoundError."""
        self.get(response_id)
        self._bytes -= self._stored.pop(response_id)[1]
