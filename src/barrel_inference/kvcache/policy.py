"""When to save, where to resume, what to evict: functions of values, the clock passed in. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from barrel_inference.config import BLOCK_TOKENS, Policy
from barrel_inference.errors import ConfigError
from barrel_inference.kvcache.tier import Stored

SaveReason = Literal["cold", "continued", "finish", "evict", "shutdown"]
SOLO_CHUNK = 512  # tokens a prefill that runs alone decodes at once; its cuts are absolute multiples of this
SLOW_SOLO_CHUNK = 256  # where such a step takes long: newcomers wait for its end
TILED_ROWS = 64  # from so many rows on, attention on the CPU takes another path with other rounding
HALF_LIFE_S = 3600.0
MAX_HITS = 8

Node = str  # a key as in file names: it contains its namespace


class Facts(NamedTuple):
    """What an object's header says."""

    cost_s: float  # to compute it again
    first: int  # position


# ---- save gates


def check(policy: Policy) -> None:
    """ConfigError for combinations that make no sense."""
    _at_least(policy, "min_tokens", 1)
    _at_least(policy, "cold_min_tokens", policy.min_tokens, "min_tokens")
    if policy.cold_max_tokens is not None:
        _at_least(policy, "cold_max_tokens", policy.cold_min_tokens, "cold_min_tokens")
    _at_least(policy, "continued_interval", 1)
    _at_least(policy, "boundary_trim_tokens", 0)
    _at_least(policy, "boundary_align_tokens", BLOCK_TOKENS)
    _at_least(policy, "session_resume_wait_ms", 0)
    _at_least(policy, "evict_save_timeout_ms", 0)
    if policy.prefill_chunk_size is not None:
        _at_least(policy, "prefill_chunk_size", 1)
    if policy.boundary_align_tokens % BLOCK_TOKENS:
        _refuse(policy, "boundary_align_tokens", f"a multiple of {BLOCK_TOKENS}")


def _at_least(policy: Policy, option: str, least: int, because: str = "") -> None:
    if getattr(policy, option) < least:
        _refuse(policy, option, f">= {least}" + (f" ({because})" if because else ""))


def _refuse(policy: Policy, option: str, allowed: str) -> None:
    value = getattr(policy, option)
    raise ConfigError(
        f"policy.{option} is {value}, it must be {allowed}", option=f"policy.{option}", value=value, allowed=allowed
    )


def whole_blocks(n_tokens: int) -> int:
    """``n_tokens`` rounded down to whole blocks, in tokens."""
    return n_tokens // BLOCK_TOKENS * BLOCK_TOKENS


def cold_limit(policy: Policy, n_prompt: int) -> int:
    """How far a prompt is saved while it is prefilled: to its end, or in whole blocks; 0 = not at all."""
    if n_prompt < max(policy.min_tokens, policy.cold_min_tokens):
        return 0
    limit = n_prompt - policy.boundary_trim_tokens
    if policy.cold_max_tokens is not None:
        limit = min(limit, policy.cold_max_tokens)
    return n_prompt if limit >= n_prompt else whole_blocks(max(0, limit))


def save_limit(policy: Policy, n_prompt: int, n_tokens: int, saved: int, n_swa: int) -> tuple[int, SaveReason]:
    """How far a running sequence of ``n_tokens`` is to be saved now, and why: to the end of its prompt, where other
    answers to it begin, else in whole blocks.

    With a sliding window blocks are saved before they leave it, whatever ``continued_interval`` and the gates of cold
    saves say: nothing could go on from what is saved at the end without the window before it. There tails are not for
    free: their window rows are written again.
    """
    if n_tokens <= n_prompt:
        limit = min(n_tokens, cold_limit(policy, n_prompt))
        if n_swa and n_tokens > n_prompt - n_swa and n_prompt >= policy.min_tokens:
            limit = n_tokens
        return limit if limit == n_prompt and not n_swa else whole_blocks(limit), "cold"
    interval, done = policy.continued_interval, max(saved, whole_blocks(n_prompt))
    if n_swa:
        interval = min(interval, max(BLOCK_TOKENS, whole_blocks(n_swa)))
        done = whole_blocks(done)  # the window rows of a block that a tail ends in are all copied again
    due = n_tokens >= policy.min_tokens and n_tokens - done >= interval
    return (whole_blocks(n_tokens), "continued") if due else (saved, "continued")


