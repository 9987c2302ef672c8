"""capture-failover: the publisher of the primary is killed with -9, and comes back later (Wormhole, Figure 10).

Two copies of one log, written with the same bytes, have a publisher each; they share the place of the datamarkers. The application
`multiple` may get its rows from either, the primary first; the application `single` is known to the primary alone. After the kill the
secondary takes the flows of the first over, and the other waits. When the primary is back the flows of the first go home, and the other is
sent what waited.
Taken over is a flow when its first row comes after the kill, whichever row that is; the time is that of the last of all flows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from bench.capture.appending import ROW_BYTES, Writer
from bench.capture.colours import BLUE, GREY, RED
from bench.capture.records import Records, Tally, checked, mean
from bench.capture.scene import ACKNOWLEDGED, Publisher, Scene, scene, typed
from bench.report import Aim, Result
from bench.service import BenchFailed, say
from bench.world import Options
from roskva.capture.ownership import STEADY_S, TAKEOVER_S

MULTIPLE: Final = "multiple"
SINGLE: Final = "single"
APPLICATIONS: Final = (MULTIPLE, SINGLE)
SHARDS: Final = 8
ROWS_PER_S: Final = 1_000.0
ROUNDS: Final = 3
SECONDS: Final = 8.0  # before each kill, at the secondary, and after the return
TAKEOVER_AIM_S: Final = 10.0  # the paper waits 60
SAMPLE_S: Final = 0.5
_PATIENCE_S: Final = 60.0

APPROXIMATIONS: Final = [
    "the copies of the log are two directories of one disk, and the datamarkers are in a file of SQLite that both publishers share",
    (
        "a round takes less than a minute; the paper's primary was away for 15. Three kills, not one; a publisher is dead for the others"
        f" when its counter has stood still for {TAKEOVER_S:g} s, and gets its flows back when it has lived for {STEADY_S:g} s"
    ),
    "who sent a row is told by the publishers' own counts, sampled twice a second; what arrived is told by the subscribers",
    "subscribers try to connect again after 0.2 s at the latest",
]


class Round(NamedTuple):
    """Times since the kill, in seconds."""

    killed_s: float  # by the clock
    taken_over_s: float
    first_s: float  # the first flow of all
    back_s: float  # the primary answers again
    home_s: float  # all flows of `multiple` are at the primary again
    gap_s: float  # the longest silence of a flow of `multiple` on its way home
    single_s: float  # until `single` gets rows again
    caught_up_s: float  # until it has all that was written until the primary was back


class _Failover:
    def __init__(self, stage: Scene, options: Options) -> None:
        self._stage = stage
        self._phase_s = options.seconds or SECONDS
        self._shards = options.clients or SHARDS
        self._rows_per_s = options.rate or ROWS_PER_S
        logs = [stage.folder / "primary.log", stage.folder / "secondary.log"]
        self._writer = Writer(logs, self._rows_per_s)
        shared: dict[str, Any] = {
            "shards": self._shards,
            "datamarkers": stage.folder / "datamarkers" / "shared.sqlite",
            "peers": ["primary", "secondary"],
            **typed(options.settings),
        }
        known: tuple[dict[str, dict[str, Any]], ...] = ({MULTIPLE: {}, SINGLE: {}}, {MULTIPLE: {}})
        self._primary, self._secondary = (
            stage.publisher(log, applications, name=name, **shared)
            for log, applications, name in zip(logs, known, shared["peers"], strict=True)
        )
        addresses = [self._primary.address, self._secondary.address]
        self._subscribers = [stage.subscriber(name, [name], addresses, self._shards) for name in APPLICATIONS]
        self._records: Records = stage.recorded(self._shards)
        self._tallies = {name: Tally(self._shards) for name in APPLICATIONS}
        self._heard: dict[str, dict[int, list[float]]] = {name: {} for name in APPLICATIONS}  # when rows of each shard came
        self._samples: list[tuple[float, dict[str, int]]] = []  # rows sent so far, by application and publisher
        self._sent_before: dict[str, int] = {}  # by publishers that were killed
        self._last: dict[str, int] = {}
        self._sampled_s = 0.0

    def measure(self) -> Result:
        self._primary.start()
        for part in self._subscribers:
            part.start()
        self._stage.until(lambda: self._at(self._primary) == 2 * self._shards, "the primary has all flows", poll_s=0.2)
        self._secondary.start()
        self._writer.start()
        try:
            began_s, cpu = time.time(), self._stage.cpu()
            rounds = [self._round() for _ in range(ROUNDS)]
            self._wait(self._phase_s)
            used, window_s = cpu.until(self._stage.cpu()), time.time() - began_s
        finally:
            self._writer.stop()
        self._writer.check()
        self._until(lambda: all(tally.has(self._writer.rows) for tally in self._tallies.values()), "every row has arrived")
        checked(self._tallies, self._records.losses)
        return self._result(rounds, began_s, used, window_s)

    def _round(self) -> Round:
        self._wait(self._phase_s)
        self._keep_count()
        say("kill -9 of the primary")
        killed_s = time.time()
        self._primary.kill()
        self._until(lambda: all(self._first_after(MULTIPLE, killed_s)), "the secondary has taken over")
        first = [found for found in self._first_after(MULTIPLE, killed_s) if found is not None]
        say(f"taken over after {max(first) - killed_s:.1f} s")
        self._wait(self._phase_s)
        self._primary.start()
        back_s, home_s, caught_up_s, rows = time.time(), 0.0, 0.0, self._writer.rows

        def as_before() -> bool:
            nonlocal home_s, caught_up_s
            if not home_s and self._at(self._primary, MULTIPLE) == self._shards:
                home_s = time.time()
            if not caught_up_s and self._tallies[SINGLE].has(rows):
                caught_up_s = time.time()
            return bool(home_s and caught_up_s)

        self._until(as_before, "the flows are home, and who had but one publisher has caught up")
        again = [found for found in self._first_after(SINGLE, back_s) if found is not None]
        self._wait(1.0)
        say(f"all flows are home {home_s - back_s:.1f} s after the return")
        return Round(
            killed_s,
            max(first) - killed_s,
            min(first) - killed_s,
            back_s - killed_s,
            home_s - killed_s,
            self._longest_silence(back_s, time.time()),
            min(again) - killed_s,
            caught_up_s - killed_s,
        )

    def _at(self, publisher: Publisher, application: str = "") -> int:
        """How many flows with a subscriber it has."""
        status = publisher.told()
        return sum(flow["state"] == "riding" and application in ("", flow["application"]) for flow in status["flows"])

    def _first_after(self, application: str, at_s: float) -> list[float | None]:
        """When the first row of each shard came. What was under way at the kill is not counted: it comes within a moment of it."""
        heard = self._heard[application]
        settled_s = at_s + 0.5
        return [next((one for one in heard.get(shard, ()) if one > settled_s), None) for shard in range(self._shards)]

    def _longest_silence(self, from_s: float, until_s: float) -> float:
        gaps = [
            after - before
            for times in self._heard[MULTIPLE].values()
            for before, after in pairwise(one for one in times if from_s <= one <= until_s)
        ]
        return max(gaps, default=0.0)

    def _look(self) -> None:
        self._writer.check()
        for rows in self._records.read_on():
            self._tallies[rows.application].take(rows)
            self._heard[rows.application].setdefault(rows.shard, []).append(rows.at_s)
        if time.time() - self._sampled_s >= SAMPLE_S:
            self._sampled_s = time.time()
            self._count()

    def _count(self) -> None:
        for publisher in (self._primary, self._secondary):
            status = publisher.status() if publisher.pid is not None else None
            if status is not None:
                for name in APPLICATIONS:
                    flows = [flow["updates_sent"] for flow in status["flows"] if flow["application"] == name]
                    self._last[f"{name} by {publisher.name}"] = sum(flows)
        sent = {key: self._last.get(key, 0) + self._sent_before.get(key, 0) for key in {*self._last, *self._sent_before}}
        self._samples.append((time.time(), sent))

    def _keep_count(self) -> None:
        """The primary is about to be killed, and its counts with it."""
        self._count()
        for key in [key for key in self._last if key.endswith(self._primary.name)]:
            self._sent_before[key] = self._sent_before.get(key, 0) + self._last.pop(key)

    def _wait(self, wait_s: float) -> None:
        deadline_s = time.time() + wait_s
        while (left_s := deadline_s - time.time()) > 0:
            self._stage.check()
            self._look()
            time.sleep(min(left_s, 0.1))

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        def looked() -> bool:
            self._look()
            return condition()

        self._stage.until(looked, what, _PATIENCE_S, poll_s=0.1)

    def _result(self, rounds: Sequence[Round], began_s: float, used: dict[str, float], window_s: float) -> Result:
        taken_over = [one.taken_over_s for one in rounds]
        delivered = {name: self._delivered(name, began_s, window_s) for name in APPLICATIONS}
        if not delivered[MULTIPLE]:
            raise BenchFailed("Nothing was delivered.")
        burst = max(delivered[SINGLE])
        return Result(
            name="capture-failover",
            settings={
                "load": f"{self._rows_per_s:,.0f} rows/s of {ROW_BYTES} bytes in {self._shards} shards, {len(rounds)} kills of the primary",
                "processes": "two publishers over two copies of a log in files, and one process for each application, over TCP",
                "takeover_s": TAKEOVER_S,
                "steady_s": STEADY_S,
            },
            warm_up=f"{self._phase_s:g} s of the same load",
            figures={
                "rounds": [
                    {
                        "taken_over_after_s": round(one.taken_over_s, 2),
                        "first_flow_after_s": round(one.first_s, 2),
                        "primary_back_after_s": round(one.back_s, 2),
                        "flows_home_after_s": round(one.home_s, 2),
                        "gap_on_the_way_home_s": round(one.gap_s, 2),
                        "single_again_after_s": round(one.single_s, 2),
                        "single_caught_up_after_s": round(one.caught_up_s, 2),
                    }
                    for one in rounds
                ],
                "taken_over_after_s_mean": round(mean(taken_over), 2),
                "the_papers_60_s_to_ours": round(60 / max(taken_over), 1),
                "single_burst_times_the_log": round(burst / (self._rows_per_s * SAMPLE_S), 1),
                "repeated": {name: tally.repeated for name, tally in self._tallies.items()},
                "delivered": {name: tally.delivered - tally.repeated for name, tally in self._tallies.items()},
                "skipped": 0,
                "killed_at_s": [round(one.killed_s - began_s, 2) for one in rounds],
                "back_at_s": [round(one.killed_s + one.back_s - began_s, 2) for one in rounds],
                "delivered_over_time": {"every_s": [SAMPLE_S], **delivered},
                "sent_over_time": self._sent(began_s),
            },
            aims=[Aim("kill -9 of the primary's publisher: every flow taken over", "s", TAKEOVER_AIM_S, max(taken_over))],
            cpu_seconds=used,
            cpu_window_s=window_s,
            acknowledgement=ACKNOWLEDGED,
            approximations=APPROXIMATIONS,
        )

    def _delivered(self, application: str, began_s: float, window_s: float) -> list[int]:
        """Rows that arrived, in each SAMPLE_S."""
        counts = [0] * (int(window_s / SAMPLE_S) + 1)
        for rows in self._records.rows:
            at = int((rows.at_s - began_s) / SAMPLE_S)
            if rows.application == application and 0 <= at < len(counts):
                counts[at] += rows.size
        return counts

    def _sent(self, began_s: float) -> dict[str, list[float]]:
        """Rows per second, by application and publisher."""
        keys = sorted({key for _, sent in self._samples for key in sent})
        steps = [(before, after) for before, after in pairwise(self._samples) if after[0] - before[0] >= SAMPLE_S / 2]
        found: dict[str, list[float]] = {"at_s": [round(after[0] - began_s, 2) for _, after in steps]}
        for key in keys:
            found[key] = [
                round(max(0, after[1].get(key, 0) - before[1].get(key, 0)) / (after[0] - before[0]), 1) for before, after in steps
            ]
        return found


def measure(options: Options) -> Result:
    with scene() as stage:
        return _Failover(stage, options).measure()


def draw(axes: Any, document: dict[str, Any]) -> None:
    figures = document["figures"]
    sent = figures["sent_over_time"]
    lines = (
        (f"{MULTIPLE} by primary", BLUE, "-", "multiple copies, by the primary"),
        (f"{MULTIPLE} by secondary", BLUE, ":", "multiple copies, by the secondary"),
        (f"{SINGLE} by primary", RED, "-", "single copy, by the primary"),
    )
    for key, colour, style, label in lines:
        axes.plot(sent["at_s"], sent.get(key, [0.0] * len(sent["at_s"])), color=colour, linestyle=style, linewidth=1.0, label=label)
    for killed_s, back_s in zip(figures["killed_at_s"], figures["back_at_s"], strict=True):
        axes.axvspan(killed_s, back_s, color=GREY, alpha=0.2, linewidth=0)
    axes.set(xlabel="s (grey: the primary's publisher is dead)", ylabel="rows sent per second", yscale="symlog", ylim=(0, None))
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    axes.set_title(f"capture-failover: {document['settings']['load']}", fontsize=9)
