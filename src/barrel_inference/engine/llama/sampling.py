"""llama.cpp's own samplers, in the order of types.Sampling, with randomness that depends on (seed, output index) only.

Owner of the candidate array, which is filled anew for each token and shared by all samplers, and of the DRY samplers
that are kept: the engine thread.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from barrel_inference.engine.llama.binding import lib
from barrel_inference.errors import DecodeError
from barrel_inference.types import Sampling

_MASK64 = (1 << 64) - 1
_MAX_DRY = 8
_MOST = 1e20  # a bias that no logit outweighs, and that grows to no infinity in 32 bits
_COLDEST = 1e-6  # lower temperatures are 0: what is divided by them overflows, and infinities have no order
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


def token_seed(seed: int, index: int) -> int:
    """32 well-mixed bits of (seed, index): a finaliser of splitmix64."""
    z = (seed * 0x9E3779B97F4A7C15 + index * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return (z ^ (z >> 31)) & 0xFFFFFFFF


class SampledVocabulary(Protocol):
    """What a sampler needs to know of a vocabulary (the stub has one too)."""

    @property
    def n_tokens(self) -> int: ...

    @property
    def eog_tokens(self) -> frozenset[int]: ...


class Candidates:
    """llama_token_data_array over one numpy array."""

    def __init__(self, n_vocab: int) -> None:
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._data = np.zeros(n_vocab, _CANDIDATE)
        self._pointer = ctypes.cast(self._data.ctypes.data, lib.llama_token_data_p)
        self.array = lib.llama_token_data_array()
        self.reference = ctypes.byref(self.array)

    def fill(self, logits: NDArray[np.float32]) -> None:
        self._data["id"] = self._ids
        self._data["logit"] = logits
        self.array.data = self._pointer
        self.array.size = len(self._ids)
        self.array.selected = -1
        self.array.sorted = False

    def selected(self) -> int:
        return int(self.array.data[self.array.selected].id)


class DrySamplers:
    """DRY samplers to clone. A new one looks for its breakers in every token of the vocabulary, for tens of
    milliseconds; most requests ask for the same."""

    def __init__(self, vocabulary: Any) -> None:
        self._vocabulary = vocabulary
        self._kept: dict[tuple[Any, ...], Any] = {}  # the last used ones, in that order

    def make(self, s: Sampling, last_n: int) -> Any:
        """A new one, without history; the caller's to free."""
        key = (s.dry_multiplier, s.dry_base, s.dry_allowed_length, last_n, s.dry_breakers)
        sampler = self._kept.pop(key, None) or self._init(s, last_n)
        self._kept[key] = sampler
        if len(self._kept) > _MAX_DRY:
            lib.llama_sampler_free(self._kept.pop(next(iter(self._kept))))
        return lib.llama_sampler_clone(sampler)

    def _init(self, s: Sampling, last_n: int) -> Any:
        breakers = (ctypes.c_char_p * len(s.dry_breakers))(*(text.encode(errors="replace") for text in s.dry_breakers))
        return lib.llama_sampler_init_dry(
            self._vocabulary,
            s.dry_multiplier,
            s.dry_base,
            s.dry_allowed_length,
            last_n,
            ctypes.cast(breakers, ctypes.POINTER(ctypes.c_char_p)),
            len(s.dry_breakers),
        )

    def close(self) -> None:
        while self._kept:
            lib.llama_sampler_free(self._kept.popitem()[1])


