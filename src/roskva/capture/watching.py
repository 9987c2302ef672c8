"""How near capture is to its limits, by what a publisher says of itself (publisher/status.py): shares, levels, Prometheus' metrics.

Pure. What a datastore keeps of its log for us is limited by a setting of its own, or by its disk. A flow that lags by half of that is worth
a look, one that lags by four fifths needs somebody now: at the limit the datastore drops what was not read, or its disk is full and it
stops. Of a log that has no known limit no share is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

WARNING_SHARE: Final = 0.5
ALARM_SHARE: Final = 0.8


class Level(StrEnum):
    FINE = "ok"
    WARNING = "warning"
    ALARM = "ALARM"


def level_of(share: float | None) -> Level:
    if share is None or share < WARNING_SHARE:
        return Level.FINE
    return Level.WARNING if share < ALARM_SHARE else Level.ALARM


def share_of_kept(lag_bytes: int | None, bytes_max: int | None, disk_free_bytes: int | None = None) -> float | None:
    """Of what the datastore keeps at most, what this lag takes. Where nothing but the disk is the limit, the lag is a part of what the disk
    would have free without it. None: nobody knows."""
    if lag_bytes is None:
        return None
    if bytes_max:
        return min(1.0, lag_bytes / bytes_max)
    if disk_free_bytes is None:
        return None
    return lag_bytes / max(1, lag_bytes + disk_free_bytes)


class LogShare(NamedTuple):
    """Of the whole log that is held for us."""

    behind_bytes: int | None
    limit: str  # for a person: what it is a share of
    share: float | None

    @property
    def level(self) -> Level:
        return level_of(self.share)


def log_share(log: Mapping[str, Any], disk_free_bytes: int | None = None) -> LogShare:
    """`log`: what the status has under this name."""
    behind, bytes_max = log.get("bytes_behind"), log.get("bytes_max")
    share = share_of_kept(behind, bytes_max, disk_free_bytes)
    if bytes_max:
        limit = f"at most {in_bytes(bytes_max)} that the datastore keeps"
    elif disk_free_bytes is not None:
        limit = f"what its disk has: {in_bytes(disk_free_bytes)} are free"
    else:
        limit = "no limit that is known"
    return LogShare(behind, limit, share)


class FlowLag(NamedTuple):
    """One flow, as `capture status` and the metrics show it."""

    flow: Mapping[str, Any]
    share: float | None
    seconds: float | None  # None: nothing was sent yet

    @property
    def level(self) -> Level:
        return level_of(self.share)


def lags(status: Mapping[str, Any], disk_free_bytes: int | None = None) -> list[FlowLag]:
    """Of all flows, the worst first."""
    bytes_max = status.get("log", {}).get("bytes_max")
    leads = {caravan["caravan"] for caravan in status.get("caravans", ()) if caravan.get("lead")}
    found = []
    for flow in status.get("flows", ()):
        # Whoever rides at the log's end and has nothing waiting is there, however long ago something was for it.
        there = flow.get("caravan") in leads and not flow.get("buffered")
        seconds = 0.0 if there else flow.get("lag_s")
        if unanswered_s := flow.get("unanswered_s"):  # it was sent all, and does not say that it has dealt with it
            seconds = max(seconds or 0.0, unanswered_s)
        share = share_of_kept(flow.get("lag_bytes"), bytes_max, disk_free_bytes)
        found.append(FlowLag(flow, share, seconds))
    return sorted(found, key=lambda lag: (-(lag.share or 0.0), -lag.flow.get("behind_share", 0.0), -(lag.seconds or 0.0)))


def in_bytes(count: float) -> str:
    """For a person: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} B" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


_OF_FLOW: Final = {
    "updates_sent": ("counter", "updates_sent_total", "Updates sent to subscribers."),
    "bytes_sent": ("counter", "bytes_sent_total", "Bytes of updates sent to subscribers."),
    "tokens_sent": ("counter", "tokens_total", "Times that a subscriber was asked how far it is."),
    "falls": ("counter", "falls_total", "Times that a full buffer was discarded, to be read again."),
    "discarded": ("counter", "discarded_total", "Updates that a real-time flow has lost for good."),
    "too_old": ("counter", "too_old_total", "Updates that were left out for their age (max_age_s)."),
    "losses": ("counter", "losses_total", "Times that the log was cut past the datamarker (on_data_loss)."),
    "refused": ("counter", "refused_total", "Acknowledgements and credit that did not fit."),
    "lag_bytes": ("gauge", "lag_bytes", "Log between the datamarker and the log's end, about."),
    "buffered_bytes": ("gauge", "buffered_bytes", "Bytes that wait for the subscriber."),
}
_OF_CARAVAN: Final = {
    "bytes_read": ("counter", "caravan_bytes_read_total", "Bytes of log read."),
    "updates_read": ("counter", "caravan_updates_read_total", "Updates read."),
    "bytes_per_s_max": ("gauge", "caravan_pace_bytes_per_second", "What it may read."),
    "flows": ("gauge", "caravan_flows", "Flows that ride on it."),
}


