"""What goes into the next batch, where prompts are cut, and where they may be resumed. Pure: no state, no clock.

Shapes decide bits: the same tokens decoded in batches of other sizes give slightly other KV. So a prompt that has the
context to itself is always cut at absolute multiples of the same chunk, and is resumed only where that leaves the
remaining shapes as they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from barrel_inference.kvcache.policy import SOLO_CHUNK, TILED_ROWS

GRAIN = 16  # budgeted steps are multiples of it
SMALL_STEP = 32  # while nothing is known
STEP_BUDGET_S = 0.4  # for a step in which others decode
STEP_LIMIT_S = 0.44  # for one that is a single tile: smaller ones are slower by the token. Keeps gaps under 0.5 s
EWMA_WEIGHT = 0.3


class View(NamedTuple):
    """A running sequence as the scheduler sees it. Its prompt ends at ``end``; from there on it decodes."""

    seq: int
    position: int  # of the next token
    end: int
    served: int  # the step that fed it last
    stops: tuple[int, ...] = ()  # ascending positions at which a chunk must end


class Limits(NamedTuple):
    n_batch: int  # at least the number of sequences
    chunk: int  # most prompt tokens in a step in which others decode

    @property
    def solo_chunk(self) -> int:
        return min(SOLO_CHUNK, self.n_batch)


class Feed(NamedTuple):
    """The next ``n_tokens`` tokens of a sequence go into the batch."""

    seq: int
    n_tokens: int


class Costs(NamedTuple):
    """Measured, in seconds; moving averages, 0 = unknown."""

    prefill_s: float = 0.0  # a prompt token, in a step of at least TILED_ROWS
    small_s: float = 0.0  # a prompt token, in a smaller one
    decode_s: float = 0.0  # a step that only decodes

    def prefill_part(self, n_prefill: int, n_decode: int, elapsed_s: float) -> float:
        """How much of a step was prefill."""
        if not n_prefill:
            return 0.0
        return max(0.0, elapsed_s - self.decode_s) if n_decode else elapsed_s

    def after(self, n_prefill: int, n_decode: int, elapsed_s: float) -> Costs:
        """The averages with one more step in them."""
        if not n_prefill:
            return self._replace(decode_s=_average(self.decode_s, elapsed_s))
        sample = self.prefill_part(n_prefill, n_decode, elapsed_s) / n_prefill
        if n_prefill + n_decode >= TILED_ROWS:
            return self._replace(prefill_s=_average(self.prefill_s, sample))
        if n_prefill + n_decode >= GRAIN:
            return self._replace(small_s=_average(self.small_s, sample))
        return self  # too few to tell

    def rows(self) -> int:
        """How many tokens a step should take in which some sequences decode and a prompt is read. All count: one row
        more than a tile costs attention a second tile."""
        costs = [cost for cost in (self.prefill_s, self.small_s) if cost]
        if not costs:
            return SMALL_STEP
        tiled_s, left_s = min(costs), STEP_BUDGET_S - self.decode_s
        if left_s >= TILED_ROWS * tiled_s:
            return int(left_s / tiled_s) // GRAIN * GRAIN
        if self.decode_s + TILED_ROWS * tiled_s <= STEP_LIMIT_S:
            return TILED_ROWS
        affordable = int(left_s / self.small_s) if self.small_s else 0
        return max(GRAIN, min(affordable, TILED_ROWS - 1) // GRAIN * GRAIN)


def _average(old: float, new: float) -> float:
    return old + (new - old) * EWMA_WEIGHT if old else new


def plan(views: Iterable[View], limits: Limits, costs: Costs) -> list[Feed]:
    """The next batch: one token of everything that decodes, then prompt chunks, least recently served first.

    With nothing decoding a step is one solo chunk, filled up with other prompts' chunks only where they fit whole.
    """
    turn = sorted(views, key=lambda view: view.served)
    batch = [Feed(view.seq, 1) for view in turn if view.position >= view.end]
    solo = not batch
    room = limits.solo_chunk if solo else _room_beside(len(batch), limits, costs)
    is_first = True
    for view in turn:
        if view.position >= view.end or not room:
            continue
        want = next_cut(view, limits.solo_chunk if solo else None) - view.position
        if want > room and not is_first:
            continue
        batch.append(Feed(view.seq, min(want, room)))
        room -= batch[-1].n_tokens
        is_first = False
    return batch


def _room_beside(n_decode: int, limits: Limits, costs: Costs) -> int:
    """For prompt tokens, in a step in which ``n_decode`` sequences decode."""
    return min(max(costs.rows() - n_decode, GRAIN), limits.chunk, limits.n_batch - n_decode)


def next_cut(view: View, chunk: int | None) -> int:
    """Where this prompt's next piece ends at the latest: its end, a stop, or (``chunk``) the next absolute multiple."""
    cut = min((stop for stop in view.stops if view.position < stop < view.end), default=view.end)
    return cut if chunk is None else min(cut, (view.position // chunk + 1) * chunk)


def is_cold_shape(start: int, stop: int, n_prompt: int, chunk: int, stops: tuple[int, ...] = ()) -> bool:
    """Whether prefilling [start, stop) alone gives the rows that a cold run of this prompt computes."""
    first = max(start // chunk * chunk, max((s for s in stops if s <= start), default=0))
    end = next_cut(View(0, start, n_prompt, 0, stops), chunk)
    return stop == end and (start == first or stop - start >= TILED_ROWS)


def live_limit(available: int, *, n_prompt: int) -> int:
    """Anything that is there; but the last prompt token is always decoded, for its logits."""
    return min(available, n_prompt - 1)


def replay_limit(
    available: int, *, n_prompt: int, last: int, start: int, stops: tuple[int, ...] = (), chunk: int
) -> int:
    """Where a request may go on that once began at ``start``: after its prompt anywhere up to ``last`` (those were
    batches of one row), inside it only at one of its own cuts, before ``start`` anywhere."""
    available = min(available, last)
    if available >= n_prompt or available <= start:
        return available
    cuts = (start, available // chunk * chunk, *(stop for stop in stops if stop <= available))
    return max(cuts)
