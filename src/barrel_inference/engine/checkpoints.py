"""Where the engine meets the KV store: what to restore for a prompt, what to save of a sequence, and when.

    reader thread   plan = checkpoints.find(tokens, ...)        looks up, starts the reads
    engine thread   n = checkpoints.restore(plan, seq)          0 = miss, the sequence is left empty
                    checkpoints.stops(n_prompt, boundaries)     where prefill must end a chunk
                    checkpoints.after_step(sequence)            copies what became complete
                    key = checkpoints.finish(sequence, reason)  the rest; the finish key
    writer thread   slices, hashes and writes what was copied

Ownership: the engine thread alone calls the methods marked so; the rest is safe on any thread. The store, its reader
pool and the writer thread belong to this object and end with ``close``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, Protocol

from barrel_inference.config import LoadOptions
from barrel_inference.engine.backend import Backend
from barrel_inference.kvcache.chain import Chain
from barrel_inference.types import CacheLookup, CacheMode, Exactness

SaveReason = Literal["cold", "continued", "finish", "evict", "shutdown"]
LayoutKind = Literal["plain", "swa", "recurrent", "hybrid", "whole", "off"]


class Tracked(Protocol):
    """What a checkpoint needs to know of a sequence (engine.sequence.Sequence has these)."""

    seq: int
    tokens: list[int]  # whose KV is computed: positions 0 … n-1
    n_prompt: int
    prefill_end: int  # below: computed as a solo cold run would have (see Plan.prefill_end); provenance P
    saved: int  # all blocks below are stored or captured; set to plan.length after a restore, 0 is always safe
    stops: tuple[int, ...]  # from Checkpoints.stops; () for models without states
    chain: Chain
    salt: str
    cache: CacheMode
    tainted: bool  # shifted or rolled back: never saved
    cost_us_per_token: float  # measured prefill cost; 0 = not known


class Plan(Protocol):
    """One way to get a prompt's prefix from the store. Reading has begun when ``find`` returns."""

    length: int  # tokens that would be restored; 0 = miss. At most len(tokens) - 1
    tier: str | None  # slowest tier read
    first_mismatch: int | None

    @property
    def ready(self) -> bool:
        """Whether the reads are over (restore would not wait)."""

    def prefill_end(self, n_prompt: int) -> int:
        """What Sequence.prefill_end is once a solo prefill from ``length`` to ``n_prompt`` is done: n_prompt when
        everything is as a cold run would compute it, otherwise where that ends. (The engine lowers it further when a
        chunk shared its batch with others.)"""


class Checkpoints:
    """See the module. ``layout`` and ``verdict`` ("exact", or why the cache is off) are for info()."""

    layout: LayoutKind
    verdict: str
    namespace: str  # hex
    bytes_per_token: int

    @property
    def counters(self) -> dict[str, float]:
        """A snapshot; cumulative."""

    def find(
        self,
        tokens: Sequence[int],
        *,
        salt: str = "",
        exact: Exactness | None = None,
        cuts: Collection[int] | None = None,
        free_from: int = 0,
        at_least: int = 0,
        parent_key: str | None = None,
    ) -> Plan:
        """Look up the longest restorable prefix and start reading it. Any thread; with ``parent_key`` it first waits
        (at most session_resume_wait_ms) for that save in flight.

        ``cuts``: when given, only these lengths, or any length ≥ ``free_from``, are allowed (replay).
        ``at_least``: shorter finds are a miss (a resident sequence already offers that much).
        Every plan must be given to ``restore`` or ``release``.
        """

    def restore(self, plan: Plan, seq: int) -> int:
        """Engine thread. Load the plan into ``seq`` (cleared first) and release it; the restored length, or 0 with
        the sequence empty."""

    def release(self, plan: Plan) -> None:
        """The plan is not needed after all. Any thread; harmless after restore."""

    def stops(self, n_prompt: int, boundaries: Sequence[int], start: int = 0) -> tuple[int, ...]:
        """Ascending positions in (start, n_prompt) where a prefill chunk must end so that a state can be captured;
        () for models that need none. ``boundaries``: token positions of message ends."""

    def after_step(self, sequence: Tracked) -> None:
        """Engine thread, after each decode for each sequence of the batch. Only copies; raises ``sequence.saved``."""

    def finish(self, sequence: Tracked, reason: SaveReason) -> str | None:
        """Engine thread, before the sequence is dropped. The finish key (hex), None when nothing is saved."""

    def shareable(self, sequence: Tracked, wanted: int) -> int:
        """Engine thread. How long a prefix (≤ ``wanted``) of a resident sequence may be used by seq_copy, or by
        cutting it off there; 0 when window or recurrent state of that position is gone."""

    def lookup(self, tokens: Sequence[int], *, salt: str = "") -> CacheLookup:
        """What ``find`` would restore, without reading."""

    def room(self, tier: str) -> None:
        """The janitor has made room: a waiting writer looks again."""

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything captured is written; False when time ran out."""

    def close(self) -> None:
        """Stop reader and writer threads; unsaved objects are dropped (``flush`` first)."""


def open_checkpoints(
    backend: Backend,
    options: LoadOptions,
    *,
    need_room: Callable[[str, int], None],
    touched: Callable[[str, tuple[str, ...]], None],
    clock: Callable[[], float],
) -> Checkpoints:
    """Engine thread (it decodes a few tokens): learn the state layout, name the namespace, open the tiers, self-test.

    Never raises for what the cache cannot do: then the cache is off and ``verdict`` says why. TierUnusableError when
    the save tier is not writable; ConfigError for a wrong policy. ``need_room(tier, bytes)`` and ``touched(tier,
    keys)`` are called from other threads. Without tiers, or with ``options.cache`` false, all methods do nothing.
    """