def state_stops(policy: Policy, n_prompt: int, boundaries: Sequence[int]) -> tuple[int, ...]:
    """Ascending block positions in (0, n_prompt) where a state is worth keeping: message ends, regular distances, and
    the last block (so that the same prompt again is a hit)."""
    align = policy.boundary_align_tokens
    wanted = {whole_blocks(boundary) for boundary in boundaries}
    wanted.update(range(align, n_prompt, align))
    wanted.add(whole_blocks(n_prompt - 1))
    return tuple(sorted(at for at in wanted if 0 < at < n_prompt))


# ---- resuming


def solo_chunk(n_batch: int, n_ubatch: int, *, is_slow: bool = False) -> int:
    """``chunk`` of a context: one micro-batch of llama.cpp, and whole tiles if it holds any. So every whole block is
    computed in tiles, whatever the sizes of batches."""
    chunk = min(SLOW_SOLO_CHUNK if is_slow else SOLO_CHUNK, n_batch, n_ubatch)
    return chunk // TILED_ROWS * TILED_ROWS or chunk


def cold_resume(available: int, n_prompt: int, chunk: int = SOLO_CHUNK) -> int:
    """The largest position ≤ ``available`` from which a prefill computes what one from 0 would, bit for bit.

    A cold run decodes absolute multiples of ``chunk``; a chunk of at least TILED_ROWS rows must be resumed with at
    least that many left, a shorter one from its start. Batches too small for a tile compute other rows than are kept.
    """
    if chunk < TILED_ROWS:
        return 0
    at = min(available, n_prompt - 1)
    start = at // chunk * chunk
    end = min(start + chunk, n_prompt)
    if end - start < TILED_ROWS:
        return start
    return max(start, whole_blocks(min(at, end - TILED_ROWS)))


def cold_rows(length: int, prefill_end: int, n_prompt: int, chunk: int = SOLO_CHUNK) -> int:
    """A prefill goes on behind ``length`` tokens of which the first ``prefill_end`` were computed as in some cold run:
    how many of them are as in a cold run of this prompt. The last rows of a prompt are so only where it ends too."""
    if prefill_end >= length and cold_resume(length, n_prompt, chunk) == length:
        return length
    return min(prefill_end, whole_blocks(length))


def is_cold_shape(start: int, stop: int, n_prompt: int, chunk: int = SOLO_CHUNK) -> bool:
    """Whether prefilling [start, stop) alone gives the rows that a cold run of this prompt computes: in tiles where it
    has tiles, and only there."""
    first = start // chunk * chunk
    end = min(first + chunk, n_prompt)
    return chunk >= TILED_ROWS and stop <= end and (stop - start >= TILED_ROWS or end - first < TILED_ROWS)


@dataclass
class Rate:
    """A running average of seconds per unit; 0 = never measured. Not locked: one writer."""

    value: float = 0.0
    at: float = 0.0

    def add(self, seconds: float, units: float, now: float) -> None:
        if units > 0:
            measured = seconds / units
            self.value = measured if self.value == 0.0 else 0.7 * self.value + 0.3 * measured
            self.at = now


def is_worth(n_tokens: int, prefill_s_per_token: float, read_s: float) -> bool:
    """The cost gate: restoring must not take longer than computing. Unknown costs never refuse."""
    return prefill_s_per_token == 0.0 or read_s <= n_tokens * prefill_s_per_token


# ---- eviction


def score(cost_s: float, idle_s: float, hits: float, n_bytes: int) -> float:
    """What a byte of an object is worth: seconds of prefill it saves, fading with disuse, growing with hits."""
    recency: float = 2.0 ** -(abs(idle_s) / HALF_LIFE_S)  # used in the future: the clock was set back since
    return cost_s * recency * (1.0 + min(hits, MAX_HITS)) / max(1, n_bytes)


