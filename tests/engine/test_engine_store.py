"""The engine over the real KV store, on a backend whose every logit depends on every byte of the state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from barrel_inference.engine.backend import Sampler
from barrel_inference.engine.checkpoints import Checkpoints
from barrel_inference.types import Completion, Resume, Sampling
from tests.engine.fakes import Bench, FakeSampler, tokens
from tests.kvcache.fake_backend import FakeBackend
from tests.kvcache.harness import open_on, options, spec

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("plain", {}),
    ("plain", {"v_trans": True}),
    ("swa", {"n_swa": 100}),
    ("recurrent", {}),
    ("hybrid", {}),
    ("hybrid_swa", {"n_swa": 100}),
    ("whole", {}),
]
PROMPT = tokens(400, seed=3)


class Backend(FakeBackend):
    def __init__(self, kind: str, **facts: Any) -> None:
        super().__init__(kind, **facts)
        self.change(n_ubatch=256)  # a prompt takes more than one step

    def sampler(self, sampling: Sampling, seed: int) -> Sampler:
        return FakeSampler(sampling, seed)


class Worker:
    """Backend, store and engine of one life."""

    def __init__(self, path: Path | None, kind: str, facts: dict[str, Any]) -> None:
        self.backend = Backend(kind, **facts)
        self.checkpoints: Checkpoints = open_on(self.backend, options(*([spec(path)] if path else [])))
        self.bench = Bench().run_on(self.backend, self.checkpoints)

    def die(self) -> None:
        assert self.checkpoints.flush(30.0)
        self.checkpoints.close()


@pytest.mark.parametrize(("kind", "facts"), KINDS)
@pytest.mark.parametrize("n_steps", [1, 2, 3, 40, 90])
def test_a_killed_worker_s_request_ends_with_the_undisturbed_text(
    tmp_path: Path, kind: str, facts: dict[str, Any], n_steps: int
) -> None:
    undisturbed = Worker(None, kind, facts).bench.complete(PROMPT, max_tokens=100)
    first = Worker(tmp_path, kind, facts)
    first.bench.submit("r", PROMPT, max_tokens=100)
    first.bench.step(n_steps)
    before = first.bench.results["r"]
    first.die()

    second = Worker(tmp_path, kind, facts)
    resume = Resume(prompt_tokens=tuple(before.prompt), emitted=tuple(before.tokens), start=before.start or 0)
    second.bench.submit("r", PROMPT, max_tokens=100, resume=resume)
    after = second.bench.run().results["r"]
    second.die()
    assert after.done.tokens == undisturbed.tokens
    assert before.text + after.text == undisturbed.text
    if n_steps >= 3:
        n_read = second.bench.engine.counters()["prefilled_tokens"]
        assert n_read <= 400 - 256, "the last cut, or a state beyond it"


@pytest.mark.parametrize(("kind", "facts"), KINDS)
def test_a_conversation_goes_on_after_a_restart(tmp_path: Path, kind: str, facts: dict[str, Any]) -> None:
    def turn(path: Path | None, before: Completion | None = None) -> Completion:
        worker = Worker(path, kind, facts)
        prompt = PROMPT if before is None else [*PROMPT, *before.tokens, *tokens(30, seed=9)]
        done = worker.bench.complete(prompt, max_tokens=20)
        worker.die()
        return done

    first = turn(tmp_path)
    second = turn(tmp_path, first)
    assert first.finish_key
    assert second.cache.restored_tokens == len(PROMPT) + 19
    assert (second.cache.tier, second.cache.kind) == ("disk", "partial")
    assert second.tokens == turn(None, first).tokens


@pytest.mark.parametrize(("kind", "facts"), KINDS)
def test_live_and_stored_prefixes_give_the_same_text(tmp_path: Path, kind: str, facts: dict[str, Any]) -> None:
    worker = Worker(tmp_path, kind, facts)
    cold = worker.bench.complete(PROMPT, max_tokens=10)
    for _ in range(2):  # from a resident sequence or from the store, whichever is longer
        again = worker.bench.complete(PROMPT, max_tokens=10)
        assert again.tokens == cold.tokens
    for seed in (5, 6):
        worker.bench.complete(tokens(200, seed=seed), max_tokens=3)
    assert worker.checkpoints.flush(30.0)
    assert worker.bench.complete(PROMPT, max_tokens=10).tokens == cold.tokens
    worker.die()


def test_a_saved_sequence_is_found_by_its_finish_key(tmp_path: Path) -> None:
    worker = Worker(tmp_path, "plain", {})
    first = worker.bench.complete(PROMPT, max_tokens=10)
    for seed in (5, 6):
        worker.bench.complete(tokens(200, seed=seed), max_tokens=3)
    second = worker.bench.complete([*PROMPT, *first.tokens], max_tokens=10, parent_key=first.finish_key)
    assert second.cache.restored_tokens == len(PROMPT) + 9
    worker.die()
