"""The engine's step: batched equals solo, every way to end, threads, drain."""

from __future__ import annotations

import threading

import pytest

from barrel_inference.config import LoadOptions
from barrel_inference.engine.engine import Engine
from barrel_inference.engine.kvstore import KVStore
from barrel_inference.errors import (
    BarrelError,
    ConfigError,
    ContextExceededError,
    InvalidRequestError,
    NotLoadedError,
    NoWeightsError,
    RequestTimeoutError,
    SeqCapacityError,
    UnsupportedError,
)
from barrel_inference.types import Constraint, Sampling
from tests.engine.fakes import EOG, Bench, Clock, FakeBackend, Results, tokens


def test_one_request_from_start_to_end() -> None:
    bench = Bench()
    done = bench.complete(tokens(1000), max_tokens=20)
    result = bench.results["r0"]
    assert result.tokens == list(done.tokens) and len(done.tokens) == 20
    assert result.text == done.text and len(done.text) == 20
    assert done.finish_reason == "length"
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.cached_tokens) == (1000, 20, 0)
    assert (done.cache.kind, done.cache.prefilled_tokens) == ("cold", 1000)
    assert done.prompt_tokens == tuple(tokens(1000))
    assert bench.fed()[:5] == [{0: 256}, {0: 256}, {0: 256}, {0: 232}, {0: 1}]
    assert len(bench.backend.batches) == 4 + 19  # the last token is never decoded


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_batched_outputs_equal_solo_outputs(temperature: float) -> None:
    prompts = [tokens(n, seed=n) for n in (1, 30, 300, 700, 64, 257)]
    solo = [Bench().complete(p, max_tokens=40, temperature=temperature).tokens for p in prompts]
    bench = Bench(n_seq_max=4)
    for i, prompt in enumerate(prompts):
        bench.submit(str(i), prompt, max_tokens=40, temperature=temperature)
    bench.run()
    assert [bench.results[str(i)].done.tokens for i in range(6)] == solo
    assert max(len(batch) for batch in bench.backend.batches) == 4


def test_a_long_prompt_never_stalls_a_running_stream() -> None:
    bench = Bench(n_ctx=8192)
    bench.submit("stream", tokens(10), max_tokens=200)
    bench.step(30)
    bench.submit("long", tokens(3000, seed=2), max_tokens=1)
    first = len(bench.backend.batches)
    bench.run()
    mixed = [feed for feed in bench.fed()[first:] if feed.get(1, 0) > 1]
    assert sum(feed[1] for feed in mixed) == 3000
    assert all(feed[0] == 1 for feed in mixed)  # every chunk shares its step with a token of the stream
    assert all(0.01 + 0.004 * sum(feed.values()) < 0.5 for feed in mixed)
    assert max(sum(feed.values()) for feed in mixed) == 64  # a whole tile; two would take 0.52 s


@pytest.mark.parametrize(
    ("n_batch", "policy", "most"),
    [
        (512, {}, 128),
        (1024, {}, 256),
        (128, {}, 64),  # at least so many, however small the batch
        (512, {"prefill_chunk_size": 48}, 48),
        (512, {"prefill_chunk_size": 384}, 384),
    ],
)
def test_a_prompt_adds_at_most_a_chunk_to_a_step_of_others(n_batch: int, policy: dict[str, int], most: int) -> None:
    bench = Bench(n_batch=n_batch)
    bench.backend.token_s = 1e-6  # fast enough that time sets no other limit
    bench.run_on(bench.backend, KVStore(bench.backend), **policy)
    bench.submit("stream", tokens(10), max_tokens=60)
    bench.step()
    bench.submit("long", tokens(4000, seed=2), max_tokens=1)
    added = [sum(batch.values()) - 1 for batch in bench.run().fed() if len(batch) == 2]
    assert max(added) <= most < 1.1 * max(added)


def test_the_end_of_generation_token_ends_it_and_is_not_output() -> None:
    bench = Bench()
    bench.backend.next_token = lambda kv: EOG if len(kv) >= 15 else 65
    done = bench.complete(tokens(10), max_tokens=100)
    assert (done.finish_reason, done.text, done.usage.completion_tokens) == ("stop", "AAAAA", 5)


def test_a_stop_string_ends_it() -> None:
    bench = Bench()
    bench.backend.next_token = lambda kv: b"hello world"[len(kv) - 3]
    done = bench.complete("abc", max_tokens=100, stop=("o w",))
    assert (done.finish_reason, done.stop_text, done.text) == ("stop", "o w", "hello ")


def test_max_tokens_zero_only_prefills() -> None:
    bench = Bench()
    done = bench.complete(tokens(300), max_tokens=0)
    assert (done.finish_reason, done.tokens) == ("length", ())
    assert bench.fed() == [{0: 256}, {0: 44}]
    assert bench.complete(tokens(300), max_tokens=1).cache.kind == "live"


