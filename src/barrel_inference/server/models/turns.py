"""Who is next: first come, first served for each client, and the clients take turns. Pure; owns what waits in it."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """A client with one request waits for at most one of each other client, however many those have."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[T]] = {}  # none empty; the first client is next

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def push(self, client: str, item: T) -> None:
        self._queues.setdefault(client, deque()).append(item)

    def pop(self) -> T:
        """Raises IndexError when nobody waits."""
        if not self._queues:
            raise IndexError("nobody waits")
        client = next(iter(self._queues))
        queue = self._queues.pop(client)
        item = queue.popleft()
        if queue:
            self._queues[client] = queue  # behind all others
        return item

    def remove(self, client: str, item: T) -> None:
        """Nothing happens when it is not there."""
        queue = self._queues.get(client)
        if queue is not None and item in queue:
            queue.remove(item)
            if not queue:
                del self._queues[client]

    def bump(self, client: str) -> T | None:
        """Make room for one more of ``client``: takes out the newest of who has most, unless that is no more than
        ``client`` would have then."""
        longest = max(self._queues, key=lambda each: len(self._queues[each]), default=client)
        if len(self._queues.get(longest, ())) <= len(self._queues.get(client, ())) + 1:
            return None
        return self._queues[longest].pop()
