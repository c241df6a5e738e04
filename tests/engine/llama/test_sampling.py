"""The sampler chain: each option does what its name says, draws depend on (seed, index) alone, nothing crashes."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from barrel_inference.config import ContextOpts, LoadOptions
from barrel_inference.engine.llama import LlamaBackend
from barrel_inference.engine.llama.sampling import Candidates, LlamaSampler, token_seed
from barrel_inference.errors import DecodeError
from barrel_inference.types import Sampling
from tests.support.models import smollm2

N_VOCAB = 40
EOG = 3
Logits = NDArray[np.float32]


class Vocabulary:
    n_tokens = N_VOCAB
    eog_tokens = frozenset({EOG})


CANDIDATES = Candidates(N_VOCAB)
LOGITS = np.random.default_rng(1).permutation(np.linspace(-4, 4, N_VOCAB)).astype(np.float32)
ORDER = [int(token) for token in np.argsort(-LOGITS)]


def neutral(**options: Any) -> Sampling:
    """Everything off but what is named."""
    off: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    return Sampling(**{**off, **options})


def opened(sampling: Sampling, seed: int = 1) -> LlamaSampler:
    return LlamaSampler(sampling, seed, Vocabulary(), CANDIDATES, n_ctx=64)


def draws(sampling: Sampling, count: int = 300, logits: Logits = LOGITS) -> list[int]:
    sampler = opened(sampling)
    tokens = [sampler.sample(logits.copy(), index) for index in range(count)]
    sampler.close()
    return tokens


def softmax(logits: Logits) -> NDArray[np.float64]:
    powers = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(powers / powers.sum())


def test_temperature_zero_takes_the_best() -> None:
    assert draws(neutral(temperature=0), 3) == [ORDER[0]] * 3
    assert draws(neutral(temperature=0, repeat_penalty=1.5), 1) == [ORDER[0]]


@pytest.mark.parametrize("temperature", [1e-7, 1e-30, 1e-40])  # 4 / 1e-40 is no 32-bit number
@pytest.mark.parametrize("options", [{}, {"mirostat": 1}, {"mirostat": 2}, {"repeat_penalty": 1.5}, {"top_p": 0.9}])
def test_next_to_no_temperature_is_none(temperature: float, options: dict[str, Any]) -> None:
    assert draws(neutral(temperature=temperature, **options), 20) == [ORDER[0]] * 20


@pytest.mark.parametrize("bias", [1e6, 1e30, 1e300])
@pytest.mark.parametrize("temperature", [1e-6, 1.0])
def test_no_bias_grows_to_infinity(temperature: float, bias: float) -> None:
    sampler = opened(neutral(temperature=temperature, logit_bias={7: bias}, repeat_penalty=1e-6))
    sampler.accept(7)
    assert [sampler.sample(LOGITS.copy(), index) for index in range(20)] == [7] * 20
    sampler.close()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_probabilities(temperature: float) -> None:
    counts = np.bincount(draws(neutral(temperature=temperature), 6000), minlength=N_VOCAB)
    assert np.abs(counts / 6000 - softmax(LOGITS / np.float32(temperature))).max() < 0.02


def test_a_draw_depends_on_seed_and_index_alone() -> None:
    whole = draws(neutral(), 40)
    resumed = opened(neutral())
    assert [resumed.sample(LOGITS, index) for index in (39, 20, 0)] == [whole[39], whole[20], whole[0]]
    other = opened(neutral(), seed=2)
    assert [other.sample(LOGITS, index) for index in range(40)] != whole


def test_seeds_of_tokens_are_well_mixed() -> None:
    seeds = {token_seed(seed, index) for seed in (-1, 0, 1, 2**63) for index in range(1000)}
    assert len(seeds) == 4000
    assert all(0 <= seed < 2**32 for seed in seeds)


def survivors(top_k: int, top_p: float, min_p: float) -> list[int]:
    """The definition: the best k of all, of those the best whose sum reaches p, of those all with min_p of the best."""
    kept = ORDER[: top_k or N_VOCAB]
    before = np.cumsum(softmax(LOGITS[kept])) - softmax(LOGITS[kept])
    kept = [token for token, sum_before in zip(kept, before, strict=True) if sum_before < top_p]
    probabilities = softmax(LOGITS[kept])
    return [token for token, p in zip(kept, probabilities, strict=True) if p >= min_p * probabilities[0]]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, N_VOCAB), st.sampled_from([0.05, 0.33, 0.77, 0.93]), st.sampled_from([0.0, 0.017, 0.21, 0.9]))
def test_truncations_keep_what_they_say_in_their_order(top_k: int, top_p: float, min_p: float) -> None:
    kept = survivors(top_k, top_p, min_p)
    drawn = set(draws(neutral(top_k=top_k, top_p=top_p, min_p=min_p, temperature=3.0), 1500))
    assert drawn <= set(kept)
    assert len(drawn) >= len(kept) * 0.9  # temperature comes last: it makes no survivor rare


def test_typical_and_sigma_narrow_the_choice() -> None:
    assert len(set(draws(neutral(typical_p=0.2)))) < len(set(draws(neutral())))
    limit = LOGITS.max() - LOGITS.std(ddof=0)
    assert set(draws(neutral(top_n_sigma=1.0, temperature=5.0))) == {t for t in ORDER if LOGITS[t] >= limit}


def test_xtc_takes_the_best_away() -> None:
    assert ORDER[0] not in draws(neutral(xtc_probability=1.0, xtc_threshold=0.05))


def test_penalties_count_what_was_accepted_within_the_window() -> None:
    sampler = opened(neutral(temperature=0, presence_penalty=100.0, repeat_last_n=2))
    for expected in (0, 1, 2, 0, 1):  # the third step has forgotten the first token
        token = sampler.sample(LOGITS.copy(), 0)
        assert token == ORDER[expected]
        sampler.accept(token)


def test_penalties_are_as_large_as_they_say() -> None:
    logits = np.full(N_VOCAB, -100, np.float32)
    logits[:2] = [5.0, 4.0]
    for penalty, expected in [(0.9, 0), (1.1, 1)]:
        for option in ("presence_penalty", "frequency_penalty"):
            sampler = opened(neutral(temperature=0, **{option: penalty}))
            sampler.accept(0)
            assert sampler.sample(logits, 0) == expected
    sampler = opened(neutral(temperature=0, repeat_penalty=1.3))  # 5 / 1.3 < 4
    sampler.accept(0)
    assert sampler.sample(logits, 0) == 1


def test_bias_and_ignored_ends() -> None:
    logits = LOGITS.copy()
    logits[EOG] = 50
    assert draws(neutral(temperature=0), 1, logits) == [EOG]
    assert draws(neutral(temperature=0, ignore_eos=True), 1, logits) == [ORDER[0]]
    assert draws(neutral(temperature=0, logit_bias={7: 1e6}), 1, logits) == [7]
    assert ORDER[0] not in draws(neutral(logit_bias={ORDER[0]: float("-inf")}))


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_is_stateful_and_repeats_from_its_start(version: int) -> None:
    def run() -> list[int]:
        sampler = opened(neutral(mirostat=version, mirostat_tau=3.0))
        assert sampler.stateful
        tokens = []
        for index in range(30):
            tokens.append(sampler.sample(LOGITS.copy(), index))
            sampler.accept(tokens[-1])
        return tokens

    assert run() == run()
    assert not opened(neutral()).stateful


def test_the_logits_are_left_as_they_were() -> None:
    before = LOGITS.copy()
    draws(Sampling(repeat_penalty=1.3, xtc_probability=0.5), 5)
    assert np.array_equal(before, LOGITS)


CHOICES: list[Callable[[], Sampling]] = [
    lambda: neutral(temperature=0),
    lambda: neutral(temperature=0, repeat_penalty=1.1),
    lambda: Sampling(),
    lambda: neutral(mirostat=1),
    lambda: neutral(mirostat=2),
]


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_nothing_to_choose_from_is_an_error(choice: Callable[[], Sampling], value: float) -> None:
    with pytest.raises(DecodeError, match="no token has a probability"):
        draws(choice(), 1, np.full(N_VOCAB, value, np.float32))


def test_what_is_forbidden_is_never_chosen() -> None:
    forbidden = dict.fromkeys(range(N_VOCAB), float("-inf"))
    with pytest.raises(DecodeError, match="all are forbidden"):
        draws(neutral(logit_bias=forbidden), 1)
    del forbidden[3]
    assert draws(neutral(logit_bias={**forbidden, 3: -1e300}), 5) == [3] * 5


@pytest.mark.parametrize("choice", CHOICES)
def test_a_logit_that_is_no_number_is_an_error_before_llama_sorts_it(choice: Callable[[], Sampling]) -> None:
    logits = LOGITS.copy()
    logits[7] = np.nan
    with pytest.raises(DecodeError, match="not numbers"):
        draws(choice(), 1, logits)


@pytest.mark.parametrize("choice", CHOICES)
def test_the_only_one_left_is_chosen(choice: Callable[[], Sampling]) -> None:
    logits = np.full(N_VOCAB, -np.inf, np.float32)
    logits[9] = -30.0
    assert draws(choice(), 3, logits) == [9] * 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_a_penalty_makes_infinitely_bad_is_still_chosen_if_nothing_else_is_allowed(temperature: float) -> None:
    logits = np.full(N_VOCAB, -np.inf, np.float32)
    logits[9] = -1e35
    sampler = opened(neutral(temperature=temperature, repeat_penalty=1e6))
    sampler.accept(9)
    assert [sampler.sample(logits.copy(), index) for index in range(5)] == [9] * 5
    sampler.close()


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1e-30},
        {"temperature": 1e6},
        {"top_k": 2**31 - 1},
        {"top_k": -1},
        {"top_p": 0.0},
        {"typical_p": 0.0},
        {"min_p": 1.0},
        {"top_n_sigma": 1e6},
        {"repeat_penalty": 1e-6, "presence_penalty": -1e6},
        {"xtc_probability": 1.0, "xtc_threshold": 0.0},
        {"mirostat": 1, "temperature": 0},
        {"mirostat": 2, "mirostat_tau": 1e6, "mirostat_eta": 1e6},
        {"logit_bias": dict.fromkeys(range(N_VOCAB), -1e300)},
    ],
)
def test_the_largest_and_smallest_values_choose_a_token(options: dict[str, object]) -> None:
    sampler = opened(neutral(**options))
    for index in range(20):
        token = sampler.sample(LOGITS.copy(), index)
        assert 0 <= token < N_VOCAB
        sampler.accept(token)


def test_a_huge_window_takes_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    opened(neutral(repeat_penalty=1.1, repeat_last_n=2**31 - 1)).close()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB


@pytest.fixture(scope="module")
def smol() -> Iterator[LlamaBackend]:
    backend = LlamaBackend(LoadOptions(id="m", model_path=str(smollm2()), context_opts=ContextOpts(n_ctx=256)))
    yield backend
    backend.close()


@pytest.mark.model
def test_dry_ends_a_repetition_and_breakers_allow_it(smol: LlamaBackend) -> None:
    words = smol.tokenize(b" one two three", add_special=False, parse_special=False)
    logits = np.zeros(smol.info.n_vocab, np.float32)
    logits[words[2]] = 5.0

    def best_after(tokens: list[int], **options: Any) -> int:
        dry = neutral(temperature=0, dry_multiplier=10.0, dry_allowed_length=1, **options)
        sampler = smol.sampler(dry, seed=1)
        for token in tokens:
            sampler.accept(token)
        token = sampler.sample(logits, 0)
        sampler.close()
        return token

    assert best_after([*words, *words[:2]]) != words[2]
    assert best_after([*words, *words[:2]], dry_last_n=2) == words[2]
    assert best_after([*words, *words[:2]], dry_breakers=("two",)) == words[2]
    assert best_after(words[:2], dry_breakers=("", "\ud800", "x" * 40), dry_last_n=2**31 - 1) == words[2]


@pytest.mark.model
def test_dry_samplers_are_made_once_and_share_no_history(smol: LlamaBackend) -> None:
    """However many requests with however many settings come and go."""
    words = smol.tokenize(b" one two three", add_special=False, parse_special=False)
    logits = np.zeros(smol.info.n_vocab, np.float32)
    logits[words[2]] = 5.0
    repeated = neutral(temperature=0, dry_multiplier=10.0, dry_allowed_length=1)
    for n in range(1, 21):
        other = smol.sampler(neutral(temperature=0, dry_multiplier=float(n), dry_breakers=()), seed=1)
        first, second = smol.sampler(repeated, seed=1), smol.sampler(repeated, seed=1)
        for token in [*words, *words[:2]]:
            first.accept(token)
            other.accept(token)
        assert first.sample(logits, 0) != words[2]
        assert second.sample(logits, 0) == words[2]
        for sampler in (first, second, other):
            sampler.close()
