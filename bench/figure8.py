"""figure8: the distribution of latencies, from the receipt to the first attempt to send, and apart to the client (Thialfi 6.3).

The paper counts from the receipt of a notification to the first attempt to send it to an online client, without delivery and
acknowledgement: 88 % of 2,514 were dispatched in less than a second. Here the same is shown for the fast path, and for the pipeline alone.
"""

from __future__ import annotations

from typing import Any, Final

from bench.report import Aim, Result
from bench.stamped import APPROXIMATIONS, PAPER, Both, Seen
from bench.stamped import measure as measured
from bench.world import Options
from roskva.telemetry.histogram import LogHistogram
from roskva.telemetry.latency import FAST, PIPELINE, TO_ACKNOWLEDGED, TO_SENT, TO_TOLD

SECOND_US: Final = 1_000_000
PAPER_PERCENT: Final = 88.0


def measure(options: Options) -> Result:
    return result_of(measured(options))


def result_of(both: Both) -> Result:
    fast, without = both.fast, both.without
    dispatched = _percent(without.histograms.get((PIPELINE, TO_SENT)))
    return Result(
        name="figure8",
        settings={"load": both.load, "service": fast.parts, "changed": fast.changed},
        warm_up=both.warm_up,
        figures={
            "ways": [
                _line("fast path, to the first attempt to send", fast, FAST, TO_SENT),
                _line("fast path, to the acknowledgement", fast, FAST, TO_ACKNOWLEDGED),
                _line("pipeline alone, to the first attempt to send", without, PIPELINE, TO_SENT),
                _line("pipeline alone, to the acknowledgement", without, PIPELINE, TO_ACKNOWLEDGED),
                _line("pipeline behind the fast path, to the Registrar's call", fast, PIPELINE, TO_TOLD),
            ],
            "updates_sampled": {"with the fast path": fast.sampled, "without": without.sampled},
            "times_below_0": fast.backwards + without.backwards,
            "paper": PAPER,
            "without_the_fast_path": {"cpu_seconds": without.cpu_seconds, "cpu_window_s": round(without.seconds, 1)},
        },
        aims=[
            Aim("dispatched in less than 1 s, pipeline alone (the paper's 88 %)", "%", PAPER_PERCENT, dispatched, larger_is_better=True),
            Aim("dispatched in less than 1 s, fast path", "%", PAPER_PERCENT, _percent(fast.histograms.get((FAST, TO_SENT))), True),
        ],
        cpu_seconds=fast.cpu_seconds,
        cpu_window_s=fast.seconds,
        approximations=APPROXIMATIONS,
    )


def _percent(times: LogHistogram | None) -> float:
    return 0.0 if times is None else 100 * times.share_up_to(SECOND_US)


def _line(what: str, seen: Seen, way: str, hop: str) -> dict[str, Any]:
    times = seen.histograms.get((way, hop), LogHistogram())
    parts = {f"p{part}_ms": round(times.quantile(part / 100) / 1000, 2) for part in (50, 88, 95, 99)}
    points = [[round(value / 1000, 3), round(part, 4)] for value, part in times.distribution()]
    return {"what": what, "samples": times.count, **parts, "max_ms": round(times.largest / 1000, 2), "distribution_ms": points}
