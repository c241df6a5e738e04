"""Random workloads: whatever arrives, is cancelled or fails, each request ends once, with the text it has alone."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

from barrel_inference.engine.backend import DecodeStatus, Slice
from tests.engine.fakes import Bench, tokens

HEADS = [tokens(n, seed=n) for n in (0, 90, 600)]


def prompt(kind: int, n: int) -> list[int]:
    return HEADS[kind] + tokens(n, seed=1000 + n)


@cache
def solo(kind: int, n: int, temperature: float) -> tuple[int, ...]:
    return Bench().complete(prompt(kind, n), max_tokens=40, temperature=temperature).tokens


@pytest.mark.parametrize("seed", range(40))
def test_every_request_ends_once_with_the_text_it_has_alone(seed: int) -> None:
    rng = random.Random(seed)
    memory: dict[str, Any] = rng.choice([{}, {}, {"is_recurrent": True}, {"n_swa": 100}])
    bench = Bench(
        store=rng.random() < 0.5,
        n_seq_max=rng.choice([1, 2, 3, 8]),
        n_batch=rng.choice([40, 512]),
        exact=rng.choice(["live", "live", "cold"]),
        **memory,
    )
    failing = rng.random() < 0.4

    def fault(slices: list[Slice]) -> DecodeStatus | None:
        is_lost = failing and len(slices) > 1 and rng.random() < 0.02
        return rng.choice([DecodeStatus.FAILED, DecodeStatus.NO_ROOM]) if is_lost else None

    bench.backend.fault = fault
    wanted: dict[str, tuple[int, int, float]] = {}
    cancelled = set()
    for i in range(20):
        wanted[str(i)] = what = (rng.randrange(3), rng.choice([1, 2, 30, 70]), rng.choice([0.0, 0.8]))
        session = rng.choice([None, None, None, "s", "t"])
        bench.submit(str(i), prompt(what[0], what[1]), max_tokens=40, temperature=what[2], session=session)
        bench.step(rng.randrange(12))
        if rng.random() < 0.15:
            cancelled.add(victim := str(rng.randrange(i + 1)))
            bench.engine.cancel(victim)
    bench.run()
    for request_id, what in wanted.items():
        result = bench.results[request_id]
        assert result.is_over
        if result.error:
            assert failing
            continue
        n = len(result.tokens)
        assert tuple(result.tokens) == result.done.tokens == solo(*what)[:n]
        assert n == 40 or request_id in cancelled
        assert result.done.cache.restored_tokens + result.done.cache.prefilled_tokens in (
            0,
            result.done.usage.prompt_tokens,
        )
    snapshot = bench.engine.snapshot()
    assert (snapshot.running, snapshot.queued) == (0, 0)
    assert bench.store.plans["found"] == bench.store.plans["released"]
    assert not any(sampler.is_open for sampler in bench.backend.samplers)
