"""Requests and calls on their way in: each is answered, none holds up a cancellation."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from barrel_inference.errors import BarrelError, ContextExceededError, ExhaustedError
from barrel_inference.types import Request, Sampling
from barrel_inference.worker.channel import ChannelError
from barrel_inference.worker.child.intake import Intake
from barrel_inference.worker.messages import Call, Msg, Output, Reply


class FakeEngine:
    """Notes what it is told, in order."""

    def __init__(self) -> None:
        self.told: queue.Queue[tuple[str, str]] = queue.Queue()

    def submit(self, generation: Any) -> None:
        self.told.put(("submit", generation.id))

    def cancel(self, request_id: str) -> None:
        self.told.put(("cancel", request_id))

    def drain(self, deadline_s: float) -> None:
        self.told.put(("drain", "in time" if deadline_s else "at last"))


class Needs(dict[str, "Future[None]"]):
    """What a request waits for, by its prompt."""

    def get_for(self, request: Request) -> Future[None] | None:
        if request.prompt == "no thread":
            raise RuntimeError("can't start new thread")
        future = self.get(str(request.prompt))
        return None if future is None or future.done() else future


class Bench:
    def __init__(self) -> None:
        self.needs = Needs()
        self.engine = FakeEngine()
        self.sent: queue.Queue[Msg] = queue.Queue()
        self.may_prepare = threading.Event()
        self.future: Future[Any] = Future()
        self.intake = Intake(
            self.engine,  # type: ignore[arg-type]
            self.send,  # type: ignore[arg-type]
            prepare=self.prepare,
            await_first=self.needs.get_for,
            answer=self.answer,
        )

    def send(self, messages: list[Msg]) -> None:
        for message in messages:
            if isinstance(message, Reply) and message.result == "huge":
                raise ChannelError("a frame of 300000000 bytes")
            self.sent.put(message)

    def prepare(self, request: Request) -> Any:
        self.may_prepare.wait(20)
        match request.prompt:
            case "long":
                raise ContextExceededError("too long", n_ctx=1)
            case "bug":
                raise ZeroDivisionError("a bug")
            case "no memory":
                raise MemoryError
        return SimpleNamespace(id=request.id)

    def answer(self, op: str, args: dict[str, Any]) -> Any:
        match op:
            case "later":
                return self.future
            case "huge":
                return "huge"
            case "fail":
                raise ContextExceededError("no")
        return args

    def submit(self, request_id: str, prompt: str = "") -> None:
        self.intake.submit(Request(id=request_id, prompt=prompt, sampling=Sampling()))

    def next_sent(self) -> Any:
        return self.sent.get(timeout=20)


def test_requests_reach_the_engine_in_order() -> None:
    bench = Bench()
    bench.may_prepare.set()
    for name in "abc":
        bench.submit(name)
    assert [bench.engine.told.get(timeout=20) for _ in range(3)] == [("submit", name) for name in "abc"]


def test_a_cancellation_does_not_wait_and_is_not_lost() -> None:
    bench = Bench()
    bench.submit("preparing")
    bench.intake.cancel("running")
    assert bench.engine.told.get(timeout=20) == ("cancel", "running")
    bench.intake.cancel("preparing")
    bench.may_prepare.set()
    assert [bench.engine.told.get(timeout=20) for _ in range(2)] == [("submit", "preparing"), ("cancel", "preparing")]
    bench.submit("preparing")
    assert bench.engine.told.get(timeout=20) == ("submit", "preparing")
    bench.intake.call(Call(1, "echo", {}))
    bench.next_sent()
    assert bench.engine.told.empty()


def test_every_failure_is_one_typed_answer_and_the_next_request_is_served() -> None:
    bench = Bench()
    bench.may_prepare.set()
    bench.submit("a", "long")
    bench.submit("b", "bug")
    bench.submit("no memory", "no memory")
    bench.submit("c")
    first, second, third = bench.next_sent(), bench.next_sent(), bench.next_sent()
    assert isinstance(first, Output) and isinstance(second, Output)
    assert (first.request_id, first.error) == ("a", ContextExceededError("too long", n_ctx=1).to_dict())
    assert second.error is not None and "ZeroDivisionError: a bug" in second.error["message"]
    assert second.error["code"] == BarrelError.code, "not the request's fault"
    assert third.error["code"] == ExhaustedError.code and third.error["message"].endswith(": out of memory")
    assert bench.engine.told.get(timeout=20) == ("submit", "c")


def test_what_a_request_waits_for_holds_up_no_other() -> None:
    bench = Bench()
    bench.may_prepare.set()
    grammar: Future[None] = Future()
    bench.needs["constrained"] = grammar
    bench.submit("slow", "constrained")
    bench.submit("left", "constrained")
    bench.submit("none", "no thread")
    bench.submit("plain")
    assert bench.engine.told.get(timeout=20) == ("submit", "plain")
    assert "can't start new thread" in bench.next_sent().error["message"]
    bench.intake.cancel("left")
    grammar.set_result(None)
    told = [bench.engine.told.get(timeout=20) for _ in range(3)]
    assert told == [("submit", "slow"), ("submit", "left"), ("cancel", "left")]


def test_a_drain_comes_after_all_that_was_asked_before() -> None:
    bench = Bench()
    bench.may_prepare.set()
    bench.needs["constrained"] = grammar = Future()
    bench.submit("a")
    bench.submit("slow", "constrained")
    bench.intake.drain(60.0)
    assert bench.engine.told.get(timeout=20) == ("submit", "a")
    bench.intake.call(Call(1, "echo", {}))
    bench.next_sent()
    assert bench.engine.told.empty()
    grammar.set_result(None)
    assert [bench.engine.told.get(timeout=20) for _ in range(2)] == [("submit", "slow"), ("drain", "in time")]


def test_a_drain_comes_after_the_answers_that_take_longer() -> None:
    bench = Bench()
    bench.intake.call(Call(1, "later", {}))
    bench.intake.drain(60.0)
    bench.intake.call(Call(2, "echo", {}))
    assert bench.next_sent() == Reply(2, {})
    assert bench.engine.told.empty()
    bench.future.set_result([1])
    assert bench.next_sent() == Reply(1, [1])
    assert bench.engine.told.get(timeout=20) == ("drain", "in time")


def test_a_drain_does_not_wait_longer_than_it_may() -> None:
    bench = Bench()
    bench.submit("preparing")
    bench.intake.drain(0.05)
    assert bench.engine.told.get(timeout=20) == ("drain", "at last")
    bench.may_prepare.set()


def test_calls_are_answered_at_once_or_later() -> None:
    bench = Bench()
    bench.intake.call(Call(1, "later", {}))
    bench.intake.call(Call(2, "echo", {"x": 1}))
    bench.intake.call(Call(3, "fail", {}))
    assert bench.next_sent() == Reply(2, {"x": 1})
    assert bench.next_sent() == Reply(3, error=ContextExceededError("no").to_dict())
    bench.future.set_result([1, 2])
    assert bench.next_sent() == Reply(1, [1, 2])


def test_a_late_failure_is_answered_too() -> None:
    bench = Bench()
    bench.intake.call(Call(1, "later", {}))
    bench.future.set_exception(ContextExceededError("no"))
    assert bench.next_sent() == Reply(1, error=ContextExceededError("no").to_dict())


def test_an_answer_too_large_to_be_sent_is_an_error_and_the_next_call_is_answered() -> None:
    bench = Bench()
    bench.intake.call(Call(1, "later", {}))
    bench.intake.call(Call(2, "huge", {}))
    bench.future.set_result("huge")
    bench.intake.call(Call(3, "echo", {"x": 1}))
    answers = {answer.call_id: answer for answer in (bench.next_sent() for _ in range(3))}
    assert answers[3].result == {"x": 1}
    for call_id in (1, 2):
        error = answers[call_id].error
        assert error["code"] == "invalid_request" and "300000000" in error["message"]
