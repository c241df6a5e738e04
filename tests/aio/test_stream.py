"""Streams of several generations, without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from barrel_inference.aio.stream import AsyncStream
from barrel_inference.types import Chunk, Completion, Usage

READ = Usage(prompt_tokens=9, cached_tokens=4)


async def generation(*chunks: Chunk) -> AsyncGenerator[Chunk, None]:
    for chunk in chunks:
        yield chunk


def test_what_is_under_way_is_what_has_come_of_those_that_have_not_ended() -> None:
    end = Chunk(index=1, completion=Completion(text="x", tokens=(3,), finish_reason="stop"))
    stream = AsyncStream(
        [
            generation(Chunk(tokens=(1, 2), usage=READ), Chunk(tokens=(3,)), Chunk()),
            generation(Chunk(index=1, tokens=(3,), usage=READ), end),
        ],
        lambda: None,
    )

    async def main() -> None:
        assert stream.under_way == ()
        for _ in range(5):
            await anext(stream)
        await stream.aclose()  # as whoever leaves does
        assert stream.under_way == (Usage(prompt_tokens=9, cached_tokens=4, completion_tokens=3),)

    asyncio.run(main())


def test_what_ends_with_its_first_chunk_never_was_under_way() -> None:
    end = Chunk(usage=READ, completion=Completion(text="", tokens=(), finish_reason="stop", usage=READ))
    stream = AsyncStream([generation(end)], lambda: None)
    assert asyncio.run(stream.result()).usage == READ
    assert stream.under_way == ()
