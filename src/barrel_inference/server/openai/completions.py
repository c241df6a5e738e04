"""Text completions: several prompts, ``n`` of each, echo and logprobs. Owns the requests it runs side by side."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal, NamedTuple

from msgspec import UNSET

from barrel_inference.server.http import ids
from barrel_inference.server.neutral import Service
from barrel_inference.server.openai import translate, wire
from barrel_inference.server.openai.chunks import FINGERPRINT, usage
from barrel_inference.types import Chunk, TokenLogprob
from barrel_inference.types import Usage as Counted


class Numbered(NamedTuple):
    """A chunk, the choice it belongs to, and what of the prompt is to be echoed."""

    choice: int
    chunk: Chunk
    echoed: str = ""


async def generate(service: Service, body: wire.CompletionRequest, keep_alive: bool) -> AsyncGenerator[Numbered, None]:
    """One prompt after the other: the second finds the model loaded and, with a common head, warm."""
    n = body.n or 1
    for number, prompt in enumerate(translate.prompts(body.prompt)):
        request = translate.completion(body, prompt, keep_alive=keep_alive)
        echoed = await _echoed(service, body, prompt)
        async with aclosing(service.complete(request)) as chunks:
            async for chunk in chunks:
                yield Numbered(number * n + chunk.index, chunk, echoed)


async def _echoed(service: Service, body: wire.CompletionRequest, prompt: str | list[int]) -> str:
    if not body.echo:
        return ""
    return prompt if isinstance(prompt, str) else await service.detokenize(body.model, prompt)


class Writer:
    """The choices of one response."""

    def __init__(self, body: wire.CompletionRequest) -> None:
        self._head: dict[str, Any] = {
            "id": ids.new("cmpl-"),
            "created": int(time.time()),
            "model": body.model,
            "system_fingerprint": FINGERPRINT,
        }
        self._logprobs = body.logprobs
        self._usage = bool(body.stream_options and body.stream_options.include_usage)
        self._offsets: dict[int, int] = {}  # characters that a choice has so far
        self._ends: dict[int, Counted] = {}
        self._n = body.n or 1

    def chunks(self, numbered: Numbered) -> list[wire.Completion]:
        choice = self._choice(numbered)
        return [wire.Completion(**self._head, choices=[choice], usage=None if self._usage else UNSET)]

    def last_chunk(self) -> wire.Completion | None:
        if not self._usage:
            return None
        return wire.Completion(**self._head, choices=[], usage=self._total())

    def whole(self, pieces: list[Numbered]) -> wire.Completion:
        choices: dict[int, wire.TextChoice] = {}
        for piece in pieces:
            part = self._choice(piece)
            choices[part.index] = _joined(choices[part.index], part) if part.index in choices else part
        return wire.Completion(**self._head, choices=[choices[index] for index in sorted(choices)], usage=self._total())

    def _choice(self, numbered: Numbered) -> wire.TextChoice:
        index, chunk, echoed = numbered
        if index in self._offsets:
            echoed = ""
        begin = self._offsets.get(index, 0) + len(echoed)
        self._offsets[index] = begin + len(chunk.text)
        finish: Literal["stop", "length"] | None = None
        if chunk.completion is not None:
            self._ends[index] = chunk.completion.usage
            finish = "stop" if chunk.completion.finish_reason in ("stop", "cancelled") else "length"
        shown = text_logprobs(chunk.logprobs, begin) if self._logprobs is not None and chunk.logprobs else None
        return wire.TextChoice(index=index, text=echoed + chunk.text, finish_reason=finish, logprobs=shown)

    def _total(self) -> wire.Usage:
        """Each prompt counts once, whatever its n."""
        firsts = [self._ends[index] for index in sorted(self._ends) if index % self._n == 0]
        total = usage(list(self._ends.values()))
        total.prompt_tokens = sum(each.prompt_tokens for each in firsts)
        total.total_tokens = total.prompt_tokens + total.completion_tokens
        total.prompt_tokens_details.cached_tokens = sum(each.cached_tokens for each in firsts)
        return total


def text_logprobs(entries: tuple[TokenLogprob, ...], begin: int) -> wire.TextLogprobs:
    """``begin``: characters before the first of them."""
    offsets = []
    for entry in entries:
        offsets.append(begin)
        begin += len(entry.text)
    return wire.TextLogprobs(
        tokens=[entry.text for entry in entries],
        token_logprobs=[entry.logprob for entry in entries],
        top_logprobs=[{each.text: each.logprob for each in entry.top} for entry in entries],
        text_offset=offsets,
    )


def _joined(one: wire.TextChoice, more: wire.TextChoice) -> wire.TextChoice:
    one.text += more.text
    one.finish_reason = more.finish_reason or one.finish_reason
    if one.logprobs is None or more.logprobs is None:
        one.logprobs = one.logprobs or more.logprobs
        return one
    one.logprobs.tokens += more.logprobs.tokens
    one.logprobs.token_logprobs += more.logprobs.token_logprobs
    one.logprobs.text_offset += more.logprobs.text_offset
    one.logprobs.top_logprobs += more.logprobs.top_logprobs
    return one
