"""What a seed stands for: the size of the world, how busy it is, and what may go wrong in it. Every number is drawn from the seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final

# What the nemesis may do. A seed enables some of them: two faults that hide each other are found apart.
FAULTS: Final = (
    "lossy network",
    "late messages",
    "cut",
    "clog",
    "break streams",
    "kill gateway",
    "stop gateway",
    "pause gateway",
    "pause workers",
    "kill pipeline",
    "orphan workers",
    "lose checkpoint",
    "kill client",
    "reinstall client",
    "drop connection",
    "clone client",
    "kill backend",
    "refuse partition",
    "slow stores",
    "failing writes",
    "kill in a write",
    "set clock",
    "row forgets",
    "lose registrar partition",
    "lose matcher partition",
    "lose feed partition",
    "lose everything",
)
LOSSES: Final = frozenset({"row forgets", "lose registrar partition", "lose matcher partition", "lose feed partition", "lose everything"})
_SIZES: Final = {"tiny": 60, "small": 100, "middling": 40, "wide": 10, "vast": 0.3}
_DAY_S: Final = 86_400.0


@dataclass(frozen=True)
class Knobs:
    seed: int
    gateways: int
    partitions: int
    applications: int
    objects: int
    registrations: int  # that an application aims for
    busy_s: float  # how long the safety phase is
    pause_s: float  # between two acts of the workload, on average
    publishes: float  # the part of acts that are publishes; the rest are registrations and lives of clients
    hot: float  # the part of publishes that go to one object
    burst: int  # versions in one act of publishing, at most
    sources: float  # the part of publishes that name the device that made them
    again: float  # the part of publishes that repeat an old version
    flapping: float  # the part of registrations that are taken back at once
    resting: float  # the part of objects that come to rest before the faults do: nothing later covers what was lost of them
    fetch: float  # the part of registrations that state a version, fetched just before
    slow_applications: float  # the part of applications that deal with notifications late
    fault_pause_s: float  # between two faults, on average
    faults: frozenset[str]
    loss: float  # of messages, while the network is lossy
    jitter_s: float  # of clients' messages, until the faults stop: they overtake each other all the time
    away_s: float  # clients that die come back after as long as this, at most; 0: after seconds
    pace: float  # by which the intervals of the service are longer: a world of days would be nothing but ticks
    fan_out_above: int
    rows_cached_max: int
    outstanding_max: int
    records_per_batch_max: int
    operations_per_message_max: int
    settling_s: float
    ack_wait_ms: float
    skew_s: float  # how far wall clocks are apart
    heartbeat_s: float  # of clients: the long one is longer than the time for healing, so that nothing heals by heartbeats alone

    @property
    def loses_state(self) -> bool:
        return bool(self.faults & LOSSES)

    def described(self) -> dict[str, Any]:
        return {**asdict(self), "faults": sorted(self.faults)}


def draw(seed: int) -> Knobs:
    chance = Random(f"knobs {seed}")
    size = chance.choices(tuple(_SIZES), tuple(_SIZES.values()))[0]
    large = size in ("wide", "vast")
    objects = {
        "tiny": 1,
        "small": chance.randint(1, 5),
        "middling": chance.randint(3, 20),
        "wide": chance.randint(257, 320),
        "vast": int(10 ** (3 + 2 * chance.random() ** 2)),
    }[size]
    applications = 1 if large else {"tiny": chance.randint(1, 2), "small": chance.randint(1, 5), "middling": chance.randint(4, 14)}[size]
    calm = chance.random() < 0.06
    enabled = frozenset() if calm else frozenset(fault for fault in FAULTS if chance.random() < chance.choice((0.1, 0.4, 0.7)))
    if chance.random() < 0.7:
        enabled -= LOSSES
    records_per_batch_max = 20_000 if size == "vast" else chance.choice((20, 20_000) if large else (1, 5, 20_000))
    pauses_s = (0.2, 1.0) if records_per_batch_max == 1 else (0.02, 0.2, 1.0)  # what comes faster than it goes never comes to rest
    pause_s = chance.choice(pauses_s)
    acts = chance.choice((20, 60, 200))
    away_s = 0.0 if large or chance.random() < 0.994 else chance.uniform(0.5, 1.5) * _DAY_S
    if away_s:
        pause_s = away_s / acts
        enabled |= {"kill client"}
    return Knobs(
        seed=seed,
        gateways=chance.choice((1, 1, 2, 2, 3)),
        partitions=chance.choice((1, 2, 4)),
        applications=applications,
        objects=objects,
        registrations=objects if large else chance.randint(1, objects),
        busy_s=max(4.0, acts * pause_s) if away_s else min(60.0, max(4.0, acts * pause_s)),
        pause_s=pause_s,
        publishes=chance.uniform(0.2, 0.9),
        hot=chance.choice((0.0, 0.5, 0.95)),
        burst=1 if records_per_batch_max == 1 else chance.choice((1, 1, 3, 10)),
        sources=chance.choice((0.0, 0.3, 1.0)),
        again=0.0 if calm else chance.choice((0.0, 0.05, 0.3)),
        flapping=chance.choice((0.0, 0.2, 0.6)),
        resting=chance.choice((0.0, 0.5, 1.0)),
        fetch=chance.choice((0.0, 0.5)),
        slow_applications=chance.choice((0.0, 0.5)),
        fault_pause_s=away_s / 50 or chance.choice((0.3, 2.0, 6.0)),
        faults=enabled,
        loss=chance.uniform(0.02, 0.3),
        jitter_s=0.0 if calm else chance.choice((0.0, 0.0, 0.1, 1.0)),
        away_s=away_s,
        pace=30.0 if away_s else 1.0,
        fan_out_above=chance.choice((1, 3, 1_000)),
        rows_cached_max=max(chance.choice((2, 50_000, 50_000)), 50_000 if large else 0),
        outstanding_max=max(chance.choice((3, 200_000, 200_000)), 200_000 if large or calm else 0),
        records_per_batch_max=records_per_batch_max,
        operations_per_message_max=1_000 if size == "vast" else chance.choice((30, 1_000) if large else (1, 10, 1_000, 1_000)),
        settling_s=chance.choice((0.0, 2.0, 10.0)),
        ack_wait_ms=chance.choice((0.0, 50.0, 50.0)),
        skew_s=chance.choice((0.0, 1.0, 50.0)),
        heartbeat_s=chance.choice((30.0, 600.0, 600.0)),
    )
