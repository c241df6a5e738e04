"""What goes into the next batch, where prompts are cut, and where they may be resumed. Pure: no state, no clock.

Shapes decide bits: the same tokens decoded in batches of other sizes give slightly other KV. So a prompt that has the
context to itself is always cut at absolute multiples of the same chunk, and is resumed only where that leaves the
remaining shapes as they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from barrel_inference.engine.costs import LEAST, Costs


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
    solo_chunk: int  # prompt tokens in a step in which none do


class Feed(NamedTuple):
    """The next ``n_tokens`` tokens of a sequence go into the batch."""

    seq: int
    n_tokens: int


def plan(views: Iterable[View], limits: Limits, costs: Costs) -> list[Feed]:
    """The next batch: one token of everything that decodes, then prompt chunks, least recently served first.

    With nothing decoding a step is one solo chunk, filled up with other prompts' chunks only where they fit whole.
    """
    turn = sorted(views, key=lambda view: view.served)
    batch = [Feed(view.seq, 1) for view in turn if view.position >= view.end]
    reading = [view for view in turn if view.position < view.end]
    chunk = None if batch else limits.solo_chunk
    room = chunk or _room_beside(len(batch), reading, limits, costs)
    for view in reading:
        want = next_cut(view, chunk) - view.position
        if room and (want <= room or view is reading[0]):
            batch.append(Feed(view.seq, min(want, room)))
            room -= batch[-1].n_tokens
    return batch


def _room_beside(n_decode: int, reading: Sequence[View], limits: Limits, costs: Costs) -> int:
    """For prompt tokens, in a step in which ``n_decode`` sequences decode."""
    most = min(limits.chunk, limits.n_batch - n_decode, sum(next_cut(view, None) - view.position for view in reading))
    if not most:
        return 0
    rows = costs.rows(reading[0].position, most + n_decode)
    return min(max(rows - n_decode, LEAST), most)


def next_cut(view: View, chunk: int | None) -> int:
    """Where this prompt's next piece ends at the latest: its end, a stop, or (``chunk``) the next absolute multiple."""
    cut = min((stop for stop in view.stops if view.position < stop < view.end), default=view.end)
    return cut if chunk is None else min(cut, (view.position // chunk + 1) * chunk)


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
