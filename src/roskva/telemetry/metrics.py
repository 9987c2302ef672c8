"""The numbers of one gateway: what happens at its ports, and the milestones of notifications that its Registrar counts.

Everything is a plain integer in a slot: an event costs one addition. prometheus-client reads them only when somebody asks
(`Collector`), since its own counters take a lock per event. Used by one thread, the event loop's; reading from another is
harmless.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from roskva.telemetry.latency import Latency, in_order

Numbers = Callable[[], Iterable[tuple[str, int]]]

MILLISECONDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0)
GATEWAY: Final = "gateway"  # the label of every sample
_COUNTER: Final = "counter"
_GAUGE: Final = "gauge"
_HISTOGRAM: Final = "histogram"


class Histogram:
    """Counts of values by upper bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = MILLISECONDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as prometheus wants them."""
        running = 0
        result: list[tuple[str, float]] = []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            result.append(("+Inf" if bound == float("inf") else f"{bound:g}", running))
        return result


def _counter(metric: str, about: str, **labels: str) -> Any:
    return field(default=0, metadata={"kind": _COUNTER, "metric": metric, "about": about, "labels": labels})


def _gauge(metric: str, about: str) -> Any:
    return field(default=0, metadata={"kind": _GAUGE, "metric": metric, "about": about, "labels": {}})


def _histogram(metric: str, about: str) -> Any:
    return field(default_factory=Histogram, metadata={"kind": _HISTOGRAM, "metric": metric, "about": about, "labels": {}})


def _update(milestone: str) -> Any:
    return _counter("roskva_updates", "Published updates, by the milestone that they reached at this gateway.", milestone=milestone)


def _message(way: str) -> Any:
    return _counter("roskva_messages", "Messages on client connections, by what happened to them.", way=way)


def _limit(limit: str) -> Any:
    return _counter("roskva_limited", "What was refused, by the setting that was reached.", limit=limit)


def _refusal(reason: str) -> Any:
    return _counter("roskva_refused", "What was refused for who asked, by the code of the error.", reason=reason)


@dataclass(slots=True)
class Metrics:
    """All numbers of one gateway. Add to them directly: `metrics.notifications_sent += 1`."""

    publish_requests: int = _counter("roskva_publish_requests", "Publish requests.")
    publishes_overloaded: int = _counter("roskva_publishes_overloaded", "Publish requests that were refused before they were read.")
    publishes_disk_full: int = _counter("roskva_publishes_disk_full", "Publish requests that were refused near a full disk.")
    updates_accepted: int = _update("accepted")  # valid, on the way to the feed
    updates_appended: int = _update("appended")  # durable in the feed
    updates_refused: int = _update("refused")  # invalid
    updates_unavailable: int = _update("unavailable")  # the feed was full or failing

    tokens_refused: int = _counter("roskva_tokens_refused", "Messages whose token did not verify.")
    origins_refused: int = _refusal("origin-refused")
    publish_keys_refused: int = _refusal("publish-key-refused")
    administration_refused: int = _refusal("administration-refused")
    trust_refused: int = _refusal("trust-refused")
    encodings_refused: int = _refusal("encoding-refused")

    limited_connections: int = _limit("connections_max")
    limited_connections_of_application: int = _limit("connections_max of the application")
    limited_connections_of_address: int = _limit("connections_per_address_max")
    limited_handshakes: int = _limit("handshakes_per_address_per_s")
    limited_messages: int = _limit("messages_per_s_max")
    limited_publishes: int = _limit("publishes_per_s_max")

    messages_received: int = _message("received")
    messages_sent: int = _message("sent")
    messages_malformed: int = _message("malformed")
    messages_forwarded: int = _message("forwarded")  # to the owner's gateway
    messages_delivered: int = _message("delivered")  # from the owner's gateway
    messages_dropped: int = _message("dropped")  # the connection or link was full
    messages_unroutable: int = _message("unroutable")  # no owner, or no link to it

    connections_opened: int = _counter("roskva_connections_opened", "Client connections accepted.")
    connections_refused: int = _counter("roskva_connections_refused", "Connections refused at the limit, or for their form.")
    slow_consumers: int = _counter("roskva_slow_consumers", "Connections closed because they did not take what was sent.")
    members_changes: int = _counter("roskva_members_changes", "Changes of the set of living members seen by this gateway.")
    propagate_calls: int = _counter("roskva_propagate_calls", "Calls from the pipeline's tasks.")

    connections: int = _gauge("roskva_connections", "Client connections now.")
    partitions_owned: int = _gauge("roskva_partitions_owned", "Partitions of clients that this gateway owns.")
    members: int = _gauge("roskva_members", "Living members, by this gateway's view.")

    publish_ms: Histogram = _histogram("roskva_publish_milliseconds", "From request to durable in the feed.")
    propagate_ms: Histogram = _histogram("roskva_propagate_milliseconds", "From the Matcher's call to its answer.")


# Powers of two, which are exact bounds of a LogHistogram: 64 microseconds to 33 s.
_LATENCY_US: Final = tuple(1 << power for power in range(6, 26))


class LatencyCollector(Collector):
    """The times of sampled updates, by way and hop."""

    def __init__(self, latency: Latency, gateway: str) -> None:
        self._latency = latency
        self._gateway = gateway

    def collect(self) -> Iterable[Metric]:
        times = HistogramMetricFamily(
            "roskva_latency_milliseconds",
            "Between the points that sampled updates pass; `received to ...` are whole times.",
            labels=[GATEWAY, "way", "hop"],
        )
        for way, hop, histogram in in_order(self._latency.histograms):
            below = zip(_LATENCY_US, histogram.below(_LATENCY_US), strict=True)
            buckets = [(f"{bound / 1000:g}", float(count)) for bound, count in below]
            times.add_metric([self._gateway, way, hop], [*buckets, ("+Inf", histogram.count)], histogram.total / 1000)
        sampled = CounterMetricFamily("roskva_stamped", "Accepted updates that were sampled.", labels=[GATEWAY])
        sampled.add_metric([self._gateway], self._latency.sampled)
        backwards = CounterMetricFamily("roskva_stamps_backwards", "Times between stamps that were below 0.", labels=[GATEWAY])
        backwards.add_metric([self._gateway], self._latency.backwards)
        return [times, sampled, backwards]


class MetricsCollector(Collector):
    """Turns the slots into metric families when /metrics is read."""

    def __init__(self, metrics: Metrics, gateway: str, milestones: Numbers, gauges: Numbers) -> None:
        self._metrics = metrics
        self._gateway = gateway
        self._milestones = milestones
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        here = [self._gateway]
        for described in fields(self._metrics):
            about = described.metadata
            value = getattr(self._metrics, described.name)
            name, labels = about["metric"], about["labels"]
            family = families.get(name)
            if about["kind"] == _HISTOGRAM:
                histogram = families[name] = HistogramMetricFamily(name, about["about"], labels=[GATEWAY])
                histogram.add_metric(here, value.buckets(), sum_value=value.total)
            elif about["kind"] == _GAUGE:
                families[name] = self._gauge(name, about["about"], value)
            else:
                if not isinstance(family, CounterMetricFamily):
                    family = families[name] = CounterMetricFamily(name, about["about"], labels=[GATEWAY, *labels])
                family.add_metric([*here, *labels.values()], value)
        milestones = CounterMetricFamily(
            "roskva_registrar", "What reached which milestone at this Registrar.", labels=[GATEWAY, "milestone"]
        )
        for name, value in self._milestones():
            milestones.add_metric([*here, name], value)
        gauges = [self._gauge(f"roskva_{name}", f"Registrar: {name} now.", value) for name, value in self._gauges()]
        return [*families.values(), milestones, *gauges]

    def _gauge(self, name: str, about: str, value: int) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(name, about, labels=[GATEWAY])
        gauge.add_metric([self._gateway], value)
        return gauge


def registry_of(
    metrics: Metrics, gateway: str, milestones: Numbers = tuple, gauges: Numbers = tuple, latency: Latency | None = None
) -> CollectorRegistry:
    """A registry of its own: nothing global, so that two gateways in one process do not share numbers. Every sample says whose it is.

    `milestones` tells how many notifications and registrations reached which point at the Registrar since it started; `gauges`
    what it holds now; `latency` what sampled updates took.
    """
    registry = CollectorRegistry()
    registry.register(MetricsCollector(metrics, gateway, milestones, gauges))
    if latency is not None:
        registry.register(LatencyCollector(latency, gateway))
    return registry


def merged(answers: Mapping[str, bytes | None]) -> bytes:
    """What several gateways answered, as one: each family once. None: one did not answer, and `roskva_gateway_answers` says so."""
    families: dict[bytes, tuple[list[bytes], list[bytes]]] = {}  # of each its description and its samples
    for answer in answers.values():
        about: list[bytes] = []
        samples: list[bytes] = []
        for line in (answer or b"").splitlines():
            if line.startswith(b"# HELP "):
                about, samples = families.setdefault(line.split(b" ", 3)[2], ([], []))
            if not line.startswith(b"#"):
                samples.append(line)
            elif line not in about:
                about.append(line)
    answering = GaugeMetricFamily("roskva_gateway_answers", "Gateways on this port, and whether they answer.", labels=[GATEWAY])
    for gateway, answer in sorted(answers.items()):
        answering.add_metric([gateway], int(answer is not None))
    registry = CollectorRegistry()
    registry.register(_Ready(answering))
    return generate_latest(registry) + b"".join(line + b"\n" for about, samples in families.values() for line in [*about, *samples])


class _Ready(Collector):
    """A family that is complete already."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]
