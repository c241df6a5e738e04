"""A limit on the speed of a download, with a clock of its own."""

from __future__ import annotations

from barrel_inference.registry.download.rate import Rate


class Time:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


async def test_bytes_take_the_time_they_are_due() -> None:
    time = Time()
    rate = Rate(1000, time.sleep, time.clock)
    for _ in range(10):
        await rate.spend(500)
    assert time.now == 105.0


async def test_what_was_not_used_is_not_saved_up() -> None:
    time = Time()
    rate = Rate(1000, time.sleep, time.clock)
    await rate.spend(1000)
    time.now += 60
    await rate.spend(1000)
    assert time.slept == [1.0, 1.0]


async def test_no_limit() -> None:
    time = Time()
    await Rate(0, time.sleep, time.clock).spend(1 << 40)
    assert time.slept == []