def metrics_text(status: Mapping[str, Any], disk_free_bytes: int | None = None) -> str:
    """All figures of a status, in the text form of Prometheus."""
    return "".join(f"{line}\n" for line in _metrics(status, disk_free_bytes))


def _metrics(status: Mapping[str, Any], disk_free_bytes: int | None) -> Iterator[str]:
    held, log = log_share(status["log"], disk_free_bytes), status["log"]
    yield from _metric("gauge", "log_behind_bytes", "Log that the datastore keeps for capture.", [({}, log.get("bytes_behind"))])
    yield from _metric("gauge", "log_bytes_max", "What it keeps at most.", [({}, log.get("bytes_max"))])
    yield from _metric(
        "gauge", "log_share", "The first as a share of the second, or of the disk: warn at 0.5, alarm at 0.8.", [({}, held.share)]
    )
    yield from _metric("gauge", "datastore_disk_free_bytes", "Free on the datastore's disk.", [({}, disk_free_bytes)])
    yield from _metric("gauge", "problems", "What does not work now: `roskva capture status` names it.", [({}, len(status["problems"]))])
    yield from _metric("gauge", "subscribers", "Processes that are connected.", [({}, len(status["subscribers"]))])
    yield from _metric("gauge", "caravans", "Readers of the log.", [({}, len(status["caravans"]))])
    yield from _metric("counter", "log_bytes_read_total", "Bytes of log read by all caravans.", [({}, status["bytes_read"])])
    yield from _metric("counter", "fenced_total", "Flows that another publisher took.", [({}, status["fenced"])])
    yield from _metric(
        "counter", "filter_failures_total", "Filters that raised: the update was let pass.", [({}, status["filter_failures"])]
    )
    misplaced = [({"reason": reason}, count) for reason, count in status.get("misplaced", {}).items()]
    yield from _metric("counter", "misplaced_total", "Changes in shard 0, since their own cannot be told.", misplaced)
    about = "Lines of the log that cannot be read: `roskva capture status` names the last."
    yield from _metric("counter", "malformed_lines_total", about, [({}, status.get("malformed_lines"))])
    flows = lags(status, disk_free_bytes)
    for name, (kind, metric, about) in _OF_FLOW.items():
        yield from _metric(kind, metric, about, [(_flow_labels(lag.flow), lag.flow.get(name)) for lag in flows])
    yield from _metric(
        "gauge",
        "lag_seconds",
        "Age of what was sent last, of a flow that is behind; or since when it was asked how far it is, and has not answered.",
        [(_flow_labels(lag.flow), lag.seconds) for lag in flows],
    )
    yield from _metric(
        "gauge",
        "lag_share",
        "Of what the datastore keeps: warn at 0.5, alarm at 0.8.",
        [(_flow_labels(lag.flow), lag.share) for lag in flows],
    )
    yield from _metric(
        "gauge",
        "paused",
        "1 if an operator paused the flow.",
        [(_flow_labels(lag.flow), int(lag.flow.get("state") == "paused")) for lag in flows],
    )
    for name, (kind, metric, about) in _OF_CARAVAN.items():
        labelled = [
            ({"caravan": caravan["caravan"], "lead": str(caravan["lead"]).lower()}, caravan.get(name)) for caravan in status["caravans"]
        ]
        yield from _metric(kind, metric, about, labelled)


def _flow_labels(flow: Mapping[str, Any]) -> dict[str, Any]:
    return {"application": flow["application"], "shard": flow["shard"]}


def _metric(kind: str, name: str, about: str, samples: Sequence[tuple[Mapping[str, Any], float | None]]) -> Iterator[str]:
    """Nothing, if nobody knows the value."""
    known = [(labels, value) for labels, value in samples if value is not None]
    if known:
        yield f"# HELP roskva_capture_{name} {about}"
        yield f"# TYPE roskva_capture_{name} {kind}"
    for labels, value in known:
        shown = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in labels.items())
        yield f"roskva_capture_{name}{{{shown}}} {value}" if shown else f"roskva_capture_{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
