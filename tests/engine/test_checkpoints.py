"""Saving and restoring through the store, on a backend whose every logit depends on every byte of the state."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from barrel_inference.config import Policy
from barrel_inference.engine.checkpoints import open_checkpoints
from barrel_inference.engine.sequence import Sequence
from barrel_inference.errors import ConfigError, TierUnusableError
from tests.kvcache.fake_backend import FakeBackend
from tests.kvcache.harness import Run, Runner, open_on, options, same, spec

PROMPT = list(range(10, 510))


def runner(path: Path, kind: str = "plain", *, policy: Policy | None = None, **facts: object) -> Runner:
    backend = FakeBackend(kind, **facts)
    return Runner(backend, open_on(backend, options(spec(path), policy=policy)))


def cold(kind: str, prompt: list[int], n_generate: int = 0, forced: list[int] | None = None, **facts: object) -> Run:
    backend = FakeBackend(kind, **facts)
    return Runner(backend, open_on(backend, options())).run(prompt, n_generate, forced=forced)


LAYOUTS = [
    ("plain", {}),
    ("plain", {"v_trans": True}),
    ("swa", {"n_swa": 100}),
    ("swa", {"n_swa": 16}),
    ("swa", {"n_swa": 64, "v_trans": True}),
    ("recurrent", {}),
    ("hybrid", {}),
    ("hybrid", {"v_trans": True}),
    ("hybrid_swa", {"n_swa": 100}),
    ("whole", {}),
]


@pytest.mark.parametrize(("kind", "facts"), LAYOUTS)
def test_a_restart_restores_and_goes_on_exactly(tmp_path: Path, kind: str, facts: dict[str, object]) -> None:
    first = runner(tmp_path, kind, **facts)
    answer = first.run(PROMPT, 100)
    first.checkpoints.close()
    assert answer.finish_key is not None

    again = runner(tmp_path, kind, **facts)
    prompt = [*answer.tokens, 7, 8, 9]
    warm = again.run(prompt, 3)
    assert warm.restored == len(answer.tokens)
    assert same(warm, cold(kind, prompt, 3, **facts))
    again.checkpoints.close()


@pytest.mark.parametrize(("kind", "facts"), LAYOUTS)
def test_the_same_prompt_again_restores_nearly_all(tmp_path: Path, kind: str, facts: dict[str, object]) -> None:
    one = runner(tmp_path, kind, **facts)
    first = one.run(PROMPT, 2)
    second = one.run(PROMPT, 2)
    assert second.restored >= (len(PROMPT) - 1) // 64 * 64
    assert same(first, second)


@pytest.mark.parametrize(("kind", "facts"), [layout for layout in LAYOUTS if layout[0] in ("plain", "swa")])
def test_an_edit_keeps_everything_before_it(tmp_path: Path, kind: str, facts: dict[str, object]) -> None:
    one = runner(tmp_path, kind, **facts)
    one.run(PROMPT, 2)
    edited = [*PROMPT[:300], 999, *PROMPT[301:]]
    warm = one.run(edited, 2)
    assert warm.restored == (300 if facts.get("n_swa", 64) >= 64 else 256)
    assert same(warm, cold(kind, edited, 2, **facts))
    plan = one.checkpoints.find([*PROMPT[:300], 998, *PROMPT[301:]])
    assert plan.first_mismatch == 300
    one.checkpoints.release(plan)


@pytest.mark.parametrize("kind", ["recurrent", "hybrid", "hybrid_swa"])
def test_states_are_kept_at_message_ends(tmp_path: Path, kind: str) -> None:
    facts = {"n_swa": 100} if kind == "hybrid_swa" else {}
    one = runner(tmp_path, kind, policy=Policy(boundary_align_tokens=256), **facts)
    one.run(PROMPT, 2, boundaries=(200,))
    for differs_at, restored in ((499, 448), (400, 256), (250, 192), (100, 0)):
        edited = [*PROMPT[:differs_at], 999, *PROMPT[differs_at + 1 :]]
        warm = one.run(edited, 1, cache="read")
        assert warm.restored == restored
        assert same(warm, cold(kind, edited, 1, **facts))


@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
def test_states_of_two_ends_in_one_block_are_told_apart(tmp_path: Path, kind: str) -> None:
    """By their tokens: at the same position, behind the same block."""
    one = runner(tmp_path, kind)
    ends = [[*PROMPT[:192], *range(start, start + 8)] for start in (600, 700, 800)]
    for prompt in ends[:2]:
        one.run(prompt)
    for prompt, restored in zip(ends, (200, 200, 192), strict=True):
        warm = one.run([*prompt, 5], 2, cache="read")
        assert warm.restored == restored
        assert same(warm, cold(kind, [*prompt, 5], 2))
    assert one.checkpoints.counters["corrupt"] == 0


@pytest.mark.parametrize(("kind", "facts"), LAYOUTS)
def test_nothing_is_written_twice(tmp_path: Path, kind: str, facts: dict[str, object]) -> None:
    one = runner(tmp_path, kind, **facts)
    turn = one.run(PROMPT, 70)
    written = one.checkpoints.counters["saved_bytes"]
    one.run(PROMPT, 70)
    assert one.checkpoints.counters["saved_bytes"] == written
    one.run([*turn.tokens, *range(64)], 0)
    assert one.checkpoints.counters["saved_bytes"] < 3 * written


def test_generated_blocks_are_saved_while_generating(tmp_path: Path) -> None:
    one = runner(tmp_path, policy=Policy(continued_interval=128))
    one.run(PROMPT, 300)
    assert one.checkpoints.counters["saves_continued"] == 4
    assert one.checkpoints.counters["saves_cold"] == 8
    assert one.checkpoints.counters["saves_finish"] >= 1


@pytest.mark.parametrize(("kind", "restored"), [("plain", 290), ("swa", 290), ("recurrent", 256), ("hybrid", 256)])
def test_no_more_than_the_context_size_is_kept_and_restored(tmp_path: Path, kind: str, restored: int) -> None:
    facts = {"n_swa": 100} if kind == "swa" else {}

    def limited(context_size: int | None) -> Runner:
        backend = FakeBackend(kind, **facts)
        return Runner(backend, open_on(backend, options(spec(tmp_path), context_size=context_size)))

    first = limited(300)
    assert first.run(PROMPT[:290], 2).finish_key is not None
    assert first.run(PROMPT[290:] + PROMPT[:290], 2).finish_key is None
    first.checkpoints.close()
    other = limited(None)
    assert other.run(PROMPT, 2).restored == restored
    assert other.run(PROMPT[290:] + PROMPT, 2, cache="read").restored <= 300
    assert other.run(PROMPT, 2).restored > 300
    other.checkpoints.close()
    assert limited(300).run(PROMPT, 2).restored <= 300


def test_gates(tmp_path: Path) -> None:
    policy = Policy(min_tokens=100, cold_min_tokens=200, cold_max_tokens=256, boundary_trim_tokens=32)
    one = runner(tmp_path, policy=policy)
    assert one.run(PROMPT[:90]).finish_key is None
    assert one.checkpoints.counters["saved_bytes"] == 0
    one.run(PROMPT[:150])
    assert one.checkpoints.counters["saves_cold"] == 0
    assert one.checkpoints.counters["saves_finish"] == 3
    one.run([5, *PROMPT])
    assert one.checkpoints.counters["saves_cold"] == 4


@pytest.mark.parametrize(("kind", "crashed", "again"), [("plain", 128, 499), ("recurrent", 0, 0)])
@pytest.mark.parametrize("policy", [Policy(cold_max_tokens=128), Policy(boundary_trim_tokens=len(PROMPT) - 128)])
def test_the_keys_of_cold_saves_hold_until_the_end_of_the_sequence(
    tmp_path: Path, policy: Policy, kind: str, crashed: int, again: int
) -> None:
    """A crash leaves what was written while the prompt was read. Any other end saves the rest, but not the states that
    were passed: only what continues the whole is then a hit."""
    one = runner(tmp_path, kind, policy=policy)
    sequence = Sequence(0, n_prompt=len(PROMPT), stops=one.checkpoints.stops(len(PROMPT), ()))
    one._prefill(sequence, PROMPT)
    assert one.checkpoints.flush(30.0)
    assert one.checkpoints.lookup(PROMPT).cached_tokens == crashed
    one.checkpoints.finish(sequence, "finish")
    assert one.checkpoints.flush(30.0)
    assert one.checkpoints.lookup(PROMPT).cached_tokens == again
    assert one.checkpoints.lookup([*PROMPT, 5]).cached_tokens == len(PROMPT)


@pytest.mark.parametrize("n_swa", [16, 64, 100, 200])
@pytest.mark.parametrize("n_answer", [0, 3, 30, 70])
@pytest.mark.parametrize(
    "policy",
    [Policy(cold_max_tokens=128), Policy(boundary_trim_tokens=100), Policy(cold_min_tokens=1000)],
    ids=["most", "trim", "least"],
)
def test_keys_of_cold_saves_cost_no_window_row_that_the_end_needs(
    tmp_path: Path, policy: Policy, n_answer: int, n_swa: int
) -> None:
    """Or all of the prompt would be read again in the next turn."""
    one = runner(tmp_path, "swa", policy=policy, n_swa=n_swa)
    run = one.run(PROMPT, n_answer)
    assert one.run([*run.tokens, 5], cache="read").restored == len(run.tokens)


def test_a_prompt_too_short_to_be_kept_is_not_kept_for_its_window(tmp_path: Path) -> None:
    one = runner(tmp_path, "swa", policy=Policy(min_tokens=501, cold_min_tokens=501), n_swa=100)
    assert one.run(PROMPT[:500]).finish_key is None
    assert one.checkpoints.counters["saved_bytes"] == 0


@pytest.mark.parametrize(
    "policy",
    [
        Policy(cold_min_tokens=10),
        Policy(cold_max_tokens=10),
        Policy(boundary_align_tokens=100),
        Policy(continued_interval=0),
        Policy(boundary_trim_tokens=-1),
        Policy(min_tokens=0),
    ],
)
def test_impossible_policies_are_refused(tmp_path: Path, policy: Policy) -> None:
    with pytest.raises(ConfigError):
        runner(tmp_path, policy=policy)


def test_cache_modes(tmp_path: Path) -> None:
    one = runner(tmp_path)
    one.run(PROMPT, cache="read")
    one.run(PROMPT, cache="off")
    assert one.run(PROMPT, cache="read").restored == 0
    one.run(PROMPT, cache="write")
    assert one.run(PROMPT, cache="off").restored == 0
    assert one.run(PROMPT, cache="read").restored == len(PROMPT) - 1


def test_a_refused_state_is_a_miss_and_leaves_the_sequence_empty(tmp_path: Path) -> None:
    one = runner(tmp_path)
    one.run(PROMPT)
    one.backend.fail_writes = True
    plan = one.checkpoints.find(PROMPT)
    assert plan.length == len(PROMPT) - 1
    assert one.checkpoints.restore(plan, 0) == 0
    assert one.backend.seq_bounds(0) == (-1, -1)


class Losing(FakeBackend):
    """Says that a state is in place, and has lost some positions of it."""

    lost: tuple[int, int] | None = None

    def state_write(self, seq: int, blob: memoryview) -> bool:
        is_written = super().state_write(seq, blob)
        if self.lost is not None:
            for cache in self._caches():
                cache.remove(seq, *self.lost)
        return is_written


@pytest.mark.parametrize(
    ("kind", "lost"),
    [
        ("plain", (498, 499)),
        ("plain", (0, 1)),
        ("swa", (498, 499)),
        ("swa", (0, 401)),  # position 499 looks back to 400
    ],
)
def test_a_state_with_other_positions_than_were_restored_is_a_miss(
    tmp_path: Path, kind: str, lost: tuple[int, int]
) -> None:
    backend = Losing(kind, n_swa=100 if kind == "swa" else 0)
    one = Runner(backend, open_on(backend, options(spec(tmp_path))))
    one.run(PROMPT)
    backend.lost = lost
    plan = one.checkpoints.find(PROMPT)
    assert plan.length == len(PROMPT) - 1
    assert one.checkpoints.restore(plan, 0) == 0
    assert one.backend.seq_bounds(0) == (-1, -1)
    assert one.checkpoints.counters["restore_failed"] == 1


def test_replay_restores_only_at_its_cuts(tmp_path: Path) -> None:
    one = runner(tmp_path)
    one.run(PROMPT)
    for cuts, free_from, length in (([0, 256], 500, 256), ([0, 100, 300], 400, 499), ([0], 600, 0)):

        def limit(at: int, cuts: list[int] = cuts, free_from: int = free_from) -> int:
            return at if at >= free_from else max(cut for cut in cuts if cut <= at)

        plan = one.checkpoints.find(PROMPT, limit=limit)
        assert plan.length == length
        one.checkpoints.release(plan)


def test_a_shorter_find_than_wanted_is_a_miss(tmp_path: Path) -> None:
    one = runner(tmp_path)
    one.run(PROMPT[:300])
    assert one.checkpoints.find(PROMPT, at_least=300).length == 0
    plan = one.checkpoints.find(PROMPT, at_least=299)
    assert plan.length == 300
    one.checkpoints.release(plan)


@pytest.mark.parametrize(("salt", "is_read"), [("a", False), ("b", True)])
def test_what_the_context_holds_is_not_read_ahead_unless_it_is_another_tenants(
    tmp_path: Path, salt: str, is_read: bool
) -> None:
    one = runner(tmp_path)
    one.run(PROMPT, salt="a")
    one.checkpoints.after_step(Sequence(0, tokens=list(PROMPT), salt=salt, cache="off"))
    plan = one.checkpoints.find(PROMPT, salt="a")
    assert (plan.length, plan.reading is not None) == (len(PROMPT) - 1, is_read)
    one.checkpoints.release(plan)


def test_what_may_be_shared_in_place() -> None:
    backend = FakeBackend("swa", n_swa=100)
    checkpoints = open_on(backend, options())
    Runner(backend, checkpoints)
    from barrel_inference.engine.backend import Slice

    backend.decode([Slice(0, 0, tuple(range(300)), False)], None)
    backend.decode([Slice(0, 300, tuple(range(100)), False)], None)
    sequence = Sequence(0, tokens=list(range(400)))
    assert checkpoints.shareable(sequence, 400) == 400
    assert checkpoints.shareable(sequence, 350) == 350
    assert checkpoints.shareable(sequence, 250) == 0


def test_finish_keys_stand_for_their_tokens(tmp_path: Path) -> None:
    for kind in ("plain", "recurrent", "hybrid"):
        one = runner(tmp_path, kind)
        answer = one.run(PROMPT, 5)
        assert answer.finish_key is not None
        assert one.checkpoints.tokens_behind(answer.finish_key, 1.0) == tuple(answer.tokens)
        aligned = one.run(PROMPT[:320])
        assert one.checkpoints.tokens_behind(str(aligned.finish_key), 1.0) == tuple(PROMPT[:320])
    assert one.checkpoints.tokens_behind("00" * 32) is None
    assert one.checkpoints.tokens_behind("not hex") is None


def test_a_parent_key_waits_for_its_save(tmp_path: Path) -> None:
    one = runner(tmp_path)
    answer = one.run(PROMPT, flush=False)
    plan = one.checkpoints.find([*answer.tokens, 1], parent_key=answer.finish_key)
    assert plan.length == len(PROMPT)
    one.checkpoints.release(plan)


def test_an_unusable_save_tier_fails_and_another_is_left_out(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(TierUnusableError):
        runner(blocked)
    backend = FakeBackend()
    opened = open_on(backend, options(spec(tmp_path / "good"), spec(blocked, name="bad")))
    assert opened.verdict == "exact"


def test_the_verdict_is_remembered(tmp_path: Path) -> None:
    one = runner(tmp_path)
    decoded = one.backend.n_decoded
    assert decoded > 50
    two = runner(tmp_path)
    assert two.backend.n_decoded < 10


def test_a_model_that_does_not_restore_exactly_gets_no_cache(tmp_path: Path) -> None:
    backend = FakeBackend()
    backend.fail_writes = True
    opened = open_on(backend, options(spec(tmp_path)))
    assert opened.layout == "off"
    assert "self-test" in opened.verdict
    assert opened.find(PROMPT).length == 0


class Forgetful(FakeBackend):
    """Takes every state, and loses a bit of it."""

    def state_write(self, seq: int, blob: memoryview) -> bool:
        lossy = bytearray(blob)
        lossy[-1] ^= 1
        return super().state_write(seq, memoryview(lossy))


@pytest.mark.parametrize(("kind", "facts"), LAYOUTS)
def test_a_model_that_comes_back_a_bit_different_gets_no_cache(
    tmp_path: Path, kind: str, facts: dict[str, object]
) -> None:
    for _ in range(2):  # a failure is not remembered as a success
        opened = open_on(Forgetful(kind, **facts), options(spec(tmp_path)))
        assert opened.layout == "off"
        assert "logits after a restore differ" in opened.verdict
    assert runner(tmp_path, kind, **facts).checkpoints.verdict == "exact"


def test_what_is_found_is_told_once_for_each_request(tmp_path: Path) -> None:
    """The janitor counts hits by it, and spares what somebody waits for."""
    told: list[tuple[str, tuple[str, ...]]] = []
    backend = FakeBackend()
    opened = open_checkpoints(
        backend,
        options(spec(tmp_path)),
        need_room=lambda tier, n: None,
        touched=lambda tier, keys: told.append((tier, keys)),
        clock=time.monotonic,
    )
    Runner(backend, opened).run(PROMPT)
    assert told == []
    for _ in range(2):
        opened.release(opened.find(PROMPT))
    (tier, keys), again = told
    assert tier == "disk" and (tier, keys) == again
    assert set(keys) <= {path.name[33:65] for path in tmp_path.glob("*/??/*")} and len(set(keys)) == len(keys) == 8
    opened.close()
