"""What a seed stands for: the size of the world, how busy it is, and what may go wrong in it. Every number is drawn from the seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import ceil
from random import Random
from typing import Any, Final

# What the nemesis may do. A seed enables some of them: two faults that hide each other are found apart.
_OF_OLD: Final = (
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
# Drawn by themselves: what operators do, and what a service under pressure refuses.
_OF_OPERATORS: Final = ("reset application", "restore backend", "invalidate")
_OF_PRESSURE: Final = ("refuse rows", "memory is short", "disk is full")
FAULTS: Final = (*_OF_OLD, *_OF_OPERATORS, *_OF_PRESSURE)
LOSSES: Final = frozenset({"row forgets", "lose registrar partition", "lose matcher partition", "lose feed partition", "lose everything"})
_SIZES: Final = {"tiny": 60, "small": 100, "middling": 40, "wide": 10, "vast": 0.3}
_DAY_S: Final = 86_400.0
_TINY_TURNS: Final = 0.2  # the part of worlds with odd seeds in which a turn of the loop does little
_FAST: Final = 0.4  # the part of worlds with the fast path: it hides what the pipeline does wrong
_SWEPT: Final = 0.24  # the part of worlds with odd seeds that are swept
_SIGNED_OUT: Final = 0.04  # the part of worlds in which clients sign out
_PACED: Final = 0.15  # the part of worlds with intervals between notifications
_SIGN_OUTS: Final = "departures"  # what their dice are called
_CROWD: Final = 12  # registrations that small limits let through while a world heals
_CLOCKS_WRONG_DAYS: Final = 5  # a clock that is set, and another one


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
    absent_s: float  # how many, if it is seconds
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
    sweep_pause_s: float = 0.0  # between two sweeps, on average; 0: there are none
    day_s: float = _DAY_S  # how long a day is, by the clocks on the walls: in worlds with sweeps, months pass
    began_s: float = 1_700_000_000.0  # what the clocks on the walls show when the world begins
    client_retention_days: int = 60
    outage_days_max: int = 1  # no process of this world stands still for longer, clocks that are wrong allowed for
    object_retention_days: int = 1
    operations_waiting_max: int = 20_000
    unfinished_max: int = 100_000
    publish_waiting_bytes_max: int = 1 << 26
    fast_path: bool = False
    tiny_turns: bool = False  # the fast path is told, and publishes are written, little by little
    notify_interval_ms: int = 0  # of the application
    own_interval_ms: int = 0  # some registrations state this one, some twice as much, some none
    sign_out_pause_s: float = 0.0  # between two clients that sign out, on average; 0: nobody does

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
    enabled = frozenset() if calm else frozenset(fault for fault in _OF_OLD if chance.random() < chance.choice((0.1, 0.4, 0.7)))
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
    old = Knobs(
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
        absent_s=5.0,
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
    more = _with_sign_outs(_with_more(old, calm, large, size == "vast", Random(f"more knobs {seed}")), Random(f"{_SIGN_OUTS} {seed}"))
    # From dice of its own, too.
    tiny_turns = seed % 2 == 1 and Random(f"tiny turns {seed}").random() < _TINY_TURNS
    fast = replace(more, fast_path=Random(f"fast path {seed}").random() < _FAST, tiny_turns=tiny_turns)
    return _with_intervals(fast, Random(f"intervals {seed}"))


def _with_more(knobs: Knobs, calm: bool, large: bool, vast: bool, chance: Random) -> Knobs:
    """What operators do, what a service under pressure refuses, and sweeps: in the worlds of odd seeds, since it hides a lot."""
    if not knobs.away_s and knobs.seed % 2 == 0:
        return knobs
    faults = knobs.faults if calm or vast else knobs.faults | _more_faults(chance)
    crowded = large or calm or knobs.applications * knobs.registrations > _CROWD
    knobs = replace(
        knobs,
        faults=faults,
        operations_waiting_max=20_000 if crowded else chance.choice((4, 20_000, 20_000, 20_000)),
        unfinished_max=100_000 if crowded else chance.choice((8, 100_000, 100_000, 100_000)),
        publish_waiting_bytes_max=chance.choice((10_000, 1 << 26, 1 << 26)),
    )
    if knobs.away_s:
        return replace(knobs, sweep_pause_s=knobs.away_s / 60, began_s=knobs.began_s + chance.uniform(0.0, _DAY_S), client_retention_days=1)
    return knobs if large or chance.random() > _SWEPT else _with_sweeps(knobs, chance)


def _with_sign_outs(knobs: Knobs, chance: Random) -> Knobs:
    """Drawn after all others and from dice of its own: the worlds in which nobody signs out are what they were before."""
    if chance.random() > _SIGNED_OUT:
        return knobs
    return replace(knobs, sign_out_pause_s=max(chance.choice((1.0, 4.0)), knobs.away_s / 20))


def _with_intervals(knobs: Knobs, chance: Random) -> Knobs:
    if chance.random() > _PACED:
        return knobs
    application_ms, own_ms = chance.choice(((500, 0), (3_000, 0), (0, 1_000), (300, 2_000), (5_000, 4_000)))
    return replace(knobs, notify_interval_ms=application_ms, own_interval_ms=own_ms)


def _with_sweeps(knobs: Knobs, chance: Random) -> Knobs:
    """Days are short, so that clients, objects and closed cells come of age."""
    day_s = chance.choice((0.5, 1.0, 2.0))
    outage_days_max = ceil(_standstill_s(knobs.faults) / day_s) + _CLOCKS_WRONG_DAYS
    heartbeat_s = chance.choice((3.0, 6.0))  # far below a client's retention, as in service: who is online is seen every day
    return replace(
        knobs,
        busy_s=max(knobs.busy_s, 30.0),
        pause_s=max(knobs.pause_s, 0.2),
        heartbeat_s=heartbeat_s,
        absent_s=25.0,
        sweep_pause_s=chance.choice((0.5, 2.0)),
        day_s=day_s,
        began_s=knobs.began_s + chance.uniform(0.0, _DAY_S),
        client_retention_days=ceil(1.5 * heartbeat_s / day_s) + _CLOCKS_WRONG_DAYS + chance.choice((0, 3)),
        outage_days_max=outage_days_max,
        object_retention_days=outage_days_max + chance.choice((0, 4)),
        # Drift: what `compare` is there for.
        faults=knobs.faults | {"row forgets"} if knobs.faults and chance.random() < 0.2 else knobs.faults,
    )


def _more_faults(chance: Random) -> frozenset[str]:
    """Often none: a reset or an invalidation covers what others would have lost."""
    found = {fault for fault in _OF_PRESSURE if chance.random() < 0.25}
    if chance.random() < 0.5:
        found |= {fault for fault in _OF_OPERATORS if chance.random() < 0.5}
    return frozenset(found)


def _standstill_s(faults: frozenset[str]) -> float:
    """For how long a process of such a world may have an old write in its hands. Sweeps rest on it (docs/sweeps.md)."""
    longest_s = {"pause gateway": 20.0, "pause workers": 20.0, "late messages": 8.0, "cut": 10.0, "clog": 10.0}
    longest_s |= {"refuse partition": 6.0, "refuse rows": 6.0, "orphan workers": 6.0, "slow stores": 6.0}
    return 5.0 + sum(seconds for fault, seconds in longest_s.items() if fault in faults)
