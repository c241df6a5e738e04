"""Mistakes others made between engine and store: reading what is there, saving what was changed, slow starts."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from barrel_inference.config import ContextOpts, LoadOptions
from barrel_inference.engine.backend import Slice
from barrel_inference.engine.llama import LlamaBackend
from barrel_inference.engine.sequence import Sequence as Resident
from barrel_inference.engine.stub import StubBackend
from barrel_inference.kvcache import lookup
from barrel_inference.kvcache.chain import Chain, pack_tokens
from barrel_inference.kvcache.record import Name
from barrel_inference.kvcache.store import Shape, Store
from barrel_inference.kvcache.tier import Medium, Tier
from tests.engine.fakes import Bench, tokens
from tests.kvcache.fake_backend import FakeBackend
from tests.kvcache.harness import Runner, open_on, open_with_medium, options, same, spec
from tests.support.tiny_models import N_VOCAB, tiny_model

PROMPT = list(range(10, 510))


class CountingReads(Medium):
    def __init__(self) -> None:
        self.n_bytes = 0

    def read(self, path: str, places: Sequence[memoryview]) -> int:
        n = super().read(path, places)
        self.n_bytes += n
        return n


@pytest.mark.model
def test_mistake_10_restoring_what_the_sequence_still_holds(tmp_path: Path) -> None:
    """The second turn of a conversation, its sequence idle meanwhile, restores nothing; after a restart it does."""
    load = LoadOptions(
        id="m",
        model_path=str(tiny_model("llama")),
        tiers=(spec(tmp_path),),
        save_tier="disk",
        context_opts=ContextOpts(n_ctx=1024, n_threads=1, n_threads_batch=1),
    )
    backend = LlamaBackend(load)
    medium = CountingReads()
    checkpoints = open_with_medium(backend, load, medium)
    bench = Bench().run_on(backend, checkpoints)
    prompt = [(i * 7) % (N_VOCAB - 2) + 1 for i in range(300)]
    first = bench.complete(prompt, max_tokens=5)
    assert checkpoints.flush(10.0)
    second = bench.complete([*prompt, *first.tokens, 5, 6, 7], max_tokens=5)
    assert second.cache.kind == "live"
    assert second.cache.restored_tokens >= len(prompt)
    assert "restored_tokens_disk" not in checkpoints.counters
    assert medium.n_bytes < 3 * 4096  # headers at most: no payload of 256 KB
    checkpoints.close()
    backend.seq_remove(0, 0, -1)
    again = open_with_medium(backend, load, medium)
    warm = Bench().run_on(backend, again).complete([*prompt, *first.tokens, 5, 6, 7], max_tokens=5)
    assert warm.cache.tier == "disk"
    assert medium.n_bytes > 256 << 10
    again.close()
    backend.close()


def test_mistake_19_a_shifted_sequence_saves_rows_that_were_moved(tmp_path: Path) -> None:
    """A shift reads what is left again: what is saved of it is what a prompt of the same tokens restores."""
    load = options(spec(tmp_path), context_opts=ContextOpts(n_ctx=512))
    backend = StubBackend(load)
    checkpoints = open_on(backend, load)
    first = Bench().run_on(backend, checkpoints).complete(tokens(400), max_tokens=300, shift_keep=8)
    assert first.shifted_tokens
    assert checkpoints.flush(10.0)
    behind = checkpoints.tokens_behind(first.finish_key or "")
    assert behind is not None
    backend.rebuild()
    warm = Bench().run_on(backend, checkpoints).complete([*behind, 5], max_tokens=20)
    backend.rebuild()
    cold = Bench().run_on(backend, open_on(backend, options())).complete([*behind, 5], max_tokens=20)
    assert warm.cache.restored_tokens == len(behind)
    assert warm.tokens == cold.tokens


def test_mistake_19_a_rolled_back_sequence_saves_what_it_is_now(tmp_path: Path) -> None:
    backend = FakeBackend()
    checkpoints = open_on(backend, options(spec(tmp_path)))
    sequence = Resident(0)

    def grow(tokens: list[int]) -> None:
        backend.decode([Slice(0, len(sequence.tokens), tuple(tokens), False)], None)
        sequence.extend(tuple(tokens), cold_shape=True)
        sequence.n_prompt = len(sequence.tokens)
        checkpoints.after_step(sequence)

    grow(PROMPT[:300])
    assert backend.seq_remove(0, 150, -1)
    sequence.cut(150)
    grow(list(range(700, 950)))
    checkpoints.finish(sequence, "finish")
    assert checkpoints.flush(5.0)
    one = Runner(backend, checkpoints)
    for prompt, restored in (([*sequence.tokens, 1], 400), ([*PROMPT[:300], 1], 300)):
        cold_backend = FakeBackend()
        cold = Runner(cold_backend, open_on(cold_backend, options())).run(prompt)
        warm = one.run(prompt, cache="read")
        assert warm.restored == restored
        assert same(warm, cold)


def fastest(act: Callable[[], object], times: int = 20) -> float:
    """Seconds of this thread's own: what others run meanwhile does not count."""
    best = float("inf")
    for _ in range(times):
        start = time.thread_time()
        act()
        best = min(best, time.thread_time() - start)
    return best


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_mistake_15_reading_every_file_at_the_start(tmp_path: Path) -> None:
    """50,000 objects: open in well under 2 s, look up 32,768 tokens in under 2 ms, no file opened for it."""
    namespace = b"n" * 32
    medium = CountingReads()
    tier = Tier(spec(tmp_path), medium)
    tokens = [(i * 31) % 50_000 for i in range(32_768)]
    for variant in range(98):
        conversation = [variant, *tokens[1:]] if variant else tokens
        keys = Chain(namespace).extend(conversation)
        for parent, key in itertools.pairwise(keys):
            path = Path(tier.path(namespace.hex(), Name.of(parent, key, "block", "p")))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    opened = fastest(lambda: Store([tier], tier, namespace, Shape(True, 0, False)), 3)
    store = Store([tier], tier, namespace, Shape(True, 0, False))
    found = lookup.find(store, tokens, limit=lambda at: at)
    assert found.length == len(tokens) - 1
    looked_up = fastest(lambda: lookup.find(store, tokens, limit=lambda at: at))
    hashing = fastest(lambda: (pack_tokens(tokens), Chain(namespace).extend(tokens)))
    assert medium.n_bytes == 0
    assert opened < 2.0
    assert looked_up < max(0.002, 3 * hashing)  # the second for machines that are slow or busy
