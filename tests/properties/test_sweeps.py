"""The promise while sweeps forget: `purge` and `objects` run beside everything that the other rules do, and days pass in between.

A sweep reads in one step and acts in a later one, with anything in between. What a day takes with it is what the sweeps rely on: records
that were read are trimmed, what was in flight is gone, no process stands still for that long. Nothing else is assumed.
"""

from __future__ import annotations

import sys

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from roskva.matcher.cells import REG as COPY
from roskva.model import ObjectKey
from roskva.pipeline.sweeps.ages import Ages, Plan
from roskva.pipeline.sweeps.objects import collect_object
from roskva.pipeline.sweeps.purge import purge_client, purge_object
from roskva.registrar.cells import CREATED, LOG, PENDING, REG, UNKNOWN, is_closed, stamp_of
from roskva.table.interface import Cell, Mutation, RowKey
from tests.properties.test_promise import NAMES, PromiseOfService, profile
from tests.properties.world import World

REPLAY_DAYS = 8
DAY_S = 86_400.0


class PromiseUnderSweeps(PromiseOfService):
    @initialize()
    def no_sweep_yet(self) -> None:
        self.day = 20_000
        self.plans: list[tuple[RowKey, Plan]] = []

    @rule()
    def sweeps_read(self) -> None:
        """As tasks of both sweeps do; what they decided for other rows before, they never get to."""
        self.plans = plans_for(self.world, self.day)

    @precondition(lambda self: self.plans)
    @rule(forgets=st.booleans())
    def sweeps_act(self, forgets: bool) -> None:
        """Or they die after the stamps."""
        plans, self.plans = self.plans, []
        carry_out(self.world, plans, forgets)

    @precondition(lambda self: not self.world.pipeline.tasks and not self.world.pipeline.orphans and self.world.feed.lag() == 0)
    @rule(days=st.sampled_from((1, REPLAY_DAYS + 1)))
    def days_pass(self, days: int) -> None:
        self.world.slow = False
        self.world.run(1.0)
        if self.world.feed.lag() or self.world.pipeline.tasks:
            return
        for topic in self.world.feed.topics:
            self.world.feed.topics[topic].clear()
            self.world.feed.committed[topic] = 0
        self.world.in_flight.clear()
        self.plans = []
        self.day += days
        self.world.now += days * DAY_S
        self.world.pump()

    @rule(news=st.booleans())
    def season(self, news: bool) -> None:
        """Two sweeps, so far apart that the second forgets what the first has stamped; then everything changes."""
        self.world.heal()
        for _ in range(2):
            carry_out(self.world, plans_for(self.world, self.day))
            self.days_pass(REPLAY_DAYS + 1)
        if news:
            self.publish([(name, None, 1) for name in NAMES], [])

    def teardown(self) -> None:
        if hasattr(self, "world") and hasattr(self, "day") and sys.exc_info()[0] is None:  # a run may end between two of the initial rules
            self.season(news=True)
        super().teardown()


def plans_for(world: World, day: int) -> list[tuple[RowKey, Plan]]:
    now = Ages(day, REPLAY_DAYS, oldest_record_day=None)
    plans: list[tuple[RowKey, Plan]] = []
    for row, cells in world.table.rows.items():
        read = {name: cell for name, cell in cells.items() if cell.value is not None}
        if row.table == "registrar":
            plans.append((row, purge_client(read, lambda application: 0, now)))
        elif row.table == "matcher":
            plans.append((row, purge_object(read, now)))
            plans.append((row, collect_object(ObjectKey(row.key), read, lambda application: 0, REPLAY_DAYS, now)))
    return plans


def carry_out(world: World, plans: list[tuple[RowKey, Plan]], forgets: bool = True) -> None:
    for row, plan in plans:
        world.table._land([Mutation(row, plan.stamps)])
        cells = world.table.rows[row]
        for cell in plan.forgets if forgets else ():
            if cells.get(cell.name) == cell:
                del cells[cell.name]


TestPromiseUnderSweeps = PromiseUnderSweeps.TestCase
TestPromiseUnderSweeps.settings = profile(20)


def test_after_some_days_nothing_closed_is_left_and_everybody_is_still_told() -> None:
    """Trap 30. The rules above reach what they are meant to: here it is spelled out once."""
    world = World(service=True)
    try:
        one, two = world.add(), world.add()
        for name in (b"a", b"b"):
            one.register(name)
            two.register(name)
            world.publish(name, 1)
        world.run(5.0)
        one.unregister(b"a")
        two.unregister(b"a")
        two.unregister(b"b")
        world.run(5.0)
        assert any(is_closed(cell) for cell in cells_in(world, REG))
        carry_out(world, plans_for(world, 1))
        assert any(stamp_of(cell) == 1 for cell in cells_in(world, REG))
        carry_out(world, plans_for(world, 10))
        assert not any(is_closed(cell) for cell in cells_in(world, REG, PENDING, LOG, UNKNOWN))
        objects = {row: cells for row, cells in world.table.rows.items() if row.table == "matcher" and cells}
        assert [(row.key[-1:], sorted(name[: len(COPY)] for name in cells)) for row, cells in objects.items()] == [
            (b"b", [b"reg:", b"vers"])
        ]
        assert sum(CREATED in cells for cells in world.table.rows.values()) == 2
        world.publish(b"b", 2)
        two.register(b"a")
        world.heal()
    finally:
        world.close()


def cells_in(world: World, *prefixes: bytes) -> list[Cell]:
    rows = (cells for row, cells in world.table.rows.items() if row.table == "registrar")
    return [cell for cells in rows for name, cell in cells.items() if name.startswith(prefixes)]
