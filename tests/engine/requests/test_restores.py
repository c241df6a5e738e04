"""What the store has of a prompt: when it is read, when it is restored, when it is let go."""

from __future__ import annotations

from barrel_inference.engine.requests.generation import Generation
from tests.engine.fakes import Bench, tokens

HEAD = tokens(1000)


def reading(n_seq_max: int) -> tuple[Bench, Generation]:
    """A request ``a`` whose read is under way."""
    bench = Bench(n_seq_max=n_seq_max, store=True)
    bench.store.saved.append(HEAD)
    bench.store.are_ready = False
    generation = bench.prepare("a", HEAD, max_tokens=2)
    bench.engine.submit(generation)
    return bench, generation


def test_the_longer_prefix_wins_and_equal_ones_read_nothing() -> None:
    bench = Bench(n_seq_max=1, store=True)
    bench.store.saved.append(HEAD[:600])
    assert bench.complete(HEAD, max_tokens=1).cache.restored_tokens == 600
    assert bench.store.restored == [600]
    again = bench.complete(HEAD, max_tokens=1)
    assert again.cache.kind == "live" and bench.store.restored == [600]
    assert bench.store.plans["found"] == bench.store.plans["released"]


def test_kinds_of_hits() -> None:
    bench = Bench(n_seq_max=1, store=True)
    bench.store.saved.append(HEAD)
    done = bench.complete(HEAD, max_tokens=5)
    assert (done.cache.kind, done.cache.tier, done.cache.restored_tokens) == ("exact", "disk", 999)
    assert done.tokens == Bench().complete(HEAD, max_tokens=5).tokens
    bench = Bench(n_seq_max=1, store=True)
    bench.store.saved.append(HEAD[:500])
    assert bench.complete(HEAD, max_tokens=5).cache.kind == "partial"


def test_a_restore_that_fails_is_a_miss() -> None:
    bench = Bench(n_seq_max=2, store=True)
    bench.complete(HEAD[:300], max_tokens=5)
    bench.store.saved.append(HEAD)
    bench.store.fails = True
    done = bench.complete(HEAD, max_tokens=5)
    assert (done.cache.kind, done.cache.restored_tokens) == ("live", 300)
    assert done.tokens == Bench().complete(HEAD, max_tokens=5).tokens


def test_a_restore_that_fails_over_its_own_donor_is_cold() -> None:
    bench = Bench(n_seq_max=1, store=True)
    bench.complete(HEAD[:300], max_tokens=5)
    bench.store.saved.append(HEAD)
    bench.store.fails = True
    done = bench.complete(HEAD, max_tokens=5)
    assert done.cache.kind == "cold"
    assert done.tokens == Bench().complete(HEAD, max_tokens=5).tokens


def test_who_waits_for_its_read_lets_others_pass() -> None:
    bench, generation = reading(n_seq_max=1)
    bench.submit("b", tokens(10, seed=4), max_tokens=2)
    bench.step(5)
    assert bench.results["b"].is_over and bench.results["a"].start is None
    assert generation.plan
    generation.plan.ready = True  # type: ignore[misc]
    bench.run()
    assert bench.results["a"].done.cache.restored_tokens == 999


def test_beside_others_a_plan_is_read_to_the_end_before_it_is_restored() -> None:
    bench, alone = reading(n_seq_max=2)
    bench.step(2)
    assert alone.plan and not alone.plan.must_read_all  # type: ignore[attr-defined]
    bench.submit("b", tokens(10, seed=4), max_tokens=20)
    bench.step(3)
    assert alone.plan.must_read_all  # type: ignore[attr-defined]
    alone.plan.ready = True  # type: ignore[misc]
    bench.run()
    assert bench.results["a"].done.cache.restored_tokens == 999


def test_what_could_not_begin_reads_when_it_is_its_turn_and_holds_up_nobody() -> None:
    """Too many were reading when it came: no more begin than sequences are free."""
    bench = Bench(n_seq_max=3, store=True)
    bench.store.saved.append(HEAD)
    bench.submit("b", tokens(10, seed=4), max_tokens=50)
    bench.step()
    bench.store.are_ready = False
    late = [bench.prepare(str(i), [*HEAD, i + 1], max_tokens=2, cache="read") for i in range(3)]
    for generation in late:
        assert generation.plan
        generation.plan.has_begun, generation.plan.ready = False, True  # type: ignore[misc]
        bench.engine.submit(generation)
    bench.step(3)
    assert [g.plan and (g.plan.has_begun, g.plan.ready) for g in late] == [(True, False), (True, False), (False, True)]
    assert len(bench.results["b"].tokens) == 4, "who runs goes on"
    for generation in late[:2]:
        assert generation.plan and generation.plan.must_read_all  # type: ignore[attr-defined]
        generation.plan.ready = True  # type: ignore[misc]
    bench.store.are_ready = True
    bench.run()
    assert [bench.results[str(i)].done.cache.restored_tokens for i in range(2)] == [1000, 1000]
    assert bench.results["2"].is_over


def test_of_two_that_could_start_at_once_the_second_reads_to_the_end_first() -> None:
    bench = Bench(n_seq_max=2, store=True)
    other = tokens(1000, seed=8)
    bench.store.saved += [HEAD, other]
    first, second = bench.prepare("a", HEAD, max_tokens=9), bench.prepare("b", other, max_tokens=2)
    for generation in (first, second):
        bench.engine.submit(generation)
    assert second.plan is not None
    plan = second.plan
    bench.step()
    assert plan.must_read_all  # type: ignore[attr-defined]
    bench.run()


def test_the_store_is_asked_again_after_a_wait() -> None:
    bench = Bench(n_seq_max=1, store=True)
    bench.submit("a", HEAD, max_tokens=3)
    bench.submit("b", tokens(300, seed=3), max_tokens=3)
    bench.submit("c", [*HEAD, 5], max_tokens=3)
    bench.run()
    assert bench.results["c"].done.cache.kind == "exact"


def test_plans_of_requests_that_never_start_are_released() -> None:
    bench = Bench(n_seq_max=1, store=True)
    bench.store.saved.append(HEAD)
    bench.submit("busy", tokens(10, seed=4), max_tokens=50)
    bench.step()
    bench.submit("cancelled", HEAD)
    bench.submit("turned away", HEAD, on_full="error")
    bench.step()
    bench.engine.cancel("cancelled")
    bench.run()
    assert bench.store.plans["found"] == bench.store.plans["released"] == 2


def test_what_was_found_for_those_that_wait_is_kept_while_they_do() -> None:
    bench = Bench(n_seq_max=1, store=True)
    bench.store.saved.append(HEAD[:600])
    bench.submit("long", tokens(30, seed=3), max_tokens=200)
    bench.step()
    bench.submit("waits", HEAD, max_tokens=2)
    for _ in range(10):
        bench.clock.now += 1.0
        bench.step()
    assert bench.store.kept == [[600]] * 3
    bench.run()
    n_kept = len(bench.store.kept)
    bench.clock.now += 60.0
    bench.step()
    assert len(bench.store.kept) == n_kept, "nobody waits any more"
