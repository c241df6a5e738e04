"""A backend whose next token depends on all of its KV, a store of whole prefixes, and a bench for engines on them."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from barrel_inference.config import ContextOpts, LoadOptions, Policy
from barrel_inference.engine import sequence as resident
from barrel_inference.engine.backend import Backend, BackendInfo, DecodeStatus, Slice, WeightsInMemory
from barrel_inference.engine.engine import Engine
from barrel_inference.engine.kvstore import KVStore, NoPlan, Plan
from barrel_inference.engine.requests.generation import Generation, LogitMask
from barrel_inference.engine.requests.prepare import Preparer, Tokenised
from barrel_inference.errors import BarrelError
from barrel_inference.kvcache.lookup import Limit
from barrel_inference.kvcache.policy import SaveReason
from barrel_inference.types import CacheReport, Chunk, Completion, Constraint, Exactness, Request, Sampling

N_VOCAB = 256
EOG = 0


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeSampler:
    """Greedy at temperature 0; else drawn from (seed, index). Mirostat adds the sum of all it has seen: stateful."""

    def __init__(self, sampling: Sampling, seed: int) -> None:
        self.stateful = sampling.mirostat != 0
        self.accepted: list[int] = []
        self.is_open = True
        self._sampling = sampling
        self._seed = seed
        self._state = 0

    def sample(self, logits: NDArray[np.float32], index: int) -> int:
        best = int(np.argmax(logits))
        if self.stateful:
            self._state += best
            best = (best + self._state) % (N_VOCAB - 1) + 1
        if self._sampling.temperature == 0 or logits[best] == np.inf:
            return best
        return random.Random(f"{self._seed} {index} {best}").randrange(1, N_VOCAB)

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    def close(self) -> None:
        self.is_open = False


class FakeBackend:
    """KV is the list of tokens of each sequence; every rule of llama.cpp that the engine must keep is checked."""

    def __init__(self, clock: Clock, *, n_ctx: int = 4096, n_batch: int = 512, n_seq_max: int = 4, **info: Any) -> None:
        self.info = BackendInfo(
            architecture="fake",
            description="fake",
            n_ctx=n_ctx,
            n_ctx_train=n_ctx,
            n_batch=n_batch,
            n_ubatch=min(n_batch, 256),  # prompts take several steps
            n_seq_max=n_seq_max,
            n_vocab=N_VOCAB,
            n_embd=8,
            n_layer=1,
            n_params=1,
            size_bytes=1,
            **info,
        )
        self.scratch = n_seq_max
        self.kv: dict[int, list[int]] = {seq: [] for seq in range(n_seq_max + 1)}
        self.batches: list[list[Slice]] = []
        self.samplers: list[FakeSampler] = []
        self.copies: list[tuple[int, int, int, int]] = []
        self.rebuilds = 0
        self.token_s = 0.004
        self.fault: Callable[[list[Slice]], DecodeStatus | None] = lambda slices: None
        self.next_token: Callable[[list[int]], int] = lambda kv: crc32(bytes(t % 256 for t in kv)) % (N_VOCAB - 1) + 1
        self._clock = clock
        self._rows: list[NDArray[np.float32] | None] = []

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        return list(text)

    def piece(self, token: int, *, special: bool) -> bytes:
        return bytes([token])

    def is_eog(self, token: int) -> bool:
        return token == EOG

    def is_control(self, token: int) -> bool:
        return token == EOG

    def decode(self, slices: list[Slice], budget_s: float | None) -> DecodeStatus:
        n_tokens = sum(len(piece.tokens) for piece in slices)
        assert 0 < n_tokens <= self.info.n_batch
        assert len({piece.seq for piece in slices}) == len(slices)
        self.batches.append(slices)
        self._clock.now += 0.01 + self.token_s * n_tokens
        if status := self.fault(slices):
            return status
        self._rows = [self._extend(piece) for piece in slices]
        return DecodeStatus.OK

    def _extend(self, piece: Slice) -> NDArray[np.float32] | None:
        kv = self.kv[piece.seq]
        assert piece.start == len(kv), "positions must be contiguous"
        kv.extend(piece.tokens)
        assert len(kv) <= self.info.n_ctx
        if not piece.want_logits:
            return None
        row = np.zeros(N_VOCAB, np.float32)
        row[self.next_token(kv)] = 10.0
        return row

    def logits(self, index: int) -> NDArray[np.float32]:
        row = self._rows[index]
        assert row is not None, "no logits were asked for"
        return row

    def sampler(self, sampling: Sampling, seed: int) -> FakeSampler:
        self.samplers.append(FakeSampler(sampling, seed))
        return self.samplers[-1]

    def embed(self, inputs: list[list[int]]) -> list[NDArray[np.float32]]:
        raise NotImplementedError

    def rebuild(self) -> None:
        self.rebuilds += 1
        self.kv = {seq: [] for seq in self.kv}

    def seq_copy(self, src: int, dst: int, start: int, stop: int) -> None:
        assert start == 0 and not self.kv[dst]
        assert stop == -1 or not (self.info.is_recurrent or self.info.is_hybrid)
        self.copies.append((src, dst, start, stop))
        self.kv[dst] = self.kv[src][: None if stop == -1 else stop]

    def seq_remove(self, seq: int, start: int, stop: int) -> bool:
        assert stop == -1
        if start and (self.info.is_recurrent or self.info.is_hybrid):
            return False
        del self.kv[seq][start:]
        return True

    def seq_bounds(self, seq: int) -> tuple[int, int]:
        n_kv, n_swa = len(self.kv[seq]), self.info.n_swa
        return (max(0, n_kv - n_swa) if n_swa else 0, n_kv - 1) if n_kv else (-1, -1)

    def state_size(self, seq: int) -> int:
        return 0

    def state_read(self, seq: int, into: memoryview) -> int:
        return 0

    def state_write(self, seq: int, blob: memoryview) -> bool:
        return False

    def pin_touched_weights(self) -> None:
        pass

    def weights_in_memory(self) -> WeightsInMemory:
        return WeightsInMemory(0, ())

    def close(self) -> None:
        pass


class FakeText:
    """Latin-1 text; a stop string is found, and cut off, at the token that completes it."""

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        self.stopped: str | None = None
        self._stop = stop
        self._text = ""

    def push(self, token: int) -> str:
        self._text += chr(token)
        self.stopped = next((stop for stop in self._stop if self._text.endswith(stop)), None)
        return "" if self.stopped else chr(token)

    def finish(self) -> str:
        return ""


class FakeConstraint:
    """Allows exactly one text."""

    def __init__(self, text: str) -> None:
        self._left = [ord(char) for char in text]

    def mask(self, logits: NDArray[np.float32]) -> None:
        logits[:] = -np.inf
        logits[self._left[0]] = np.inf

    def accept(self, token: int) -> None:
        assert self._left.pop(0) == token

    @property
    def is_complete(self) -> bool:
        return not self._left


@dataclass(eq=False)
class FakePlan:
    tokens: list[int]
    tier: str | None = "disk"
    first_mismatch: int | None = None
    ready: bool = True
    has_begun: bool = True
    must_read_all: bool = False

    @property
    def length(self) -> int:
        return len(self.tokens)

    def read_on(self, *, all_of_it: bool) -> None:
        self.must_read_all |= all_of_it

    def prefill_end(self, n_prompt: int) -> int:
        return n_prompt


class FakeStore(KVStore):
    """Keeps whole token lists; ``fails`` makes restores fail."""

    def __init__(self, backend: FakeBackend) -> None:
        super().__init__(backend)
        self.saved: list[list[int]] = []
        self.plans: Counter[str] = Counter()
        self.restored: list[int] = []
        self.kept: list[list[int]] = []
        self.are_ready = True
        self.fails = False
        self.stop_at: tuple[int, ...] = ()
        self._fake = backend

    def find(
        self,
        tokens: Sequence[int],
        *,
        salt: str = "",
        exact: Exactness | None = None,
        limit: Limit | None = None,
        at_least: int = 0,
        parent_key: str | None = None,
    ) -> Plan:
        best = 0
        for saved in self.saved:
            common = next((i for i, (a, b) in enumerate(zip(tokens, saved, strict=False)) if a != b), len(saved))
            common = min(common, len(tokens) - 1)
            best = max(best, limit(common) if limit else common)
        if best <= at_least:
            return NoPlan()
        self.plans["found"] += 1
        return FakePlan(list(tokens[:best]), ready=self.are_ready)

    def release(self, plan: Plan) -> None:
        self.plans["released"] += isinstance(plan, FakePlan)

    def begin(self, plan: Plan) -> None:
        assert isinstance(plan, FakePlan) and not plan.has_begun
        plan.has_begun, plan.ready = True, self.are_ready

    def keep(self, plans: Iterable[Plan]) -> None:
        self.kept.append([plan.length for plan in plans])

    def restore(self, plan: Plan, seq: int) -> int:
        assert isinstance(plan, FakePlan) and not self._fake.kv[seq]
        self.plans["released"] += 1
        if self.fails:
            return 0
        self.restored.append(plan.length)
        self._fake.kv[seq] = list(plan.tokens)
        return plan.length

    def stops(self, n_prompt: int, boundaries: Sequence[int], start: int = 0) -> tuple[int, ...]:
        return tuple(stop for stop in self.stop_at if start < stop < n_prompt)

    def finish(self, sequence: resident.Sequence, reason: SaveReason) -> str | None:
        self.saved.append(list(sequence.tokens))
        self.plans[reason] += 1
        return f"key-{len(sequence.tokens)}"


@dataclass
class Result:
    """All that came out for one request."""

    start: int | None = None
    prompt: list[int] = field(default_factory=list)
    seed: int = 0
    cache: CacheReport = field(default_factory=CacheReport)
    chunks: list[Chunk] = field(default_factory=list)
    error: BarrelError | None = None

    @property
    def done(self) -> Completion:
        assert self.chunks and self.chunks[-1].completion, "not finished"
        return self.chunks[-1].completion

    @property
    def is_over(self) -> bool:
        return self.error is not None or bool(self.chunks and self.chunks[-1].completion)

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def tokens(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.tokens]


class Results(dict[str, Result]):
    """A sink that remembers; ``flushes`` counts steps."""

    def __init__(self) -> None:
        super().__init__()
        self.flushes = 0

    def __missing__(self, request_id: str) -> Result:
        self[request_id] = Result()
        return self[request_id]

    def started(self, request_id: str, prompt: list[int], start: int, seed: int, cache: CacheReport) -> None:
        result = self[request_id]
        assert result.start is None, "started twice"
        result.start, result.prompt, result.seed, result.cache = start, prompt, seed, cache

    def output(self, request_id: str, chunk: Chunk) -> None:
        assert not self[request_id].is_over
        self[request_id].chunks.append(chunk)

    def failed(self, request_id: str, error: BarrelError) -> None:
        assert not self[request_id].is_over
        self[request_id].error = error

    def flush(self) -> None:
        self.flushes += 1


class Bench:
    """An engine on fakes, stepped by the test."""

    def __init__(self, *, exact: Exactness = "live", store: bool = False, **facts: Any) -> None:
        self.clock = Clock()
        self.backend = FakeBackend(self.clock, **facts)
        self.store = FakeStore(self.backend)
        self.run_on(self.backend, self.store if store else KVStore(self.backend), exact)

    def run_on(self, backend: Backend, store: KVStore, exact: Exactness = "live", **policy: Any) -> Bench:
        """Start afresh, as a new worker would, on these."""
        self.results = Results()
        options = LoadOptions(id="m", context_opts=ContextOpts(decode_budget_ms=1000), policy=Policy(**policy))
        self.engine = Engine(backend, store, options, self.results, self.clock)
        self.preparer = Preparer(
            backend,
            store,
            exact=exact,
            tokenise=lambda request: Tokenised(list(str(request.prompt).encode()), ()),
            constrain=_constrain,
            text_stream=lambda request: FakeText(request.stop),
            clock=self.clock,
        )
        return self

    def prepare(
        self, request_id: str, prompt: Sequence[int] | str, *, temperature: float = 0, **fields: Any
    ) -> Generation:
        sampling = fields.pop("sampling", None) or Sampling(temperature=temperature, seed=7)
        prompt = prompt if isinstance(prompt, str) else tuple(prompt)
        return self.preparer.prepare(Request(id=request_id, prompt=prompt, sampling=sampling, **fields))

    def submit(self, request_id: str, prompt: Sequence[int] | str, **fields: Any) -> None:
        self.engine.submit(self.prepare(request_id, prompt, **fields))

    def run(self, limit: int = 20_000) -> Bench:
        """Step until nothing is left to do; reads of the store happen in real time."""
        for _ in range(limit):
            if self.engine.step():
                continue
            if not self.engine.snapshot().queued:
                return self
            time.sleep(0.001)
        raise AssertionError("still running")

    def step(self, n: int = 1) -> Bench:
        for _ in range(n):
            self.engine.step()
        return self

    def complete(self, prompt: Sequence[int] | str, **fields: Any) -> Completion:
        """One request from start to end."""
        request_id = f"r{len(self.results)}"
        self.submit(request_id, prompt, **fields)
        return self.run().results[request_id].done

    def fed(self) -> list[dict[int, int]]:
        """For each batch, how many tokens of each sequence."""
        return [{piece.seq: len(piece.tokens) for piece in batch} for batch in self.backend.batches]


def _constrain(constraint: Constraint) -> LogitMask:
    assert constraint.choices
    return FakeConstraint(constraint.choices[0])


def tokens(n: int, seed: int = 1) -> list[int]:
    """A prompt of ``n`` tokens."""
    rng = random.Random(seed)
    return [rng.randrange(1, N_VOCAB) for _ in range(n)]
