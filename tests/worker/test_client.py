"""What is in flight outlives its worker: nothing is said twice, nothing is lost."""

from __future__ import annotations

import pytest

from barrel_inference.errors import KVFullError, WorkerDiedError
from barrel_inference.types import (
    CacheReport,
    Chunk,
    Completion,
    Request,
    Resume,
    Sampling,
    Timings,
    TokenLogprob,
    Usage,
)
from barrel_inference.worker.client import Flight, PendingCall
from barrel_inference.worker.messages import Call, Output, Reply, Started

REQUEST = Request(id="r", prompt="hello", sampling=Sampling(seed=1))


class Clock:
    def __init__(self) -> None:
        self.now = 10.0

    def __call__(self) -> float:
        return self.now


def flight(clock: Clock | None = None) -> Flight:
    return Flight(REQUEST, clock or Clock())


def token(number: int) -> Output:
    logprob = TokenLogprob(token=number, text=str(number), logprob=-1.0)
    return Output("r", Chunk(text=str(number), tokens=(number,), logprobs=(logprob,)))


STARTED = Started("r", (7, 8, 9), 2, 1, CacheReport())


def test_before_it_starts_it_is_submitted_as_it_was() -> None:
    one = flight()
    assert one.message().request == REQUEST
    one.bereave()
    assert one.message().request == REQUEST


def test_afterwards_it_continues_behind_what_was_delivered_with_its_first_start() -> None:
    one = flight()
    one.start(STARTED)
    one.output(token(1))
    one.output(token(2))
    one.bereave()
    assert one.message().request.resume == Resume(prompt_tokens=(7, 8, 9), emitted=(1, 2), start=2)
    one.start(Started("r", (7, 8, 9), 0, 1, CacheReport(kind="partial")))
    one.output(token(3))
    assert one.message().request.resume == Resume(prompt_tokens=(7, 8, 9), emitted=(1, 2, 3), start=2)


async def test_the_first_chunk_and_no_other_tells_the_prompts_counts() -> None:
    one = flight()
    one.start(Started("r", (7, 8, 9), 2, 1, CacheReport(kind="partial", restored_tokens=2)))
    one.output(token(1))
    one.output(token(2))
    assert [(await one.next()).usage for _ in range(2)] == [Usage(prompt_tokens=3, cached_tokens=2), None]


async def test_the_completion_covers_all_lives() -> None:
    clock = Clock()
    one = flight(clock)
    one.start(STARTED)
    clock.now = 11.0
    one.output(token(1))
    one.bereave()
    clock.now = 15.0
    one.output(token(2))
    done = Completion(text="12", tokens=(1, 2), finish_reason="length", timings=Timings(prefill_s=0.5, total_s=1.0))
    one.output(Output("r", Chunk(completion=done)))
    assert [(await one.next()).text for _ in range(2)] == ["1", "2"]
    completion = (await one.next()).completion
    assert completion is not None
    assert completion.timings == Timings(prefill_s=0.5, first_token_s=1.0, total_s=5.0)
    assert [each.token for each in completion.logprobs] == [1, 2]
    assert completion.resumed == 1
    assert one.done


async def test_a_recalled_request_goes_on_behind_what_it_delivered() -> None:
    one = flight()
    one.start(STARTED)
    one.output(token(1))
    one.bereave()
    assert not one.recall()  # it has not got past the place yet
    one.sent = True
    one.output(token(2))
    assert one.recall()
    one.output(token(3))
    one.output(
        Output("r", Chunk(text="held back", completion=Completion(text="", tokens=(), finish_reason="cancelled")))
    )
    assert (one.is_acquitted, one.sent, one.done) == (True, False, False)
    assert one.message().request.resume == Resume(prompt_tokens=(7, 8, 9), emitted=(1, 2, 3), start=2)
    one.output(token(4))
    assert not one.recall()  # once is enough
    assert [(await one.next()).text for _ in range(4)] == ["1", "2", "3", "4"]


async def test_a_recalled_request_that_ends_first_has_ended() -> None:
    one = flight()
    one.start(STARTED)
    one.output(token(1))
    assert one.recall()
    one.output(Output("r", Chunk(completion=Completion(text="1", tokens=(1,), finish_reason="stop"))))
    assert one.done and not one.is_acquitted


async def test_a_recalled_request_can_still_be_cancelled() -> None:
    one = flight()
    one.start(STARTED)
    one.output(token(1))
    assert one.recall()
    one.cancelled = True
    one.output(Output("r", Chunk(completion=Completion(text="1", tokens=(1,), finish_reason="cancelled"))))
    assert one.done


async def test_what_was_cached_is_what_the_first_worker_found() -> None:
    one = flight()
    one.start(STARTED)
    one.output(token(1))
    one.bereave()
    warm = CacheReport(kind="exact", restored_tokens=2, tier="ram")
    one.start(Started("r", (7, 8, 9), 2, 1, warm))
    usage = Usage(prompt_tokens=3, completion_tokens=1, cached_tokens=2)
    end = Completion(text="1", tokens=(1,), finish_reason="length", cache=warm, usage=usage)
    one.output(Output("r", Chunk(completion=end)))
    await one.next()
    completion = (await one.next()).completion
    assert completion is not None
    assert (completion.cache, completion.usage.cached_tokens, completion.resumed) == (STARTED.cache, 0, 1)


async def test_a_cancelled_request_ends_with_its_worker() -> None:
    one = flight()
    one.start(STARTED)
    one.output(token(1))
    one.cancelled = True
    one.bereave()
    assert (await one.next()).text == "1"
    completion = (await one.next()).completion
    assert completion is not None
    assert (completion.text, completion.tokens, completion.finish_reason) == ("1", (1,), "cancelled")
    assert completion.usage == Usage(prompt_tokens=3, completion_tokens=1)


async def test_an_error_ends_it_and_nothing_follows() -> None:
    one = flight()
    one.output(Output("r", error=KVFullError("no room", n=1).to_dict()))
    one.output(token(1))
    one.fail(WorkerDiedError("late"))
    with pytest.raises(KVFullError, match="no room"):
        await one.next()


async def test_a_call_is_asked_again_and_answered_once() -> None:
    call = PendingCall(Call(1, "op", {}))
    call.bereave()
    assert call.message() == Call(1, "op", {})
    call.reply(Reply(1, 5))
    assert await call.answer == 5 and call.done
    call.reply(Reply(1, 6))
