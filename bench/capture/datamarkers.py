"""capture-datamarkers: what datamarkers cost, and what comes twice after a kill, by how often they are asked for (Wormhole 3.3.1).

Publishers with periods of 1, 10, 30 and 120 s read one log at the same time, each for an application with a process of its own; a fifth
never asks. First nobody dies: what each asks and writes, beyond what the one writes that never asks, is the cost of its datamarkers. Then a
subscriber or a publisher is killed with -9, in turns, at a moment that is equally likely to be anywhere between two datamarkers, and is
started again: what its application had got already comes again from its datamarker on, and is counted. The long periods are a tenth of what
they are called.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from bench.capture.appending import ROW_BYTES, Writer
from bench.capture.colours import BLUE, GREY, RED
from bench.capture.records import Records, Tally, checked, mean
from bench.capture.scene import ACKNOWLEDGED, Scene, scene, typed
from bench.report import Result
from bench.service import say
from bench.world import Options

PERIODS: Final = ((1.0, 1.0), (10.0, 1.0), (30.0, 0.1), (120.0, 0.1))  # in seconds, and how much shorter they are here
NEVER_S: Final = 1e6
SHARDS: Final = 16
ROWS_PER_S: Final = 1_000.0
SECONDS: Final = 100.0  # of kills
QUIET: Final = 0.25  # of that, before the first kill
SEED: Final = 7
SUBSCRIBER: Final = "subscriber"
PUBLISHER: Final = "publisher"

APPROXIMATIONS: Final = [
    (
        "30 and 120 s are 3 and 12 s here: what is repeated is told as it was counted, and as a share of the rows of a period, which"
        " does not depend on it; `rows_at_full_length` is the count times ten"
    ),
    "bytes sent are those of the frames of questions and answers, as they are encoded; TCP's own are not in them",
    "bytes stored are the kernel's count of what the publisher has written to files, less what one has written that never asks",
    "five publishers and five subscribers share two cores; what a restart takes is longer for it",
]


class Kill(NamedTuple):
    what: str
    repeated: int
    back_s: float  # until rows that were committed after the restart had come in every shard


class Cost(NamedTuple):
    """Of the quiet time."""

    seconds: float
    asked: int
    sent_bytes: int
    written_bytes: int
    updates_bytes: int


@dataclass(slots=True)
class Lane:
    """A publisher, a subscriber, and what happened to them."""

    period_s: float  # what it is called
    scale: float
    cost: Cost | None = None
    kills: list[Kill] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"every-{self.period_s:g}" if self.asks else "never"

    @property
    def asks(self) -> bool:
        return self.period_s < NEVER_S

    @property
    def real_s(self) -> float:
        return self.period_s * self.scale if self.asks else NEVER_S


class _Datamarkers:
    def __init__(self, stage: Scene, options: Options) -> None:
        self._stage = stage
        self._options = options
        self._seconds = options.seconds or SECONDS
        self._shards = options.clients or SHARDS
        self._rows_per_s = options.rate or ROWS_PER_S
        self._writer = Writer([stage.folder / "log"], self._rows_per_s)
        shorter = self._seconds / SECONDS  # a shorter run has shorter periods
        self._lanes = [*(Lane(period_s, scale * shorter) for period_s, scale in PERIODS), Lane(NEVER_S, 1.0)]
        self._failed = threading.Event()
        self._tallies: dict[str, Tally] = {}
        self._losses = 0

    def measure(self) -> Result:
        self._writer.start()
        try:
            cpu, began_s = self._stage.cpu(), time.monotonic()
            with ThreadPoolExecutor(len(self._lanes)) as threads:
                running = [threads.submit(self._live, lane, SEED + number) for number, lane in enumerate(self._lanes)]
                for one in running:
                    one.result()
            used, window_s = cpu.until(self._stage.cpu()), time.monotonic() - began_s
        finally:
            self._writer.stop()
        self._writer.check()
        checked(self._tallies, self._losses)
        return self._result(used, window_s)

    def _live(self, lane: Lane, seed: int) -> None:
        try:
            self._live_through(lane, random.Random(seed))
        except BaseException:
            self._failed.set()
            raise

    def _live_through(self, lane: Lane, dice: random.Random) -> None:
        settings = {**typed(self._options.settings), "datamarker_period_s": lane.real_s}
        publisher = self._stage.publisher(
            self._stage.folder / "log", {lane.name: {"start": "oldest"}}, name=f"p-{lane.name}", shards=self._shards, **settings
        )
        subscriber = self._stage.subscriber(f"s-{lane.name}", [lane.name], [publisher.address], self._shards)
        records, tally = Records(self._shards), Tally(self._shards)
        records.add(subscriber.records)
        self._tallies[lane.name] = tally
        publisher.start()
        subscriber.start()
        self._follow(records, tally, f"rows come to {lane.name}")
        self._sleep(lane.real_s / 10 if lane.asks else 0.0)
        before, asked, sent, began_s = publisher.bytes(), len(records.asked), publisher.told()["bytes_sent"], time.monotonic()
        self._sleep(QUIET * self._seconds)
        self._follow(records, tally, f"rows come to {lane.name}")
        written = publisher.bytes().written - before.written
        found = records.asked[asked:]
        updates = publisher.told()["bytes_sent"] - sent
        lane.cost = Cost(time.monotonic() - began_s, len(found), sum(one.bytes for one in found), written, updates)
        parts, until_s = {SUBSCRIBER: subscriber, PUBLISHER: publisher}, time.monotonic() + self._seconds
        for what in itertools.cycle(parts) if lane.asks else ():
            wait_s = lane.real_s * (1.0 + dice.random())  # since its flows began to ride
            if self._failed.is_set() or (time.monotonic() + wait_s > until_s and len(lane.kills) >= len(parts)):
                break
            self._sleep(wait_s)
            repeated, killed_s = tally.repeated, time.monotonic()
            parts[what].kill()
            parts[what].start()
            self._follow(records, tally, f"after a kill of the {what} rows come to {lane.name}")
            lane.kills.append(Kill(what, tally.repeated - repeated, time.monotonic() - killed_s))
        self._losses += records.losses
        say(f"{lane.name}: {len(lane.kills)} kills, {tally.repeated:,} rows came again")

    def _follow(self, records: Records, tally: Tally, what: str) -> None:
        """Until what is committed from now on has come in every shard: then all that comes again has come."""
        rows = self._writer.rows + self._shards

        def there() -> bool:
            self._writer.check()
            for one in records.read_on():
                tally.take(one)
            return tally.has(rows)

        self._stage.until(there, what)

    def _sleep(self, wait_s: float) -> None:
        self._failed.wait(wait_s)

    def _result(self, used: dict[str, float], window_s: float) -> Result:
        never = self._lanes[-1].cost
        assert never is not None
        asking = [lane for lane in self._lanes if lane.asks]
        return Result(
            name="capture-datamarkers",
            settings={
                "load": f"{self._rows_per_s:,.0f} rows/s of {ROW_BYTES} bytes in {self._shards} shards,"
                f" {sum(len(lane.kills) for lane in self._lanes)} kills with -9",
                "processes": "five publishers over one log in files, each with an application and its one process, over TCP",
                "seed": SEED,
            },
            warm_up=f"until rows come; {QUIET * self._seconds:g} s without a kill, in which the costs are counted",
            figures={
                "costs": [self._costs(lane, never) for lane in asking],
                "repeated_after_a_kill": [self._repeats(lane) for lane in asking],
                "written_without_datamarkers_bytes_per_s": round(never.written_bytes / never.seconds, 1),
                "skipped": 0,
                "kills": {lane.name: [[one.what, one.repeated, round(one.back_s, 2)] for one in lane.kills] for lane in asking},
            },
            aims=[],
            cpu_seconds=used,
            cpu_window_s=window_s,
            acknowledgement=ACKNOWLEDGED,
            approximations=APPROXIMATIONS,
        )

    def _costs(self, lane: Lane, never: Cost) -> dict[str, Any]:
        """Of a datamarker as it was counted; per second as it would be with the period's full length."""
        cost = lane.cost
        assert cost is not None
        asked = max(1, cost.asked)
        sent_each = cost.sent_bytes / asked
        stored_each = max(0.0, cost.written_bytes - never.written_bytes / never.seconds * cost.seconds) / asked
        a_second = self._shards / lane.period_s
        updates_per_s = cost.updates_bytes / cost.seconds
        return {
            "period_s": lane.period_s,
            "period_here_s": round(lane.real_s, 3),
            "datamarkers": cost.asked,
            "sent_bytes_each": round(sent_each, 1),
            "stored_bytes_each": round(stored_each, 1),
            "sent_bytes_per_s": round(sent_each * a_second, 2),
            "stored_bytes_per_s": round(stored_each * a_second, 2),
            "sent_per_million_bytes_of_updates": round(1e6 * sent_each * a_second / max(1.0, updates_per_s), 1),
        }

    def _repeats(self, lane: Lane) -> dict[str, Any]:
        of_period = self._rows_per_s * lane.real_s
        repeated = [kill.repeated for kill in lane.kills]
        return {
            "period_s": lane.period_s,
            "period_here_s": round(lane.real_s, 3),
            "kills": len(lane.kills),
            "rows_mean": round(mean(repeated), 1),
            "rows_max": max(repeated, default=0),
            "percent_of_a_period": round(100 * mean(repeated) / of_period, 1),
            "most_percent": round(100 * max(repeated, default=0) / of_period, 1),
            "after_a_subscriber": round(100 * mean(_of(lane.kills, SUBSCRIBER)) / of_period, 1),
            "after_a_publisher": round(100 * mean(_of(lane.kills, PUBLISHER)) / of_period, 1),
            "rows_at_full_length": round(mean(repeated) / lane.scale, 1),
            "back_after_s": round(mean([kill.back_s for kill in lane.kills]), 2),
        }


def _of(kills: Sequence[Kill], what: str) -> list[float]:
    return [kill.repeated for kill in kills if kill.what == what]


def measure(options: Options) -> Result:
    with scene() as stage:
        return _Datamarkers(stage, options).measure()


def draw(axes: Any, document: dict[str, Any]) -> None:
    costs, repeats = document["figures"]["costs"], document["figures"]["repeated_after_a_kill"]
    at = [one["period_s"] for one in costs]
    lines = (
        ("rows that come again after a kill, on average", RED, [one["rows_at_full_length"] for one in repeats]),
        ("bytes stored per second", BLUE, [one["stored_bytes_per_s"] for one in costs]),
        ("bytes sent per second", GREY, [one["sent_bytes_per_s"] for one in costs]),
    )
    for label, colour, values in lines:
        axes.plot(at, [max(0.1, value) for value in values], marker="o", color=colour, label=label)
    axes.set(xlabel="s between two datamarkers of a flow", xscale="log", yscale="log")
    axes.set_xticks(at, [f"{one:g}" for one in at])
    axes.legend(frameon=False, fontsize=8)
    axes.set_title(f"capture-datamarkers: {document['settings']['load']}", fontsize=9)