@dataclass
class _Entry:
    """All objects of one key: a block goes together with its window."""

    namespace: str
    node: Node
    parents: set[Node] = field(default_factory=set)  # of a block in parts two: its rest begins where a tail ends
    objects: list[Stored] = field(default_factory=list)
    children: int = 0

    @property
    def n_bytes(self) -> int:
        return sum(stored.allocated for stored in self.objects)

    @property
    def used_at(self) -> float:
        return max(stored.used_at for stored in self.objects)


def victims(
    stored: Iterable[Stored],
    need_bytes: int,
    *,
    now: float,
    facts: Callable[[Stored], Facts],
    hits: Mapping[Node, float],
    pinned: Collection[Node] = (),
    protected: Collection[Node] = (),
    fresh_s: float = 0.0,
    floors: Mapping[str, int] | None = None,
    is_elsewhere: Callable[[Node], bool] = lambda node: False,
) -> Iterator[Stored]:
    """Objects to remove, in order, until ``need_bytes`` are freed: leaves first, cheapest first, pinned ones last.

    Never what is ``protected`` because waiting requests need it, nor what was written or hit within ``fresh_s`` (the
    end of a new chain is dropped rather than its head evicted, or what is pinned, or was hit and is worth more), and no
    namespace below its floor (bytes). ``is_elsewhere``: another tier has it, so that what goes on from it is reached.
    """
    entries = _tree(stored)
    held: dict[str, int] = {}
    for entry in entries.values():
        held[entry.namespace] = held.get(entry.namespace, 0) + entry.n_bytes

    def rank(entry: _Entry) -> tuple[bool, float, Node]:
        cost, first = max(facts(one) for one in entry.objects)
        if first > 0 and not any(parent in entries or is_elsewhere(parent) for parent in entry.parents):
            cost = 0.0  # no prompt reaches it without its parent
        worth = score(cost, now - entry.used_at, hits.get(entry.node, 0.0), entry.n_bytes)
        return entry.node in pinned, worth, entry.node

    def must_stay(entry: _Entry) -> bool:
        is_at_floor = held[entry.namespace] - entry.n_bytes < (floors or {}).get(entry.namespace, 0)
        return entry.node in protected or is_at_floor

    leaves = [rank(entry) for entry in entries.values() if not entry.children]
    heapq.heapify(leaves)
    is_any_fresh = False
    while leaves and need_bytes > 0:
        is_pinned, _, node = heapq.heappop(leaves)
        entry = entries[node]
        if must_stay(entry):
            continue
        if abs(now - entry.used_at) < fresh_s:
            is_any_fresh = True
            continue
        if is_any_fresh and (is_pinned or hits.get(node)):
            return
        yield from entry.objects
        need_bytes -= entry.n_bytes
        held[entry.namespace] -= entry.n_bytes
        for parent in filter(None, map(entries.get, entry.parents)):
            parent.children -= 1
            if not parent.children:
                heapq.heappush(leaves, rank(parent))


def _tree(stored: Iterable[Stored]) -> dict[Node, _Entry]:
    entries: dict[Node, _Entry] = {}
    for one in stored:
        entry = entries.setdefault(one.name.key, _Entry(one.namespace, one.name.key))
        entry.parents.add(one.name.parent)
        entry.objects.append(one)
    for entry in entries.values():
        for parent in filter(None, map(entries.get, entry.parents)):
            parent.children += 1
    _untie(entries)
    return entries


def _untie(entries: dict[Node, _Entry]) -> None:
    """Objects made by hand may be each other's parents: those have no leaf to begin with, and would stay for ever."""
    children = {node: entry.children for node, entry in entries.items()}
    leaves = [node for node, n in children.items() if not n]
    while leaves:
        for parent in entries[leaves.pop()].parents & children.keys():
            children[parent] -= 1
            if not children[parent]:
                leaves.append(parent)
    tied = {node for node, n in children.items() if n}
    for node in tied:
        entries[node].children -= children[node]
        entries[node].parents -= tied
