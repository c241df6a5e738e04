"""The engine on SmolLM2: killed requests resumed to the same text, warm equal to cold, others untouched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barrel_inference.config import ContextOpts, LoadOptions
from barrel_inference.engine.llama import LlamaBackend
from barrel_inference.types import Constraint, Resume, Sampling, TokenLogprob
from tests.engine.lives import Worker
from tests.support.models import smollm2

pytestmark = pytest.mark.model

TEXT = "The quick brown fox jumps over the lazy dog near the river bank, while seven wizards watch it quietly. " * 15
PROMPT = f"<|im_start|>user\n{TEXT}\nWrite a story about them.<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaBackend]:
    context = ContextOpts(n_ctx=1024, n_batch=512, n_ubatch=256, n_seq_max=3)
    backend = LlamaBackend(LoadOptions(id="m", model_path=str(smollm2()), context_opts=context))
    yield backend
    backend.close()


CASES: dict[str, dict[str, Any]] = {
    "greedy": {"sampling": Sampling(temperature=0, seed=1)},
    "seeded": {"sampling": Sampling(temperature=0.9, seed=5)},
    "penalties": {"sampling": Sampling(temperature=0.9, seed=5, repeat_penalty=1.3, dry_multiplier=0.8)},
    "mirostat": {"sampling": Sampling(temperature=0.9, seed=5, mirostat=2)},
    "grammar": {
        "sampling": Sampling(temperature=0.9, seed=5),
        "constraint": Constraint(regex=r"\{\"names\": \[(\"[A-Z][a-z]+\", ){3}\"[A-Z][a-z]+\"\]\}"),
    },
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_killed_worker_s_request_ends_with_the_undisturbed_text(
    backend: LlamaBackend, tmp_path: Path, case: dict[str, Any]
) -> None:
    whole = Worker(backend, None)
    undisturbed = whole.complete(PROMPT, max_tokens=24, **case).done
    whole.close()
    first = Worker(backend, tmp_path)
    first.submit("r", PROMPT, max_tokens=24, **case)
    for _ in range(14):  # two chunks of prompt, a dozen tokens
        first.engine.step()
    before = first.results["r"]
    first.close()

    second = Worker(backend, tmp_path)
    resume = Resume(prompt_tokens=tuple(before.prompt), emitted=tuple(before.tokens), start=before.start or 0)
    after = second.complete(PROMPT, max_tokens=24, resume=resume, **case)
    second.close()
    assert 5 < len(before.tokens) < 24
    assert after.done.tokens == undisturbed.tokens
    assert before.text + after.text == undisturbed.text == after.done.text
    assert after.cache.restored_tokens >= 256


def test_cold_exact_answers_are_equal_to_the_last_bit(backend: LlamaBackend, tmp_path: Path) -> None:
    def logprobs(worker: Worker) -> list[TokenLogprob]:
        result = worker.complete(PROMPT, max_tokens=8, logprobs=True, top_logprobs=5)
        return [entry for chunk in result.chunks for entry in chunk.logprobs]

    worker = Worker(backend, tmp_path, exact="cold")
    cold = logprobs(worker)
    assert worker.store.flush(60.0)
    worker.complete("Something else altogether.", max_tokens=3)
    warm = logprobs(worker)
    worker.close()
    again = Worker(backend, tmp_path, exact="cold")
    restarted = logprobs(again)
    again.close()
    assert worker.results["r2"].cache.restored_tokens >= 128
    assert cold == warm == restarted


def test_a_batch_that_fails_changes_no_text(backend: LlamaBackend, tmp_path: Path) -> None:
    prompts = {"a": PROMPT, "b": "Once upon a time", "c": "The capital of France is"}
    worker = Worker(backend, tmp_path)
    for request_id, prompt in prompts.items():
        worker.submit(request_id, prompt, max_tokens=12)
    for _ in range(8):
        worker.engine.step()
    worker.engine.call(backend.rebuild)  # all KV is gone behind the engine's back: the next batch is refused
    worker.run().close()
    assert worker.engine.counters()["replays"] == 3
    assert all(len(worker.results[request_id].done.tokens) == 12 for request_id in prompts)
    assert {worker.results[r].done.text for r in prompts} == {worker.results[r].text for r in prompts}


def test_one_head_is_read_once(backend: LlamaBackend) -> None:
    worker = Worker(backend, None)
    for i in range(4):
        worker.submit(str(i), f"{PROMPT}{i}", max_tokens=4)
    worker.run().close()
    n_prompt = worker.results["0"].done.usage.prompt_tokens
    assert worker.engine.counters()["prefilled_tokens"] < n_prompt + 3 * 8
