"""One request in progress: tokens, sampler, constraint, text. Made by the intake thread, then the engine thread's.

``history`` is the prompt followed by what was sampled. Whatever of it has no KV yet is fed next: a prompt in chunks,
sampled tokens one by one. That is also the whole of a replay: with the sequence gone, the same history is fed again in
the same shapes. A shift makes a new prompt of what is left of the history, which is read like any other.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from barrel_inference.engine.backend import Sampler
from barrel_inference.engine.kvstore import Plan
from barrel_inference.engine.requests.logprobs import TokenLogprobs
from barrel_inference.engine.scheduler import live_limit, replay_limit
from barrel_inference.engine.sequence import Sequence
from barrel_inference.kvcache.policy import cold_resume
from barrel_inference.types import CacheReport, Chunk, Completion, Exactness, FinishReason, Request, Timings, Usage

Logits = NDArray[np.float32]


class LogitMask(Protocol):
    """The constraint of one request."""

    def mask(self, logits: Logits) -> None:
        """Forbid, in place, every token that may not come next."""

    def accept(self, token: int) -> None: ...

    @property
    def is_complete(self) -> bool:
        """Nothing more may follow."""


class TextStream(Protocol):
    """Tokens to text: whole characters only, stop strings found across tokens and held back."""

    @property
    def stopped(self) -> str | None:
        """The stop string that was found."""

    def push(self, token: int) -> str: ...

    def finish(self) -> str:
        """What was still held back."""


class State(enum.Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    ENDED = "ended"


@dataclass(eq=False, kw_only=True)
class Generation:
    request: Request
    prompt: list[int]
    n_ctx: int
    is_eog: Callable[[int], bool]
    text: TextStream
    constraint: LogitMask | None = None
    logprobs: TokenLogprobs | None = None
    boundaries: tuple[int, ...] = ()  # message ends, in tokens
    seed: int = 0
    exact: Exactness = "live"
    arrived: float = 0.0  # these four are readings of the engine's clock
    admitted: float | None = None
    first_token: float | None = None
    deadline: float | None = None

    given: list[int] = field(init=False)  # the prompt before any shift
    earlier: list[int] = field(default_factory=list)  # output before the last shift
    history: list[int] = field(init=False)
    pieces: list[str] = field(default_factory=list)
    seen: int = 0  # output tokens behind ``prompt`` that sampler, constraint and text know
    sampler: Sampler | None = None
    finish_reason: FinishReason | None = None

    sequence: Sequence | None = None
    start: int | None = field(init=False)  # position its first prefill began at
    stops: tuple[int, ...] = ()  # positions where a chunk must end
    served: int = 0  # step that fed it last
    plan: Plan | None = None
    cache: CacheReport = field(default_factory=CacheReport)
    restore_s: float = 0.0

    awaits: tuple[Generation, int] | None = None  # lets another read their common prefix, which ends there
    is_stale: bool = False  # look again in the store before starting: it may hold more by now
    has_looked_again: bool = False  # once is enough: others take the free sequence while it reads
    alone_until: int | None = None  # suspected of a failure: runs alone until it has passed this position
    replays: int = 0

    def __post_init__(self) -> None:
        resume = self.request.resume
        self.given = self.prompt
        self.history = self.prompt + list(resume.emitted if resume else ())
        self.start = resume.start if resume else None
        while self.must_shift:
            self.shift()

    @property
    def n_prompt(self) -> int:
        return len(self.prompt)

    @property
    def n_emitted(self) -> int:
        """Since the last shift."""
        return len(self.history) - len(self.prompt)

    @property
    def n_output(self) -> int:
        return len(self.earlier) + self.n_emitted

    @property
    def position(self) -> int:
        return len(self.sequence.tokens) if self.sequence else 0

    @property
    def state(self) -> State:
        if self.finish_reason:
            return State.ENDED
        if self.sequence is None:
            return State.WAITING
        return State.PREFILL if self.position < self.n_prompt else State.DECODE

    @property
    def reads_cache(self) -> bool:
        return self.request.cache in ("auto", "read")

    @property
    def writes_cache(self) -> bool:
        return self.request.cache in ("auto", "write")

    @property
    def n_known(self) -> int:
        """Output tokens that can be fed again without their logits: all, but for a sampler that must see each row."""
        return self.seen if self.sampler or self.request.sampling.mirostat else self.n_emitted

    # ---- feeding

    def feed(self, n_tokens: int) -> tuple[int, ...]:
        return tuple(self.history[self.position : self.position + n_tokens])

    def wants_logits(self, position: int) -> bool:
        """Of the token before ``position``. Not while known tokens are fed again, nor for a prefill without output."""
        return position == self.n_prompt + self.seen and self.request.max_tokens != 0

    @property
    def must_shift(self) -> bool:
        return self.request.shift_keep is not None and len(self.history) > self.n_ctx

    def shift(self) -> None:
        """Go on without the older half of what follows the kept head. Always at the same length and read from 0, so
        that a replay does the same."""
        assert self.request.shift_keep is not None
        full, rest = self.history[: self.n_ctx + 1], self.history[self.n_ctx + 1 :]
        self.earlier += full[self.n_prompt :]
        self.prompt = shifted(full, len(self.given) if self.request.shift_keep < 0 else self.request.shift_keep)
        self.history = self.prompt + rest
        self.start, self.stops, self.boundaries, self.seen = 0, (), (), 0

    def resume_limit(self, available: int, chunk: int) -> int:
        """The largest position, at most ``available``, from which this request may go on."""
        if self.exact == "cold":
            return cold_resume(available, self.n_prompt, chunk)
        if self.start is not None:
            last = self.n_prompt - 1 + self.n_known
            return replay_limit(
                available, n_prompt=self.n_prompt, last=last, start=self.start, stops=self.stops, chunk=chunk
            )
        return live_limit(available, n_prompt=self.n_prompt)

    # ---- sampling

    def open(self, sampler: Sampler) -> None:
        """Take the sampler; what a dead worker had emitted enters it, unless it must see the logits of every token."""
        self.sampler = sampler
        for token in self.given[max(0, len(self.given) - self._penalty_window()) :]:
            sampler.accept(token)
        known = [] if sampler.stateful else self.history[self.n_prompt :]
        for token in self.earlier + known:
            self._accept(token)
        self.seen = len(known)

    def sample(self, logits: Logits, now: float) -> Chunk:
        """Choose the next token from a row of logits; may end the request (``finish_reason``)."""
        assert self.sampler is not None
        scores = self.logprobs.read(logits) if self.logprobs else None
        if self.constraint:
            self.constraint.mask(logits)
        token = self.sampler.sample(logits, len(self.earlier) + self.seen)
        if self.seen < self.n_emitted:  # a stateful sampler sees again what was sent already
            self._accept(self.history[self.n_prompt + self.seen])
            return Chunk()
        if self.first_token is None:
            self.first_token = now
        if self.is_eog(token):
            return Chunk(text=self.end("stop"))
        self.history.append(token)
        text = self._accept(token)
        if reason := self._limit_reached():
            text += self.end(reason)
        return Chunk(text=text, tokens=(token,), logprobs=(scores.of(token),) if scores else ())

    def end(self, reason: FinishReason) -> str:
        """Text that was still held back."""
        self.finish_reason = reason
        text = "" if self.text.stopped else self.text.finish()
        self.pieces.append(text)
        return text

    def close(self) -> None:
        if self.sampler:
            self.sampler.close()
            self.sampler = None

    def completion(self, finish_key: str | None, now: float) -> Completion:
        """The result; ``logprobs`` are left to whoever joins the chunks."""
        assert self.finish_reason is not None
        n_cached = self.cache.restored_tokens
        return Completion(
            text="".join(self.pieces),
            tokens=tuple(self.earlier + self.history[self.n_prompt :]),
            finish_reason=self.finish_reason,
            finish_key=finish_key,
            stop_text=self.text.stopped,
            seed=self.seed,
            cache=self.cache,
            usage=Usage(prompt_tokens=len(self.given), completion_tokens=self.n_output, cached_tokens=n_cached),
            timings=self._timings(now),
            prompt_tokens=tuple(self.given),
            shifted_tokens=len(self.given) + self.n_output - len(self.history),
        )

    def _timings(self, now: float) -> Timings:
        admitted = now if self.admitted is None else self.admitted
        first = now if self.first_token is None else self.first_token
        return Timings(
            queued_s=admitted - self.arrived,
            restore_s=self.restore_s,
            prefill_s=max(0.0, first - admitted - self.restore_s),
            decode_s=now - first,
            first_token_s=first - self.arrived,
            total_s=now - self.arrived,
        )

    def _accept(self, token: int) -> str:
        assert self.sampler is not None
        self.sampler.accept(token)
        if self.constraint:
            self.constraint.accept(token)
        text = self.text.push(token)
        self.pieces.append(text)
        self.seen += 1
        return text

    def _limit_reached(self) -> FinishReason | None:
        if self.text.stopped or (self.constraint and self.constraint.is_complete):
            return "stop"
        if self.n_output == self.request.max_tokens:
            return "length"
        return "context_full" if len(self.history) > self.n_ctx and not self.must_shift else None

    def _penalty_window(self) -> int:
        """How many prompt tokens the penalties look back to."""
        sampling = self.request.sampling
        windows = [0]
        if sampling.repeat_penalty != 1.0 or sampling.presence_penalty or sampling.frequency_penalty:
            windows.append(sampling.repeat_last_n)
        if sampling.dry_multiplier:
            windows.append(sampling.dry_last_n)
        return len(self.given) if -1 in windows else max(windows)


def shifted(tokens: list[int], keep: int) -> list[int]:
    """The first ``keep`` tokens, fewer than half of all, and the newer half of the others. Never all of them."""
    head = min(keep, (len(tokens) - 1) // 2)
    return tokens[:head] + tokens[head + (len(tokens) - head) // 2 :]
