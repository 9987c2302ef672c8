"""Where an update's time goes: the times between the points that sampled updates pass, by way and by hop (Thialfi 6.3, Figures 8 and 9).

    accept     publish called -> received -> durable
    fast       durable -> sent -> acknowledged                     the fast path, one for each client that is looked at
    pipeline   durable -> picked up -> read -> bridged -> matched -> told  once for each update and Registrar
               told -> sent -> acknowledged                        where the pipeline had to send
    fan-out    the same, of the second query: for objects with many registrations

Beside the hops each way has its whole times: from the receipt to the Registrar's call, to the first attempt to send (what the paper
counts), and to the client's acknowledgement. All stamps but the publisher's are of one machine's clock; the publisher's hop stands apart
and is in no sum. A difference below 0, of a clock that was set or of another machine, is counted and not shown. Pure: times come as data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from roskva.model import Stamps
from roskva.telemetry.histogram import LogHistogram

ACCEPT: Final = "accept"
FAST: Final = "fast"
PIPELINE: Final = "pipeline"
FAN_OUT: Final = "fan-out"
WAYS: Final = (ACCEPT, FAST, PIPELINE, FAN_OUT)

PUBLISHED_RECEIVED: Final = "published to received"
RECEIVED_DURABLE: Final = "received to durable"
DURABLE_PICKED: Final = "durable to picked up"
PICKED_READ: Final = "picked up to read"
READ_BRIDGED: Final = "read to bridged"
BRIDGED_MATCHED: Final = "bridged to matched"
MATCHED_TOLD: Final = "matched to told"
TOLD_SENT: Final = "told to sent"
DURABLE_SENT: Final = "durable to sent"
SENT_ACKNOWLEDGED: Final = "sent to acknowledged"
# The hops of each way, in their order, from the receipt to the client; those before they part are in ACCEPT.
_THROUGH_SPARK: Final = (DURABLE_PICKED, PICKED_READ, READ_BRIDGED, BRIDGED_MATCHED, MATCHED_TOLD, TOLD_SENT, SENT_ACKNOWLEDGED)
HOPS: Final[Mapping[str, tuple[str, ...]]] = {
    FAST: (DURABLE_SENT, SENT_ACKNOWLEDGED),
    PIPELINE: _THROUGH_SPARK,
    FAN_OUT: _THROUGH_SPARK,
}
TO_TOLD: Final = "received to told"
TO_SENT: Final = "received to sent"
TO_ACKNOWLEDGED: Final = "received to acknowledged"
WHOLE: Final = (TO_TOLD, TO_SENT, TO_ACKNOWLEDGED)

Histograms = dict[tuple[str, str], LogHistogram]  # by way and hop


class Latency:
    """What one gateway has seen of sampled updates since it started."""

    def __init__(self) -> None:
        self.sampled = 0  # updates that it accepted and stamped
        self.backwards = 0  # differences below 0
        self.histograms: Histograms = {}

    def accepted(self, stamps: Stamps) -> None:
        """Durable, at the gateway that received it."""
        self.sampled += 1
        self._observe(ACCEPT, PUBLISHED_RECEIVED, stamps.published_us, stamps.received_us)
        self._observe(ACCEPT, RECEIVED_DURABLE, stamps.received_us, stamps.durable_us)

    def told(self, stamps: Stamps) -> None:
        """The pipeline has brought it to a Registrar."""
        way = _way(stamps)
        self._observe(way, DURABLE_PICKED, stamps.durable_us, stamps.picked_us)
        self._observe(way, PICKED_READ, stamps.picked_us, stamps.read_us)
        self._observe(way, READ_BRIDGED, stamps.read_us, stamps.bridged_us)
        self._observe(way, BRIDGED_MATCHED, stamps.bridged_us, stamps.matched_us)
        self._observe(way, MATCHED_TOLD, stamps.matched_us, stamps.told_us)
        self._observe(way, TO_TOLD, stamps.received_us, stamps.told_us)

    def sent(self, stamps: Stamps) -> None:
        """To one client, for the first time. Which way it came is in the stamps: only the pipeline's was told."""
        if stamps.told_us:
            self._observe(_way(stamps), TOLD_SENT, stamps.told_us, stamps.sent_us)
        else:
            self._observe(FAST, DURABLE_SENT, stamps.durable_us, stamps.sent_us)
        self._observe(_way(stamps), TO_SENT, stamps.received_us, stamps.sent_us)

    def acknowledged(self, stamps: Stamps, now_us: int) -> None:
        self._observe(_way(stamps), SENT_ACKNOWLEDGED, stamps.sent_us, now_us)
        self._observe(_way(stamps), TO_ACKNOWLEDGED, stamps.received_us, now_us)

    def _observe(self, way: str, hop: str, from_us: int, to_us: int) -> None:
        if not from_us or not to_us:
            return
        if to_us < from_us:
            self.backwards += 1
            return
        histogram = self.histograms.get((way, hop))
        if histogram is None:
            histogram = self.histograms[way, hop] = LogHistogram()
        histogram.observe(to_us - from_us)

    def document(self) -> dict[str, Any]:
        """For JSON: what `roskva latency` adds up over gateways."""
        ways: dict[str, dict[str, Any]] = {}
        for way, hop, histogram in in_order(self.histograms):
            ways.setdefault(way, {})[hop] = histogram.document()
        return {"sampled": self.sampled, "backwards": self.backwards, "ways": ways}


def _way(stamps: Stamps) -> str:
    if not stamps.told_us:
        return FAST
    return FAN_OUT if stamps.fanned_out else PIPELINE


def in_order(histograms: Histograms) -> Iterator[tuple[str, str, LogHistogram]]:
    """Way by way, hops as an update passes them, whole times last."""
    hops = (PUBLISHED_RECEIVED, RECEIVED_DURABLE, *HOPS[PIPELINE][:-1], DURABLE_SENT, SENT_ACKNOWLEDGED, *WHOLE)
    for way in WAYS:
        for hop in hops:
            if (way, hop) in histograms:
                yield way, hop, histograms[way, hop]


def histograms_in(document: Mapping[str, Any]) -> Histograms:
    """Of such a document, as far as it is of a form that is known here."""
    return {(str(way), str(hop)): LogHistogram.of(found) for way, hops in document["ways"].items() for hop, found in hops.items()}


def added(all_of: Iterable[Histograms]) -> Histograms:
    """Of several gateways, as if they were one."""
    whole: Histograms = {}
    for histograms in all_of:
        for name, histogram in histograms.items():
            whole.setdefault(name, LogHistogram()).add(histogram)
    return whole


class Shares:
    """Figure 9: what each hop of a way adds to the mean from the receipt on."""

    def __init__(self, histograms: Histograms, way: str) -> None:
        names = [(ACCEPT, RECEIVED_DURABLE), *((way, hop) for hop in HOPS[way])]
        self.means_us = {hop: histograms[of, hop].mean for of, hop in names if (of, hop) in histograms}
        self.total_us = sum(self.means_us.values())

    def share(self, hop: str) -> float:
        return self.means_us[hop] / self.total_us if self.total_us else 0.0


class Sampler:
    """Which requests are looked at: so many a second at most, at uneven pauses, so that no rhythm of a publisher is in step with them."""

    _GOLDEN: Final = 0.6180339887498949

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._next_s = float("-inf") if per_s else float("inf")
        self.turns = 0

    def is_due(self, now_s: float) -> bool:
        if now_s < self._next_s:
            return False
        self.turns += 1
        self._next_s = now_s + (0.5 + self.turns * self._GOLDEN % 1.0) / self._per_s
        return True
