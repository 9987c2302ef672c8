"""The nemesis: does to the world what the seed allows, until the safety phase is over. Whatever lasts is undone by `World.heal`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from roskva.model import ClientId
from roskva.registrar.cells import REG
from roskva.registrar.row import ClientRow
from roskva.simulation.network import Conditions
from roskva.simulation.operators import Invalidated
from roskva.simulation.stores import RowRange
from roskva.table.interface import TABLES

_SHORT_HEARTBEAT_S = 30.0
LATE_MAX_S = 8.0  # the longest that a message is under way
_RESETS_MAX = 3
_INVALIDATIONS_MAX = 6

if TYPE_CHECKING:
    from roskva.simulation.world import World


class Nemesis:
    def __init__(self, world: World) -> None:
        self.world = world
        self.done: Counter[str] = Counter()
        self._chance = world.chance_for("nemesis")
        self._acts: dict[str, Callable[[], None]] = {
            "lossy network": self._lossy_network,
            "late messages": self._late_messages,
            "cut": self._cut,
            "clog": self._clog,
            "break streams": self._break_streams,
            "kill gateway": self._kill_gateway,
            "stop gateway": self._stop_gateway,
            "pause gateway": self._pause_gateway,
            "pause workers": self._pause_workers,
            "kill pipeline": self._kill_pipeline,
            "orphan workers": self._orphan_workers,
            "lose checkpoint": self._lose_checkpoint,
            "kill client": self._kill_client,
            "reinstall client": self._reinstall_client,
            "drop connection": self._drop_connection,
            "clone client": self._clone_client,
            "kill backend": self._kill_backend,
            "refuse partition": self._refuse_partition,
            "slow stores": self._slow_stores,
            "failing writes": self._failing_writes,
            "kill in a write": self._kill_in_a_write,
            "set clock": self._set_clock,
            "row forgets": self._row_forgets,
            "lose registrar partition": self._lose_registrar_partition,
            "lose matcher partition": self._lose_matcher_partition,
            "lose feed partition": self._lose_feed_partition,
            "lose everything": self._lose_everything,
            "reset application": self._reset_application,
            "restore backend": self._restore_backend,
            "invalidate": self._invalidate,
            "refuse rows": self._refuse_rows,
            "memory is short": self._memory_is_short,
            "disk is full": self._disk_is_full,
        }

    async def run(self) -> None:
        enabled = sorted(self.world.knobs.faults)
        while enabled and self.world.faulty:
            await asyncio.sleep(self._chance.expovariate(1 / self.world.knobs.fault_pause_s))
            if self.world.faulty:
                fault = self._chance.choice(enabled)
                self.world.tell("nemesis", fault)
                self.done[fault] += 1
                self._acts[fault]()

    def _while_s(self, undo: Callable[[], None], longest_s: float = 10.0) -> None:
        self.world.loop.call_later(self._chance.uniform(0.1, longest_s), undo)

    # The network.

    def _lossy_network(self) -> None:
        conditions = self.world.network.conditions
        self.world.network.conditions = replace(conditions, loss=self.world.knobs.loss, repeat=self._chance.uniform(0, 0.2))
        self._while_s(lambda: self._conditions(loss=0.0, repeat=0.0))

    def _late_messages(self) -> None:
        self._conditions(late=self._chance.uniform(0, 0.3), late_max_s=self._chance.choice((0.2, 3.0, LATE_MAX_S)))
        self._while_s(lambda: self._conditions(late=0.0))

    def _conditions(self, **changes: float) -> None:
        current: Conditions = self.world.network.conditions
        self.world.network.conditions = replace(current, **changes)

    def _pair(self) -> tuple[str, str]:
        """Two machines that talk to each other: one of them is a gateway's."""
        gateway = f"gateway-{self._chance.randrange(self.world.knobs.gateways)}"
        other = self._chance.choice([host for host in self.world.hosts() if host != gateway])
        return (gateway, other) if self._chance.random() < 0.5 else (other, gateway)

    def _cut(self) -> None:
        one, other = self._pair()
        self.world.network.cut(one, other)
        self._while_s(lambda: self.world.network.mend(one, other))

    def _clog(self) -> None:
        source, target = self._pair()
        self.world.network.clog(source, target)
        self._while_s(lambda: self.world.network.unclog(source, target))

    def _break_streams(self) -> None:
        gateway = f"gateway-{self._chance.randrange(self.world.knobs.gateways)}"
        others = [f"gateway-{slot}" for slot in range(self.world.knobs.gateways) if f"gateway-{slot}" != gateway]
        self.world.network.break_streams(gateway, self._chance.choice(["pipeline", *others]))

    # Processes.

    def _kill_gateway(self) -> None:
        slot = self._chance.randrange(self.world.knobs.gateways)
        self.world.kill_gateway(slot, restart_after_s=self._chance.choice((0.1, 1.0, 8.0)))

    def _stop_gateway(self) -> None:
        self.world.stop_gateway(self._chance.randrange(self.world.knobs.gateways))

    def _pause_gateway(self) -> None:
        gateway = self.world.gateways.get(self._chance.randrange(self.world.knobs.gateways))
        if gateway is not None:
            # The longest: others take over, and are done with settling, before it wakes.
            gateway.process.paused_until_s = self.world.loop.time() + self._chance.choice((0.5, 3.0, 8.0, 20.0))

    def _pause_workers(self) -> None:
        if self.world.driver is not None:
            self.world.driver.workers.paused_until_s = self.world.loop.time() + self._chance.choice((1.0, 5.0, 20.0))

    def _kill_pipeline(self) -> None:
        self.world.kill_pipeline(restart_after_s=self._chance.choice((0.1, 3.0)))

    def _orphan_workers(self) -> None:
        self.world.kill_pipeline(restart_after_s=self._chance.choice((0.1, 0.5)), orphans_for_s=self._chance.uniform(0.1, 6.0))

    def _lose_checkpoint(self) -> None:
        self.world.kill_pipeline(restart_after_s=0.2, checkpoint_lost=True)

    def _kill_client(self) -> None:
        self._some_client(keep=True)

    def _reinstall_client(self) -> None:
        self._some_client(keep=False)

    def _some_client(self, keep: bool) -> None:
        application = self._chance.choice(self.world.applications)
        away_s = self.world.knobs.away_s
        self.world.kill_client(
            application, keep, self._chance.uniform(0, away_s) if away_s else self._chance.choice((0.01, 0.5, self.world.knobs.absent_s))
        )

    def _drop_connection(self) -> None:
        application = self._chance.choice(self.world.applications)
        if application.running:
            application.drop_connection()

    def _clone_client(self) -> None:
        """Not the first: an application that was cloned begins anew in the end, and its history then proves nothing."""
        application = self._chance.choice(self.world.applications[1:] or self.world.applications)
        if application.running and application.state is not None:
            clone = self.world.clone(application)
            if self._chance.random() < 0.5:  # a machine was copied, and both are started
                self.world.kill_client(application, keep=True, restart_after_s=self._chance.uniform(0.0, 0.01))
            if self._chance.random() < 0.5:
                self._while_s(clone.kill, 5.0)

    def _kill_backend(self) -> None:
        self.world.kill_backend()

    # Stores.

    def _refuse_partition(self) -> None:
        stores = self.world.stores
        names = [*(table for table in TABLES if table != "scratch"), "updates", "registrations", "fan-outs"]
        self._refuse(self._chance.choice(names), self._chance.randrange(stores.partitions), 6.0)

    def _refuse(self, name: str, partition: int, longest_s: float) -> None:
        refusing = self.world.stores.refusing
        refusing.add((name, partition))
        self._while_s(lambda: refusing.discard((name, partition)), longest_s)

    def _slow_stores(self) -> None:
        self._store_conditions(slow=self._chance.uniform(0.01, 0.3), slow_max_s=self._chance.choice((0.1, 3.0)))
        self._while_s(lambda: self._store_conditions(slow=0.0))

    def _failing_writes(self) -> None:
        self._store_conditions(fail=self._chance.choice((0.05, 0.3)))
        self._while_s(lambda: self._store_conditions(fail=0.0))

    def _kill_in_a_write(self) -> None:
        self._store_conditions(kill=self._chance.choice((0.01, 0.05)))
        self._while_s(lambda: self._store_conditions(kill=0.0), 5.0)

    def _store_conditions(self, **changes: float) -> None:
        self.world.stores.conditions = replace(self.world.stores.conditions, **changes)

    def _row_forgets(self) -> None:
        """Somebody puts back what a client's row was before its last registration settled: the Matcher is ahead of it.

        A Registrar reads its rows again once per heartbeat; where those are too long for this world, it happens while no gateway runs.
        """
        if self.world.knobs.heartbeat_s > _SHORT_HEARTBEAT_S:
            for slot in range(self.world.knobs.gateways):
                self.world.kill_gateway(slot, restart_after_s=self._chance.choice((0.1, 1.0)))
        self.drift()

    def drift(self) -> None:
        rows = self.world.stores.rows
        regs = [
            (key, name)
            for key, cells in rows.items()
            if key.table == "registrar" and _is_settled(ClientRow(ClientId(key.key.decode()), cells.values()))
            for name in cells
            if name.startswith(REG)
        ]
        if regs:
            key, name = self._chance.choice(sorted(regs))
            cell = rows[key].pop(name)
            if self._chance.random() < 0.5:
                rows[key][name] = cell._replace(timestamp=cell.timestamp - 1)

    def _lose_registrar_partition(self) -> None:
        self.world.stores.lose("table", "registrar", self._chance.randrange(self.world.stores.partitions))

    def _lose_matcher_partition(self) -> None:
        self.world.stores.lose("table", "matcher", self._chance.randrange(self.world.stores.partitions))

    def _lose_feed_partition(self) -> None:
        """Of registrations: what is pending is appended again. Of updates and fan-outs: what was not matched yet is gone."""
        topic = self._chance.choice(("updates", "updates", "registrations", "fan-outs"))
        partition = self._chance.randrange(self.world.stores.partitions)
        if self._chance.random() < 0.5:
            self.world.stores.lose("feed", topic, partition)
        else:  # what is accepted while the pipeline is down is unread when it is lost
            self.world.kill_pipeline(restart_after_s=3.0)
            self.world.loop.call_later(self._chance.uniform(1.0, 2.9), self.world.stores.lose, "feed", topic, partition)

    def _lose_everything(self) -> None:
        self.world.lose_everything()

    # What operators do: rarely, as each of them covers whatever went wrong before it.

    def _reset_application(self) -> None:
        if self.done["reset application"] <= _RESETS_MAX:
            self.world.operator().reset()

    def _restore_backend(self) -> None:
        if self.done["restore backend"] <= _RESETS_MAX and not self.world.history.restoring:
            self.world.operator().restore()

    def _invalidate(self) -> None:
        if self.done["invalidate"] <= _INVALIDATIONS_MAX:
            name = self._chance.choice(self.world.names)
            what = self._chance.choice((Invalidated(name, whole=True), Invalidated(name[:2], whole=False), Invalidated(b"", whole=False)))
            if self._chance.random() < 0.5:  # when the way that it takes is in trouble
                self._refuse("fan-outs", self._chance.randrange(self.world.stores.partitions), 3.0)
            self.world.operator().invalidate(what)

    # Pressure.

    def _refuse_rows(self) -> None:
        """Some rows of a table cannot be written, or not be read either, while all others work."""
        rows = self.world.stores.refusing_rows
        table = self._chance.choice(("matcher", "matcher", "registrar", "registrar", "scratch"))
        some = RowRange(table, self._chance.randrange(16), self._chance.choice((2, 8, 16)), writes_only=self._chance.random() < 0.7)
        rows.append(some)
        self._while_s(lambda: rows.remove(some) if some in rows else None, 8.0)

    def _memory_is_short(self) -> None:
        gateways = self.world.living_gateways()
        if gateways:
            gateway = self._chance.choice(gateways)
            gateway.press("Memory is short.")
            self._while_s(lambda: gateway.press(""), 3.0)

    def _disk_is_full(self) -> None:
        for gateway in self.world.living_gateways():
            gateway.fill_disk("The disk is full.")
            self._while_s(partial(gateway.fill_disk, ""), 4.0)

    # Clocks.

    def _set_clock(self) -> None:
        processes = [gateway.process for gateway in self.world.living_gateways()]
        if processes:
            self._chance.choice(processes).set_clock_s(self._chance.choice((-100_000.0, -70.0, 70.0, 100_000.0)))


def _is_settled(row: ClientRow) -> bool:
    return not row.pending_count and not row.waits
