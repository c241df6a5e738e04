"""Gates, resume rules and eviction order: plain functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.config import Policy
from barrel_inference.kvcache.policy import (
    HALF_LIFE_S,
    Facts,
    Rate,
    cold_limit,
    cold_resume,
    is_worth,
    save_limit,
    score,
    state_stops,
    victims,
    whole_blocks,
)
from barrel_inference.kvcache.record import Name
from barrel_inference.kvcache.tier import Stored


@pytest.mark.parametrize(
    ("policy", "n_prompt", "limit"),
    [
        (Policy(), 63, 0),
        (Policy(), 64, 64),
        (Policy(), 1000, 1000),
        (Policy(min_tokens=200, cold_min_tokens=200), 199, 0),
        (Policy(cold_max_tokens=300), 1000, 256),
        (Policy(boundary_trim_tokens=50), 1000, 896),
        (Policy(boundary_trim_tokens=5000), 1000, 0),
    ],
)
def test_how_far_a_prompt_is_saved(policy: Policy, n_prompt: int, limit: int) -> None:
    assert cold_limit(policy, n_prompt) == limit


def test_a_prompt_is_saved_in_blocks_and_to_its_end() -> None:
    assert [save_limit(Policy(), 1000, n, 0, 0)[0] for n in (63, 200, 999, 1000)] == [0, 192, 960, 1000]
    assert save_limit(Policy(), 1000, 1000, 0, 100)[0] == 960, "window rows would be written twice"
    assert save_limit(Policy(boundary_trim_tokens=1), 1000, 1000, 0, 0)[0] == 960
    assert save_limit(Policy(cold_max_tokens=999), 1000, 1000, 0, 0)[0] == 960
    assert save_limit(Policy(), 63, 63, 0, 0)[0] == 0


def test_generation_is_saved_at_intervals() -> None:
    policy = Policy(continued_interval=128)
    assert save_limit(policy, 100, 191, 64, 0) == (64, "continued")
    assert save_limit(policy, 100, 192, 64, 0) == (192, "continued")
    assert save_limit(policy, 100, 128, 64, 50) == (128, "continued")


@pytest.mark.parametrize("n_swa", [16, 64, 100, 128, 200, 256])
def test_a_block_is_saved_while_its_rows_are_in_the_window_wherever_its_tail_ended(n_swa: int) -> None:
    saved = 127
    for n in range(saved + 1, 1000):
        limit, _ = save_limit(Policy(), 120, n, saved, n_swa)
        if limit > saved:
            first_end = whole_blocks(saved) + 64
            assert n - n_swa <= max(whole_blocks(saved), first_end - n_swa), "its rows are still there"
            saved = limit
    assert saved > 700


def test_states_are_wanted_at_message_ends_distances_and_the_last_block() -> None:
    policy = Policy(boundary_align_tokens=256)
    assert state_stops(policy, 1000, (130, 131, 700)) == (128, 256, 512, 640, 768, 960)
    assert state_stops(policy, 64, ()) == ()
    assert state_stops(policy, 65, ()) == (64,)


@given(st.integers(1, 3000), st.integers(0, 3000))
def test_a_cold_resume_leaves_the_rows_that_a_cold_run_would_have(n_prompt: int, available: int) -> None:
    at = cold_resume(available, n_prompt)
    assert 0 <= at <= min(available, n_prompt - 1)
    start, end = at // 256 * 256, min(at // 256 * 256 + 256, n_prompt)
    assert at % 64 == 0
    if end - start >= 64:
        assert end - at >= 64
    else:
        assert at == start


def test_worth_and_rates() -> None:
    assert is_worth(100, 0.0, 1e9)
    assert is_worth(100, 0.01, 0.9)
    assert not is_worth(100, 0.01, 1.1)
    rate = Rate()
    rate.add(1.0, 100, 5.0)
    assert (rate.value, rate.at) == (0.01, 5.0)
    rate.add(2.0, 100, 6.0)
    assert 0.01 < rate.value < 0.02


def test_score_orders_by_worth() -> None:
    assert score(2, 0, 0, 10) > score(1, 0, 0, 10)
    assert score(1, 0, 3, 10) > score(1, 0, 0, 10)
    assert score(1, HALF_LIFE_S, 0, 10) == pytest.approx(score(1, 0, 0, 10) / 2)
    assert score(1, 0, 100, 10) == score(1, 0, 8, 10)
    assert score(1, -HALF_LIFE_S, 0, 10) == score(1, HALF_LIFE_S, 0, 10), "the clock was set back since"


def stored(parent: int, key: int, *, used_at: float = 0.0, namespace: str = "n", size: int = 10) -> Stored:
    return Stored(namespace, Name(f"{parent:032x}", f"{key:032x}", "block", "p"), size, used_at)


def names(chosen: object) -> list[int]:
    return [int(one.name.key, 16) for one in chosen]  # type: ignore[attr-defined]


def test_leaves_go_first_then_their_parents() -> None:
    chain = [stored(0, 1), stored(1, 2), stored(2, 3)]
    assert names(victims(chain, 25, now=0, facts=lambda one: Facts(1.0, 0), hits={})) == [3, 2, 1]
    assert names(victims(chain, 10, now=0, facts=lambda one: Facts(1.0, 0), hits={})) == [3]


def test_made_up_circles_go_as_well_and_hold_nothing() -> None:
    """1 and 2 are each other's parents, 5 is its own; 4 belongs to 2, and 6 is the parent of 5."""
    tied = [stored(2, 1), stored(1, 2), stored(2, 4), stored(5, 5), stored(0, 6), stored(6, 5)]
    one_by_one = victims(tied, 100, now=0, facts=lambda one: Facts(1.0, 0), hits={})
    assert sorted(names(one_by_one)) == [1, 2, 4, 5, 5, 6]
    protected = {f"{4:032x}"}
    kept = victims(tied, 100, now=0, facts=lambda one: Facts(1.0, 0), hits={}, protected=protected)
    assert sorted(names(kept)) == [1, 5, 5, 6], "a child that stays keeps its parent"


