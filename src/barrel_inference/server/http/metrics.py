"""What ``/metrics`` says: counters of ended requests, and what is the case at the moment of asking.

Owns its Prometheus registry; belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from barrel_inference.server.http.record import Record

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Sample(NamedTuple):
    """One number of now. ``name`` comes without the prefix ``barrel_``; ``counter`` says that it only grows."""

    name: str
    help: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    counter: bool = False


class Metrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)  # the server's own memory, descriptors and time, where /proc tells

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"barrel_{name}", text, labels, registry=self._registry)

        def seconds(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"barrel_{name}", text, labels, registry=self._registry, buckets=_SECONDS)

        self._requests = counter("requests", "Requests that have ended", "method", "route", "status")
        self._errors = counter("request_errors", "Requests that ended with an error, by its code", "route", "code")
        self._disconnects = counter("disconnects", "Requests whose client left before the end", "route")
        self._tokens = counter("tokens", "Tokens of prompts (cached ones included) and answers", "model", "kind")
        self._duration = seconds("request_seconds", "From the head of a request to the end of its answer", "route")
        self._first = seconds("first_token_seconds", "From the start of a generation to its first token", "model")
        self._queued = seconds("queue_seconds", "Waiting for a turn", "model")
        self._loading = seconds("load_wait_seconds", "Waiting for the model to be loaded", "model")

    def ended(self, entry: Record) -> None:
        self._requests.labels(entry.method, entry.route, str(entry.status)).inc()
        self._duration.labels(entry.route).observe(entry.elapsed_s())
        if entry.error:
            self._errors.labels(entry.route, entry.error).inc()
        if entry.disconnected:
            self._disconnects.labels(entry.route).inc()
        if entry.model_known:
            self._of_model(entry)

    def _of_model(self, entry: Record) -> None:
        for kind in ("prompt", "cached", "completion"):
            self._tokens.labels(entry.model, kind).inc(getattr(entry, f"{kind}_tokens"))
        self._queued.labels(entry.model).observe(entry.queued_s)
        self._loading.labels(entry.model).observe(entry.load_s)
        if entry.first_token_s:
            self._first.labels(entry.model).observe(entry.first_token_s)

    def text(self, now: Iterable[Sample]) -> bytes:
        """What has been counted, and the numbers of now."""
        current = CollectorRegistry(auto_describe=False)
        current.register(_Families(now))
        return generate_latest(self._registry) + generate_latest(current)


class _Families(Collector):
    """Samples of one name together."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = list(samples)

    def collect(self) -> Iterator[Metric]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for sample in self._samples:
            family = families.get(sample.name) or _family(sample)
            families[sample.name] = family
            family.add_metric([value for _, value in sample.labels], sample.value)
        yield from families.values()


def _family(sample: Sample) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if sample.counter else GaugeMetricFamily
    return kind(f"barrel_{sample.name}", sample.help, labels=[name for name, _ in sample.labels])
