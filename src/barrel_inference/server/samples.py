"""The numbers of now for ``/metrics``: models, queues, workers, tiers, pulls, every counter of the workers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from barrel_inference.registry import Registry
from barrel_inference.server.http.metrics import Sample
from barrel_inference.server.models.slot import Slot
from barrel_inference.tally import BY_TIER
from barrel_inference.types import CacheStats

SEE = "See docs/kv-cache.md"


def of_models(slots: Iterable[Slot]) -> Iterator[Sample]:
    for slot in slots:
        labels = (("model", slot.id),)
        yield Sample("model_loaded", "1 while it is loaded", float(slot.loaded), labels)
        yield Sample("requests_running", "Requests that have the model", slot.gate.running, labels)
        yield Sample("requests_waiting", "Requests in the queue", slot.gate.waiting, labels)
        yield Sample("model_memory_bytes", "Reserved for the model", slot.bytes, labels)
        if slot.model is not None:
            info = slot.model.info()
            yield Sample("worker_resident_bytes", "Memory of the worker process", info.resident_bytes, labels)
            yield Sample(
                "weights_resident_bytes", "Of the model's file, in memory", info.weights_resident_bytes, labels
            )
            yield Sample("worker_restarts", "Deaths of the worker process", info.restarts, labels, counter=True)
            yield Sample("sequences_free", "Sequences without a request", info.sequences_free, labels)


def of_cache(stats: CacheStats) -> Iterator[Sample]:
    for tier in stats.tiers:
        labels = (("tier", tier.name), ("kind", tier.kind))
        yield Sample("tier_used_bytes", "Bytes that a tier holds", tier.used_bytes, labels)
        yield Sample("tier_quota_bytes", "Bytes that a tier may hold", tier.quota_bytes, labels)
        yield Sample("tier_objects", "Objects that a tier holds", tier.objects, labels)
    yield from _counters(stats, sorted({tier.name for tier in stats.tiers} | set(stats.by_tier)))


def _counters(stats: CacheStats, tiers: list[str]) -> Iterator[Sample]:
    labels_instead = BY_TIER | {f"restored_tokens_{tier}" for tier in tiers}
    for model, counters in stats.by_model.items():
        for name in sorted(counters.keys() - labels_instead):
            yield Sample(f"kv_{name}", SEE, counters[name], (("model", model),), counter=True)
        for name, tier in product(sorted(counters.keys() & BY_TIER), tiers):
            if name not in stats.by_tier.get(tier, {}).get(model, {}):
                yield _of_tier(name, model, tier, 0.0)  # from the start, so that its first growth is seen
    for tier, models in stats.by_tier.items():
        for model, counters in models.items():
            for name, value in counters.items():
                yield _of_tier(name if name in BY_TIER else f"{name}_by_tier", model, tier, value)


def _of_tier(name: str, model: str, tier: str, value: float) -> Sample:
    return Sample(f"kv_{name}", SEE, value, (("model", model), ("tier", tier)), counter=True)


def of_pulls(registry: Registry) -> Iterator[Sample]:
    yield Sample("pulls_running", "Downloads of models under way", registry.pulls_running)
    for outcome, count in registry.pulls_ended.items():
        yield Sample("pulls", "Downloads of models that have ended", count, (("outcome", outcome),), counter=True)