def test_a_full_context_ends_it() -> None:
    done = Bench(n_ctx=256).complete(tokens(250))
    assert (done.finish_reason, done.usage.completion_tokens) == ("context_full", 7)


def test_a_prompt_as_long_as_the_context_still_gets_a_token() -> None:
    assert Bench(n_ctx=256).complete(tokens(256)).finish_reason == "context_full"
    with pytest.raises(ContextExceededError) as caught:
        Bench(n_ctx=256).complete(tokens(257))
    assert caught.value.details == {"n_prompt_tokens": 257, "n_ctx": 256}


@pytest.mark.parametrize("prompt", [[], [1, 256, 2], [1, -1]])
def test_prompts_that_cannot_be(prompt: list[int]) -> None:
    with pytest.raises(InvalidRequestError):
        Bench().prepare("r", prompt)


def test_models_that_do_not_generate() -> None:
    with pytest.raises(UnsupportedError):
        Bench(embeddings=True).prepare("r", [1])
    with pytest.raises(NoWeightsError):
        Bench(vocab_only=True).prepare("r", [1])


def test_a_bias_on_a_token_that_is_not_there() -> None:
    with pytest.raises(InvalidRequestError):
        Bench().prepare("r", [1], sampling=Sampling(logit_bias={256: 1.0}))


def test_a_constraint_decides_and_ends_it() -> None:
    done = Bench().complete("abc", constraint=Constraint(choices=("yes!",)))
    assert (done.text, done.finish_reason) == ("yes!", "stop")


def test_a_failing_sampler_fails_only_its_own_request() -> None:
    bench = Bench()
    broken = bench.prepare("bad", tokens(20, seed=2), max_tokens=10)
    broken.text.push = lambda token: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    bench.submit("good", tokens(20), max_tokens=10)
    bench.engine.submit(broken)
    bench.run()
    assert isinstance(bench.results["bad"].error, BarrelError)
    assert len(bench.results["good"].done.tokens) == 10


def test_logprobs_are_the_models_own() -> None:
    bench = Bench()
    bench.complete("abc", max_tokens=2, logprobs=True, top_logprobs=3, temperature=0.9)
    for chunk in bench.results["r0"].chunks:
        (entry,) = chunk.logprobs
        assert entry.token == chunk.tokens[0]
        assert [top.logprob for top in entry.top] == sorted((top.logprob for top in entry.top), reverse=True)
        assert entry.top[0].logprob == pytest.approx(-0.0115, abs=1e-3)  # one logit of 10 among 255 of 0


def test_a_drawn_seed_is_reported_and_reproduces() -> None:
    bench = Bench()
    first = bench.complete("abc", max_tokens=20, sampling=Sampling(seed=None))
    again = bench.complete("abc", max_tokens=20, sampling=Sampling(seed=first.seed))
    assert bench.results["r0"].seed == first.seed
    assert first.tokens == again.tokens


def test_penalties_know_the_end_of_the_prompt() -> None:
    bench = Bench()
    bench.complete(list(range(1, 101)), max_tokens=1, sampling=Sampling(repeat_penalty=1.1, repeat_last_n=5))
    bench.complete(list(range(1, 101)), max_tokens=1, sampling=Sampling())
    assert bench.backend.samplers[0].accepted[:-1] == [96, 97, 98, 99, 100]
    assert len(bench.backend.samplers[1].accepted) == 1
    assert not any(sampler.is_open for sampler in bench.backend.samplers)


# ---- cancel, time, capacity


def test_cancel_while_waiting_in_prefill_and_in_decode() -> None:
    bench = Bench(n_seq_max=2)
    bench.submit("decode", tokens(10), max_tokens=500)
    bench.step(5)
    bench.submit("prefill", tokens(2000, seed=2))
    bench.submit("waiting", tokens(10, seed=3))
    bench.step(3)
    n_batches = len(bench.backend.batches)
    for request_id in ("waiting", "prefill", "decode", "unknown"):
        bench.engine.cancel(request_id)
    assert not bench.engine.step()
    assert len(bench.backend.batches) == n_batches  # seen before the next step
    assert {bench.results[r].done.finish_reason for r in ("decode", "prefill", "waiting")} == {"cancelled"}
    assert bench.results["decode"].done.usage.completion_tokens == 8
    assert bench.results["waiting"].done.tokens == ()
    assert bench.engine.snapshot().sequences_free == 2


def test_cancelling_one_leaves_the_others_alone() -> None:
    alone = Bench().complete(tokens(20), max_tokens=30).tokens
    bench = Bench()
    bench.submit("a", tokens(20), max_tokens=30)
    bench.submit("b", tokens(900, seed=2), max_tokens=30)
    bench.step(2)
    bench.engine.cancel("b")
    bench.run()
    assert bench.results["a"].done.tokens == alone


