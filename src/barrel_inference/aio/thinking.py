"""A budget for a model's thinking: after so many tokens the thought is ended for it, and it goes on to its answer. Owns
nothing but the generation in hand."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from barrel_inference.aio.stream import AsyncStream
from barrel_inference.chat.dialogue import Prompt
from barrel_inference.types import Chunk, Completion, Timings, Usage

if TYPE_CHECKING:
    from barrel_inference.aio.model import AsyncModel

Start = Callable[..., AsyncStream]  # of AsyncModel.stream


async def within_budget(
    model: AsyncModel, prompt: Prompt, options: dict[str, Any], budget: int, start: Start
) -> AsyncGenerator[Chunk, None]:
    """The chunks of one generation. It is continued by a second one when the first had to be cut short."""
    parser = prompt.parser()
    written: list[Chunk] = []
    n_thought = 0
    cut = parser.thinking and budget <= 0
    async with start(prompt.text, boundaries=prompt.boundaries, **options) as stream:
        async for chunk in stream:
            if chunk.completion is not None and not cut:
                yield chunk
                return
            if cut:
                stream.cancel()
                continue  # what still comes is not wanted; the last chunk tells the prompt's tokens
            written.append(chunk)
            yield chunk
            parser.feed(chunk.text)
            n_thought += len(chunk.tokens) if parser.thinking else 0
            cut = parser.thinking and n_thought >= budget
        first = (await stream.result()) if cut else None
    if first is not None:
        async for chunk in _continued(model, prompt, options, first, written, start):
            yield chunk


async def _continued(
    model: AsyncModel, prompt: Prompt, options: dict[str, Any], first: Completion, written: list[Chunk], start: Start
) -> AsyncGenerator[Chunk, None]:
    closing = f"\n{prompt.think_end}\n\n"
    closing_tokens = await model.tokenize(closing, add_special=False)
    yield Chunk(text=closing, tokens=tuple(closing_tokens))
    head = Chunk(text="".join(chunk.text for chunk in written) + closing, tokens=_tokens(written, closing_tokens))
    rest = {name: value for name, value in options.items() if name != "outside"}  # and there it is
    if rest.get("start_after") == prompt.think_end:  # which has been written
        del rest["start_after"]
    if (limit := options.get("max_tokens")) is not None:
        rest["max_tokens"] = max(0, limit - len(head.tokens))
    async with start((*first.prompt_tokens, *head.tokens), **rest) as stream:
        async for chunk in stream:
            completion = chunk.completion and _joined(first, head, chunk.completion)
            yield msgspec.structs.replace(chunk, completion=completion)


def _tokens(chunks: Sequence[Chunk], closing: Sequence[int]) -> tuple[int, ...]:
    return (*(token for chunk in chunks for token in chunk.tokens), *closing)


def _joined(first: Completion, head: Chunk, second: Completion) -> Completion:
    """As if it had been one generation."""
    return msgspec.structs.replace(
        second,
        text=head.text + second.text,
        tokens=head.tokens + second.tokens,
        prompt_tokens=first.prompt_tokens,
        cache=first.cache,
        usage=Usage(
            prompt_tokens=first.usage.prompt_tokens,
            completion_tokens=len(head.tokens) + second.usage.completion_tokens,
            cached_tokens=first.usage.cached_tokens,
        ),
        timings=Timings(
            queued_s=first.timings.queued_s + second.timings.queued_s,
            restore_s=first.timings.restore_s + second.timings.restore_s,
            prefill_s=first.timings.prefill_s + second.timings.prefill_s,
            decode_s=first.timings.decode_s + second.timings.decode_s,
            first_token_s=first.timings.first_token_s,
            total_s=first.timings.total_s + second.timings.total_s,
        ),
    )
