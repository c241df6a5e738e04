"""The numbers of now for ``/metrics``: models, queues, workers, tiers, pulls, every counter of the workers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from barrel_inference.registry import Registry
from barrel_inference.server.http.metrics import Sample
from barrel_inference.server.models.slot import Slot
from barrel_inference.types import CacheStats


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
    for model, counters in stats.by_model.items():
        for name, value in counters.items():
            yield Sample(f"kv_{name}", "See docs/kv-cache.md", value, (("model", model),), counter=True)
    of_models_together = {name for counters in stats.by_model.values() for name in counters}
    for name, value in stats.counters.items():
        if name not in of_models_together:
            yield Sample(f"kv_{name}", "Of the janitor; see docs/kv-cache.md", value, counter=True)


def of_pulls(registry: Registry) -> Iterator[Sample]:
    yield Sample("pulls_running", "Downloads of models under way", registry.pulls_running)
    for outcome, count in registry.pulls_ended.items():
        yield Sample("pulls", "Downloads of models that have ended", count, (("outcome", outcome),), counter=True)
