"""Runs prompts through checkpoints as the engine does: find, restore, prefill in chunks, decode, finish."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from barrel_inference.config import LoadOptions, Policy, TierSpec
from barrel_inference.engine.backend import Backend, DecodeStatus, Slice
from barrel_inference.engine.checkpoints import Checkpoints, open_checkpoints
from barrel_inference.engine.checkpoints.opening import assemble, learn_layout, name
from barrel_inference.engine.sequence import Sequence
from barrel_inference.kvcache.policy import SOLO_CHUNK, cold_resume
from barrel_inference.kvcache.tier import Medium, Tier
from barrel_inference.types import CacheMode, Exactness

GIB = 1 << 30


def spec(path: Path, *, quota_bytes: int = GIB, name: str = "disk") -> TierSpec:
    return TierSpec(name=name, kind="disk", path=str(path), quota_bytes=quota_bytes)


def options(*tiers: TierSpec, policy: Policy | None = None, exact: Exactness = "live", **more: object) -> LoadOptions:
    return LoadOptions(
        id="m",
        tiers=tiers,
        save_tier=tiers[0].name if tiers else None,
        policy=policy or Policy(),
        exact=exact,
        **more,
    )


def open_on(backend: Backend, load: LoadOptions) -> Checkpoints:
    return open_checkpoints(
        backend, load, need_room=lambda tier, n: None, touched=lambda tier, keys: None, clock=time.monotonic
    )


def open_with_medium(backend: Backend, load: LoadOptions, medium: Medium) -> Checkpoints:
    """Over a medium that fails or is slow."""
    tiers = [Tier(one, medium) for one in load.tiers]
    layout = learn_layout(backend)
    return assemble(
        backend,
        load,
        tiers,
        layout,
        name(load, backend.info, layout).digest(),
        need_room=lambda tier, n: None,
        touched=lambda tier, keys: None,
        clock=time.monotonic,
    )


@dataclass
class Run:
    """``logits``: of the last prompt token and of each generated one."""

    restored: int
    logits: list[NDArray[np.float32]]
    finish_key: str | None
    tokens: list[int] = field(default_factory=list)


class Runner:
    """One sequence, greedy, chunks cut at absolute multiples as the engine cuts them."""

    def __init__(self, backend: Backend, checkpoints: Checkpoints, *, cost_us_per_token: float = 0.0) -> None:
        self.backend, self.checkpoints = backend, checkpoints
        self.cost_us_per_token = cost_us_per_token

    def run(
        self,
        prompt: list[int],
        n_generate: int = 0,
        *,
        salt: str = "",
        exact: Exactness | None = None,
        cache: CacheMode = "auto",
        boundaries: tuple[int, ...] = (),
        flush: bool = True,
        forced: list[int] | None = None,
    ) -> Run:
        sequence = Sequence(0)
        self.backend.seq_remove(0, 0, -1)
        restored = self._restore(sequence, prompt, salt, exact) if cache in ("auto", "read") else 0
        sequence.salt, sequence.cache, sequence.n_prompt = salt, cache, len(prompt)
        sequence.stops = self.checkpoints.stops(len(prompt), boundaries, restored)
        logits = [self._prefill(sequence, prompt)]
        for i in range(n_generate):
            token = forced[i] if forced else int(logits[-1].argmax())
            logits.append(self._decode(sequence, (token,), is_cold=False))
        key = self.checkpoints.finish(sequence, "finish")
        if flush:
            assert self.checkpoints.flush(30.0)
        self.backend.seq_remove(0, 0, -1)
        return Run(restored, logits, key, list(sequence.tokens))

    def _restore(self, sequence: Sequence, prompt: list[int], salt: str, exact: Exactness | None) -> int:
        plan = self.checkpoints.find(prompt, salt=salt, exact=exact)
        restored = self.checkpoints.restore(plan, 0)
        if restored:
            sequence.adopt(prompt[:restored], plan.prefill_end(len(prompt)))
            sequence.saved = restored
        return restored

    def _prefill(self, sequence: Sequence, prompt: list[int]) -> NDArray[np.float32]:
        start = len(sequence.tokens)
        is_cold = sequence.prefill_end == start and cold_resume(start, len(prompt)) == start
        logits = None
        while len(sequence.tokens) < len(prompt):
            at = len(sequence.tokens)
            ends = [at // SOLO_CHUNK * SOLO_CHUNK + SOLO_CHUNK, len(prompt), *(s for s in sequence.stops if s > at)]
            logits = self._decode(sequence, tuple(prompt[at : min(ends)]), is_cold=is_cold)
        assert logits is not None
        return logits

    def _decode(self, sequence: Sequence, tokens: tuple[int, ...], *, is_cold: bool) -> NDArray[np.float32]:
        status = self.backend.decode([Slice(0, len(sequence.tokens), tokens, want_logits=True)], None)
        assert status is DecodeStatus.OK
        sequence.extend(tokens, cold_shape=is_cold)
        sequence.cost_us_per_token = self.cost_us_per_token
        self.checkpoints.after_step(sequence)
        return self.backend.logits(0).copy()


def same(a: Run, b: Run) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a.logits, b.logits, strict=True))
