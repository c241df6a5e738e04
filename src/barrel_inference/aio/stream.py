"""What ``stream`` and ``chat_stream`` return: the items of one prompt's n generations as they come, and the whole that
they make in the end. Owned by the task that iterates."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Generic, Self, TypeVar

import msgspec

from barrel_inference.errors import InvalidRequestError
from barrel_inference.types import Chunk, Completion, Usage

Item = TypeVar("Item")
Whole = TypeVar("Whole", bound=msgspec.Struct)


class Streaming(ABC, Generic[Item, Whole]):
    """An asynchronous iterator. Leaving it (``aclose``, ``async with``, or dropping it) stops the work; another task
    than the one that iterates may end it too, by ``cancel`` or ``aclose``."""

    def __init__(self, items: AsyncGenerator[Item, None], n: int) -> None:
        self._items = items
        self._n = n
        self._wholes: dict[int, Whole] = {}
        self._is_waiting = False  # for the next item

    @abstractmethod
    def _whole(self, item: Item) -> tuple[int, Whole] | None:
        """The index and the result of the generation that ends with this item."""

    @abstractmethod
    def cancel(self) -> None:
        """End it within one step: the stream then closes with finish reason ``cancelled``."""

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        self._is_waiting = True
        try:
            item = await anext(self._items)
        finally:
            self._is_waiting = False
        if (ended := self._whole(item)) is not None:
            self._wholes.update([ended])
        return item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop the work; nothing comes any more."""
        if self._is_waiting:  # in another task, which gets the end of it
            self.cancel()
        else:
            await self._items.aclose()

    async def result(self) -> Whole:
        """Read to the end; the whole (with n > 1 the first, which holds the ``others``). InvalidRequestError when the
        stream was closed before its end."""
        async with aclosing(self):
            async for _ in self:
                pass
        if len(self._wholes) < self._n:
            raise InvalidRequestError("the stream was closed before its end: it has no result")
        first, *others = (self._wholes[index] for index in sorted(self._wholes))
        return msgspec.structs.replace(first, others=tuple(others)) if others else first


class AsyncStream(Streaming[Chunk, Completion]):
    """Chunks of text; its result is a Completion."""

    def __init__(self, generations: Sequence[AsyncGenerator[Chunk, None]], cancel: Callable[[], None]) -> None:
        super().__init__(generations[0] if len(generations) == 1 else merged(generations), len(generations))
        self._cancel = cancel
        self._has_begun = False
        self._under_way: dict[int, Usage] = {}

    async def __anext__(self) -> Chunk:
        self._has_begun = True
        chunk = await super().__anext__()
        self._count(chunk)
        return chunk

    @property
    def under_way(self) -> tuple[Usage, ...]:
        """What has come so far of each generation that has begun and not ended."""
        return tuple(self._under_way.values())

    def _count(self, chunk: Chunk) -> None:
        so_far = self._under_way.pop(chunk.index, chunk.usage or Usage())
        if chunk.completion is None:
            n_output = so_far.completion_tokens + len(chunk.tokens)
            self._under_way[chunk.index] = msgspec.structs.replace(so_far, completion_tokens=n_output)

    def _whole(self, item: Chunk) -> tuple[int, Completion] | None:
        return None if item.completion is None else (item.index, item.completion)

    def cancel(self) -> None:
        """End it within one step: it then closes with finish reason ``cancelled``."""
        if self._has_begun:
            self._cancel()
        else:
            self._items = _nothing(self._n)


async def _nothing(n: int) -> AsyncGenerator[Chunk, None]:
    """What was cancelled before it began."""
    for index in range(n):
        completion = Completion(text="", tokens=(), finish_reason="cancelled", index=index)
        yield Chunk(index=index, completion=completion)


async def merged(generations: Sequence[AsyncGenerator[Chunk, None]]) -> AsyncGenerator[Chunk, None]:
    """All at once, in the order of arrival. An error of one ends the others."""
    arrived: asyncio.Queue[Chunk | BaseException] = asyncio.Queue()
    tasks = [asyncio.create_task(_pump(index, chunks, arrived)) for index, chunks in enumerate(generations)]
    running = len(tasks)
    try:
        while running:
            item = await arrived.get()
            if isinstance(item, BaseException):
                raise item
            running -= item.completion is not None
            yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(index: int, chunks: AsyncGenerator[Chunk, None], arrived: asyncio.Queue[Chunk | BaseException]) -> None:
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                completion = chunk.completion and msgspec.structs.replace(chunk.completion, index=index)
                arrived.put_nowait(msgspec.structs.replace(chunk, index=index, completion=completion))
        except Exception as error:
            arrived.put_nowait(error)
