"""Where the time of sampled updates goes (telemetry/latency.py)."""

from __future__ import annotations

import itertools

from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from roskva.model import Stamps, object_key
from roskva.telemetry import latency as of
from roskva.telemetry.latency import Latency, Sampler, Shares, added, histograms_in
from roskva.telemetry.metrics import Metrics, registry_of

KEY = object_key("demo", 0, b"x")
ACCEPTED = Stamps(KEY, 7, published_us=1_000, received_us=2_000, durable_us=5_000)
TOLD = ACCEPTED._replace(picked_us=9_000, read_us=14_000, bridged_us=20_000, matched_us=30_000, told_us=31_000)


def times(latency: Latency) -> dict[tuple[str, str], int]:
    return {(way, hop): histogram.total for way, hop, histogram in of.in_order(latency.histograms)}


def test_the_fast_path_has_its_hops_and_whole_times() -> None:
    latency = Latency()
    latency.accepted(ACCEPTED)
    sent = ACCEPTED._replace(sent_us=5_500)
    latency.sent(sent)
    latency.acknowledged(sent, 7_500)
    assert times(latency) == {
        (of.ACCEPT, of.PUBLISHED_RECEIVED): 1_000,
        (of.ACCEPT, of.RECEIVED_DURABLE): 3_000,
        (of.FAST, of.DURABLE_SENT): 500,
        (of.FAST, of.SENT_ACKNOWLEDGED): 2_000,
        (of.FAST, of.TO_SENT): 3_500,
        (of.FAST, of.TO_ACKNOWLEDGED): 5_500,
    }
    assert latency.sampled == 1


def test_the_hops_of_the_pipeline_add_up_to_the_whole() -> None:
    latency = Latency()
    latency.accepted(ACCEPTED)
    latency.told(TOLD)
    sent = TOLD._replace(sent_us=33_000)
    latency.sent(sent)
    latency.acknowledged(sent, 40_000)
    found = times(latency)
    assert found[of.PIPELINE, of.TO_TOLD] == 29_000
    assert found[of.PIPELINE, of.TO_SENT] == 31_000
    assert found[of.PIPELINE, of.TO_ACKNOWLEDGED] == 38_000
    shares = Shares(latency.histograms, of.PIPELINE)
    assert list(shares.means_us) == [of.RECEIVED_DURABLE, *of.HOPS[of.PIPELINE]]
    assert shares.total_us == 38_000, "without the publisher's hop, which is of another clock"
    assert shares.share(of.SENT_ACKNOWLEDGED) == 7 / 38


def test_a_clock_that_went_back_is_counted_and_not_shown() -> None:
    latency = Latency()
    latency.accepted(ACCEPTED._replace(published_us=2_001))
    assert times(latency) == {(of.ACCEPT, of.RECEIVED_DURABLE): 3_000}
    assert latency.backwards == 1


def test_what_is_not_known_is_left_out() -> None:
    latency = Latency()
    latency.accepted(ACCEPTED._replace(published_us=0))
    latency.told(TOLD._replace(durable_us=0))
    assert (of.ACCEPT, of.PUBLISHED_RECEIVED) not in latency.histograms
    assert (of.PIPELINE, of.DURABLE_PICKED) not in latency.histograms
    assert times(latency)[of.PIPELINE, of.TO_TOLD] == 29_000
    assert latency.backwards == 0


def test_documents_of_two_gateways_add_up() -> None:
    one, two = Latency(), Latency()
    for latency in (one, two, two):
        latency.accepted(ACCEPTED)
    whole = added([histograms_in(one.document()), histograms_in(two.document())])
    assert whole[of.ACCEPT, of.RECEIVED_DURABLE].count == 3
    assert whole[of.ACCEPT, of.RECEIVED_DURABLE].total == 9_000


def test_prometheus_reads_them_as_histograms() -> None:
    latency = Latency()
    latency.accepted(ACCEPTED)
    text = generate_latest(registry_of(Metrics(), "one", latency=latency)).decode()
    found = {
        (sample.name, sample.labels.get("hop"), sample.labels.get("le")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    name = "roskva_latency_milliseconds"
    assert found[f"{name}_bucket", of.RECEIVED_DURABLE, "2.048"] == 0
    assert found[f"{name}_bucket", of.RECEIVED_DURABLE, "4.096"] == 1
    assert found[f"{name}_bucket", of.RECEIVED_DURABLE, "+Inf"] == 1
    assert found[f"{name}_sum", of.RECEIVED_DURABLE, None] == 3.0
    assert found["roskva_stamped_total", None, None] == 1


def test_so_many_a_second_are_sampled_at_uneven_pauses() -> None:
    sampler = Sampler(20.0)
    due = [tick / 1000 for tick in range(10_000) if sampler.is_due(tick / 1000)]
    assert due[0] == 0.0, "the first one at once: who tries it out sees something"
    assert 180 <= len(due) <= 200
    assert len({round(later - earlier, 3) for earlier, later in itertools.pairwise(due)}) > 10
    assert not Sampler(0.0).is_due(1e9)
