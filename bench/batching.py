"""batching: what `batch_delay_ms` costs in latency and saves in CPU, through the pipeline alone.

The load of `latency`, smaller, on a new service for each delay, without the fast path: with it clients do not wait for the pipeline, and
what is saved is saved all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from bench import accounting, latency
from bench.report import Aim, Result
from bench.service import Service, running, say
from bench.world import Options

DELAYS_MS: Final = (0, 50, 200, 500)
CLIENTS: Final = 500
RATE_PER_S: Final = 200.0
SECONDS: Final = 7.0  # of warming up, and as many of measuring
_PIPELINE: Final = (accounting.JVM, accounting.PLANNER, accounting.WORKERS, accounting.DRIVER)
SAVED_AIM: Final = 0.5  # of the pipeline's CPU, at the longest delay


def measure(options: Options, delays_ms: Sequence[int] = DELAYS_MS) -> Result:
    steps: list[dict[str, Any]] = []
    for delay_ms in delays_ms:
        say(f"batches at least {delay_ms} ms apart")
        with running({**options.settings, "fast_path": "false", "batch_delay_ms": str(delay_ms)}) as service:
            step, measured = measure_on(service, delay_ms, options)
        steps.append(step)
    saved = 1.0 - steps[-1]["pipeline_cpu_cores"] / steps[0]["pipeline_cpu_cores"]
    return Result(
        name="batching",
        settings={**measured.settings, "changed": {**measured.settings["changed"], "batch_delay_ms": ", ".join(map(str, delays_ms))}},
        warm_up=f"for each delay {measured.warm_up}",
        figures={"delays": steps},
        aims=[Aim(f"the pipeline's CPU saved at {delays_ms[-1]} ms", "", SAVED_AIM, round(saved, 3), larger_is_better=True)],
        cpu_seconds=measured.cpu_seconds,
        cpu_window_s=measured.cpu_window_s,
        approximations=["CPU seconds by process are those of the last delay", *latency.APPROXIMATIONS[:1]],
    )


def measure_on(service: Service, delay_ms: int, options: Options) -> tuple[dict[str, Any], Result]:
    asked = Options(options.seconds or SECONDS, options.clients or CLIENTS, options.rate or RATE_PER_S, options.settings)
    # Objects of its own: on a service where `latency` was measured, versions that begin anew would be old ones.
    measured = latency.measure_on(service, asked, replace(latency.QUIET, prefix="batching"))
    cores = {role: seconds / measured.cpu_window_s for role, seconds in measured.cpu_seconds.items()}
    times_ms = measured.figures["publish_to_client_ms"]
    step = {
        "delay_ms": delay_ms,
        "p50_ms": times_ms["p50"],
        "p95_ms": times_ms["p95"],
        "p99_ms": times_ms["p99"],
        "batches_per_s": round(measured.figures["spark_batches"] / measured.cpu_window_s, 1),
        "pipeline_cpu_cores": round(sum(cores.get(role, 0.0) for role in _PIPELINE), 3),
        "gateway_cpu_cores": round(cores.get(accounting.GATEWAY, 0.0), 3),
        "delivered": measured.figures["delivered"],
        "collapsed": measured.figures["collapsed"],
    }
    return step, measured
