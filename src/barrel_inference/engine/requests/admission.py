"""From the queue into a sequence: who may start, and in which one. Owned by the engine thread.

First come, first served; a request steps aside only while another reads the same prompt, while its own read is under
way, or while its session is busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from barrel_inference.config import BLOCK_TOKENS
from barrel_inference.engine.backend import Backend
from barrel_inference.engine.kvstore import KVStore
from barrel_inference.engine.requests.generation import Generation, State
from barrel_inference.engine.requests.prefix import Live, Prefix, add_stops, common_prefix, find
from barrel_inference.engine.sequence import Sequence, settle
from barrel_inference.errors import SeqCapacityError

KEEP_S = 3.0  # the janitor spares what was used within ten seconds, and a step may take some


class Admission:
    def __init__(
        self, backend: Backend, store: KVStore, sequences: list[Sequence], chunk: int, clock: Callable[[], float]
    ) -> None:
        info = backend.info
        self._store = store
        self._sequences = sequences
        self._chunk = chunk
        self._clock = clock
        self._idle_costs = info.attends_on_cpu
        self._only_whole = bool(info.n_swa or info.is_recurrent or info.is_hybrid)
        self.prefix = Prefix(backend, store, chunk)
        self.waiting: list[Generation] = []
        self._kept_at = clock()

    def admit(self, alone: Generation | None) -> list[Generation]:
        """Start whoever can be started (only ``alone``, when given); returns them, with their prefix in place."""
        self._keep_found()
        for generation in self.waiting:
            if generation.plan:
                generation.plan.read_on(all_of_it=self._is_anyone_running)
        if not any(s.is_idle for s in self._sequences):
            for generation in self.waiting:
                generation.is_stale = not generation.has_looked_again
            return []
        candidates = [g for g in self.waiting if alone is None or g is alone]
        return [generation for generation in candidates if self._try_to_start(generation)]

    def turned_away(self) -> list[Generation]:
        """Take out those that would not queue and found no free sequence."""
        full = [g for g in self.waiting if self._is_turned_away(g)]
        for generation in full:
            self.drop(generation)
        return full

    def refusal(self, generation: Generation) -> SeqCapacityError:
        """Why it was turned away."""
        session = generation.request.session
        if session is not None and any(s.session == session for s in self._sequences):
            return SeqCapacityError(f"session {session!r} is busy: it serves one request at a time")
        return SeqCapacityError(f"all {len(self._sequences)} sequences are in use")

    def drop(self, generation: Generation) -> None:
        """It will not start: out of the queue, its plan released."""
        if generation in self.waiting:
            self.waiting.remove(generation)
        if generation.plan:
            self._store.release(generation.plan)
            generation.plan = None

    def put_back(self, generations: Iterable[Generation]) -> None:
        """To the head of the queue, for a replay; their sequences are gone."""
        back = list(generations)
        for generation in back:
            generation.awaits = None
            generation.is_stale = True
            generation.replays += 1
        self.waiting[:0] = back

    def shift(self, generation: Generation) -> None:
        """Its context is full: it reads what it is to go on with in the sequence it has."""
        sequence = generation.sequence
        assert sequence is not None
        self.prefix.empty(sequence)
        generation.shift()
        self._occupy(generation, sequence)

    def release_idle(self, keep: Sequence | None = None) -> None:
        """While others run, idle sequences leave the context if the store holds what is kept of them (all but
        ``keep``): attention on the CPU looks at every cell in use, and new cells go behind them."""
        for sequence in self._sequences:
            if sequence is keep or not sequence.is_idle or not sequence.tokens or sequence.session is not None:
                continue
            if not sequence.writes or (self._idle_costs and self._store.holds(sequence)):
                self.prefix.empty(sequence)

    @property
    def _is_anyone_running(self) -> bool:
        return any(not s.is_idle for s in self._sequences)

    @property
    def is_reading(self) -> bool:
        """A request waits for the store to have read its prefix."""
        return any(g.plan and not g.plan.ready for g in self.waiting)

    def _keep_found(self) -> None:
        """What was found for those that wait is not evicted, however long they do."""
        now = self._clock()
        if self.waiting and now - self._kept_at >= KEEP_S:
            self._kept_at = now
            self._store.keep([g.plan for g in self.waiting if g.plan])

    # ---- whether

    def _try_to_start(self, generation: Generation) -> bool:
        if self._is_held(generation):
            return False
        self._make_cold(generation)
        live = self.prefix.best_live(generation, self._sequences)
        self._look_again(generation, live.length)
        if self._lets_another_read(generation, live) or self._must_read(generation, live):
            return False
        self.waiting.remove(generation)
        self._start(generation, self._target(generation, live), live)
        return True

    def _is_held(self, generation: Generation) -> bool:
        if not self._free(generation):
            generation.is_stale = not generation.has_looked_again
            return True
        if generation.plan and not generation.plan.ready:
            return True
        if generation.awaits:
            donor, length = generation.awaits
            if donor.state is State.PREFILL and donor.position < length:
                return True
            generation.awaits = None
        return False

    def _must_read(self, generation: Generation, live: Live) -> bool:
        """What it is to restore is being read, or will be: no more at once than sequences are free."""
        plan = generation.plan
        if plan is None or plan.length <= live.length:
            return plan is not None and not plan.ready
        if not plan.has_begun:
            n_reading = sum(g.plan is not None and not g.plan.ready for g in self.waiting)
            if n_reading >= sum(s.is_idle for s in self._sequences):
                return True
            self._store.begin(plan)
        plan.read_on(all_of_it=self._is_anyone_running)
        return not plan.ready

    def _is_turned_away(self, generation: Generation) -> bool:
        is_new = generation.request.on_full == "error" and not generation.replays and not generation.request.resume
        return is_new and not generation.awaits and not self._free(generation)

    def _free(self, generation: Generation) -> list[Sequence]:
        """Sequences it could take: its session's own, otherwise any idle one. Who is to run alone must wait for nobody:
        the others stand still until it has."""
        session = None if generation.alone_until is not None else generation.request.session
        own = [s for s in self._sequences if session is not None and s.session == session]
        return [s for s in own or self._sequences if s.is_idle]

    def _lets_another_read(self, generation: Generation, live: Live) -> bool:
        """Another is prefilling a common prefix that is longer, by a block at least, than what is there already."""
        have = max(live.length, generation.plan.length if generation.plan else 0)
        may_wait = generation.reads_cache and generation.alone_until is None
        for sequence in self._sequences if may_wait else ():
            donor = sequence.generation
            if donor is None or donor.state is not State.PREFILL or not sequence.writes:
                continue
            common = common_prefix(generation.history, donor.prompt) if self._same_salt(generation, donor) else 0
            length = generation.resume_limit(common, self._chunk)
            if length >= have + BLOCK_TOKENS and donor.position < length:
                self._await(generation, donor, length)
                return True
        return False

    def _same_salt(self, generation: Generation, other: Generation) -> bool:
        return generation.request.salt == other.request.salt

    def _await(self, generation: Generation, donor: Generation, length: int) -> None:
        generation.awaits = (donor, length)
        if self._only_whole:  # such a memory can be shared only while it ends exactly there
            donor.stops = tuple(sorted({*donor.stops, length}))

    def _look_again(self, generation: Generation, at_least: int) -> None:
        """The store may hold more than when the request arrived."""
        if not generation.is_stale:
            return
        generation.is_stale, generation.has_looked_again = False, True
        if generation.plan:
            if generation.plan.length + BLOCK_TOKENS > generation.n_prompt:
                return
            self._store.release(generation.plan)
        generation.plan = find(self._store, generation, self._chunk, at_least)

    # ---- where

    def _make_cold(self, generation: Generation) -> None:
        """Cells in use elsewhere would shift this sequence's, and with them the order of summation."""
        if generation.exact == "cold" and not self._is_anyone_running:
            for sequence in self._sequences:
                self.prefix.empty(sequence)

    def _target(self, generation: Generation, live: Live) -> Sequence:
        """The donor itself if it loses nothing; otherwise the idle sequence worth least, an empty one first."""
        free, donor = self._free(generation), live.donor
        is_ours = donor is not None and donor.session in (None, generation.request.session)
        if donor and is_ours and donor in free and live.length == len(donor.tokens):
            return donor
        return min(free, key=lambda s: (s.session is not None, bool(s.tokens), s.last_used))

    def _start(self, generation: Generation, target: Sequence, live: Live) -> None:
        now = self._clock()
        self.release_idle(keep=live.donor)
        report = self.prefix.fill(generation, target, live)
        settle(target, self._sequences)
        elapsed_s = self._clock() - now
        generation.restore_s += elapsed_s
        if generation.admitted is None:
            generation.admitted = now
            generation.cache = msgspec.structs.replace(report, restore_s=elapsed_s)
        self._occupy(generation, target)
        if generation.start is None:
            generation.start = report.restored_tokens

    def _occupy(self, generation: Generation, target: Sequence) -> None:
        request = generation.request
        target.salt, target.cache = request.salt, request.cache
        target.session = request.session
        target.n_prompt, target.boundaries = generation.n_prompt, generation.boundaries
        if generation.start is not None:
            generation.stops = tuple(sorted({*generation.stops, generation.start}))
        target.stops = add_stops(self._store, generation, len(target.tokens), self._chunk)
        target.generation, generation.sequence = generation, target
