"""capture-lag: what is read and sent while subscribers fall behind and catch up (Wormhole, Figure 8), and what the others notice of it.

Ten applications follow a log that grows all the time. Then the process of the tenth stands still (SIGSTOP) for a while, and goes on; then
those of three others do, and go on one after the other. Meanwhile it is written down, twice a second, what the publisher has read from the
log, what it has sent, and how many caravans it had. The age of rows at the other nine, before, while the tenth stands, and while it
catches up, says whether a slow subscriber slows others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from bench.capture.appending import ROW_BYTES, Writer
from bench.capture.colours import BLUE, GREY, RED
from bench.capture.records import Records, Tally, ages_ms, checked, mean
from bench.capture.scene import ACKNOWLEDGED, Publisher, Scene, Subscriber, scene, typed
from bench.report import Aim, Result, percentiles
from bench.service import say
from bench.world import Options
from roskva.capture.positions import position_from_text

APPLICATIONS: Final = 10
ROWS_PER_S: Final = 2_000.0
SECONDS: Final = 15.0  # of each part
CARAVAN_RATE: Final = 2.0  # times that of the log: the paper's caravans are "typically 1.25 to 2 times faster" than the lead
TOGETHER: Final = 3  # that stand still in the second part
GO_ON: Final = (0.6, 0.8, 1.0)  # of a part's length, after which each of them goes on
SAMPLE_S: Final = 0.5
WARM_UP_S: Final = 3.0
READS_AIM: Final = 1.1  # ten flows at the log's end cost at most 1.1 times the reads of one
SLOWER_AIM: Final = 1.1  # a slow subscriber never slows the others: so much is left to the noise of the machine

APPROXIMATIONS: Final = [
    f"minutes instead of 48 hours, and one publisher instead of many; a sample is of {SAMPLE_S:g} s instead of a minute",
    "subscribers fall behind because their processes are stopped, and find all that waited in their sockets when they go on",
    "a caravan may read twice what the log grows by, which is lower than the default: else it would have caught up within a few samples",
    (
        "bytes read are the kernel's count of what the publisher reads from files; a look at the log's end each second and the"
        " datamarkers are in it"
    ),
    "rows that came together count with the mean of their ages; publisher, subscribers and writer share two cores",
]


@dataclass(slots=True)
class Sample:
    at_s: float
    read: int
    sent: int
    appended: int
    caravans: int
    behind: int  # bytes of log between the flow that is furthest back and the end


class _Lag:
    def __init__(self, stage: Scene, options: Options) -> None:
        self._stage = stage
        self._part_s = options.seconds or SECONDS
        self._rows_per_s = options.rate or ROWS_PER_S
        self._names = [f"a{number}" for number in range(options.clients or APPLICATIONS)]
        log = stage.folder / "log"
        self._writer = Writer([log], self._rows_per_s)
        rate = {"caravan_rate_max_bytes_per_s": CARAVAN_RATE * self._rows_per_s * ROW_BYTES}
        self._publisher: Publisher = stage.publisher(log, {name: {} for name in self._names}, **{**rate, **typed(options.settings)})
        self._subscribers: list[Subscriber] = [stage.subscriber(name, [name], [self._publisher.address]) for name in self._names]
        self._records: Records = stage.recorded()
        self._tallies = {name: Tally() for name in self._names}
        self._samples: list[Sample] = []
        self._events: list[dict[str, Any]] = []
        self._sampled_s = 0.0

    def measure(self) -> Result:
        self._publisher.start()
        self._subscribers[0].start()
        self._writer.start()
        try:
            say("one application alone")
            self._wait(WARM_UP_S)
            alone_s = self._sample()
            self._wait(self._part_s / 2)
            alone = (alone_s, self._sample())
            self._event("the others come", *(one.start for one in self._subscribers[1:]))
            self._until_caught_up()
            self._wait(WARM_UP_S)
            cpu = self._stage.cpu()
            began_s = self._sample()
            say(f"steady for {self._part_s:g} s")
            self._wait(self._part_s)
            tenth = self._subscribers[-1]
            stopped_s = self._event(f"{tenth.member} stands still", tenth.stop)
            self._wait(self._part_s)
            on_s = self._event(f"{tenth.member} goes on", tenth.go_on)
            caught_up_s = self._until_caught_up()
            self._wait(max(0.0, self._part_s / 3))
            several = self._subscribers[: min(TOGETHER, len(self._subscribers) - 1)]
            again_s = self._event(f"{len(several)} stand still", *(one.stop for one in several))
            for one, part in zip(several, GO_ON, strict=False):
                self._wait(max(0.0, again_s + part * self._part_s - time.time()))
                self._event(f"{one.member} goes on", one.go_on)
            together_s = self._until_caught_up()
            self._wait(self._part_s / 3)
            used = cpu.until(self._stage.cpu())
            ended_s = time.time()
        finally:
            self._writer.stop()
        self._writer.check()
        self._stage.until(self._all_there, "every row has arrived")
        checked(self._tallies, self._records.losses)
        windows = {
            "alone": alone,
            "before": (began_s, stopped_s),
            "while_the_last_stands": (stopped_s, on_s),
            "while_it_catches_up": (on_s, caught_up_s),
        }
        return self._result(windows, again_s, together_s, used, ended_s - began_s)

    def _event(self, what: str, *acts: Callable[[], None]) -> float:
        say(what)
        at_s = self._sample()
        for act in acts:
            act()
        self._events.append({"at_s": at_s, "what": what})
        return at_s

    def _wait(self, wait_s: float) -> None:
        deadline_s = time.time() + wait_s
        while (left_s := deadline_s - time.time()) > 0:
            self._sample_if_due()
            time.sleep(min(left_s, 0.05))

    def _until_caught_up(self) -> float:
        """When all flows are at the log's end again, on one caravan."""

        def caught_up() -> bool:
            self._sample_if_due()
            return self._all_ride()

        self._stage.until(caught_up, "those that were behind have caught up", 20 * self._part_s + 60)
        return self._sample()

    def _sample_if_due(self) -> None:
        if time.time() - self._sampled_s >= SAMPLE_S:
            self._sample()

    def _sample(self) -> float:
        """When that was."""
        self._writer.check()
        self._stage.check()
        status = self._publisher.told()
        sent = [position_from_text(flow["sent"]).sequence for flow in status["flows"] if flow["member"] is not None]
        appended, read, self._sampled_s = self._writer.bytes, self._publisher.bytes().read, time.time()
        behind = max(0, appended - min(sent, default=appended))
        self._samples.append(Sample(self._sampled_s, read, status["bytes_sent"], appended, len(status["caravans"]), behind))
        return self._sampled_s

    def _all_ride(self) -> bool:
        status = self._publisher.told()
        leads = [caravan["caravan"] for caravan in status["caravans"] if caravan["lead"]]
        flows = [flow["caravan"] for flow in status["flows"]]
        return len(flows) == len(self._names) and set(flows) == set(leads) and len(status["caravans"]) == 1

    def _all_there(self) -> bool:
        for rows in self._records.read_on():
            self._tallies[rows.application].take(rows)
        return all(tally.has(self._writer.rows) for tally in self._tallies.values())

    def _result(
        self, windows: dict[str, tuple[float, float]], again_s: float, together_s: float, used: dict[str, float], window_s: float
    ) -> Result:
        began_s, others = windows["before"][0], self._names[:-1]
        ages = {name: ages_ms(self._records.rows, *window, others) for name, window in windows.items() if name != "alone"}
        before = percentiles(ages["before"])
        others_found: list[dict[str, Any]] = [
            {"when": name, "rows": len(found), "mean_ms": round(mean(found), 2)}
            | {f"{part}_ms": value for part, value in percentiles(found).items()}
            | {f"{part}_percent_of_before": round(100 * percentiles(found)[part] / max(before[part], 0.01), 1) for part in ("p50", "p99")}
            for name, found in ages.items()
        ]
        parts = {
            "one_alone": windows["alone"],
            "all_at_the_end": windows["before"],
            "one_stands": windows["while_the_last_stands"],
            "one_catches_up": windows["while_it_catches_up"],
            "several_stand_and_catch_up": (again_s, together_s),
        }
        reads = [{"when": name, **self._between(*window)} for name, window in parts.items()]
        more = reads[1]["read_per_byte_of_log"] / reads[0]["read_per_byte_of_log"]
        slower = max(one["p50_percent_of_before"] for one in others_found) / 100
        return Result(
            name="capture-lag",
            settings={
                "load": f"{len(self._names)} applications, {self._rows_per_s:,.0f} rows/s of {ROW_BYTES} bytes",
                "caravan_rate": f"at most {CARAVAN_RATE:g} times that of the log",
                "processes": "a publisher over files of JSON lines, and one process for each application, over TCP",
            },
            warm_up=f"{WARM_UP_S:g} s of the same load, before one application is alone, and before all are there",
            figures={
                "others": others_found,
                "caught_up_after_s": round(windows["while_it_catches_up"][1] - windows["while_it_catches_up"][0], 1),
                "several_caught_up_after_s": round(together_s - self._events[-1]["at_s"], 1),
                "reads": reads,
                "falls": sum(flow["falls"] for flow in self._publisher.told()["flows"]),
                "repeated": sum(tally.repeated for tally in self._tallies.values()),
                "events": [{"at_s": round(one["at_s"] - began_s, 2), "what": one["what"]} for one in self._events],
                "over_time": self._over_time(began_s),
            },
            aims=[
                Aim(f"bytes read, {len(self._names)} flows at the log's end to one flow", "x", READS_AIM, more),
                Aim("age of rows at the others (p50) while one stands or catches up, to before", "x", SLOWER_AIM, slower),
            ],
            cpu_seconds=used,
            cpu_window_s=window_s,
            acknowledgement=ACKNOWLEDGED,
            approximations=APPROXIMATIONS,
        )

    def _between(self, from_s: float, until_s: float) -> dict[str, Any]:
        """Of a part of the time, from its first sample to its last."""
        found = [sample for sample in self._samples if from_s <= sample.at_s <= until_s]
        first, last = found[0], found[-1]
        read, sent, appended = last.read - first.read, last.sent - first.sent, last.appended - first.appended
        return {
            "seconds": round(last.at_s - first.at_s, 1),
            "read_per_byte_of_log": round(read / max(1, appended), 3),
            "read_percent_of_sent": round(100 * read / max(1, sent), 1),
            "caravans_mean": round(mean([sample.caravans for sample in found]), 2),
            "caravans_max": max(sample.caravans for sample in found),
            "behind_mib_max": round(max(sample.behind for sample in found) / 2**20, 1),
        }

    def _over_time(self, began_s: float) -> dict[str, list[float]]:
        """What was read and sent since the sample before, each second."""
        steps = [(before, after) for before, after in pairwise(self._samples) if after.at_s - before.at_s >= SAMPLE_S / 2]
        return {
            "at_s": [round(after.at_s - began_s, 2) for _, after in steps],
            "read_mb_per_s": [round((after.read - before.read) / (after.at_s - before.at_s) / 1e6, 3) for before, after in steps],
            "sent_mb_per_s": [round((after.sent - before.sent) / (after.at_s - before.at_s) / 1e6, 3) for before, after in steps],
            "caravans": [after.caravans for _, after in steps],
            "behind_mb": [round(after.behind / 1e6, 2) for _, after in steps],
        }


