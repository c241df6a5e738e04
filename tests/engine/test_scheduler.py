"""The scheduler: every token once and in order, nobody skipped or starved, the same cuts whenever a prompt is alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.engine.costs import DOUBLING, LEAST, SMALL_STEP, STEP_LIMIT_S, Costs, Line, Step
from barrel_inference.engine.scheduler import (
    Feed,
    Limits,
    View,
    live_limit,
    plan,
    replay_limit,
)
from barrel_inference.kvcache.policy import SOLO_CHUNK, TILED_ROWS, cold_resume, cold_rows, is_cold_shape, solo_chunk

LIMITS = Limits(n_batch=512, chunk=128, solo_chunk=SOLO_CHUNK)


def flat(row_s: float) -> Costs:
    """Every row costs the same, whatever the size of the step and wherever it lies."""
    lines = {tiles: Line().after(0, row_s).after(4000, row_s) for tiles in range(3)}
    return Costs(prefill_s=row_s, lines=lines) if row_s else Costs()


FAST = flat(0.003)


def run(views: list[View], limits: Limits = LIMITS, costs: Costs = FAST, steps: int = 10_000) -> Iterator[list[Feed]]:
    """Play plans until every prompt has been read; decoding sequences go on for ever."""
    state = {view.seq: view for view in views}
    for step in range(1, steps):
        if all(view.position >= view.end for view in state.values()):
            return
        batch = plan(state.values(), limits, costs)
        yield batch
        for seq, count in batch:
            state[seq] = state[seq]._replace(position=state[seq].position + count, served=step)
    raise AssertionError("the prompts were never finished")


def prompt(seq: int, end: int, position: int = 0, stops: tuple[int, ...] = ()) -> View:
    return View(seq, position, end, 0, stops)


def decoder(seq: int) -> View:
    return View(seq, 10, 10, 0)


prompts = st.lists(st.integers(1, 3000), min_size=0, max_size=6)
decoders = st.integers(0, 6)
batches = st.integers(12, 600)


@given(prompts, decoders, batches, st.sampled_from([0.0, 0.0001, 0.004, 0.5]))
def test_every_prompt_token_is_fed_once_and_in_order(
    ends: list[int], n_decoding: int, n_batch: int, cost: float
) -> None:
    limits = Limits(n_batch, max(64, n_batch // 4), solo_chunk(n_batch, n_batch))
    views = [prompt(i, end) for i, end in enumerate(ends)] + [decoder(100 + i) for i in range(n_decoding)]
    fed = dict.fromkeys(range(len(ends)), 0)
    for batch in run(views, limits, flat(cost)):
        assert len({feed.seq for feed in batch}) == len(batch)
        for seq, count in batch:
            assert count > 0
            if seq < 100 and fed[seq] < ends[seq]:
                fed[seq] += count
    assert list(fed.values()) == ends  # no chunk crosses from prompt to decode


@given(prompts, decoders, batches)
def test_no_batch_exceeds_n_batch_and_no_decode_is_skipped(ends: list[int], n_decoding: int, n_batch: int) -> None:
    limits = Limits(n_batch, max(64, n_batch // 4), solo_chunk(n_batch, n_batch))
    views = [prompt(i, end) for i, end in enumerate(ends)] + [decoder(100 + i) for i in range(n_decoding)]
    for batch in run(views, limits):
        assert sum(feed.n_tokens for feed in batch) <= n_batch
        assert {100 + i for i in range(n_decoding)} <= {feed.seq for feed in batch if feed.n_tokens == 1}


@given(st.lists(st.integers(500, 3000), min_size=2, max_size=6), decoders)
def test_between_two_turns_of_a_prompt_every_other_gets_at_most_two(ends: list[int], n_decoding: int) -> None:
    views = [prompt(i, end) for i, end in enumerate(ends)] + [decoder(100 + i) for i in range(n_decoding)]
    done = [0] * len(ends)
    since: dict[int, list[int]] = {i: [] for i in range(len(ends))}
    for batch in run(views):
        for seq, count in batch:
            if seq >= 100 or done[seq] >= ends[seq]:
                continue
            done[seq] += count
            since[seq] = []
            for other, turns in since.items():
                if other != seq and done[other] < ends[other]:
                    turns.append(seq)
                    assert max(turns.count(i) for i in range(len(ends))) <= 2


@given(st.integers(1, 3000), st.integers(0, 2999), st.lists(st.integers(1, 3000), max_size=3))
def test_a_prompt_alone_is_cut_at_absolute_multiples_and_stops(end: int, start: int, stops: list[int]) -> None:
    start = min(start, end - 1)
    view = prompt(0, end, start, tuple(sorted(stops)))
    position, cuts = start, []
    for ((_, count),) in run([view]):
        position += count
        cuts.append(position)
    wanted = {cut for cut in range(SOLO_CHUNK, end, SOLO_CHUNK) if cut > start}
    assert cuts == sorted(wanted | {stop for stop in stops if start < stop < end} | {end})


@given(st.floats(0.0005, 0.02), st.integers(1, 7))
def test_while_something_decodes_a_chunk_fits_the_time_budget(cost: float, n_decoding: int) -> None:
    views = [prompt(0, 2000), *(decoder(100 + i) for i in range(n_decoding))]
    for batch in run(views, LIMITS, flat(cost)):
        tokens = sum(feed.n_tokens for feed in batch if feed.seq == 0)
        assert tokens <= LIMITS.chunk
        assert tokens <= LEAST or (tokens + n_decoding) * cost <= STEP_LIMIT_S * 1.001


def test_the_fastest_size_of_step_that_fits_is_taken() -> None:
    for costs, rows in (
        ({0: 0.008, 1: 0.004, 2: 0.003}, 128),  # 0.38 s
        ({0: 0.008, 1: 0.005, 2: 0.004}, 64),  # two tiles would take 0.51 s
        ({0: 0.009, 1: 0.009, 2: 0.008}, 48),  # one tile would take 0.58 s
        ({0: 0.015, 1: 0.009, 2: 0.008}, 16),
        ({0: 0.006, 1: 0.0065, 2: 0.006}, 48),  # fits beside 64, but small ones are faster here
        ({0: 0.100, 1: 0.100, 2: 0.100}, LEAST),
    ):
        lines = {tiles: flat(row_s).lines[tiles] for tiles, row_s in costs.items()}
        assert Costs(lines=lines).rows(1000, 129) == rows, costs


@given(st.floats(0.001, 0.004), st.floats(0, 0.5 / DOUBLING), st.integers(1, 7))
def test_once_a_size_is_known_no_step_exceeds_the_limit_however_deep(
    shallow_s: float, deeper: float, n_decoding: int
) -> None:
    """On a machine where rows cost more with depth: small steps twice, two tiles 0.8 ×."""
    costs, position, taken = Costs().after(Step(0, 1, 0.0, 0.01)), 0, []
    while position < 4000:
        view = View(0, position, 4000, 0)
        n_tokens = plan([view, *(decoder(100 + i) for i in range(n_decoding))], LIMITS, costs)[-1].n_tokens
        n_rows = n_tokens + n_decoding
        row_s = shallow_s * (1 + deeper * position * (2.0, 1.0, 0.8)[n_rows // TILED_ROWS])
        taken.append(n_rows * row_s)
        costs = costs.after(Step(n_tokens, n_decoding, position, taken[-1]))
        position += n_tokens
    assert max(taken) <= STEP_LIMIT_S * 1.02


def test_the_end_of_a_prompt_is_no_larger_than_a_small_step_may_be() -> None:
    lines = {0: flat(0.012).lines[0], 1: flat(0.0065).lines[1]}
    batch = plan([prompt(0, 2000, position=1955), decoder(1)], LIMITS, Costs(lines=lines))
    assert batch == [Feed(1, 1), Feed(0, 31)]  # all 45 would be no whole tile, and take 0.55 s


def test_what_is_not_known_is_bounded_by_what_is() -> None:
    solo = Costs().after(Step(256, 0, 0.0, 256 * 0.004))
    assert solo.rows(0, 129) == 64  # at most half more by the row: 0.38 s
    small = Costs().after(Step(31, 1, 0.0, 32 * 0.005))
    assert small.rows(0, 129) == 64  # at most as much by the row: 0.32 s
    assert small.rows(1000, 129) < 64  # three times as much, for all that is known


def test_a_line_follows_what_is_new_and_never_falls() -> None:
    line = Line()
    for depth in range(0, 2000, 64):
        line = line.after(depth, 0.004 + depth * 2e-6)
    assert line.at(0) == pytest.approx(0.004, rel=0.01)
    assert line.at(3000) == pytest.approx(0.010, rel=0.01)
    for depth in range(0, 4000, 64):
        line = line.after(depth, 0.008)
    assert line.at(0) == pytest.approx(line.at(4000), rel=0.05) == pytest.approx(0.008, rel=0.05)
    falling = Line().after(0, 0.010).after(1000, 0.001)
    assert falling.at(2000) >= falling.at(0) > 0


def test_steps_are_told_apart_by_their_whole_tiles() -> None:
    steps = [Step(256, 0, 0, 1.28), Step(0, 1, 0, 0.01), Step(31, 1, 0, 0.33), Step(3, 1, 0, 0.1)]
    costs = Costs()
    for step in steps:
        costs = costs.after(step)
    assert set(costs.lines) == {0, 4}
    assert costs.decode_s == 0.01
    assert costs.prefill_part(steps[2]) == pytest.approx(0.32)


def test_a_long_prompt_beside_a_stream_takes_chunks_that_keep_the_gap_under_half_a_second() -> None:
    first = next(run([prompt(0, 2000), decoder(1)]))
    assert first == [Feed(1, 1), Feed(0, 127)]  # 128 rows at 333 a second: 0.38 s


def test_an_unknown_cost_starts_small() -> None:
    assert next(run([prompt(0, 2000), decoder(1)], costs=Costs())) == [Feed(1, 1), Feed(0, SMALL_STEP - 1)]


@given(st.integers(1, 40))
def test_rows_that_decode_count_so_that_no_tile_is_begun_for_a_few(n_decoding: int) -> None:
    slow = Costs(lines={0: flat(0.01).lines[0], 1: flat(0.006).lines[1]})
    batch = plan([prompt(0, 2000), *(decoder(100 + i) for i in range(n_decoding))], LIMITS, slow)
    assert sum(feed.n_tokens for feed in batch) == TILED_ROWS


def test_short_prompts_fill_up_a_step_but_never_in_part() -> None:
    assert next(run([prompt(0, 400), prompt(1, 60), prompt(2, 100)])) == [Feed(0, 400), Feed(1, 60)]


def test_the_least_recently_served_prompt_goes_first() -> None:
    views = [View(0, SOLO_CHUNK, 2000, served=5), View(1, 0, 2000, served=0)]
    assert plan(views, LIMITS, FAST) == [Feed(1, SOLO_CHUNK)]


def test_a_small_batch_shrinks_the_solo_chunk() -> None:
    assert solo_chunk(40, 512) == 40
    assert solo_chunk(512, 48) == 48
    assert solo_chunk(200, 512) == 192, "whole tiles"
    assert next(run([prompt(0, 2000)], Limits(200, 64, 192))) == [Feed(0, 192)]


def test_a_step_that_would_take_long_is_shorter() -> None:
    assert (solo_chunk(2048, 2048), solo_chunk(2048, 2048, is_slow=True)) == (512, 256)
    assert solo_chunk(100, 512, is_slow=True) == 64


def test_nothing_to_do_is_an_empty_batch() -> None:
    assert plan([], LIMITS, FAST) == []


# ---- resume positions


@given(st.integers(0, 3000), st.integers(1, 3000))
def test_live_leaves_the_last_prompt_token(available: int, n_prompt: int) -> None:
    assert live_limit(available, n_prompt=n_prompt) == min(available, n_prompt - 1)


@given(st.integers(0, 3000), st.integers(1, 3000), st.sampled_from([64, 128, 192, 256]))
def test_cold_resumes_only_where_the_rest_has_cold_shapes(available: int, n_prompt: int, chunk: int) -> None:
    resume = cold_resume(available, n_prompt, chunk)
    assert 0 <= resume <= min(available, n_prompt - 1)
    end = min(resume // chunk * chunk + chunk, n_prompt)
    assert is_cold_shape(resume, end, n_prompt, chunk)
    assert min(available, n_prompt - 1) - resume < 2 * TILED_ROWS


@given(st.integers(1, 600), st.integers(1, 600), st.integers(1, 1500))
def test_whole_blocks_are_the_same_rows_whatever_the_sizes_of_batches(n_batch: int, n_ubatch: int, n: int) -> None:
    """They are kept for contexts of other sizes: always computed in tiles, or not taken for a cold run's."""
    chunk, at = solo_chunk(n_batch, n_ubatch), 0
    assert chunk <= min(n_batch, n_ubatch)
    limits = Limits(n_batch, 1, chunk)
    for (feed,) in run([prompt(0, n)], limits):
        is_in_tiles = feed.n_tokens >= TILED_ROWS
        assert is_cold_shape(at, at + feed.n_tokens, n, chunk) == (chunk >= TILED_ROWS)
        at += feed.n_tokens
        assert is_in_tiles or chunk < TILED_ROWS or (at == n and n % chunk // TILED_ROWS == 0)
    assert cold_resume(n, n + 1, chunk) == 0 or chunk >= TILED_ROWS


@given(st.integers(1, 900), st.integers(1, 400), st.integers(0, 900), st.integers(1, 900))
def test_rows_stay_cold_for_a_longer_prompt_only_where_that_computes_them_alike(
    first: int, more: int, prefill_end: int, length: int
) -> None:
    """One prompt was prefilled, and ``length`` of it is shared with one that is longer."""
    length, n = min(length, first), first + more
    kept = cold_rows(length, min(prefill_end, first), n)
    assert kept <= min(prefill_end, length)
    for row in range(kept):
        assert in_tiles(row, first) == in_tiles(row, n), row


def in_tiles(row: int, n_prompt: int) -> bool:
    start = row // SOLO_CHUNK * SOLO_CHUNK
    return min(start + SOLO_CHUNK, n_prompt) - start >= TILED_ROWS


def test_cold_reuses_all_but_a_tile_of_a_repeated_prompt() -> None:
    assert cold_resume(2048, 2048) == 1984
    assert cold_resume(2047, 2050) == 1984
    assert cold_resume(2050, 2050) == 2048
    assert cold_resume(1000, 1000) == 896


@given(st.integers(0, 3000), st.integers(1, 2000), st.integers(0, 500), st.data())
def test_replay_resumes_at_the_original_cuts(
    available: int, n_prompt: int, n_emitted: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, n_prompt - 1))
    last = n_prompt - 1 + n_emitted
    resume = replay_limit(available, n_prompt=n_prompt, last=last, start=start, chunk=256)
    assert resume <= min(available, last)
    if start < resume < n_prompt:
        assert resume % 256 == 0
    if min(available, last) >= n_prompt or available <= start:
        assert resume == min(available, last)


def test_replay_knows_the_stops_of_the_first_prefill() -> None:
    assert replay_limit(700, n_prompt=900, last=899, start=10, stops=(300, 690), chunk=256) == 690
    assert replay_limit(520, n_prompt=900, last=899, start=10, stops=(300, 690), chunk=256) == 512
    assert replay_limit(100, n_prompt=900, last=899, start=10, stops=(300, 690), chunk=256) == 10
