"""Counters of the KV store, by name and where it is known by tier: flat numbers, since those cross the border and are
summed over the lives of a worker. Pure but for a Tally, which its thread owns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

# Those whose every one belongs to a tier.
BY_TIER = frozenset(
    (
        *("hits_exact", "hits_partial", "gated", "restore_failed", "corrupt"),
        *("saves_cold", "saves_continued", "saves_finish", "saves_evict", "saves_shutdown"),
        *("saved_bytes", "saved_tokens", "drops", "save_errors"),
        *("evictions_quota", "evictions_free_space", "evictions_cap", "evictions_pressure", "evicted_bytes"),
    )
)
_BETWEEN = "\x1f"  # which neither a counter nor a tier has in its name


class Tally(defaultdict[str, float]):
    """Each name counts all, and beside it what was counted of each tier."""

    def __init__(self) -> None:
        super().__init__(float)

    def count(self, name: str, tier: str | None, n: float = 1.0) -> None:
        self[name] += n
        self.count_of(name, tier, n)

    def count_of(self, name: str, tier: str | None, n: float = 1.0) -> None:
        """Of the tier alone: the whole is counted by another."""
        if tier is not None:
            self[f"{name}{_BETWEEN}{tier}"] += n


def split(counters: Mapping[str, float]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """The whole by name, and the parts by tier and name."""
    whole: dict[str, float] = {}
    parts: dict[str, dict[str, float]] = {}
    for key, value in counters.items():
        name, is_part, tier = key.partition(_BETWEEN)
        if is_part:
            parts.setdefault(tier, {})[name] = value
        else:
            whole[name] = value
    return whole, parts
