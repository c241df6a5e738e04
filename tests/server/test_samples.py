"""Counters of the store as metrics: by model, and by tier where a tier is known."""

from __future__ import annotations

from barrel_inference.server import samples
from barrel_inference.tally import Tally, split
from barrel_inference.types import CacheStats, TierInfo

TIERS = tuple(TierInfo(name=name, kind="disk", path="/x", quota_bytes=1) for name in ("fast", "my disk"))


def of(stats: CacheStats) -> dict[tuple[str, ...], float]:
    found = {}
    for sample in samples.of_cache(stats):
        if sample.name.startswith("kv_"):
            key = (sample.name, *(value for _, value in sample.labels))
            assert key not in found, "no series twice"
            found[key] = sample.value
    return found


def test_a_counter_has_its_tier_as_a_label_and_a_zero_from_the_start() -> None:
    by_model = {"m": {"lookups": 5.0, "hits_exact": 3.0, "restored_tokens": 90.0, "restored_tokens_my disk": 64.0}}
    by_tier = {
        "my disk": {"m": {"hits_exact": 3.0, "restored_tokens": 64.0}},
        "fast": {"": {"evictions_quota": 2.0, "evicted_bytes": 4096.0}},
    }
    assert of(CacheStats(tiers=TIERS, by_model=by_model, by_tier=by_tier)) == {
        ("kv_lookups", "m"): 5,
        ("kv_restored_tokens", "m"): 90,
        ("kv_restored_tokens_by_tier", "m", "my disk"): 64,
        ("kv_hits_exact", "m", "my disk"): 3,
        ("kv_hits_exact", "m", "fast"): 0,
        ("kv_evictions_quota", "", "fast"): 2,
        ("kv_evicted_bytes", "", "fast"): 4096,
    }


def test_a_tally_comes_apart_into_the_whole_and_its_parts() -> None:
    tally = Tally()
    for tier in ("a", "b b", None, "a"):
        tally.count("saves_cold", tier)
    tally.count_of("restored_tokens", "a", 64)
    tally["save_s"] += 0.5
    whole, parts = split(tally)
    assert whole == {"saves_cold": 4, "save_s": 0.5}
    assert parts == {"a": {"saves_cold": 2, "restored_tokens": 64}, "b b": {"saves_cold": 1}}
