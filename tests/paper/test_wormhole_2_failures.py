"""Wormhole, sections 2 and 3: worlds of the simulator in which one kind of failure happens all the time, and nothing else does.

Their checkers raise if an update is skipped, comes out of order, or is not there when the failures have ended.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace

import pytest

from roskva.simulation import capture, capture_shell
from roskva.simulation.capture_knobs import knobs_of
from roskva.simulation.capture_running import told
from roskva.simulation.capture_shell_knobs import knobs_of as knobs_of_the_shell

SEEDS = range(1, 7)


@pytest.mark.parametrize("failure", ["fail reader", "promote", "kill publisher", "kill process", "break link"])
def test_2_frequent_failures_at_the_datastore_and_at_the_application_are_survived(failure: str) -> None:
    """Challenge 4: "resilient to frequent hardware and software failure both on the datastore as well as the application end".
    Here each kind of failure has worlds of its own, around the publisher's core."""
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        world = capture.World(replace(knobs_of(seed), faults=(failure,), stuck=False))
        with told(seed, world):
            world.run()
        counts += world.counts
    assert counts[failure] > 5 * len(SEEDS)
    assert counts["read"] > 50 * len(SEEDS)


@pytest.mark.parametrize("failure", ["kill publisher", "kill process", "place away", "cut"])
def test_3_publishers_subscribers_and_parts_of_the_network_may_fail(failure: str, caplog: pytest.LogCaptureFixture) -> None:
    """ "Can handle failures of various components: publishers, datastores, subscribers, and even partial network failures": here real
    publishers and subscribers, on virtual time; also the place of the datamarkers may be away."""
    caplog.set_level(logging.CRITICAL)
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        knobs = knobs_of_the_shell(seed)
        world = capture_shell.World(replace(knobs, faults=(failure,), kinds=("quick",)))
        try:
            with told(seed, world):
                world.loop.run_until_complete(world.live())
        finally:
            world.close()
        counts += world.counts
        assert sum(len(track.wanted) for track in world.checkers.tracks.values()) > 20
    assert counts[failure] > 5 * len(SEEDS)
