"""What becomes of the requests in a batch that failed. Owned by the engine thread.

All sequences are given up, and every request goes back to the queue to be replayed. Those of the failed batch are
suspects: each runs alone until it is past the place. Who fails alone ends with its typed error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from barrel_inference.engine.backend import Backend, DecodeStatus
from barrel_inference.engine.requests.admission import Admission
from barrel_inference.engine.requests.generation import Generation
from barrel_inference.engine.sequence import Sequence
from barrel_inference.errors import DecodeError, DecodeTimeoutError, KVFullError, RequestError

MAX_REPLAYS = 3  # requests that fail only together would otherwise take turns for ever


class Replay:
    def __init__(self, backend: Backend, sequences: list[Sequence], admission: Admission, budget_ms: int) -> None:
        self._backend = backend
        self._sequences = sequences
        self._admission = admission
        self._budget_ms = budget_ms

    def alone(self) -> Generation | None:
        """The suspect whose turn it is; nothing else may run."""
        running = (s.generation for s in self._sequences if s.generation)
        return next((g for g in (*running, *self._admission.waiting) if g.alone_until is not None), None)

    def after_failure(self, status: DecodeStatus, batch: list[Generation]) -> list[tuple[Generation, RequestError]]:
        """Recover; returns those to be ended, with their errors. Everything else waits for its replay."""
        if status is DecodeStatus.NO_ROOM and self.drop_idle():
            return []
        running = [s.generation for s in self._sequences if s.generation]
        is_alone = len(batch) == 1 and (status is not DecodeStatus.NO_ROOM or len(running) == 1)
        guilty = [g for g in batch if is_alone or g.replays >= MAX_REPLAYS]
        self._suspect([g for g in batch if g not in guilty], status)
        self._lose_all(status)
        innocent = [g for g in running if g not in guilty]
        self._admission.put_back(sorted(innocent, key=lambda g: (g.alone_until is None, g.arrived)))
        return [(generation, self._error(status)) for generation in guilty]

    def clear_suspects(self, batch: Iterable[Generation]) -> None:
        """The batch went well."""
        for generation in batch:
            if generation.alone_until is not None and generation.position >= generation.alone_until:
                generation.alone_until = None

    def _suspect(self, generations: list[Generation], status: DecodeStatus) -> None:
        for generation in generations:
            # What found no room beside others would find none again: it runs alone to its end.
            generation.alone_until = sys.maxsize if status is DecodeStatus.NO_ROOM else generation.position + 1

    def drop_idle(self) -> bool:
        """Empty the sequences that nothing runs in; whether that made room."""
        idle = [s for s in self._sequences if s.is_idle and s.tokens]
        for sequence in idle:
            self._admission.prefix.empty(sequence)
        return bool(idle)

    def _lose_all(self, status: DecodeStatus) -> None:
        if status is not DecodeStatus.NO_ROOM:
            self._backend.rebuild()
        for sequence in self._sequences:
            if status is DecodeStatus.NO_ROOM and sequence.tokens:
                self._backend.seq_remove(sequence.seq, 0, -1)
            sequence.clear()
            if generation := sequence.generation:
                generation.sequence = None
                sequence.generation = None

    def _error(self, status: DecodeStatus) -> RequestError:
        if status is DecodeStatus.NO_ROOM:
            return KVFullError("the KV cache has no room for this request even alone")
        if status is DecodeStatus.ABORTED:
            return DecodeTimeoutError(
                f"one decode step took longer than decode_budget_ms={self._budget_ms}", budget_ms=self._budget_ms
            )
        return DecodeError("llama.cpp failed to decode this request")
