"""A clock that a test turns, and a runtime whose models are names. Owned by the test that makes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from barrel_inference.aio import AsyncModel
from barrel_inference.types import ModelInfo


class FakeTimer:
    def __init__(self, at: float, callback: Callable[[], Any]) -> None:
        self.at = at
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeTimers:
    """Time passes when ``advance`` says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], Any], /) -> FakeTimer:
        timer = FakeTimer(self.now + delay, callback)
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer.at <= self.now]
        self.timers = [timer for timer in self.timers if timer.at > self.now]
        for timer in due:
            if not timer.cancelled:
                timer.callback()


class FakeModel:
    def __init__(self, model_id: str, n_ctx: int, facts: dict[str, Any]) -> None:
        self.id = model_id
        self.n_ctx = n_ctx
        self.facts = facts
        self.phase = "ready"

    def info(self) -> ModelInfo:
        return ModelInfo(id=self.id, phase=cast(Any, self.phase), n_ctx=self.n_ctx, **self.facts)


class FakeRuntime:
    """``loads`` and ``unloads`` are what was asked, in order. Loads wait while ``gate`` is clear; ``error`` is raised
    by the next one. ``facts`` are what the models say of themselves."""

    def __init__(self) -> None:
        self.loads: list[tuple[str, dict[str, Any]]] = []
        self.unloads: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.facts: dict[str, Any] = {}

    async def load_model(self, model_id: str | None = None, /, **options: Any) -> AsyncModel:
        assert model_id is not None
        self.loads.append((model_id, options))
        await self.gate.wait()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return cast(AsyncModel, FakeModel(model_id, options["context_opts"]["n_ctx"], self.facts))

    async def unload(self, model_id: str, *, drain_s: float = 0.0) -> None:
        self.unloads.append(model_id)