class LlamaSampler:
    """The chain of one request. ``close`` frees it. Without ``dry`` the DRY options have no effect."""

    def __init__(
        self,
        sampling: Sampling,
        seed: int,
        vocabulary: SampledVocabulary,
        candidates: Candidates,
        *,
        n_ctx: int,
        dry: DrySamplers | None = None,
    ) -> None:
        self.stateful = sampling.mirostat != 0
        self._sampling = sampling
        self._seed = seed
        self._candidates = candidates
        self._filters = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        self._remembers = False  # penalties or DRY: they need to see every token
        self._bias = _bias(sampling, vocabulary)
        self._add_history(vocabulary.n_tokens, n_ctx, dry)
        self._greedy = sampling.temperature < _COLDEST
        self._plain = self._greedy and not (self._remembers or self.stateful)
        if self.stateful:
            self._add_mirostat(vocabulary.n_tokens)
        elif not self._greedy:
            self._add_truncation()

    def sample(self, logits: NDArray[np.float32], index: int) -> int:
        """DecodeError when there is nothing to choose from."""
        if self._bias is not None:
            tokens, values = self._bias
            logits[tokens] += values
        best = int(logits.argmax())
        if not logits[best] > -np.inf:  # nor is NaN, which argmax prefers, and which llama.cpp must not sort
            raise DecodeError("no token has a probability: all are forbidden, or the model's logits are not numbers")
        if self._plain:
            return best
        token = self._choose(logits, index)
        return token if logits[token] > -np.inf else best  # filters may have left nothing of what is allowed

    def _choose(self, logits: NDArray[np.float32], index: int) -> int:
        candidates = self._candidates
        candidates.fill(logits)
        lib.llama_sampler_apply(self._filters, candidates.reference)
        if self.stateful:
            return candidates.selected()
        if self._greedy:
            _apply_once(lib.llama_sampler_init_greedy(), candidates)
            return candidates.selected()
        seed = token_seed(self._seed, index)
        if self._sampling.xtc_probability > 0:
            xtc = lib.llama_sampler_init_xtc(
                self._sampling.xtc_probability, self._sampling.xtc_threshold, 1, seed ^ 0x5DEECE66
            )
            _apply_once(xtc, candidates)
        _apply_once(lib.llama_sampler_init_temp(self._sampling.temperature), candidates)
        _apply_once(lib.llama_sampler_init_dist(seed), candidates)
        return candidates.selected()

    def accept(self, token: int) -> None:
        if self._remembers or self.stateful:
            lib.llama_sampler_accept(self._filters, token)

    def close(self) -> None:
        if self._filters is not None:
            lib.llama_sampler_free(self._filters)
            self._filters = None

    def _add(self, sampler: Any) -> None:
        lib.llama_sampler_chain_add(self._filters, sampler)

    def _add_history(self, n_vocab: int, n_ctx: int, dry: DrySamplers | None) -> None:
        s = self._sampling
        if s.repeat_last_n and (s.repeat_penalty != 1.0 or s.presence_penalty or s.frequency_penalty):
            last_n = _window(s.repeat_last_n, n_ctx)
            self._add(
                lib.llama_sampler_init_penalties(
                    n_vocab, last_n, s.repeat_penalty, s.frequency_penalty, s.presence_penalty
                )
            )
            self._remembers = True
        if dry and s.dry_multiplier > 0 and s.dry_last_n:
            self._add(dry.make(s, _window(s.dry_last_n, n_ctx)))
            self._remembers = True

    def _add_mirostat(self, n_vocab: int) -> None:
        s, seed = self._sampling, self._seed & 0xFFFFFFFF
        self._add(lib.llama_sampler_init_temp(0.0 if self._greedy else s.temperature))
        if s.mirostat == 1:
            self._add(lib.llama_sampler_init_mirostat(n_vocab, seed, s.mirostat_tau, s.mirostat_eta, 100))
        else:
            self._add(lib.llama_sampler_init_mirostat_v2(seed, s.mirostat_tau, s.mirostat_eta))

    def _add_truncation(self) -> None:
        s = self._sampling
        if s.top_n_sigma > 0:
            self._add(lib.llama_sampler_init_top_n_sigma(s.top_n_sigma))
        if s.top_k > 0:
            self._add(lib.llama_sampler_init_top_k(s.top_k))
        if s.typical_p < 1:
            self._add(lib.llama_sampler_init_typical(s.typical_p, 1))
        if s.top_p < 1:
            self._add(lib.llama_sampler_init_top_p(s.top_p, 1))
        if s.min_p > 0:
            self._add(lib.llama_sampler_init_min_p(s.min_p, 1))


def _bias(sampling: Sampling, vocabulary: SampledVocabulary) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
    """Tokens and what is added to their logits. Applied here: a sampler for it would cost a copy of all logits."""
    bias = {
        token: min(max(value, -_MOST), _MOST) if value > -np.inf else value
        for token, value in sampling.logit_bias.items()
        if 0 <= token < vocabulary.n_tokens
    }
    if sampling.ignore_eos:
        bias |= dict.fromkeys(vocabulary.eog_tokens, float("-inf"))
    if not bias:
        return None
    return np.fromiter(bias, np.int64), np.fromiter(bias.values(), np.float32)


def _window(last_n: int, n_ctx: int) -> int:
    """llama.cpp allocates what it is told, and no history is longer than the context."""
    return n_ctx if last_n < 0 else min(last_n, n_ctx)


def _apply_once(sampler: Any, candidates: Candidates) -> None:
    lib.llama_sampler_apply(sampler, candidates.reference)
    lib.llama_sampler_free(sampler)
