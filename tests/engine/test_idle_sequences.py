"""Idle sequences where attention runs on the CPU: they leave the context while others run; nothing is read twice."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from barrel_inference.kvcache.tier import Medium
from barrel_inference.types import Completion
from tests.engine.fakes import Bench, tokens
from tests.engine.test_engine_store import Backend
from tests.kvcache.harness import open_on, open_with_medium, options, spec

HEAD, OTHER = tokens(300, seed=3), tokens(200, seed=4)


class Held(Medium):
    """Writes nothing until it may."""

    def __init__(self) -> None:
        self.may_write = threading.Event()

    def write(self, path: str, parts: Sequence[memoryview | bytes]) -> int:
        assert self.may_write.wait(30.0)
        return super().write(path, parts)


class Worker:
    def __init__(
        self, path: Path | None, *, attends_on_cpu: bool = True, medium: Medium | None = None, **quota: Any
    ) -> None:
        self.backend = Backend("plain", attends_on_cpu=attends_on_cpu)
        load = options(*([spec(path, **quota)] if path else []))
        self.checkpoints = open_with_medium(self.backend, load, medium) if medium else open_on(self.backend, load)
        self.bench = Bench().run_on(self.backend, self.checkpoints)

    def complete(self, prompt: list[int], **wishes: Any) -> Completion:
        return self.bench.complete(prompt, max_tokens=20, **wishes)

    def held(self) -> int:
        """Cells in use, however many sequences share them."""
        return sum(bool(self.backend.seq_bounds(seq)[1] + 1) for seq in range(self.backend.info.n_seq_max))


def test_an_idle_sequence_leaves_when_another_begins_and_comes_back_from_the_store(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    first = worker.complete(HEAD)
    assert worker.held() == 1
    worker.complete(OTHER)
    assert worker.held() == 1
    again = worker.complete([*HEAD, *first.tokens, 7])
    assert (again.cache.tier, again.cache.prefilled_tokens) == ("disk", 2)  # the last token was never decoded


def test_alone_it_stays(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    first = worker.complete(HEAD)
    assert worker.complete([*HEAD, *first.tokens, 7]).cache.kind == "live"


def test_where_idle_cells_cost_nothing_it_stays(tmp_path: Path) -> None:
    worker = Worker(tmp_path, attends_on_cpu=False)
    worker.complete(HEAD)
    worker.complete(OTHER)
    assert worker.held() == 2
    assert worker.complete(HEAD).cache.kind == "live"


@pytest.mark.parametrize("session", [None, "s"])
def test_a_pinned_one_stays(tmp_path: Path, session: str | None) -> None:
    worker = Worker(tmp_path)
    worker.complete(HEAD, session=session)
    worker.complete(OTHER)
    assert worker.held() == (2 if session else 1)


def test_what_the_store_does_not_hold_stays(tmp_path: Path) -> None:
    worker = Worker(tmp_path, quota_bytes=8192)  # too little for a block
    worker.complete(HEAD)
    assert worker.checkpoints.flush(30.0)  # and every object was dropped
    worker.complete(OTHER)
    assert worker.held() == 2
    assert worker.complete(HEAD).cache.kind == "live"
    without = Worker(None)
    without.complete(HEAD)
    without.complete(OTHER)
    assert without.held() == 2


def test_what_is_too_short_to_be_kept_leaves(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.complete(HEAD[:20])
    worker.complete(OTHER)
    assert worker.held() == 1


def test_what_nobody_may_share_leaves_anywhere(tmp_path: Path) -> None:
    worker = Worker(tmp_path, attends_on_cpu=False)
    worker.complete(HEAD, cache="off")
    worker.complete(OTHER)
    assert worker.held() == 1


def test_a_donor_leaves_once_its_head_has_been_shared(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.complete(HEAD)
    done = worker.complete([*HEAD[:256], *OTHER])
    assert (done.cache.kind, done.cache.restored_tokens) == ("live", 256)
    assert worker.held() == 1


def test_what_left_before_it_was_written_is_waited_for(tmp_path: Path) -> None:
    medium = Held()
    worker = Worker(tmp_path, medium=medium)
    first = worker.complete(HEAD)
    worker.complete(OTHER)
    assert worker.held() == 1
    timer = threading.Timer(0.05, medium.may_write.set)
    timer.start()
    assert worker.complete([*HEAD, *first.tokens, 7]).cache.prefilled_tokens == 2  # the tail's, too
    timer.join()
    worker.checkpoints.close()
