"""What steps cost, learned as they run, and how many rows the next may have. Pure.

A row costs more the deeper its prompt has been read, and less the fuller the step is: attention on the CPU works in
tiles of TILED_ROWS rows, where one row too many costs a whole tile, and below one tile in another, slower way. So each
size of step has a line of its own: seconds a row over depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from barrel_inference.kvcache.policy import TILED_ROWS

GRAIN = 16  # rows; steps below a tile are multiples of it
LEAST = 8  # rows, when no more fit the limit: none starves
SMALL_STEP = 32  # rows, while nothing is known
STEP_LIMIT_S = 0.44  # for a step in which others decode: keeps gaps under 0.5 s
EWMA_WEIGHT = 0.3
KEEP = 0.9  # of what a line knew, at each new step
DOUBLING = 512  # tokens of depth over which a row's cost at most doubles
FEWER_TILES = 1.5  # a row of a step with fewer tiles costs at most so many times as much


class Line(NamedTuple):
    """Least squares of y over x, in which what is old counts for less. All sums are weighted."""

    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def after(self, x: float, y: float) -> Line:
        kept = (KEEP * value for value in self)
        return Line(*(old + new for old, new in zip(kept, (1.0, x, y, x * x, x * y), strict=True)))

    def at(self, x: float) -> float:
        """Never falling, never steeper than DOUBLING says; while the slope is unknown, the larger of both."""
        mean_x, mean_y = self.x / self.weight, self.y / self.weight
        variance, steepest = self.xx / self.weight - mean_x**2, mean_y / (mean_x + DOUBLING)
        if variance < GRAIN**2:
            slope = steepest if x > mean_x else 0.0
        else:
            slope = min(max((self.xy / self.weight - mean_x * mean_y) / variance, 0.0), steepest)
        return mean_y + slope * (x - mean_x)


class Step(NamedTuple):
    """One that was decoded. ``depth``: where its prompt tokens lie, their mean."""

    n_prefill: int
    n_decode: int
    depth: float
    elapsed_s: float


class Costs(NamedTuple):
    """Seconds; 0 = unknown."""

    prefill_s: float = 0.0  # a prompt token, moving average
    decode_s: float = 0.0  # a step that only decodes, moving average
    lines: Mapping[int, Line] = MappingProxyType({})  # of a row over depth, by the whole tiles of a step

    def prefill_part(self, step: Step) -> float:
        """How much of a step was prefill."""
        if not step.n_prefill:
            return 0.0
        return max(0.0, step.elapsed_s - self.decode_s) if step.n_decode else step.elapsed_s

    def after(self, step: Step) -> Costs:
        """With one more step known."""
        if not step.n_prefill:
            return Costs(self.prefill_s, _average(self.decode_s, step.elapsed_s), self.lines)
        n_rows = step.n_prefill + step.n_decode
        if n_rows < GRAIN:
            return self  # too few to tell
        tiles = n_rows // TILED_ROWS
        line = self.lines.get(tiles, Line()).after(step.depth, step.elapsed_s / n_rows)
        prefill_s = _average(self.prefill_s, self.prefill_part(step) / step.n_prefill)
        return self._replace(prefill_s=prefill_s, lines={**self.lines, tiles: line})

    def rows(self, depth: int, most: int) -> int:
        """How many rows, decoding ones too, a step should have in which some decode and a prompt is read from ``depth``
        on: what reads fastest within the limit."""
        if not self.lines:
            return min(SMALL_STEP, most)
        best, best_s = LEAST, float("inf")
        for n_rows in _sizes(most):
            row_s = self._row_s(n_rows // TILED_ROWS, depth)
            if row_s <= best_s and n_rows * row_s <= STEP_LIMIT_S:
                best, best_s = n_rows, row_s
        return best

    def _row_s(self, tiles: int, depth: int) -> float:
        """Of a step of this size; an upper bound from the nearest known sizes where it has not been seen."""
        if tiles in self.lines:
            return self.lines[tiles].at(depth)
        fewer = [known for known in self.lines if known < tiles]
        more = [known for known in self.lines if known > tiles]
        bounds = [self.lines[max(fewer)].at(depth)] if fewer else []
        bounds += [FEWER_TILES * self.lines[min(more)].at(depth)] if more else []
        return min(bounds)


def _sizes(most: int) -> Iterator[int]:
    """Rows that a step may have, smallest first."""
    yield from range(GRAIN, min(most, TILED_ROWS), GRAIN)
    if most < TILED_ROWS:
        yield most
    yield from range(TILED_ROWS, most + 1, TILED_ROWS)


def _average(old: float, new: float) -> float:
    return old + (new - old) * EWMA_WEIGHT if old else new
