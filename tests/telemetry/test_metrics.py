"""The numbers, as Prometheus reads them (telemetry/metrics.py)."""

from __future__ import annotations

from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from roskva.telemetry.metrics import Histogram, Metrics, registry_of


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = generate_latest(registry_of(metrics, "one", lambda: [("sent", 5)], lambda: [("sessions", 3)])).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items() - {("gateway", "one")}))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_slots_become_counters_gauges_and_histograms() -> None:
    metrics = Metrics()
    metrics.updates_accepted += 3
    metrics.updates_appended += 2
    metrics.connections = 7
    metrics.publish_ms.observe(1.0)
    metrics.publish_ms.observe(3.0)
    metrics.publish_ms.observe(99_999.0)
    found = samples(metrics)
    assert found["roskva_updates_total", (("milestone", "accepted"),)] == 3
    assert found["roskva_updates_total", (("milestone", "appended"),)] == 2
    assert found["roskva_connections", ()] == 7
    assert found["roskva_publish_milliseconds_bucket", (("le", "1"),)] == 1
    assert found["roskva_publish_milliseconds_bucket", (("le", "5"),)] == 2
    assert found["roskva_publish_milliseconds_bucket", (("le", "+Inf"),)] == 3
    assert found["roskva_publish_milliseconds_sum", ()] == 100_003
    assert found["roskva_registrar_total", (("milestone", "sent"),)] == 5
    assert found["roskva_sessions", ()] == 3


def test_two_gateways_in_one_process_do_not_share_numbers() -> None:
    one, two = Metrics(), Metrics()
    one.updates_accepted += 1
    one.publish_ms.observe(1)
    assert two.updates_accepted == 0
    assert sum(two.publish_ms.counts) == 0


def test_metrics_have_no_room_for_a_misspelled_name() -> None:
    assert not hasattr(Metrics(), "__dict__")


def test_histogram_bounds_belong_to_the_bucket_below() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.buckets() == [("1", 2), ("2", 4), ("+Inf", 5)]