def measure(options: Options) -> Result:
    with scene() as stage:
        return _Lag(stage, options).measure()


def draw(axes: Any, document: dict[str, Any]) -> None:
    over_time = document["figures"]["over_time"]
    at_s = over_time["at_s"]
    axes.plot(at_s, over_time["sent_mb_per_s"], color=GREY, label="sent")
    axes.plot(at_s, over_time["read_mb_per_s"], color=BLUE, label="read")
    axes.set(xlabel="s", ylabel="MB per second", ylim=(0, 1.5 * max(over_time["sent_mb_per_s"]) + 0.1))  # room for the words
    for event in document["figures"]["events"]:
        axes.axvline(event["at_s"], color=GREY, linestyle=":", linewidth=0.7)
        axes.annotate(event["what"], (event["at_s"], 1.0), xycoords=("data", "axes fraction"), va="top", rotation=90, fontsize=6)
    beside = axes.twinx()
    beside.step(at_s, over_time["caravans"], where="pre", color=RED, linewidth=0.9, label="caravans")
    beside.set(ylabel="caravans", ylim=(0, 2 * max(over_time["caravans"])))
    lines = [*axes.get_legend_handles_labels()[0], *beside.get_legend_handles_labels()[0]]
    axes.legend(
        lines, [line.get_label() for line in lines], frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3
    )
    axes.set_title(f"capture-lag: {document['settings']['load']}", fontsize=9)
