"""A worker's parts get what the options say, and when it has answered thousands of requests it is as large as after
ten."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from barrel_inference.config import ContextOpts, LoadOptions, Policy, TierSpec
from barrel_inference.kvcache.tier import Tier
from barrel_inference.types import Constraint, Request, Sampling
from barrel_inference.worker.child.assembly import assemble
from barrel_inference.worker.messages import Msg, Output
from tests.support.waiting import step_until

INDEX = {"Entry", "Record", "Name"}  # of what is stored, which the tier's quota bounds
MANY = 60


class Bench:
    """A worker's inside, stepped by the test."""

    def __init__(self, path: Path, **policy: int) -> None:
        self.spec = TierSpec(name="disk", kind="disk", path=str(path), quota_bytes=1 << 30)
        options = LoadOptions(
            id="m",
            backend="stub",
            context_opts=ContextOpts(n_ctx=512, n_seq_max=2),
            tiers=(self.spec,),
            save_tier="disk",
            policy=Policy(**policy),
        )
        self.ended: Counter[str] = Counter()
        self.parts = assemble(options, self.send)

    def send(self, messages: Sequence[Msg]) -> None:
        for message in messages:
            if isinstance(message, Output) and (message.error or (message.chunk and message.chunk.completion)):
                self.ended[message.request_id] += 1

    def ask(self, name: str, constraint: Constraint | None = None) -> None:
        sampling = Sampling(seed=1, repeat_penalty=1.1)
        prompt = f"{name} " + "x " * 40
        request = Request(id=name, prompt=prompt, sampling=sampling, constraint=constraint, max_tokens=3)
        self.parts.intake.submit(request)
        if name.endswith("7"):
            self.parts.intake.cancel(name)
        step_until(lambda: self.ended[name], self.parts.engine.step)

    def ask_many(self, name: str) -> None:
        for n in range(MANY):
            constraint = {3: Constraint(regex="("), 4: Constraint(regex="[a-z ]+")}.get(n % 10)
            self.ask(f"{name} {n}", constraint)
        assert self.parts.store.flush(60)
        self.ended.clear()


def objects() -> Counter[str]:
    """Of our classes."""
    gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects() if str(type(each).__module__)[:7] == "barrel_")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    one = Bench(tmp_path)
    yield one
    one.parts.store.close()


def test_what_has_ended_leaves_nothing_but_the_index_of_what_is_stored(bench: Bench) -> None:
    bench.ask_many("first")
    before = objects()
    bench.ask_many("second")
    grown = {name: n for name, n in (objects() - before).items() if n >= MANY // 6}
    assert grown.keys() <= INDEX

    tier = Tier(bench.spec)
    stored = list(tier.objects())
    assert len(stored) >= MANY
    for each in stored:
        tier.remove(each.namespace, each.name)
    bench.ask("last")
    assert objects()["Entry"] <= before["Entry"] - MANY


@pytest.mark.parametrize("prompt", ["x " * 40, (1, 2, 3)], ids=["text", "tokens"])
def test_a_parent_s_save_is_waited_for_once_and_as_long_as_the_policy_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompt: str | tuple[int, ...]
) -> None:
    one = Bench(tmp_path, session_resume_wait_ms=1234)
    waited: list[float] = []
    monkeypatch.setattr(one.parts.store, "_wait_for", lambda key, wait_s: waited.append(wait_s))
    one.parts.intake.submit(
        Request(id="child", prompt=prompt, sampling=Sampling(seed=1), max_tokens=3, parent_key="00" * 32)
    )
    step_until(lambda: one.ended["child"], one.parts.engine.step)
    one.parts.store.close()
    assert waited == [1.234]
