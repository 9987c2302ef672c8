"""capture-caravans: how much is read for ten applications that are scattered over the log, and how long they wait (Wormhole, Figure 7).

The first application wants the whole log, the second all but the first tenth, and so on. With many caravans each begins at once and the log
is read many times; with one caravan it is read once, and who is ahead waits for who is behind. Read amplification is what all caravans have
read, divided by the length of the log. The latency of an application is the mean, over all its rows, of the time from commit to receipt.
The commits of the log say that they were made at the rate at which a caravan reads, and that the last of them was made when the first
flow began: so a caravan of one's own from the very beginning of the log gives every row the same latency, the time to read it all.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from bench.capture.appending import ROW_BYTES, Filled, fill
from bench.capture.colours import BLUE, RED
from bench.capture.records import Records, Rows, Tally, checked, mean
from bench.capture.scene import ACKNOWLEDGED, Publisher, Scene, scene, typed
from bench.report import Aim, Result
from bench.service import say
from bench.world import Options

APPLICATIONS: Final = 10
CARAVANS: Final = (10, 7, 5, 4, 3, 2, 1)  # at most: those of the paper
POLICIES: Final = ("cluster", "fewest")
RATE_BYTES_PER_S: Final = 2 << 20  # of one caravan
SECONDS: Final = 5.0  # that one caravan takes for the whole log
LATENCY_AIM: Final = 0.6  # the paper: "reduce the average latency of updates by up to 40%"

APPROXIMATIONS: Final = [
    (
        "a log of 10 MiB instead of 20 GBytes, and caravans that may read 2 MiB/s each, so that the pace is what they"
        " wait for, and not this machine's two cores, with ten of them, too"
    ),
    "the log is written once, beforehand; its commit times count as if its last row had been committed when the first flow began",
    "applications are let go one after the other, the one furthest back first, within some tenths of a second",
    (
        "`amplification_of_the_files` is the kernel's count of what the publisher has read from files: with what a reader had fetched ahead"
        " when its caravan was closed, and the datamarkers"
    ),
]


def measure(options: Options) -> Result:
    applications = options.clients or APPLICATIONS
    seconds = options.seconds or SECONDS
    names = [f"a{number}" for number in range(applications)]
    with scene() as stage:
        filled = fill(stage.folder / "log", int(RATE_BYTES_PER_S * seconds / ROW_BYTES), applications, seconds)
        limits = {
            "caravan_rate_max_bytes_per_s": RATE_BYTES_PER_S,
            "caravans_rate_total_max_bytes_per_s": RATE_BYTES_PER_S * 2 * max(2, applications),  # no limit for so many caravans
        }
        publisher = stage.publisher(stage.folder / "log", {name: {} for name in names}, **{**limits, **typed(options.settings)})
        publisher.start()
        for name in names:
            stage.subscriber(name, [name], [publisher.address]).start()
        records = stage.recorded()
        before = stage.cpu()
        iterations = [_iteration(stage, publisher, records, filled, policy, at_most) for policy in POLICIES for at_most in CARAVANS]
        used = before.until(stage.cpu())
        window_s = time.monotonic() - before.at_s
    return _result(iterations, filled, applications, used, window_s)


def _iteration(stage: Scene, publisher: Publisher, records: Records, filled: Filled, policy: str, at_most: int) -> dict[str, Any]:
    """All applications are set back to where they begin, and go on together."""
    begins = {f"a{number}": mark for number, mark in enumerate(filled.marks)}
    for name in begins:
        publisher.ask("pause", application=name)
    publisher.ask("set", policy=policy, caravans_max=at_most)
    for name, (_, position) in begins.items():
        publisher.ask("rewind", application=name, to=str(position))
    stage.until(lambda: all(flow["member"] for flow in publisher.told()["flows"]), "every application has its process")
    seen, tallies = len(records.rows), {name: Tally(1, first) for name, (first, _) in begins.items()}
    read, of_files = publisher.told()["bytes_read"], publisher.bytes().read
    began_s = time.time()
    for name in begins:  # who is furthest back first
        publisher.ask("resume", application=name)
    most = 1

    def all_there() -> bool:
        nonlocal most
        most = max(most, len(publisher.told()["caravans"]))
        for rows in records.read_on():
            tallies[rows.application].take(rows)
        return all(tally.has(filled.rows) for tally in tallies.values())

    stage.until(all_there, f"all applications have the whole log with at most {at_most} caravans, by {policy}", poll_s=0.1)
    checked(tallies, records.losses)
    latencies = _latencies(records.rows[seen:], began_s - filled.ended_s)
    found = {
        "policy": policy,
        "caravans_max": at_most,
        "caravans_used": most,
        "amplification": round((publisher.told()["bytes_read"] - read) / filled.bytes, 3),
        "amplification_of_the_files": round((publisher.bytes().read - of_files) / filled.bytes, 3),
        "mean_latency_s": round(mean(list(latencies.values())), 3),
        "all_there_after_s": round(records.rows[-1].at_s - began_s, 2),
        "repeated": sum(tally.repeated for tally in tallies.values()),
        "latency_s_by_application": {name: round(latency_s, 2) for name, latency_s in latencies.items()},
    }
    say(f"{policy}, at most {at_most}: the log was read {found['amplification']:.2f} times, mean latency {found['mean_latency_s']:.2f} s")
    return found


def _latencies(rows: list[Rows], shift_s: float) -> dict[str, float]:
    """Of each application, the mean over all its rows; the log counts as ended so much later than it says."""
    waited: dict[str, float] = {}
    counts: dict[str, int] = {}
    for one in rows:
        waited[one.application] = waited.get(one.application, 0.0) + (one.age_s - shift_s) * one.size
        counts[one.application] = counts.get(one.application, 0) + one.size
    return {name: waited[name] / counts[name] for name in sorted(waited)}


def _result(iterations: list[dict[str, Any]], filled: Filled, applications: int, used: Mapping[str, float], window_s: float) -> Result:
    by_policy = {policy: [one for one in iterations if one["policy"] == policy] for policy in POLICIES}
    for found in by_policy.values():
        alone_s = found[-1]["mean_latency_s"]
        for one in found:
            one["latency_percent_of_one_caravan"] = round(100 * one["mean_latency_s"] / alone_s, 1)
    many = by_policy["cluster"][0]
    return Result(
        name="capture-caravans",
        settings={
            "load": f"{applications} applications scattered evenly over a log of {filled.bytes / 2**20:.1f} MiB,"
            f" caravans of at most {RATE_BYTES_PER_S / 2**20:g} MiB/s",
            "rows": filled.rows,
            "processes": "a publisher over files of JSON lines, and one process for each application, over TCP",
        },
        warm_up="none: one publisher for all iterations, over a log that is in memory already; flows are paused, set back, and go on",
        figures={"iterations": iterations},
        aims=[
            Aim(
                f"mean latency, at most {many['caravans_max']} caravans to 1 (the paper: down to 0.6)",
                "x",
                LATENCY_AIM,
                many["latency_percent_of_one_caravan"] / 100,
            )
        ],
        cpu_seconds=dict(used),
        cpu_window_s=window_s,
        acknowledgement=ACKNOWLEDGED,
        approximations=APPROXIMATIONS,
    )


def draw(axes: Any, document: dict[str, Any]) -> None:
    for policy, colour in zip(POLICIES, (BLUE, RED), strict=True):
        found = [one for one in document["figures"]["iterations"] if one["policy"] == policy]
        points = [(one["amplification"], one["mean_latency_s"]) for one in found]
        axes.plot(*zip(*points, strict=True), marker="o", linestyle=":", color=colour, label=policy)
        if policy == "cluster":  # of the other, all are in the same place
            for one, point in zip(found, points, strict=True):
                place = (6, -12) if one["caravans_max"] == 1 else (6, 5)
                axes.annotate(str(one["caravans_max"]), point, textcoords="offset points", xytext=place, fontsize=8, color=colour)
    most = max(one["mean_latency_s"] for one in document["figures"]["iterations"])
    axes.set(xlabel="times that the log was read (beside the points: caravans at most)", ylabel="mean latency, s", ylim=(0, 1.15 * most))
    axes.legend(frameon=False)
    axes.set_title(f"capture-caravans: {document['settings']['load']}", fontsize=8)
