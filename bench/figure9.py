"""figure9: what each part of the service adds to the delay of a notification, by the fast path and through the pipeline (Thialfi 6.3).

From the service's own stamps, as `figure8`, and of the same run if both are measured at once. In the paper most of it is self-imposed: the
call from the Bridge to the Matcher is batched for up to 500 ms, the Matcher's writes similarly, the call to the Registrar for 200 ms.
"""

from __future__ import annotations

from typing import Any

from bench.report import Result
from bench.stamped import APPROXIMATIONS, PAPER, Both, Seen
from bench.stamped import measure as measured
from bench.world import Options
from roskva.telemetry.latency import ACCEPT, FAST, HOPS, PIPELINE, RECEIVED_DURABLE, Shares


def measure(options: Options) -> Result:
    return result_of(measured(options))


def result_of(both: Both) -> Result:
    fast, without = both.fast, both.without
    return Result(
        name="figure9",
        settings={"load": both.load, "service": fast.parts, "changed": fast.changed},
        warm_up=both.warm_up,
        figures={
            "fast_path": _hops(fast, FAST),
            "pipeline_alone": _hops(without, PIPELINE),
            "pipeline_behind_the_fast_path": _hops(fast, PIPELINE),
            "mean_ms": {
                "fast path": round(Shares(fast.histograms, FAST).total_us / 1000, 2),
                "pipeline alone": round(Shares(without.histograms, PIPELINE).total_us / 1000, 2),
            },
            "paper": PAPER,
        },
        aims=[],
        cpu_seconds=fast.cpu_seconds,
        cpu_window_s=fast.seconds,
        approximations=[*APPROXIMATIONS, "means of each hop over the samples that passed it; their sum is the mean of the whole"],
    )


def _hops(seen: Seen, way: str) -> list[dict[str, Any]]:
    shares = Shares(seen.histograms, way)
    found = []
    for hop in (RECEIVED_DURABLE, *HOPS[way]):
        times = seen.histograms.get((ACCEPT if hop == RECEIVED_DURABLE else way, hop))
        if times is not None:
            parts = {f"p{part}_ms": round(times.quantile(part / 100) / 1000, 3) for part in (50, 99)}
            line = {"hop": hop, "samples": times.count, "mean_ms": round(times.mean / 1000, 3), **parts}
            found.append({**line, "share": round(shares.share(hop), 3)})
    return found
