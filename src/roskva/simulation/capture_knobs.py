"""What a seed of capture's world stands for. Every number is drawn from it; buffers and windows are tiny, so that all limits are met."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from roskva.capture.limits import Limits

FAULTS: Final = (
    "kill publisher",
    "take over",
    "break link",
    "late answers",
    "kill process",
    "give back",
    "reassign",
    "pause",
    "rewind",
    "cut",
    "fail reader",
    "configure",
    "promote",
    "change tempers",
)


@dataclass(frozen=True)
class Knobs:
    seed: int
    steps: int
    shards: int
    replicas: int
    applications: int
    processes: int  # of each application
    realtime: bool
    rows_per_commit_max: int
    rows_per_batch_max: int
    window_bytes: int
    grants_first: bool
    stuck: bool  # one process takes nothing, in peace neither
    faults: tuple[str, ...]
    limits: Limits


def knobs_of(seed: int) -> Knobs:
    dice = Random(f"capture {seed}")
    limits = Limits(
        policy=dice.choice(("cluster", "fewest")),
        caravans_max=dice.choice((1, 2, 2, 3, 4, 6)),
        catch_up_factor=dice.choice((1.25, 2.0)),
        caravan_rate_max=1_000.0,
        caravans_rate_total_max=2_500.0,
        caravan_rate_min=200.0,
        close_share=dice.choice((0.0, 0.02, 0.2)),
        buffer_updates_max=dice.randint(2, 20),
        buffer_bytes_max=dice.randint(60, 400),
        buffers_bytes_max=dice.choice((300, 10_000)),
        datamarker_period_s=dice.choice((0.5, 3.0)),
        allocation_period_s=dice.choice((0.2, 1.0)),
        choke_max_s=dice.choice((0.5, 5.0)),
    )
    return Knobs(
        seed=seed,
        steps=dice.randint(200, 700),
        shards=dice.randint(1, 3),
        replicas=dice.choice((1, 2, 2, 3)),
        applications=dice.randint(1, 3),
        processes=dice.randint(1, 2),
        realtime=dice.random() < 0.2,
        rows_per_commit_max=dice.choice((1, 4, 30)),
        rows_per_batch_max=dice.choice((1, 5, 40)),
        window_bytes=dice.choice((60, 150, 500)),
        grants_first=dice.random() < 0.5,
        stuck=dice.random() < 0.3,
        faults=tuple(fault for fault in FAULTS if dice.random() < 0.4),
        limits=limits,
    )
