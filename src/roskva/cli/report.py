"""What /v1/status, or a gateway at its door, says about the pipeline, read tolerantly: a command may be older or newer than the service
that it asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class QueryReport(NamedTuple):
    steps: int  # moves whenever it did something
    lag: int  # records not yet processed


@dataclass(frozen=True, slots=True)
class PipelineReport:
    alive: bool = False
    pid: int | None = None
    batch: int | None = None  # the last one that was finished; None: none since its start
    queries: Mapping[str, QueryReport] = field(default_factory=dict)
    last_batch_age_s: float | None = None
    lag: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # records not yet processed, by topic and partition

    @property
    def lag_total(self) -> int:
        return sum(count for partitions in self.lag.values() for count in partitions.values())


def pipeline_report(status: Mapping[str, Any]) -> PipelineReport | None:
    """The report in a status; None if it has none."""
    report = status.get("pipeline")
    if not isinstance(report, Mapping):
        return None
    batch, pid, age_s = report.get("batch"), report.get("pid"), report.get("last_batch_age_s")
    return PipelineReport(
        alive=bool(report.get("alive")),
        pid=pid if isinstance(pid, int) else None,
        batch=batch if isinstance(batch, int) and batch >= 0 else None,
        queries=_queries(report.get("queries")),
        last_batch_age_s=float(age_s) if isinstance(age_s, int | float) else None,
        lag=_lag(report.get("lag")),
    )


def _queries(value: Any) -> dict[str, QueryReport]:
    """By name, as {"matching": {"steps": 5, "lag": 1}}; what has another form is left out."""
    queries = value.items() if isinstance(value, Mapping) else ()
    return {
        str(name): QueryReport(query["steps"], query["lag"])
        for name, query in queries
        if isinstance(query, Mapping) and isinstance(query.get("steps"), int) and isinstance(query.get("lag"), int)
    }


def _lag(value: Any) -> dict[str, dict[str, int]]:
    """By topic and partition, as {"updates": {"0": 1}}; what has another form is left out."""
    topics = value.items() if isinstance(value, Mapping) else ()
    return {
        str(topic): {str(partition): count for partition, count in counts.items() if isinstance(count, int)}
        for topic, counts in topics
        if isinstance(counts, Mapping)
    }
