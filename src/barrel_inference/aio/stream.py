"""What ``stream`` returns: the chunks of one prompt's n generations as they come. Owned by the task that iterates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self

import msgspec

from barrel_inference.types import Chunk, Completion


class AsyncStream:
    """An asynchronous iterator of chunks. Leaving it (``aclose``, ``async with``, or dropping it) stops the work."""

    def __init__(self, generations: Sequence[AsyncGenerator[Chunk, None]], cancel: Callable[[], None]) -> None:
        self._chunks = generations[0] if len(generations) == 1 else merged(generations)
        self._cancel = cancel
        self._n = len(generations)
        self._has_begun = False
        self._completions: dict[int, Completion] = {}

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        self._has_begun = True
        chunk = await anext(self._chunks)
        if chunk.completion is not None:
            self._completions[chunk.index] = chunk.completion
        return chunk

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._chunks.aclose()

    def cancel(self) -> None:
        """End it within one step: the stream then closes with finish reason ``cancelled``."""
        if self._has_begun:
            self._cancel()
        else:
            self._chunks = _nothing(self._n)

    async def result(self) -> Completion:
        """Read to the end; the completion (with n > 1 the first, which holds the ``others``)."""
        async with aclosing(self):
            async for _ in self:
                pass
        first, *others = (self._completions[index] for index in sorted(self._completions))
        return msgspec.structs.replace(first, others=tuple(others)) if others else first


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
