"""What a worker does at its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from barrel_inference.engine.backend import Sampler
from barrel_inference.kvcache.tier import Medium
from barrel_inference.types import Sampling
from barrel_inference.worker.child.worker import save_rest
from tests.engine.fakes import Bench, FakeSampler, tokens
from tests.kvcache.fake_backend import FakeBackend
from tests.kvcache.harness import open_on, open_with_medium, options, spec

PROMPT = tokens(1200, seed=3)


class Backend(FakeBackend):
    def sampler(self, sampling: Sampling, seed: int) -> Sampler:
        return FakeSampler(sampling, seed)


class Disk(Medium):
    """Takes nothing until it is ``free``; then each object takes so long."""

    def __init__(self, seconds: float) -> None:
        self.free = threading.Event()
        self._seconds = seconds

    def write(self, path: Path, parts: Sequence[memoryview | bytes]) -> int:
        assert self.free.wait(60)
        time.sleep(self._seconds)
        return super().write(path, parts)


def test_what_the_queue_had_no_room_for_is_written_before_it_ends(tmp_path: Path) -> None:
    disk, backend = Disk(0), Backend("plain")
    checkpoints = open_with_medium(backend, options(spec(tmp_path)), disk)
    bench = Bench().run_on(backend, checkpoints)
    checkpoints._writer.memory._limit = 3 << 16  # type: ignore[attr-defined]
    assert bench.complete(PROMPT, max_tokens=3).finish_key is None
    assert checkpoints.counters["drops"]

    disk.free.set()
    save_rest(bench.engine, checkpoints, 30.0)
    checkpoints.close()
    after = open_on(Backend("plain"), options(spec(tmp_path)))
    assert after.lookup([*PROMPT, 1, 2, 3]).cached_tokens == len(PROMPT)
    after.close()


def test_that_ends_when_its_time_is_over(tmp_path: Path) -> None:
    disk, backend = Disk(0.1), Backend("plain")
    checkpoints = open_with_medium(backend, options(spec(tmp_path)), disk)
    bench = Bench().run_on(backend, checkpoints)
    bench.complete(PROMPT, max_tokens=3)
    disk.free.set()
    began = time.monotonic()
    save_rest(bench.engine, checkpoints, 0.2)
    assert time.monotonic() - began < 1.0
    checkpoints.close()


def test_what_is_not_to_be_kept_is_not_tried_for_ever(tmp_path: Path) -> None:
    backend = Backend("plain")
    checkpoints = open_on(backend, options(spec(tmp_path), context_size=128))
    bench = Bench().run_on(backend, checkpoints)
    bench.complete(PROMPT, max_tokens=3)
    began = time.monotonic()
    save_rest(bench.engine, checkpoints, 30.0)
    assert time.monotonic() - began < 5.0
    checkpoints.close()
