"""Going on in a full context: the older half is given up, the rest is read again, and nobody can tell from the text."""

from __future__ import annotations

from typing import Any

import pytest

from barrel_inference.engine.backend import DecodeStatus
from barrel_inference.engine.requests.generation import shifted
from barrel_inference.types import Completion, Constraint, Resume, Sampling
from tests.engine.fakes import Bench, FakeBackend, tokens

N_CTX, KEEP = 256, 4
PROMPT = tokens(100)
FIRST_SHIFT = N_CTX + 1 - len(PROMPT)  # tokens of output that make the context too small


def run(bench: Bench, **fields: Any) -> Completion:
    return bench.complete(PROMPT, **{"shift_keep": KEEP, "max_tokens": 600, **fields})


def expected(backend: FakeBackend, n_output: int) -> list[int]:
    """Greedy, from the definition."""
    history, output = list(PROMPT), []
    for _ in range(n_output):
        if len(history) > N_CTX:
            history = shifted(history, KEEP)
        output.append(backend.next_token(history))
        history.append(output[-1])
    return output


def test_what_is_left() -> None:
    assert shifted([0, 1, 2, 3, 4, 5, 6, 7, 8], 3) == [0, 1, 2, 6, 7, 8]
    assert shifted([0, 1, 2, 3, 4, 5, 6, 7, 8], 100) == [0, 1, 2, 3, 6, 7, 8]  # never all, or nothing would be gained
    assert shifted([0, 1], 0) == [1]


def test_it_goes_on_with_the_head_and_the_newer_half() -> None:
    bench = Bench(n_ctx=N_CTX)
    done = run(bench)
    assert list(done.tokens) == expected(bench.backend, 600)
    assert bench.results["r0"].tokens == list(done.tokens)
    assert (done.finish_reason, done.usage.prompt_tokens, done.usage.completion_tokens) == ("length", 100, 600)
    assert done.prompt_tokens == tuple(PROMPT)
    assert done.shifted_tokens == 4 * ((N_CTX + 1 - KEEP) // 2)
    assert bench.engine.counters()["shifts"] == 4
    assert bench.engine.counters()["requests"] == 1


def test_a_prompt_that_fills_the_context() -> None:
    done = Bench(n_ctx=N_CTX).complete(tokens(N_CTX), shift_keep=-1, max_tokens=300)
    assert len(done.tokens) == 300


def test_a_context_of_one_token_shifts_to_one_token() -> None:
    done = Bench(n_ctx=1).complete([5], shift_keep=-1, max_tokens=20)
    assert (len(done.tokens), done.shifted_tokens) == (20, 19)


def test_a_constraint_and_a_stop_string_span_a_shift() -> None:
    text = "the quick brown fox " * 30
    grammar = run(Bench(n_ctx=N_CTX), constraint=Constraint(choices=(text,)), max_tokens=None)
    assert (grammar.text, grammar.finish_reason) == (text, "stop")
    stop = text[FIRST_SHIFT - 5 : FIRST_SHIFT + 5]
    cut = run(Bench(n_ctx=N_CTX), constraint=Constraint(choices=(text,)), stop=("jumps", stop))
    assert (cut.finish_reason, cut.stop_text) == ("stop", stop)


@pytest.mark.parametrize("n_emitted", [0, 1, FIRST_SHIFT - 1, FIRST_SHIFT, FIRST_SHIFT + 1, 300, 599])
@pytest.mark.parametrize("store", [False, True])
def test_after_a_crash_the_text_is_the_same(n_emitted: int, store: bool) -> None:
    sampling = Sampling(temperature=0.8, seed=7, repeat_penalty=1.1)
    first = Bench(n_ctx=N_CTX, store=store)
    whole = run(first, sampling=sampling)
    first.backend.rebuild()  # what a new worker begins with
    resume = Resume(prompt_tokens=tuple(PROMPT), emitted=whole.tokens[:n_emitted], start=0)
    again = run(
        first.run_on(first.backend, first.store) if store else Bench(n_ctx=N_CTX), sampling=sampling, resume=resume
    )
    assert again.tokens == whole.tokens
    assert again.shifted_tokens == whole.shifted_tokens
    assert first.backend.samplers[-1].accepted[-600:] == list(whole.tokens)


def test_after_a_failed_step_the_text_is_the_same() -> None:
    whole = run(Bench(n_ctx=N_CTX))
    bench = Bench(n_ctx=N_CTX)
    n_batches = 0

    def fault(slices: Any) -> DecodeStatus | None:
        nonlocal n_batches
        n_batches += 1
        return DecodeStatus.FAILED if n_batches == FIRST_SHIFT + 10 else None

    bench.backend.fault = fault
    bench.submit("other", tokens(20, seed=3), max_tokens=200)
    assert run(bench).tokens == whole.tokens
    assert bench.backend.rebuilds == 1


@pytest.mark.parametrize("facts", [{"n_swa": 32}, {"is_recurrent": True}])
def test_every_kind_of_memory_can(facts: dict[str, Any]) -> None:
    bench = Bench(n_ctx=N_CTX, **facts)
    assert list(run(bench).tokens) == expected(bench.backend, 600)


def test_those_beside_it_do_not_notice() -> None:
    alone = Bench(n_ctx=N_CTX).complete(tokens(30, seed=2), max_tokens=200)
    bench = Bench(n_ctx=N_CTX)
    bench.submit("other", tokens(30, seed=2), max_tokens=200)
    run(bench)
    assert bench.results["other"].done.tokens == alone.tokens
