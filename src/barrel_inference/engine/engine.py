"""The engine: receive → plan → decode → sample → emit. Its thread alone touches the context and all live KV.

any thread      submit, cancel, call, drain, snapshot
engine thread   run (all the rest)
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from barrel_inference.config import LoadOptions
from barrel_inference.engine.backend import Backend, DecodeStatus, Slice
from barrel_inference.engine.costs import Costs, Step
from barrel_inference.engine.kvstore import KVStore
from barrel_inference.engine.requests.admission import Admission
from barrel_inference.engine.requests.generation import Generation, State
from barrel_inference.engine.requests.inbox import Inbox
from barrel_inference.engine.requests.replay import Replay
from barrel_inference.engine.scheduler import Feed, Limits, View, plan
from barrel_inference.engine.sequence import Sequence, settle
from barrel_inference.errors import (
    BarrelError,
    ConfigError,
    DecodeError,
    NotLoadedError,
    RequestTimeoutError,
)
from barrel_inference.kvcache.policy import SaveReason, is_cold_shape
from barrel_inference.types import CacheReport, Chunk, FinishReason

log = logging.getLogger(__name__)
T = TypeVar("T")
READ_POLL_S = 0.002  # how soon a finished read is noticed while nothing else runs


class Sink(Protocol):
    """Where results go: called on the engine thread, must not block. ``flush`` ends each step."""

    def started(self, request_id: str, prompt: list[int], start: int, seed: int, cache: CacheReport) -> None:
        """Prefill begins at ``start``: what a resume needs to know."""

    def output(self, request_id: str, chunk: Chunk) -> None:
        """New tokens; the last one carries the completion."""

    def failed(self, request_id: str, error: BarrelError) -> None: ...

    def flush(self) -> None: ...


class Snapshot(NamedTuple):
    """As of the last step."""

    sequences_free: int
    queued: int = 0
    running: int = 0
    last_cache: CacheReport | None = None


class Row(NamedTuple):
    """What one request has in a batch."""

    generation: Generation
    slice: Slice


class Engine:
    def __init__(
        self,
        backend: Backend,
        store: KVStore,
        options: LoadOptions,
        sink: Sink,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        info, budget_ms = backend.info, options.context_opts.decode_budget_ms
        if info.n_batch < info.n_seq_max:
            raise ConfigError(f"n_batch={info.n_batch} must be at least n_seq_max={info.n_seq_max}", option="n_batch")
        self._backend = backend
        self._store = store
        self._sink = sink
        self._clock = clock
        self._budget_s = budget_ms / 1000 or None
        chunk = options.policy.prefill_chunk_size or max(64, info.n_batch // 4)
        self._limits = Limits(info.n_batch, chunk, info.solo_chunk)
        self._sequences = [Sequence(seq) for seq in range(info.n_seq_max)]
        self._admission = Admission(backend, store, self._sequences, self._limits.solo_chunk, clock)
        self._replay = Replay(backend, self._sequences, self._admission, budget_ms)
        self._inbox = Inbox()
        self._costs = Costs()
        self._n_steps = 0
        self._n_turns = 0
        self.current_step = 0  # its number, for those who watch; 0 outside of steps: what is posted takes any time
        self._drain_until: float | None = None
        self._counters: defaultdict[str, float] = defaultdict(float)
        self._snapshot = Snapshot(info.n_seq_max)

    # ---- any thread

    def submit(self, generation: Generation) -> None:
        self._inbox.post(lambda: self._receive(generation))

    def cancel(self, request_id: str) -> None:
        """Takes effect before the next step; ids that are unknown or finished are ignored."""
        self._inbox.post(lambda: self._cancel(request_id))

    def call(self, fn: Callable[[], T]) -> Future[T]:
        """Run ``fn`` on the engine thread between two steps."""
        return self._inbox.call(fn)

    def end_session(self, session: str) -> None:
        """Unpin its sequence, which stays as an idle one."""
        self._inbox.post(lambda: self._end_session(session))

    def drain(self, deadline_s: float) -> None:
        """Accept nothing more; ``run`` returns when all is finished, or cancelled after ``deadline_s``."""
        self._inbox.post(lambda: self._drain(deadline_s))

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def counters(self) -> dict[str, float]:
        """Cumulative: requests (also by kind of hit and finish reason), tokens, steps, seconds, replays."""
        return dict(self._counters)

    # ---- engine thread

    def run(self) -> None:
        """Step until drained; sleep while there is nothing to do."""
        while True:
            is_busy = self.step()
            if self._drain_until is not None and not self._generations():
                return
            if not is_busy:
                self._inbox.wait(self._idle_s())

    def step(self) -> bool:
        """One turn; whether there was something to decode."""
        self._inbox.run_posted()
        self._n_turns += 1
        self.current_step = self._n_turns
        self._expire()
        self._admit()
        batch = self._plan()
        if batch and self._decode(batch):
            self._sample(batch)
        self._tell()
        self.current_step = 0
        return bool(batch)

    def make_room(self) -> bool:
        """Give up what idle sequences hold; whether they held anything. Only from a function given to ``call``."""
        return self._replay.drop_idle()

    def save_idle(self) -> None:
        """Once ``run`` has returned: what could not be kept when its request ended gets another chance."""
        for sequence in self._sequences:
            if sequence.is_idle and sequence.is_unsaved:
                self._store.finish(sequence, "shutdown")

    # ---- receive

    def _receive(self, generation: Generation) -> None:
        self._counters["requests"] += 1
        self._admission.waiting.append(generation)
        if self._drain_until is not None:
            self._fail(generation, NotLoadedError("the model is being unloaded"))

    def _cancel(self, request_id: str) -> None:
        for generation in self._generations():
            if generation.request.id == request_id:
                self._end(generation, "cancelled")

    def _end_session(self, session: str) -> None:
        for sequence in self._sequences:
            if sequence.session == session:
                sequence.session = None

    def _drain(self, deadline_s: float) -> None:
        self._drain_until = self._clock() + deadline_s

    def _expire(self) -> None:
        now = self._clock()
        for generation in self._generations():
            if self._drain_until is not None and now >= self._drain_until:
                self._end(generation, "cancelled", "shutdown")
            elif generation.deadline is not None and now >= generation.deadline:
                timeout_s = generation.request.timeout_s
                self._fail(generation, RequestTimeoutError(f"not finished within timeout_s={timeout_s}"))

    def _generations(self) -> list[Generation]:
        return [*(s.generation for s in self._sequences if s.generation), *self._admission.waiting]

    def _idle_s(self) -> float | None:
        """How long nothing can happen by itself."""
        if self._admission.is_reading:
            return READ_POLL_S
        deadlines = [self._drain_until, *(g.deadline for g in self._generations())]
        times = [at for at in deadlines if at is not None]
        return max(0.0, min(times) - self._clock()) if times else None

    def _admit(self) -> None:
        for generation in self._admission.admit(self._replay.alone()) if self._admission.waiting else ():
            try:
                if generation.sampler is None:
                    generation.open(self._backend.sampler(generation.request.sampling, generation.seed))
            except Exception as error:
                if not isinstance(error, BarrelError):
                    log.exception("request %s could not begin", generation.request.id)
                self._fail(generation, BarrelError.wrap(error))
            else:
                self._announce(generation)
        if any(sequence.generation for sequence in self._sequences):
            self._admission.release_idle()
        for generation in self._admission.turned_away() if self._admission.waiting else ():
            self._fail(generation, self._admission.refusal(generation))

    def _announce(self, generation: Generation) -> None:
        if generation.replays:
            return
        self._snapshot = self._snapshot._replace(last_cache=generation.cache)
        self._counters["prompt_tokens"] += generation.n_prompt
        self._counters["restored_tokens"] += generation.cache.restored_tokens
        self._counters[f"requests_{generation.cache.kind}"] += 1
        self._sink.started(
            generation.request.id, generation.prompt, generation.start or 0, generation.seed, generation.cache
        )

    # ---- plan

    def _plan(self) -> list[Row]:
        alone = self._replay.alone()
        running = [s.generation for s in self._sequences if s.generation and alone in (None, s.generation)]
        return [self._row(feed) for feed in plan(map(_view, running), self._limits, self._costs)]

    def _row(self, feed: Feed) -> Row:
        generation = self._sequences[feed.seq].generation
        assert generation is not None
        start = generation.position
        wants_logits = generation.wants_logits(start + feed.n_tokens)
        return Row(generation, Slice(feed.seq, start, generation.feed(feed.n_tokens), wants_logits))

    # ---- decode

    def _decode(self, batch: list[Row]) -> bool:
        """Whether it went well; otherwise everyone has been sent to be replayed, or ended."""
        began = self._clock()
        status = self._try_decode(batch)
        if status is not DecodeStatus.OK:
            self._counters[f"decode_{status.value}"] += 1
            n_waiting = len(self._admission.waiting)
            for generation, error in self._replay.after_failure(status, [row.generation for row in batch]):
                self._fail(generation, error)
            self._counters["replays"] += len(self._admission.waiting) - n_waiting
            return False
        self._n_steps += 1
        self._account(batch, self._clock() - began)
        return True

    def _try_decode(self, batch: list[Row]) -> DecodeStatus:
        try:
            return self._backend.decode([row.slice for row in batch], self._budget_s)
        except DecodeError:  # refused before llama.cpp saw it: our idea of the context is wrong
            log.exception("a batch was refused")
            return DecodeStatus.FAILED

    def _account(self, batch: list[Row], elapsed_s: float) -> None:
        counters = self._counters
        counters["steps"] += 1
        counters["batch_sequences"] += len(batch)
        prompts = [row.slice for row in batch if row.generation.state is State.PREFILL]
        step = _step(prompts, len(batch) - len(prompts), elapsed_s)
        prefill_s = self._costs.prefill_part(step)
        self._costs = self._costs.after(step)
        counters["decoded_tokens"] += step.n_decode
        counters["decode_s"] += elapsed_s - prefill_s
        counters["prefilled_tokens"] += step.n_prefill
        counters["prefill_s"] += prefill_s

    # ---- sample

    def _sample(self, batch: list[Row]) -> None:
        for index, (generation, piece) in enumerate(batch):
            self._grow(generation, piece, is_alone=len(batch) == 1)
            if piece.want_logits:
                self._sample_row(generation, index)
            elif generation.request.max_tokens == 0 and generation.state is State.DECODE:
                self._end(generation, "length")
        self._replay.clear_suspects(row.generation for row in batch)

    def _grow(self, generation: Generation, piece: Slice, *, is_alone: bool) -> None:
        sequence, stop = generation.sequence, piece.start + len(piece.tokens)
        assert sequence is not None
        n_prompt = generation.n_prompt
        settle(sequence, self._sequences)
        is_cold = is_alone and is_cold_shape(piece.start, stop, n_prompt, self._limits.solo_chunk)
        sequence.extend(piece.tokens, cold_shape=is_cold)
        sequence.cost_us_per_token = self._costs.prefill_s * 1e6
        generation.served = self._n_steps
        if sequence.writes:
            self._store.after_step(sequence)

    def _sample_row(self, generation: Generation, index: int) -> None:
        try:
            chunk = generation.sample(self._backend.logits(index), self._clock())
        except Exception as error:
            if not isinstance(error, BarrelError):  # a grammar may turn out to be too complex half way
                log.exception("sampling failed for request %s", generation.request.id)
            self._fail(generation, BarrelError.wrap(error))
            return
        if generation.finish_reason:
            self._finish(generation, chunk, "finish")
            return
        if chunk.tokens:
            self._sink.output(generation.request.id, chunk)
        if generation.must_shift:
            self._counters["shifts"] += 1
            self._admission.shift(generation)

    # ---- emit

    def _end(self, generation: Generation, reason: FinishReason, save: SaveReason = "finish") -> None:
        self._finish(generation, Chunk(text=generation.end(reason)), save)

    def _finish(self, generation: Generation, chunk: Chunk, save: SaveReason) -> None:
        finish_key = self._leave(generation, save)
        completion = generation.completion(finish_key, self._clock())
        self._counters[f"finished_{completion.finish_reason}"] += 1
        self._counters["generated_tokens"] += len(completion.tokens)
        self._sink.output(generation.request.id, msgspec.structs.replace(chunk, completion=completion))
        log.debug(
            "%s: %s after %d prompt tokens (%s, %d restored) and %d more in %.3f s",
            generation.request.id,
            completion.finish_reason,
            completion.usage.prompt_tokens,
            completion.cache.kind,
            completion.usage.cached_tokens,
            completion.usage.completion_tokens,
            completion.timings.total_s,
        )

    def _fail(self, generation: Generation, error: BarrelError) -> None:
        self._leave(generation, "finish")
        self._counters["failed"] += 1
        self._sink.failed(generation.request.id, error)
        log.debug("%s: %s: %s", generation.request.id, error.code, error)

    def _leave(self, generation: Generation, save: SaveReason) -> str | None:
        """Out of queue and sequence; the finish key of what the sequence holds."""
        self._admission.drop(generation)
        generation.close()
        sequence, generation.sequence = generation.sequence, None
        if sequence is None:
            return None
        sequence.generation = None
        sequence.last_used = self._clock()
        return self._store.finish(sequence, save) if sequence.writes else None

    def _tell(self) -> None:
        n_free = sum(s.is_idle for s in self._sequences)
        n_running = len(self._sequences) - n_free
        self._snapshot = Snapshot(n_free, len(self._admission.waiting), n_running, self._snapshot.last_cache)
        self._sink.flush()


def _step(prompts: list[Slice], n_decode: int, elapsed_s: float) -> Step:
    if not prompts:
        return Step(0, n_decode, 0.0, elapsed_s)
    n_prefill = sum(len(piece.tokens) for piece in prompts)
    depth = sum(piece.start * len(piece.tokens) for piece in prompts) / n_prefill
    return Step(n_prefill, n_decode, depth, elapsed_s)


def _view(generation: Generation) -> View:
    sequence = generation.sequence
    assert sequence is not None
    return View(sequence.seq, generation.position, generation.n_prompt, generation.served, generation.stops)
