"""capture-balance: how many flows each process of an application has, as processes come and go (Wormhole, Figure 11).

Two applications with as many shards each are served by the same processes: one is balanced by weighted dice, the other is coordinated. Some
processes come later, then some are killed with -9 and come back, again and again; after each change the flows of every process are
counted, when every flow has a process. Rows come all the time, and none may be missing in the end: a flow that moves loses nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from bench.capture.appending import ROW_BYTES, Writer
from bench.capture.colours import BLUE, RED
from bench.capture.records import Records, Tally, checked, mean
from bench.capture.scene import ACKNOWLEDGED, Publisher, Scene, Subscriber, scene, typed
from bench.report import Aim, Result
from bench.service import say
from bench.world import Options

STRATEGIES: Final = ("weighted", "coordinated")  # each also the name of the application that is balanced so
PROCESSES: Final = 16
FLOWS_EACH: Final = 64
COME_AND_GO: Final = 4  # of so many processes one comes later, or is killed
ROUNDS: Final = 6
SECONDS: Final = 2.0  # of rest after each change
ROWS_PER_S: Final = 1_000.0
SEED: Final = 20  # of who is killed
SPREAD_AIM: Final = 1.05  # coordinated: the most that a process has, to the mean; the paper's have 122 to 126 of 124

APPROXIMATIONS: Final = [
    "one publisher and 16 processes on one machine; the paper has many of both. Its flows are normalised to 124 a subscriber, ours to 1",
    "processes say themselves how loaded they are, and none is: the dice see the numbers of flows alone, and nobody hands any over",
    "the publisher is its own coordinator; the paper's subscribers ask ZooKeeper, and are balanced once a minute",
]


class Placed(NamedTuple):
    """Where the flows of one application are, after a change."""

    change: str
    application: str
    processes: int
    of_flow: dict[int, str]  # shard -> member
    settled_s: float  # until every flow had a process

    def counts(self, members: Sequence[str]) -> list[int]:
        found = dict.fromkeys(members, 0)
        for member in self.of_flow.values():
            found[member] += 1
        return list(found.values())


class _Balance:
    def __init__(self, stage: Scene, options: Options) -> None:
        self._stage = stage
        self._rest_s = SECONDS if options.seconds is None else options.seconds
        self._shards = (options.clients or PROCESSES) * FLOWS_EACH
        log = stage.folder / "log"
        self._writer = Writer([log], options.rate or ROWS_PER_S)
        applications = {strategy: {"balance": strategy} for strategy in STRATEGIES}
        self._publisher: Publisher = stage.publisher(log, applications, shards=self._shards, **typed(options.settings))
        self._processes: list[Subscriber] = [
            stage.subscriber(f"m{number:02}", STRATEGIES, [self._publisher.address], self._shards)
            for number in range(options.clients or PROCESSES)
        ]
        self._running: list[Subscriber] = []
        self._records: Records = stage.recorded(self._shards)
        self._tallies = {strategy: Tally(self._shards) for strategy in STRATEGIES}
        self._placed: list[Placed] = []
        self._members: list[list[str]] = []  # who was there at each of them
        self._dice = random.Random(SEED)

    def measure(self) -> Result:
        self._publisher.start()
        some = max(1, len(self._processes) // COME_AND_GO)
        self._start(self._processes[:-some])
        self._settled(f"{len(self._running)} processes")
        self._writer.start()
        try:
            began_s, cpu = time.time(), self._stage.cpu()
            self._start(self._processes[-some:])
            self._settled(f"{some} more come")
            for _ in range(ROUNDS):
                killed = self._dice.sample(self._running, some)
                for process in killed:
                    process.kill()
                self._running = [process for process in self._running if process not in killed]
                self._settled(f"{some} are killed")
                self._start(killed)
                self._settled(f"{some} come back")
            used, window_s = cpu.until(self._stage.cpu()), time.time() - began_s
        finally:
            self._writer.stop()
        self._writer.check()
        self._stage.until(self._all_there, "every row has arrived", poll_s=0.2)
        checked(self._tallies, self._records.losses)
        return self._result(used, window_s)

    def _start(self, processes: Sequence[Subscriber]) -> None:
        for process in processes:
            process.start()
        self._running = [process for process in self._processes if process in self._running or process in processes]

    def _settled(self, change: str) -> None:
        """Wait until who is there is seen, and every flow is somewhere, and nothing moves; write it down."""
        members, began_s = [process.member for process in self._running], time.monotonic()
        seen: dict[str, dict[int, str]] = {}
        since_s = dict.fromkeys(STRATEGIES, 0.0)

        def rest() -> bool:
            now = self._flows(members)
            for strategy in STRATEGIES:
                if now is None or now[strategy] != seen.get(strategy):
                    since_s[strategy] = time.monotonic()
            seen.update(now or {})
            return now is not None and time.monotonic() - max(since_s.values()) >= self._rest_s

        self._stage.until(rest, f"after '{change}' every flow has a process", 60.0 + self._rest_s, poll_s=0.2)
        for strategy in STRATEGIES:
            self._placed.append(Placed(change, strategy, len(members), seen[strategy], since_s[strategy] - began_s))
            self._members.append(members)
        spreads = ", ".join(f"{one.application} {_spread(one, members)}" for one in self._placed[-2:])
        say(f"{change}: flows per process: {spreads}")

    def _flows(self, members: Sequence[str]) -> dict[str, dict[int, str]] | None:
        """None: somebody is not there yet, or is still there, or a flow is nowhere."""
        status = self._publisher.told()
        if {one["member"] for one in status["subscribers"]} != set(members) or len(status["subscribers"]) != 2 * len(members):
            return None
        found: dict[str, dict[int, str]] = {strategy: {} for strategy in STRATEGIES}
        for flow in status["flows"]:
            if flow["member"] in members and flow["state"] == "riding":
                found[flow["application"]][flow["shard"]] = flow["member"]
        return found if all(len(flows) == self._shards for flows in found.values()) else None

    def _all_there(self) -> bool:
        for rows in self._records.read_on():
            self._tallies[rows.application].take(rows)
        return all(tally.has(self._writer.rows) for tally in self._tallies.values())

    def _result(self, used: dict[str, float], window_s: float) -> Result:
        changes = [
            {
                "change": placed.change,
                "strategy": placed.application,
                "processes": placed.processes,
                **_figures(placed.counts(members)),
                "moved_from_the_living": self._moved(index),
                "settled_after_s": round(placed.settled_s, 2),
            }
            for index, (placed, members) in enumerate(zip(self._placed, self._members, strict=True))
        ]
        normalised = {strategy: self._normalised(strategy) for strategy in STRATEGIES}
        return Result(
            name="capture-balance",
            settings={
                "load": f"{self._shards:,} shards, {len(self._processes)} processes, of which some are killed and come back {ROUNDS} times",
                "rows": f"{self._writer.rows_per_s:,.0f}/s of {ROW_BYTES} bytes",
                "processes": "a publisher over files of JSON lines, and the applications' processes, over TCP",
                "seed": SEED,
            },
            warm_up="none",
            figures={
                "over_all_changes": {
                    strategy: {
                        "least_percent_of_the_mean": round(100 * min(found), 1),
                        "most_percent_of_the_mean": round(100 * max(found), 1),
                        "deviation_percent": round(100 * mean([(one - 1) ** 2 for one in found]) ** 0.5, 1),
                        "moved_from_the_living": sum(one["moved_from_the_living"] for one in changes if one["strategy"] == strategy),
                    }
                    for strategy, found in normalised.items()
                },
                "changes": changes,
                "rows": self._writer.rows,
                "repeated": {name: tally.repeated for name, tally in self._tallies.items()},
                "skipped": 0,
                "flows_to_the_mean": normalised,
            },
            aims=[
                Aim(
                    "coordinated: flows of the fullest process, to the mean (the paper: 1.02)",
                    "x",
                    SPREAD_AIM,
                    max(normalised["coordinated"]),
                )
            ],
            cpu_seconds=used,
            cpu_window_s=window_s,
            acknowledgement=ACKNOWLEDGED,
            approximations=APPROXIMATIONS,
        )

    def _moved(self, index: int) -> int:
        """Flows that were taken from a process which was there before and after the change."""
        if index < len(STRATEGIES):
            return 0
        before, after = self._placed[index - len(STRATEGIES)], self._placed[index]
        stayed = set(self._members[index - len(STRATEGIES)]) & set(self._members[index])
        return sum(member in stayed and after.of_flow[shard] != member for shard, member in before.of_flow.items())

    def _normalised(self, strategy: str) -> list[float]:
        """Of every process after every change, its flows to the mean."""
        found: list[float] = []
        for placed, members in zip(self._placed, self._members, strict=True):
            if placed.application == strategy:
                counts = placed.counts(members)
                found += [round(count / mean(counts), 4) for count in counts]
        return found


def _figures(counts: Sequence[int]) -> Mapping[str, float]:
    middle = mean(counts)
    deviation = mean([(count - middle) ** 2 for count in counts]) ** 0.5
    return {"least": min(counts), "most": max(counts), "mean": round(middle, 1), "deviation_percent": round(100 * deviation / middle, 1)}


def _spread(placed: Placed, members: Sequence[str]) -> str:
    counts = placed.counts(members)
    return f"{min(counts)} to {max(counts)}"


def measure(options: Options) -> Result:
    with scene() as stage:
        return _Balance(stage, options).measure()


def draw(axes: Any, document: dict[str, Any]) -> None:
    found = document["figures"]["flows_to_the_mean"]
    most = max(2.0, *(max(values) for values in found.values()))
    bins = [most * index / 50 for index in range(51)]  # the paper's 50 bins
    for strategy, colour in zip(STRATEGIES, (BLUE, RED), strict=True):
        values = found[strategy]
        share = [1 / len(values)] * len(values)
        axes.hist(values, bins=bins, weights=share, color=colour, alpha=0.6, label=strategy)
    axes.set(xlabel="flows of a process, to the mean of all", ylabel="share of the processes, after every change", xlim=(0, most))
    axes.legend(frameon=False)
    axes.set_title(f"capture-balance: {document['settings']['load']}", fontsize=9)
