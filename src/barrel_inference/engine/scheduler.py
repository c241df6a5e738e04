"""What goes into the next batch, where prompts are cut, and where they may be resumed. Pure: no state, no clock.

Shapes decide bits: the same tokens decoded in batches of other sizes give slightly other KV. So a prompt that has the
context to itself is always cut at absolute multiples of the same chunk, and is resumed only where that leaves the
remaining shapes as they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from barrel_inference.kvcache.policy import SOLO_CHUNK, TILED_ROWS

GRAIN = 16  # budgeted chunks are multiples of it
SMALL_CHUNK = 32  # the least; below TILED_ROWS another attention kernel works, which is slow deep in a context
SMALL_GAIN = 0.75  # a small chunk that takes more of a tile's time than this is not worth its throughput
STEP_BUDGET_S = 0.4  # for a step in which others decode: their gap stays under 0.5 s
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
        if n_prefill >= SMALL_CHUNK:
            return self._replace(small_s=_average(self.small_s, sample))
        return self  # too few to tell

    def chunk(self) -> int:
        """How many prompt tokens a step should read in which others decode."""
        affordable = int((STEP_BUDGET_S - self.decode_s) / self.prefill_s) if self.prefill_s else 0
        if affordable >= TILED_ROWS:
            return affordable // GRAIN * GRAIN
        is_small_quick = SMALL_CHUNK * self.small_s <= SMALL_GAIN * TILED_ROWS * self.prefill_s
        return SMALL_CHUNK if is_small_quick else TILED_ROWS


def _average(old: float, new: float) -> float:
    return old + (new - old) * EWMA_WEIGHT if old else new


def plan(views: Iterable[View], limits: Limits, costs: Costs) -> list[Feed]:
    """The next batch: one token of everything that decodes, then prompt chunks, least recently served first.

    With nothing decoding a step is one solo chunk, filled up with other prompts' chunks only where they fit whole.
    """
    turn = sorted(views, key=lambda view: view.served)
    batch = [Feed(view.seq, 1) for view in turn if view.position >= view.end]
    solo = not batch
    room = limits.solo_chunk if solo else min(costs.chunk(), limits.chunk, limits.n_batch - len(batch))
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
