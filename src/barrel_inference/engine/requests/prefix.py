"""Where the head of a prompt comes from: a resident sequence, the store, or nowhere; and putting it in place.

Engine thread only, but for ``find``, which the intake thread calls when a request arrives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from barrel_inference.engine.backend import Backend
from barrel_inference.engine.kvstore import KVStore, Plan
from barrel_inference.engine.requests.generation import Generation
from barrel_inference.engine.sequence import Sequence
from barrel_inference.kvcache.policy import cold_resume, cold_rows
from barrel_inference.types import CacheReport


class Live(NamedTuple):
    """The first ``length`` tokens can be shared with ``donor``, which differs from the prompt at ``mismatch``."""

    donor: Sequence | None = None
    length: int = 0
    mismatch: int | None = None


def common_prefix(a: list[int], b: list[int]) -> int:
    """Length of the common head, by halving: comparing slices is far faster than comparing items."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def find(store: KVStore, generation: Generation, chunk: int, at_least: int = 0) -> Plan | None:
    """Ask the store; its reads begin. Any thread."""
    request = generation.request
    if not generation.reads_cache:
        return None
    n_tokens = generation.n_prompt
    if generation.exact == "live":  # cold, generated tokens are decoded anew
        n_tokens += generation.n_known
    has_waited = isinstance(request.prompt, str)  # for its parent, when it became tokens
    return store.find(
        generation.history[:n_tokens],
        salt=request.salt,
        exact=generation.exact,
        limit=lambda at: generation.resume_limit(at, chunk),
        at_least=at_least,
        parent_key=request.parent_key if generation.start is None and not has_waited else None,
    )


def add_stops(store: KVStore, generation: Generation, start: int, chunk: int) -> tuple[int, ...]:
    """Where a prefill from ``start`` must stop for the store; also added to the generation's stops. Any thread."""
    n_prompt = generation.n_prompt
    own = store.stops(n_prompt, generation.boundaries, start) if generation.writes_cache else ()
    if generation.exact == "cold":  # what is kept must not change what is computed
        own = tuple(stop for stop in own if cold_resume(stop, n_prompt, chunk) == stop)
    generation.stops = tuple(sorted({*generation.stops, *own}))
    return own


class Prefix:
    """Finds the best donor and fills sequences."""

    def __init__(self, backend: Backend, store: KVStore, chunk: int) -> None:
        self._backend = backend
        self._store = store
        self._chunk = chunk

    def best_live(self, generation: Generation, sequences: Iterable[Sequence]) -> Live:
        best = Live()
        for donor in sequences if generation.reads_cache else ():
            if not self._may_share(generation, donor):
                continue
            common = common_prefix(generation.history, donor.tokens)
            length = self._shareable(generation, donor, common)
            if (length, common) > (best.length, best.mismatch or 0):
                differs = common < min(len(donor.tokens), len(generation.history))
                best = Live(donor, length, common if differs else None)
        return best

    def fill(self, generation: Generation, target: Sequence, live: Live) -> CacheReport:
        """Put the longer of plan and live prefix into ``target``; of equal ones the live one, which reads nothing."""
        plan, generation.plan = generation.plan, None
        mismatch = (plan.first_mismatch if plan else None) or live.mismatch
        if plan and plan.length > live.length:
            if length := self._restore(generation, plan, target):
                return self._report(generation, length, plan.tier, mismatch)
        elif plan:
            self._store.release(plan)
        length = self._share(live, target)
        target.prefill_end = cold_rows(length, target.prefill_end, generation.n_prompt, self._chunk)
        return self._report(generation, length, "live" if length else None, mismatch)

    def empty(self, sequence: Sequence) -> None:
        """Give up an idle sequence; what could not be saved when it finished gets another chance."""
        if sequence.is_unsaved:
            self._store.finish(sequence, "evict")
        if sequence.tokens:
            self._backend.seq_remove(sequence.seq, 0, -1)
        sequence.clear()

    def _may_share(self, generation: Generation, donor: Sequence) -> bool:
        is_own = donor.session is not None and donor.session == generation.request.session
        return (donor.writes or is_own) and donor.salt == generation.request.salt

    def _shareable(self, generation: Generation, donor: Sequence, common: int) -> int:
        usable = min(common, donor.prefill_end) if generation.exact == "cold" else common
        wanted = generation.resume_limit(usable, self._chunk)
        length = self._store.shareable(donor, wanted) if wanted else 0
        return length if generation.resume_limit(length, self._chunk) == length else 0

    def _restore(self, generation: Generation, plan: Plan, target: Sequence) -> int:
        self.empty(target)
        length = self._store.restore(plan, target.seq)
        if length:
            target.adopt(generation.history[:length], plan.prefill_end(generation.n_prompt))
            target.saved = length
        return length

    def _share(self, live: Live, target: Sequence) -> int:
        donor, length = live.donor, live.length
        if donor is target and donor.tokens:
            return self._cut(target, length)
        self.empty(target)
        if donor is None or not length or not donor.tokens:  # emptied: it was to make room for a restore that failed
            return 0
        self._backend.seq_copy(donor.seq, target.seq, 0, -1 if length == len(donor.tokens) else length)
        target.adopt(donor.tokens[:length], donor.prefill_end)
        target.saved = min(donor.saved, length)
        return length

    def _cut(self, sequence: Sequence, length: int) -> int:
        """Keep its first ``length`` tokens; how many are really left."""
        if length < len(sequence.tokens):
            if not length or not self._backend.seq_remove(sequence.seq, length, -1):
                self.empty(sequence)
                return 0
            sequence.cut(length)
        return length

    def _report(self, generation: Generation, length: int, tier: str | None, mismatch: int | None) -> CacheReport:
        n_prompt = generation.n_prompt
        restored = min(length, n_prompt)
        is_all = length >= generation.resume_limit(n_prompt - 1, self._chunk)
        return CacheReport(
            kind="cold" if not length else "live" if tier == "live" else "exact" if is_all else "partial",
            restored_tokens=restored,
            prefilled_tokens=n_prompt - restored,
            tier=tier,
            first_mismatch=mismatch if mismatch is not None and mismatch < n_prompt else None,
        )
