"""Who starts when, in which sequence, sharing whose prefix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.engine.kvstore import KVStore
from barrel_inference.engine.requests.prefix import common_prefix
from tests.engine.fakes import Bench, FakeBackend, tokens

HEAD = tokens(1000)


@given(st.lists(st.integers(0, 1), max_size=60), st.lists(st.integers(0, 1), max_size=60))
def test_common_prefix(a: list[int], b: list[int]) -> None:
    n = common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


def test_the_next_turn_of_a_conversation_goes_on_in_place() -> None:
    bench = Bench(n_seq_max=2)
    first = bench.complete(HEAD, max_tokens=10)
    second = bench.complete([*HEAD, *first.tokens, 1, 2, 3], max_tokens=10)
    assert (second.cache.kind, second.cache.tier) == ("live", "live")
    assert second.cache.restored_tokens == second.usage.cached_tokens == 1009
    assert second.cache.prefilled_tokens == 4
    assert bench.backend.copies == []
    assert second.tokens == Bench().complete([*HEAD, *first.tokens, 1, 2, 3], max_tokens=10).tokens


def test_the_same_prompt_again_decodes_one_token() -> None:
    bench = Bench(n_seq_max=1)
    first = bench.complete(HEAD, max_tokens=10)
    again = bench.complete(HEAD, max_tokens=10)
    assert again.tokens == first.tokens
    assert (again.cache.restored_tokens, again.cache.first_mismatch) == (999, None)


def test_an_edit_in_the_middle_reuses_what_is_before_it() -> None:
    bench = Bench(n_seq_max=1)
    bench.complete(HEAD, max_tokens=10)
    edited = [*HEAD[:500], 255 - HEAD[500], *HEAD[501:]]
    done = bench.complete(edited, max_tokens=10)
    assert (done.cache.restored_tokens, done.cache.first_mismatch) == (500, 500)
    assert done.tokens == Bench().complete(edited, max_tokens=10).tokens


class Uncuttable(FakeBackend):
    """Has a memory that cannot be cut, and nothing says so before it is tried."""

    def seq_remove(self, seq: int, start: int, stop: int) -> bool:
        return super().seq_remove(seq, start, stop) if not start else False


def test_mistake_11_what_cannot_be_cut_is_read_again() -> None:
    bench = Bench()
    backend = Uncuttable(bench.clock, n_seq_max=1)
    bench.run_on(backend, KVStore(backend)).backend = backend
    bench.complete(HEAD, max_tokens=10)
    edited = [*HEAD[:500], 255 - HEAD[500], *HEAD[501:]]
    done = bench.complete(edited, max_tokens=10)
    assert (done.cache.kind, done.cache.restored_tokens, backend.rebuilds) == ("cold", 0, 0)
    assert done.tokens == Bench().complete(edited, max_tokens=10).tokens


def test_a_branch_is_copied_so_that_the_donor_keeps_its_tail() -> None:
    bench = Bench(n_seq_max=3)
    bench.complete([*HEAD, 1, 2, 3], max_tokens=5)
    bench.complete([*HEAD, 4, 5, 6], max_tokens=5)
    assert bench.backend.copies == [(0, 1, 0, 1000)]
    again = bench.complete([*HEAD, 1, 2, 3], max_tokens=5)
    assert again.cache.restored_tokens == 1002


def test_running_sequences_are_donors_too() -> None:
    bench = Bench(n_seq_max=2)
    bench.submit("a", HEAD, max_tokens=100)
    bench.step(10)
    bench.submit("b", [*HEAD, 7], max_tokens=10)
    bench.run()
    assert bench.results["b"].done.cache.restored_tokens == 1000
    assert bench.results["b"].done.tokens == Bench().complete([*HEAD, 7], max_tokens=10).tokens


def test_eight_requests_with_one_head_read_it_once() -> None:
    bench = Bench(n_seq_max=4)
    for i in range(8):
        bench.submit(str(i), [*HEAD, i + 1, i + 2], max_tokens=20)
    bench.run()
    assert bench.engine.counters()["prefilled_tokens"] <= 1002 + 7 * 2
    for i in range(8):
        assert bench.results[str(i)].done.tokens == Bench().complete([*HEAD, i + 1, i + 2], max_tokens=20).tokens
    assert [bench.results[str(i)].cache.kind for i in range(8)] == ["cold"] + ["live"] * 7


def test_n_equal_prompts_share_all_but_the_last_token() -> None:
    bench = Bench(n_seq_max=3)
    for i in range(3):
        bench.submit(str(i), HEAD, max_tokens=10, temperature=0.9)
    bench.run()
    assert bench.engine.counters()["prefilled_tokens"] == 1002


def test_who_waits_for_a_reader_starts_when_the_reader_is_cancelled() -> None:
    bench = Bench(n_seq_max=2)
    bench.submit("a", HEAD, max_tokens=10)
    bench.submit("b", [*HEAD, 1], max_tokens=10)
    bench.step(2)
    assert bench.engine.snapshot().queued == 1
    bench.engine.cancel("a")
    bench.run()
    assert bench.results["b"].done.cache.restored_tokens == 512
    assert bench.results["b"].done.tokens == Bench().complete([*HEAD, 1], max_tokens=10).tokens


def test_waiting_for_a_reader_does_not_block_those_behind() -> None:
    bench = Bench(n_seq_max=2)
    bench.submit("a", HEAD, max_tokens=50)
    bench.submit("b", [*HEAD, 1], max_tokens=5)
    bench.submit("c", tokens(10, seed=9), max_tokens=5)
    bench.step(1)
    assert bench.results["c"].start == 0 and bench.results["b"].start is None
    bench.run()
    assert bench.results["b"].done.cache.restored_tokens == 1000


def test_a_short_common_head_is_not_waited_for() -> None:
    bench = Bench(n_seq_max=2)
    bench.submit("a", tokens(1000), max_tokens=5)
    bench.submit("b", [*tokens(1000)[:50], *tokens(100, seed=5)], max_tokens=5)
    bench.step(1)
    assert bench.results["b"].start == 0


def test_first_come_first_served() -> None:
    bench = Bench(n_seq_max=2)
    for i in range(12):
        bench.submit(str(i), tokens(100, seed=i), max_tokens=4)
    bench.run()
    assert [r for r in bench.results if bench.results[r].start is not None] == [str(i) for i in range(12)]


def test_the_sequence_unused_longest_is_recycled() -> None:
    bench = Bench(n_seq_max=2)
    bench.complete(tokens(100, seed=1), max_tokens=1)
    bench.complete(tokens(100, seed=2), max_tokens=1)
    bench.complete(tokens(100, seed=1), max_tokens=1)
    bench.complete(tokens(100, seed=3), max_tokens=1)
    assert bench.complete(tokens(100, seed=1), max_tokens=1).cache.kind == "live"


@pytest.mark.parametrize(("first", "second"), [("off", "auto"), ("auto", "off"), ("read", "auto"), ("auto", "write")])
def test_cache_modes_keep_requests_apart(first: str, second: str) -> None:
    bench = Bench(n_seq_max=2, store=True)
    bench.complete(HEAD, max_tokens=5, cache=first)
    assert bench.store.plans["finish"] == (first == "auto")
    assert bench.complete(HEAD, max_tokens=5, cache=second).cache.kind == "cold"


def test_salts_keep_tenants_apart() -> None:
    bench = Bench(n_seq_max=2)
    bench.complete(HEAD, max_tokens=5, salt="a")
    assert bench.complete(HEAD, max_tokens=5, salt="b").cache.kind == "cold"
    assert bench.complete(HEAD, max_tokens=5, salt="a").cache.kind == "live"


def test_nobody_waits_for_what_another_tenant_reads() -> None:
    """It could not be shared, and the wait would tell what the other one asks."""
    bench = Bench(n_seq_max=2)
    bench.submit("a", HEAD, max_tokens=5, salt="a")
    bench.step()
    bench.submit("b", HEAD, max_tokens=5, salt="b")
    bench.step()
    assert bench.results["b"].start == 0


# ---- memories that cannot be cut


def test_a_recurrent_memory_is_shared_only_whole() -> None:
    bench = Bench(n_seq_max=2, is_recurrent=True)
    first = bench.complete(HEAD, max_tokens=10)
    assert bench.complete(HEAD, max_tokens=10).cache.kind == "cold"
    more = bench.complete([*HEAD, *first.tokens, 1], max_tokens=10)
    assert more.cache.restored_tokens == 1009


def test_a_reader_stops_where_another_waits_to_share_a_recurrent_memory() -> None:
    bench = Bench(n_seq_max=2, is_recurrent=True)
    bench.submit("a", [*HEAD, 1, 2], max_tokens=30)
    bench.submit("b", [*HEAD, 3, 4], max_tokens=10)
    bench.run()
    assert bench.results["b"].done.cache.restored_tokens == 1000
    assert bench.results["b"].done.tokens == Bench().complete([*HEAD, 3, 4], max_tokens=10).tokens


def test_a_sliding_window_is_shared_only_while_it_reaches_back() -> None:
    bench = Bench(n_seq_max=2, n_swa=100)
    bench.complete(HEAD, max_tokens=50)
    assert bench.complete([*HEAD[:600], 1], max_tokens=10).cache.kind == "cold"
    assert bench.complete([*HEAD[:601], 1], max_tokens=10).cache.kind == "cold"


# ---- the store


def test_prefill_stops_where_the_store_wants_a_state() -> None:
    bench = Bench(n_seq_max=1, store=True)
    bench.store.stop_at = (100, 300)
    bench.complete(tokens(600), max_tokens=1)
    assert [feed[0] for feed in bench.fed()] == [100, 156, 44, 212, 88]


# ---- cold


def test_cold_exact_leaves_the_shapes_of_a_cold_run() -> None:
    bench = Bench(n_seq_max=2, exact="cold", store=True)
    bench.complete(tokens(50, seed=8), max_tokens=3)
    bench.complete(HEAD, max_tokens=3)
    assert sum(bool(kv) for kv in bench.backend.kv.values()) == 1  # nothing else takes cells


def test_cold_exact_shares_prefilled_rows_of_running_sequences_only_at_allowed_positions() -> None:
    bench = Bench(n_seq_max=2, exact="cold")
    bench.submit("a", HEAD, max_tokens=50)
    bench.step(8)
    bench.submit("b", [*HEAD, 1], max_tokens=3)
    bench.run()
    assert bench.results["b"].done.cache.restored_tokens == 896  # 1001 - 64 - … down to a multiple of 64


# ---- sessions


def test_a_session_keeps_its_sequence() -> None:
    bench = Bench(n_seq_max=2)
    first = bench.complete(HEAD, max_tokens=5, session="s")
    for i in range(4):
        bench.complete(tokens(100, seed=i + 10), max_tokens=1)
    done = bench.complete([*HEAD, *first.tokens], max_tokens=5, session="s")
    assert done.cache.restored_tokens == 1004
    bench.engine.end_session("s")
    for i in range(2):
        bench.complete(tokens(100, seed=i + 20), max_tokens=1)
    assert bench.complete([*HEAD, *first.tokens], max_tokens=5).cache.kind == "cold"


def test_a_session_is_served_one_request_at_a_time_and_in_its_own_sequence() -> None:
    bench = Bench(n_seq_max=3)
    bench.submit("1", HEAD, max_tokens=20, session="s")
    bench.submit("2", tokens(30, seed=3), max_tokens=20, session="s")
    bench.step(3)
    assert bench.engine.snapshot().queued == 1
    bench.run()
    assert {piece.seq for batch in bench.backend.batches for piece in batch} == {0}


def test_who_would_not_queue_is_told_what_is_in_use() -> None:
    bench = Bench(n_seq_max=2)
    for name in "ab":
        bench.submit(name, HEAD, max_tokens=20, session="s", on_full="error")
    bench.submit("c", tokens(30, seed=3), max_tokens=20, on_full="error")
    bench.submit("d", tokens(30, seed=4), max_tokens=20, on_full="error")
    bench.run()
    errors = {name: str(result.error) for name, result in bench.results.items() if result.error}
    assert errors == {
        "b": "session 's' is busy: it serves one request at a time",
        "d": "all 2 sequences are in use",
    }


def test_idle_sessions_never_keep_a_request_waiting() -> None:
    bench = Bench(n_seq_max=2)
    bench.complete(HEAD, max_tokens=5, session="s")
    bench.complete(tokens(100, seed=2), max_tokens=5, session="t")
    assert bench.complete(tokens(100, seed=3), max_tokens=5).finish_reason == "length"
    assert bench.complete(tokens(100, seed=2), max_tokens=5, session="t").cache.kind == "live"


def test_what_was_not_saved_gets_another_chance_when_its_sequence_is_recycled() -> None:
    bench = Bench(n_seq_max=1, store=True)
    bench.complete(HEAD, max_tokens=5)
    bench.store.saved.clear()  # dropped by a writer that was too busy
    bench.complete(tokens(50, seed=2), max_tokens=5)
    assert bench.store.plans["evict"] == 1
    assert bench.complete(HEAD, max_tokens=5).cache.kind == "exact"


def test_who_reads_is_not_passed_by_for_ever() -> None:
    bench = Bench(n_seq_max=1, store=True)
    bench.store.saved.append(HEAD)
    bench.submit("busy", tokens(10, seed=4), max_tokens=10)
    bench.step()
    generation = bench.prepare("reads", [*HEAD, 1, *tokens(100, seed=6)], max_tokens=2)
    bench.engine.submit(generation)
    bench.store.are_ready = False
    for i in range(5):
        bench.submit(str(i), tokens(10, seed=10 + i), max_tokens=4)
    plans = []
    for _ in range(20):
        bench.step()
        plans.append(generation.plan)
    assert len({id(plan) for plan in plans}) <= 2  # what it found on arrival, and once more
    assert generation.plan
    generation.plan.ready = True  # type: ignore[misc]
    bench.run()
    started = [request_id for request_id, result in bench.results.items() if result.start is not None]
    assert started.index("reads") < 6
    assert bench.results["reads"].done.cache.restored_tokens == 1000
