"""Log probabilities are the softmax of what the model gave, and plain JSON numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from barrel_inference.engine.requests.logprobs import TokenLogprobs

PIECES = [b"a", b"b", "é".encode(), b"\xc3", b"<end>"]
LOGITS = np.log(np.array([0.5, 0.25, 0.125, 0.0625, 0.0625], np.float32)) + np.float32(7)


def wanted(top: int) -> TokenLogprobs:
    return TokenLogprobs(PIECES.__getitem__, top)


def test_a_token_s_own_logprob_and_the_best_others() -> None:
    entry = wanted(2).read(LOGITS).of(2)
    assert entry.logprob == pytest.approx(math.log(0.125), abs=1e-5)
    assert (entry.token, entry.text, entry.bytes) == (2, "é", (0xC3, 0xA9))
    assert [(other.token, other.text) for other in entry.top] == [(0, "a"), (1, "b")]
    assert [other.logprob for other in entry.top] == pytest.approx([math.log(0.5), math.log(0.25)], abs=1e-5)


def test_what_is_done_to_the_logits_later_does_not_count() -> None:
    logits = LOGITS.copy()
    scores = wanted(1).read(logits)
    logits[:] = -np.inf
    assert scores.of(0).logprob == pytest.approx(math.log(0.5), abs=1e-5)


@pytest.mark.parametrize(("top", "count"), [(0, 0), (1, 1), (5, 5), (20, 5)])
def test_as_many_others_as_asked_for_and_there_are(top: int, count: int) -> None:
    best = wanted(top).read(LOGITS).of(4).top
    assert len(best) == count
    assert [entry.logprob for entry in best] == sorted((entry.logprob for entry in best), reverse=True)


def test_a_token_without_probability_is_still_a_number() -> None:
    logits = LOGITS.copy()
    logits[1] = -np.inf
    assert wanted(0).read(logits).of(1).logprob == -9999.0


def test_bytes_that_are_no_character_are_given_as_bytes() -> None:
    entry = wanted(0).read(LOGITS).of(3)
    assert (entry.text, entry.bytes) == ("\ufffd", (0xC3,))