def test_cheap_and_old_first_pinned_last_protected_never() -> None:
    flat = [stored(0, 1, used_at=0), stored(0, 2, used_at=1000), stored(0, 3, used_at=2000), stored(0, 4, used_at=3000)]
    key = {i: f"{i:032x}" for i in range(5)}
    chosen = victims(
        flat,
        100,
        now=5000,
        facts=lambda one: Facts(1.0, 0),
        hits={key[2]: 8},
        pinned={key[1]},
        protected={key[3]},
    )
    assert names(chosen) == [4, 2, 1]


def test_fresh_ones_stay_and_orphans_go_first() -> None:
    flat = [stored(0, 1), stored(0, 2, used_at=95), stored(9, 3, used_at=50)]
    chosen = victims(
        flat, 100, now=100, facts=lambda one: Facts(1.0, 64 * (one.name.parent != f"{0:032x}")), hits={}, fresh_s=10
    )
    assert names(chosen) == [3, 1]


def test_what_is_dated_in_the_future_is_not_fresh() -> None:
    """The clock was set back since: it must not stay until the clock is there again."""
    flat = [stored(0, 1, used_at=1e9), stored(0, 2, used_at=95)]
    assert names(victims(flat, 100, now=100, facts=lambda one: Facts(1.0, 0), hits={}, fresh_s=10)) == [1]


def test_what_is_fresh_does_not_displace_what_is_pinned_or_hit_and_worth_more() -> None:
    key = {i: f"{i:032x}" for i in range(5)}
    flat = [stored(0, 1), stored(0, 2), stored(0, 3), stored(0, 4, used_at=HALF_LIFE_S)]
    chosen = victims(
        flat,
        100,
        now=HALF_LIFE_S,
        facts=lambda one: Facts(1.0, 0),
        hits={key[2]: 8},
        pinned={key[3]},
        fresh_s=10,
    )
    assert names(chosen) == [1], "the fourth is the fresh one; the second was hit"


def test_no_namespace_falls_below_its_floor() -> None:
    flat = [stored(0, i, used_at=0, namespace="a") for i in range(1, 4)]
    flat += [stored(0, i, used_at=99, namespace="b") for i in range(4, 7)]
    chosen = names(victims(flat, 60, now=100, facts=lambda one: Facts(1.0, 0), hits={}, floors={"a": 20, "b": 10}))
    assert len([key for key in chosen if key < 4]) == 1
    assert len([key for key in chosen if key >= 4]) == 2


def test_a_block_takes_its_window_with_it() -> None:
    block = stored(0, 1)
    window = block._replace(name=block.name._replace(kind="window"))
    assert list(victims([block, window], 1, now=0, facts=lambda one: Facts(1.0, 0), hits={})) == [block, window]