def test_a_timeout_ends_its_own_request() -> None:
    bench = Bench()
    bench.submit("slow", tokens(10), max_tokens=500, timeout_s=0.5)
    bench.submit("other", tokens(10, seed=2), max_tokens=100)
    bench.run()
    assert isinstance(bench.results["slow"].error, RequestTimeoutError)
    assert 10 < len(bench.results["slow"].tokens) < 100
    assert len(bench.results["other"].done.tokens) == 100


def test_a_request_waiting_beyond_its_time_is_told() -> None:
    bench = Bench(n_seq_max=1)
    bench.submit("busy", tokens(10), max_tokens=100)
    bench.submit("late", tokens(10, seed=2), timeout_s=0.3)
    bench.run()
    assert isinstance(bench.results["late"].error, RequestTimeoutError)


def test_on_full_error_is_told_at_once_and_queue_waits() -> None:
    bench = Bench(n_seq_max=1)
    bench.submit("busy", tokens(10), max_tokens=10)
    bench.step()
    bench.submit("no", tokens(10, seed=2), on_full="error")
    bench.submit("yes", tokens(10, seed=3), max_tokens=1)
    bench.step()
    assert isinstance(bench.results["no"].error, SeqCapacityError)
    bench.run()
    assert bench.results["yes"].done.finish_reason == "length"
    assert bench.results["yes"].done.timings.queued_s > 0


def test_the_batch_must_hold_a_token_of_every_sequence() -> None:
    clock = Clock()
    backend = FakeBackend(clock, n_batch=3, n_seq_max=4)
    with pytest.raises(ConfigError):
        Engine(backend, KVStore(backend), LoadOptions(id="m"), Results(), clock)


# ---- the thread


def test_the_thread_sleeps_when_idle_wakes_for_work_and_ends_when_drained() -> None:
    bench = Bench()
    thread = threading.Thread(target=bench.engine.run)
    thread.start()
    assert bench.engine.call(lambda: 42).result(10) == 42
    before = bench.engine.call(lambda: bench.results.flushes).result(10)
    after = bench.engine.call(lambda: bench.results.flushes).result(10)
    assert after - before <= 2  # one step for each thing posted
    bench.submit("a", tokens(300), max_tokens=5)
    bench.engine.drain(1000.0)
    thread.join(20)
    assert not thread.is_alive()
    assert bench.results["a"].done.finish_reason == "length"


@pytest.mark.parametrize("n_left", [0, 1])
def test_a_drain_ends_when_nothing_is_left_not_at_its_deadline(n_left: int) -> None:
    bench = Bench()
    for _ in range(n_left):
        bench.submit("a", tokens(100), max_tokens=3000)
        bench.step(5)
    bench.engine.drain(1000.0)
    bench.engine.cancel("a")
    thread = threading.Thread(target=bench.engine.run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_a_call_that_raises_gives_its_error_to_the_caller_only() -> None:
    bench = Bench()
    future = bench.engine.call(lambda: 1 // 0)
    bench.complete("abc", max_tokens=1)
    assert isinstance(future.exception(0), ZeroDivisionError)


def test_drain_cancels_at_its_deadline_saves_and_accepts_nothing_more() -> None:
    bench = Bench(store=True)
    bench.submit("a", tokens(100), max_tokens=3000)
    bench.step(5)
    bench.engine.drain(0.1)
    bench.submit("b", tokens(100))
    bench.run()
    bench.engine.run()  # returns: nothing is left
    assert bench.results["a"].done.finish_reason == "cancelled"
    assert bench.results["a"].done.finish_key
    assert bench.store.plans["shutdown"] == 1
    assert isinstance(bench.results["b"].error, NotLoadedError)


def test_snapshot_and_counters_are_truthful() -> None:
    bench = Bench(n_seq_max=2)
    for i in range(4):
        bench.submit(str(i), tokens(40, seed=i), max_tokens=10)
    bench.step()
    snapshot = bench.engine.snapshot()
    assert (snapshot.sequences_free, snapshot.running, snapshot.queued) == (0, 2, 2)
    bench.run()
    counters = bench.engine.counters()
    assert counters["requests"] == 4 and counters["finished_length"] == 4
    assert counters["prompt_tokens"] == counters["prefilled_tokens"] == 160
    assert counters["generated_tokens"] == 40 and counters["decoded_tokens"] == 36
    assert counters["steps"] == len(bench.backend.batches)
    assert bench.engine.snapshot().last_cache == bench.results["3"].cache


def test_timings_add_up() -> None:
    timings = Bench().complete(tokens(1000), max_tokens=10).timings
    assert timings.prefill_s == pytest.approx(4 * 0.01 + 4.0)
    assert timings.decode_s == pytest.approx(9 * 0.014)
    assert timings.total_s == pytest.approx(timings.prefill_s + timings.decode_s)
    assert timings.first_token_s == pytest.approx(timings.prefill_s)
