"""From a request to a generation that can wait for a sequence: checked, tokenised, its reads begun. Any thread.

All that can be wrong with a request itself is found here, before it costs the others anything.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection
from typing import NamedTuple

from barrel_inference.engine.backend import Backend
from barrel_inference.engine.kvstore import KVStore
from barrel_inference.engine.requests.generation import Generation, LogitMask, TextStream
from barrel_inference.engine.requests.logprobs import TokenLogprobs
from barrel_inference.engine.requests.prefix import add_stops, find
from barrel_inference.errors import ContextExceededError, InvalidRequestError, NoWeightsError, UnsupportedError
from barrel_inference.types import Constraint, Exactness, Request


class Tokenised(NamedTuple):
    tokens: list[int]
    boundaries: tuple[int, ...]  # message ends, in tokens


class Preparer:
    """``tokenise``: text prompts (with their boundaries) to tokens. ``constrain``: raises SchemaError when unusable."""

    def __init__(
        self,
        backend: Backend,
        store: KVStore,
        *,
        exact: Exactness,
        tokenise: Callable[[Request], Tokenised],
        constrain: Callable[[Constraint], LogitMask],
        text_stream: Callable[[Request], TextStream],
        clock: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._store = store
        self._exact: Exactness = exact
        self._tokenise = tokenise
        self._constrain = constrain
        self._text_stream = text_stream
        self._clock = clock

    def prepare(self, request: Request) -> Generation:
        """Raises InvalidRequestError, ContextExceededError, SchemaError, UnsupportedError or NoWeightsError."""
        arrived = self._clock()
        self._check(request)
        prompt = self._prompt(request)
        info, seed = self._backend.info, request.sampling.seed
        generation = Generation(
            request=request,
            prompt=prompt.tokens,
            boundaries=prompt.boundaries,
            n_ctx=info.n_ctx,
            is_eog=self._backend.is_eog,
            text=self._text_stream(request),
            constraint=self._constrain(request.constraint) if request.constraint else None,
            logprobs=self._logprobs(request),
            seed=secrets.randbits(32) if seed is None else seed,
            exact=request.exact or self._exact,
            arrived=arrived,
            deadline=None if request.timeout_s is None else arrived + request.timeout_s,
        )
        chunk = info.solo_chunk
        if generation.start is not None:
            add_stops(self._store, generation, generation.start, chunk)
        generation.plan = find(self._store, generation, chunk)
        return generation

    def _check(self, request: Request) -> None:
        info = self._backend.info
        if info.vocab_only:
            raise NoWeightsError("the model was loaded with vocab_only: it tokenizes, it does not generate")
        if info.embeddings or not info.has_memory:
            raise UnsupportedError("this model was loaded for embeddings: it does not generate")
        check_ids(request.sampling.logit_bias, info.n_vocab)
        if not all(bias < math.inf for bias in request.sampling.logit_bias.values()):  # nor is NaN
            raise InvalidRequestError("each logit_bias must be a number, or -inf to forbid the token")

    def _prompt(self, request: Request) -> Tokenised:
        prompt = self._tokens(request)
        n_ctx, n_prompt = self._backend.info.n_ctx, len(prompt.tokens)
        if not n_prompt:
            raise InvalidRequestError("the prompt is empty")
        if n_prompt > n_ctx:
            raise ContextExceededError(
                f"the prompt has {n_prompt} tokens, the context holds {n_ctx}", n_prompt_tokens=n_prompt, n_ctx=n_ctx
            )
        check_ids(prompt.tokens, self._backend.info.n_vocab)
        return prompt

    def _tokens(self, request: Request) -> Tokenised:
        if isinstance(request.prompt, str):
            prompt = self._tokenise(request)
        else:
            prompt = Tokenised(list(request.prompt), request.boundaries)
        return prompt._replace(tokens=list(request.resume.prompt_tokens)) if request.resume else prompt

    def _logprobs(self, request: Request) -> TokenLogprobs | None:
        if not request.logprobs:
            return None
        piece = self._backend.piece
        return TokenLogprobs(lambda token: piece(token, special=True), request.top_logprobs)


def check_ids(tokens: Collection[int], n_vocab: int) -> None:
    """Raises InvalidRequestError for an id that the vocabulary does not have."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < n_vocab:
        wrong = next(token for token in tokens if not 0 <= token < n_vocab)
        raise InvalidRequestError(f"token id {wrong} is not in the vocabulary (0 … {n_vocab - 1})", token=wrong)
