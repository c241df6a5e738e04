"""Failing batches are isolated, contexts rebuilt, dead workers' requests continued; always to the undisturbed text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from barrel_inference.engine.backend import DecodeStatus, Slice
from barrel_inference.errors import DecodeError, DecodeTimeoutError, KVFullError
from barrel_inference.types import Constraint, Resume, Sampling
from tests.engine.fakes import Bench, tokens

POISON = 251


def clean(n: int, seed: int) -> list[int]:
    return [token if token != POISON else 1 for token in tokens(n, seed)]


def solo(prompt: list[int], n: int) -> tuple[int, ...]:
    return Bench().complete(prompt, max_tokens=n).tokens


def fails_on_poison(status: DecodeStatus) -> Callable[[list[Slice]], DecodeStatus | None]:
    return lambda slices: status if any(POISON in piece.tokens for piece in slices) else None


def once_at(n_batch: int, status: DecodeStatus) -> Callable[[list[Slice]], DecodeStatus | None]:
    """Fail the batch of that number, once."""
    left = iter(range(n_batch))
    failed: list[bool] = []

    def fault(slices: list[Slice]) -> DecodeStatus | None:
        if next(left, None) is not None or failed:
            return None
        failed.append(True)
        return status

    return fault


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (DecodeStatus.FAILED, DecodeError),
        (DecodeStatus.ABORTED, DecodeTimeoutError),
        (DecodeStatus.NO_ROOM, KVFullError),
    ],
)
def test_who_breaks_batches_ends_alone_and_the_others_go_on_unharmed(
    status: DecodeStatus, error: type[Exception], store: bool
) -> None:
    bench = Bench(n_seq_max=4, store=store)
    bench.backend.fault = fails_on_poison(status)
    prompts = [clean(n, n) for n in (40, 300, 20)]
    for i, prompt in enumerate(prompts):
        bench.submit(str(i), prompt, max_tokens=60)
    bench.step(8)
    bench.submit("bad", [1, POISON, 2], max_tokens=60)
    bench.run()
    assert isinstance(bench.results["bad"].error, error)
    for i, prompt in enumerate(prompts):
        done = bench.results[str(i)].done
        assert done.tokens == solo(prompt, 60)
        assert done.text == bench.results[str(i)].text
    assert bench.engine.snapshot().sequences_free == 4


@pytest.mark.parametrize("status", [DecodeStatus.FAILED, DecodeStatus.ABORTED, DecodeStatus.NO_ROOM])
@pytest.mark.parametrize("at", range(0, 30, 3))
def test_a_batch_that_fails_once_changes_no_text(status: DecodeStatus, at: int) -> None:
    bench = Bench(n_seq_max=2)
    bench.submit("a", clean(40, 1), max_tokens=30)
    bench.submit("b", clean(300, 2), max_tokens=30, temperature=0.7)
    bench.submit("c", clean(60, 3), constraint=Constraint(choices=("abcdefghijklmnop",)))
    bench.backend.fault = once_at(at, status)
    bench.run()
    results = bench.results
    alone = [r for r in results.values() if r.error]
    assert len(alone) <= 1  # only when the batch held one request, which then is the one that failed
    if not results["a"].error:
        assert results["a"].done.tokens == solo(clean(40, 1), 30)
    if not results["b"].error:
        assert results["b"].done.tokens == Bench().complete(clean(300, 2), max_tokens=30, temperature=0.7).tokens
    if not results["c"].error:
        assert results["c"].done.text == "abcdefghijklmnop"


def test_a_suspect_runs_alone_until_it_is_past_the_place() -> None:
    bench = Bench(n_seq_max=3)
    for i in range(3):
        bench.submit(str(i), clean(20, i), max_tokens=20)
    bench.step(5)
    bench.backend.fault = once_at(0, DecodeStatus.FAILED)
    bench.step(1)
    assert bench.backend.rebuilds == 1
    n_failed = len(bench.backend.batches)
    bench.run()
    after = bench.backend.batches[n_failed:]
    alone = [batch[0].seq for batch in after[: next(i for i, batch in enumerate(after) if len(batch) > 1)]]
    assert sorted(set(alone)) == [0, 1, 2] and alone == sorted(alone)  # one after the other
    assert all(len(batch) == 3 for batch in after[len(alone) : -2])
    assert [bench.results[str(i)].done.tokens for i in range(3)] == [solo(clean(20, i), 20) for i in range(3)]


def test_a_rebuild_replays_those_outside_the_failed_batch_too() -> None:
    bench = Bench(n_seq_max=2)
    bench.submit("a", clean(900, 1), max_tokens=5)
    bench.submit("b", clean(900, 2), max_tokens=5)
    bench.step(2)  # one chunk of each
    bench.backend.fault = once_at(0, DecodeStatus.FAILED)
    bench.step(1)
    bench.run()
    assert isinstance(bench.results["a"].error, DecodeError)  # it was alone in its batch
    assert bench.results["b"].done.tokens == solo(clean(900, 2), 5)


def test_no_room_first_drops_idle_sequences() -> None:
    bench = Bench(n_seq_max=2)
    bench.complete(clean(100, 1), max_tokens=5)
    bench.backend.fault = lambda slices: DecodeStatus.NO_ROOM if bench.backend.kv[0] else None
    done = bench.complete(clean(100, 2), max_tokens=5)
    assert done.tokens == solo(clean(100, 2), 5)
    assert bench.engine.counters()["decode_no_room"] == 1


def test_two_that_do_not_fit_together_run_one_after_the_other() -> None:
    bench = Bench(n_seq_max=2)
    bench.backend.fault = lambda slices: (
        DecodeStatus.NO_ROOM if sum(map(len, bench.backend.kv.values())) + 1 > 150 else None
    )
    bench.submit("a", clean(60, 1), max_tokens=50)
    bench.submit("b", clean(60, 2), max_tokens=50)
    bench.run()
    assert bench.results["a"].done.tokens == solo(clean(60, 1), 50)
    assert bench.results["b"].done.tokens == solo(clean(60, 2), 50)


def test_requests_that_fail_only_together_do_not_take_turns_for_ever() -> None:
    bench = Bench(n_seq_max=2)
    bench.backend.fault = lambda slices: DecodeStatus.FAILED if len(slices) > 1 else None
    bench.submit("a", clean(60, 1), max_tokens=500)
    bench.submit("b", clean(60, 2), max_tokens=500)
    bench.run()
    errors = [result.error for result in bench.results.values() if result.error]
    assert errors and all(isinstance(error, DecodeError) for error in errors)
    assert bench.backend.rebuilds <= 5


def test_a_batch_the_backend_refuses_rebuilds_the_context() -> None:
    def refuse(slices: list[Slice]) -> DecodeStatus | None:
        if any(POISON in piece.tokens for piece in slices):
            raise DecodeError("the sequence ends elsewhere")
        return None

    bench = Bench(n_seq_max=2)
    bench.backend.fault = refuse
    bench.submit("good", clean(20, 1), max_tokens=20)
    bench.submit("bad", [1, POISON], max_tokens=20)
    bench.run()
    assert isinstance(bench.results["bad"].error, DecodeError)
    assert bench.results["good"].done.tokens == solo(clean(20, 1), 20)


def test_cancelling_a_suspect_releases_the_others() -> None:
    bench = Bench(n_seq_max=2)
    bench.submit("a", clean(20, 1), max_tokens=20)
    bench.submit("b", clean(20, 2), max_tokens=20)
    bench.step(4)
    bench.backend.fault = once_at(0, DecodeStatus.FAILED)
    bench.step(1)
    bench.engine.cancel("a")
    bench.run()
    assert bench.results["a"].done.finish_reason == "cancelled"
    assert bench.results["b"].done.tokens == solo(clean(20, 2), 20)


# ---- a dead worker's requests


SAMPLINGS = {
    "greedy": Sampling(temperature=0, seed=7),
    "seeded": Sampling(temperature=0.8, seed=7),
    "penalties": Sampling(temperature=0.8, seed=7, repeat_penalty=1.2),
    "mirostat": Sampling(temperature=0.8, seed=7, mirostat=2),
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("at", [0, 1, 2, 17, 39])
@pytest.mark.parametrize("saved", [0, 200, 299, 300, 310, 400])
def test_a_resumed_request_ends_with_the_undisturbed_text(sampling: Sampling, at: int, saved: int) -> None:
    prompt = tokens(300)
    whole = Bench()
    undisturbed = whole.complete(prompt, max_tokens=40, sampling=sampling)
    bench = Bench(store=True)
    bench.store.saved.append([*prompt, *undisturbed.tokens][:saved])
    resume = Resume(prompt_tokens=tuple(prompt), emitted=undisturbed.tokens[:at], start=0)
    bench.submit("r", prompt, max_tokens=40, sampling=sampling, resume=resume)
    result = bench.run().results["r"]
    assert result.done.text == undisturbed.text
    assert result.done.tokens == undisturbed.tokens
    assert result.tokens == list(undisturbed.tokens[at:])  # only what the client has not seen
    assert result.text == undisturbed.text[at:]
    rows = {piece.start: len(piece.tokens) for batch in bench.backend.batches for piece in batch}
    original = {piece.start: len(piece.tokens) for batch in whole.backend.batches for piece in batch}
    assert rows.items() <= original.items()  # the same shapes
    assert bench.backend.samplers[0].accepted == whole.backend.samplers[0].accepted


def test_a_resumed_constraint_goes_on_where_it_was() -> None:
    bench = Bench()
    resume = Resume(prompt_tokens=tuple(b"abc"), emitted=tuple(b"one t"), start=0)
    bench.submit("r", "abc", constraint=Constraint(choices=("one two",)), resume=resume)
    result = bench.run().results["r"]
    assert (result.text, result.done.text, result.done.finish_reason) == ("wo", "one two", "stop")


def test_a_resumed_prefix_that_is_gone_is_read_again_with_the_same_cuts() -> None:
    prompt = tokens(700)
    bench = Bench()
    resume = Resume(prompt_tokens=tuple(prompt), emitted=(5, 6), start=300)
    bench.submit("r", prompt, max_tokens=4, resume=resume)
    bench.run()
    assert [feed[0] for feed in bench.fed()] == [256, 44, 212, 188, 1, 1, 1]
    assert bench.results["r"].start == 300  # what a second resume needs


def test_a_stop_string_may_span_the_crash() -> None:
    bench = Bench()
    bench.backend.next_token = lambda kv: b"hello world"[len(kv) - 3]
    resume = Resume(prompt_tokens=tuple(b"abc"), emitted=tuple(b"hello"), start=0)
    bench.submit("r", "abc", stop=("lo w",), resume=resume)
    assert bench.run().results["r"].done.stop_text == "lo w"


def test_a_suspect_does_not_wait_for_one_that_stands_still_for_it() -> None:
    """Both begin with the same head, and the one that reads it is the first to run alone: only past its place."""
    bench = Bench(n_seq_max=3, is_recurrent=True)
    head = tokens(600, seed=4)
    bench.submit("holds", tokens(20, seed=5), max_tokens=40, session="s")
    bench.step()
    bench.submit("reads", [*head, 1], max_tokens=3, session="s")  # waits for its session, and comes first later
    bench.submit("writes", [*head, 2], max_tokens=60)
    while bench.results["reads"].start is None:
        bench.step()

    failed: list[bool] = []

    def fault(slices: list[Slice]) -> DecodeStatus | None:
        if failed or len(slices) == 1 or all(len(each.tokens) == 1 for each in slices):
            return None
        failed.append(True)
        return DecodeStatus.FAILED

    bench.backend.fault = fault
    bench.run()
    assert failed and {len(result.tokens) for result in bench.results.values()} == {3, 40, 60}


def test_a_suspect_takes_another_sequence_when_its_session_s_own_is_taken() -> None:
    bench = Bench(n_seq_max=2)
    for session in "st":
        bench.complete(tokens(30, seed=ord(session)), max_tokens=1, session=session)
    bench.submit("guest", tokens(40, seed=1), max_tokens=20)
    bench.step()
    bench.submit("own", tokens(50, seed=2), max_tokens=20, session="t")
    bench.step(3)
    bench.engine._sequences[1].last_used = -1.0  # the guest's choice this time: it comes first
    bench.backend.fault = once_at(0, DecodeStatus.FAILED)
    bench.run()
    assert [len(bench.results[name].tokens) for name in ("guest", "own")] == [20, 20]
