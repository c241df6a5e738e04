"""One guilty request among many: the others only wait."""

from __future__ import annotations

import pytest

from barrel_inference.errors import BarrelError, WorkerDiedError
from barrel_inference.worker.client import Pending
from barrel_inference.worker.messages import Msg, Room
from barrel_inference.worker.trial import Trial


class Asked(Pending):
    """Kills its worker, or does not."""

    def __init__(self, name: str, *, kills: bool = False, waits: bool = False) -> None:
        super().__init__(name)
        self.kills = kills
        self.waits = waits
        self.error: BarrelError | None = None

    def message(self) -> Msg:
        return Room("")

    def fail(self, error: BarrelError) -> None:
        self.done = True
        self.error = error


def live(trial: Trial, pending: list[Asked]) -> list[str]:
    """One worker: it gets what is due until it dies of it, or all has been answered. Returns what it had."""
    had = []
    while due := trial.due(pending):
        for each in due:
            had.append(each.name)
            each.sent, each.is_running = True, not each.waits
        if any(each.sent and each.kills for each in pending):
            trial.after_death(pending, "killed")
            break
        if not any(each.kills and not each.done for each in pending):
            break
        for each in pending:  # nobody kills, so that whoever is here is on trial, and passes
            if each.sent and not each.done:
                each.sent, each.is_acquitted = False, True
    return had


def test_a_first_death_is_nobodys_fault() -> None:
    trial, pending = Trial(), [Asked("a"), Asked("b", kills=True)]
    assert live(trial, pending) == ["a", "b"]
    assert [each.done for each in pending] == [False, False]
    assert [each.deaths for each in pending] == [1, 1]


def test_after_the_second_each_is_alone_until_one_is_guilty() -> None:
    trial, pending = Trial(), [Asked("a"), Asked("b", kills=True), Asked("c"), Asked("d", waits=True)]
    lives = [live(trial, pending) for _ in range(4)]
    assert lives == [["a", "b", "c", "d"], ["a", "b", "c", "d"], ["c", "b"], ["a", "c", "d"]]
    assert [each.name for each in pending if each.error] == ["b"]
    assert isinstance(pending[1].error, WorkerDiedError)
    assert {each.deaths for each in pending if not each.error} == {0}


def test_alone_there_is_no_doubt_at_the_second_death() -> None:
    trial, pending = Trial(), [Asked("a", kills=True)]
    assert [live(trial, pending) for _ in range(3)] == [["a"], ["a"], []]
    assert pending[0].error is not None


@pytest.mark.parametrize("n_guilty", [2, 5])
def test_several_are_found_one_after_the_other(n_guilty: int) -> None:
    trial = Trial()
    pending = [Asked(str(n), kills=n < n_guilty, waits=n % 2 == 0) for n in range(8)]
    while any(each.kills and not each.done for each in pending):
        assert live(trial, pending)
    assert [each.name for each in pending if each.error] == [str(n) for n in range(n_guilty)]
    assert live(trial, pending)


def test_what_arrives_meanwhile_waits_for_the_verdict() -> None:
    trial, pending = Trial(), [Asked("a", kills=True), Asked("b")]
    live(trial, pending)
    live(trial, pending)
    pending.append(Asked("new"))
    assert live(trial, pending) == ["b", "a"]
    assert live(trial, pending) == ["b", "new"]


def test_one_that_ends_while_on_trial_makes_way() -> None:
    trial, pending = Trial(), [Asked("a"), Asked("b", kills=True)]
    live(trial, pending)
    live(trial, pending)
    pending[1].done = True  # its client has left
    assert live(trial, pending) == ["a"]
