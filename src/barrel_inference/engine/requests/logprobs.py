"""Log probabilities as the model gave them: before bias, constraint and sampling filters. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from barrel_inference.types import TokenLogprob

Piece = Callable[[int], bytes]


class TokenLogprobs(NamedTuple):
    """What a request wants to know of every token: its own and ``top`` other log probabilities."""

    piece: Piece
    top: int

    def read(self, logits: NDArray[np.float32]) -> Scores:
        """Read a row before anything is done to it."""
        scores = logits.astype(np.float64)
        scores -= scores.max()
        scores -= np.log(np.exp(scores).sum())
        return Scores(scores, self)


class Scores(NamedTuple):
    scores: NDArray[np.float64]
    wanted: TokenLogprobs

    def of(self, token: int) -> TokenLogprob:
        top = tuple(self._entry(int(other)) for other in self._best())
        return self._entry(token, top)

    def _best(self) -> NDArray[np.int64]:
        count = min(self.wanted.top, len(self.scores))
        if not count:
            return np.empty(0, np.int64)
        best = np.argpartition(self.scores, -count)[-count:]
        return best[np.argsort(-self.scores[best], kind="stable")]

    def _entry(self, token: int, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        piece = self.wanted.piece(token)
        logprob = max(float(self.scores[token]), -9999.0)  # -inf is not JSON
        return TokenLogprob(
            token=token, text=piece.decode("utf-8", "replace"), logprob=logprob, bytes=tuple(piece), top=top
        )
