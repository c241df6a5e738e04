"""The engine on the stub backend, with the samplers and constraints that models use."""

from __future__ import annotations

from typing import Any

import pytest

from barrel_inference.config import ContextOpts, LoadOptions
from barrel_inference.engine.kvstore import KVStore
from barrel_inference.engine.stub import StubBackend
from barrel_inference.errors import DecodeError
from barrel_inference.types import Sampling
from tests.engine.fakes import Bench, tokens

SAMPLINGS = {
    "greedy": Sampling(temperature=0, seed=1),
    "seeded": Sampling(seed=5),
    "penalties": Sampling(seed=5, repeat_penalty=1.2, frequency_penalty=0.3),
    "mirostat": Sampling(seed=5, mirostat=2),
}
PROMPTS = [tokens(n, seed=n) for n in (3, 64, 300, 700)]


def bench(**faults: Any) -> Bench:
    context = ContextOpts(n_ctx=1024, n_batch=256, n_seq_max=4)
    backend = StubBackend(LoadOptions(id="m", backend="stub", context_opts=context, stub=faults))
    return Bench().run_on(backend, KVStore(backend))


def solo(prompt: list[int], sampling: Sampling) -> tuple[int, ...]:
    return bench().complete(prompt, max_tokens=20, sampling=sampling).tokens


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_batched_outputs_equal_solo_outputs(sampling: Sampling) -> None:
    together = bench()
    for i, prompt in enumerate(PROMPTS):
        together.submit(str(i), prompt, max_tokens=20, sampling=sampling)
    together.run()
    assert [together.results[str(i)].done.tokens for i in range(4)] == [solo(prompt, sampling) for prompt in PROMPTS]


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("status", ["no_room", "aborted", "failed"])
def test_a_batch_that_fails_changes_no_text(sampling: Sampling, status: str) -> None:
    failing = bench(fail_at_step={"9": status, "30": status})
    for i, prompt in enumerate(PROMPTS):
        failing.submit(str(i), prompt, max_tokens=20, sampling=sampling)
    failing.run()
    for i, prompt in enumerate(PROMPTS):
        result = failing.results[str(i)]
        assert result.error or result.done.tokens == solo(prompt, sampling)
    assert sum(result.error is not None for result in failing.results.values()) <= 1  # a batch of one, at step 30


def test_a_poisoned_request_ends_alone() -> None:
    poisoned = bench(poison=77)
    prompts = [[token if token != 77 else 1 for token in prompt] for prompt in PROMPTS[:3]]
    greedy = SAMPLINGS["greedy"]
    for i, prompt in enumerate(prompts):
        poisoned.submit(str(i), prompt, max_tokens=20, sampling=greedy)
    poisoned.step(4)
    poisoned.submit("bad", [5, 77, 6], max_tokens=20, sampling=greedy)
    poisoned.run()
    assert isinstance(poisoned.results["bad"].error, DecodeError)
    for i, prompt in enumerate(prompts):
        result = poisoned.results[str(i)]
        assert result.error or result.done.tokens == solo(prompt, greedy)
