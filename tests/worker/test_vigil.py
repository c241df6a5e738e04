"""When a worker counts as hung, in ticks."""

from __future__ import annotations

from barrel_inference.worker.vigil import TICK_S, Vigil


def ticks_until_hung(vigil: Vigil, limit: int, elapsed_s: float | None = None, pulse: int | None = None) -> int | None:
    """``pulse``: the step that each tick's answer tells of; None: there is none."""
    for count in range(1, limit + 1):
        if vigil.tick(vigil.tick_s if elapsed_s is None else elapsed_s, owes=True):
            return count
        if pulse is not None:
            vigil.heard()
            vigil.pulse(pulse)
    return None


def test_silence_is_death_after_its_bound() -> None:
    assert ticks_until_hung(Vigil(60, None), 100) == 60 / TICK_S + 1


def test_whatever_is_heard_is_life() -> None:
    assert ticks_until_hung(Vigil(60, None), 1000, pulse=3) is None, "nothing bounds a step"
    assert ticks_until_hung(Vigil(60, 90), 1000, pulse=0) is None, "no step"


def test_one_step_has_a_bound_of_its_own() -> None:
    vigil = Vigil.over(60, 30_000)
    assert ticks_until_hung(vigil, 100, pulse=7) == 90 / TICK_S + 2
    vigil = Vigil.over(60, 30_000)
    for step in range(1, 200):
        vigil.heard()
        vigil.pulse(step)
        assert not vigil.tick(TICK_S, owes=True)
    assert ticks_until_hung(Vigil.over(60, 0), 1000, pulse=7) is None, "without a budget it may take any time"


def test_who_owes_nothing_may_be_silent() -> None:
    vigil = Vigil(60, 90)
    vigil.pulse(5)
    assert not any(vigil.tick(TICK_S, owes=False) for _ in range(100))
    assert not vigil.tick(TICK_S, owes=True), "and is counted anew from then on"


def test_a_tick_that_took_an_hour_was_nobodys_hour() -> None:
    """The machine slept, or the server itself was stopped."""
    vigil = Vigil(60, 90)
    assert not vigil.tick(3600, owes=True)
    vigil.heard()
    assert ticks_until_hung(vigil, 100, elapsed_s=3600) == 7


def test_small_bounds_have_small_ticks() -> None:
    assert Vigil(1, None).tick_s == 0.25
