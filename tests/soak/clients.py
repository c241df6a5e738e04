"""Clients: each asks its questions one after the other, in any dialect, streamed or not, and sometimes leaves. The
choices of a client are its seed's; how clients interleave is the machine's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.soak.asking import Asker, Reply
from tests.soak.dialects import OLLAMA, OLLAMA_RAW, Question, dialects_of
from tests.soak.tally import Tally

Solo = Mapping[Question, str]
More = Callable[[int], bool]  # whether to go on after so many


async def solo_answers(asker: Asker, asked: Sequence[Question]) -> dict[Question, str]:
    """Each alone on the server. Raises RuntimeError."""
    answers = {}
    for question in asked:
        reply = await asker.ask(question, OLLAMA_RAW if question.raw else OLLAMA, stream=False)
        if reply.outcome != "whole":
            raise RuntimeError(f"alone on the server, {question} ended {reply.outcome}: {reply.detail}")
        answers[question] = reply.text
    return answers


@dataclass(frozen=True)
class Client:
    """``pace_s``: between its questions."""

    name: str
    asker: Asker
    solo: Solo
    tally: Tally
    pace_s: float = 0.0

    async def run(self, seed: int, more: More) -> None:
        rng = random.Random(f"{seed}/{self.name}")
        asked = list(self.solo)
        count = 0
        while more(count):
            await self._one(rng, rng.choice(asked))
            await asyncio.sleep(self.pace_s)
            count += 1

    async def _one(self, rng: random.Random, question: Question) -> None:
        dialect = rng.choice(dialects_of(question))
        stream, leaves, patience = rng.random() < 0.6, rng.random() < 0.2, rng.randint(1, 20)
        asking = self.asker.ask(question, dialect, stream=stream, leave_after=patience if stream and leaves else None)
        reply = await (_left(asking, patience / 200) if leaves and not stream else asking)
        how = "streamed" if stream else "whole body"
        await self.tally.reply(f"{question.model}, {dialect.name}, {how}", reply, self.solo[question])


async def _left(asking: Coroutine[Any, Any, Reply], patience_s: float) -> Reply:
    """The answer, unless its client went first."""
    try:
        return await asyncio.wait_for(asking, patience_s)
    except TimeoutError:
        return Reply("left")
