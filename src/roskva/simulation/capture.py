"""A world for capture's core: a log that grows and is cut, publishers on its replicas, subscribers of every temper; one seed, one world.

First faults, then peace: when everything works again, everybody must get everything. `python -m roskva.simulation.capture 1 300` runs
seeds; a failure prints its seed, its knobs and what happened last.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from dataclasses import replace
from random import Random
from typing import Final

from roskva.capture.core import Core
from roskva.capture.flows import Terms
from roskva.capture.ownership import FlowName
from roskva.capture.positions import BEGINNING
from roskva.simulation.capture_checkers import Broken, Checkers
from roskva.simulation.capture_knobs import Knobs, knobs_of
from roskva.simulation.capture_log import Log, Replica
from roskva.simulation.capture_publishers import Datamarkers, Publisher, Record
from roskva.simulation.capture_running import main, told
from roskva.simulation.capture_subscribers import Link, Process

_ROUNDS_MAX: Final = 800  # of peace


class World:
    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self.dice = Random(knobs.seed)
        self.now_s = 100.0
        self.counts: Counter[str] = Counter()
        self.trace: deque[str] = deque(maxlen=60)
        self.checkers = Checkers()
        self.datamarkers = Datamarkers(self.checkers)
        self.applications = [f"a{number}" for number in range(knobs.applications)]
        self.log = Log(self.applications, knobs.shards)
        self.publishers = [
            Publisher(f"p{number}", Replica(self.log), self.datamarkers, self.checkers, self.counts, knobs.limits)
            for number in range(knobs.replicas)
        ]
        self.processes = [
            Process(f"{name}.{number}", name, knobs.window_bytes, knobs.grants_first, 1.0, True)
            for name in self.applications
            for number in range(knobs.processes)
        ]
        if knobs.stuck:
            self.processes[0].takes = 0.0
        self._links = 0
        for publisher in self.publishers:
            publisher.live(self.now_s)
        self._begin()

    @property
    def today_us(self) -> int:
        return int(self.now_s * 1_000_000)

    def _begin(self) -> None:
        """Flows begin here or there in what was written before them."""
        for _ in range(self.dice.randint(0, 4)):
            self._write()
        for publisher in self.publishers:
            publisher.replica.replicate(self.dice.randint(0, 5))
        start = self.dice.choice((BEGINNING, self.log.end_of(self.dice.randint(0, len(self.log.commits)))))
        for name in self.applications:
            terms = self._terms(name)
            for shard in range(self.knobs.shards):
                flow = FlowName(name, shard)
                self.checkers.began(flow, terms, start)
                owner = self.dice.choice(self.publishers)
                self.datamarkers.records[flow] = Record(None, 1, owner.name)
                assert owner.core is not None
                owner.do(owner.core.add(flow, terms, start, 1, False, self.now_s))
        for publisher in self.publishers:
            publisher.watch()

    def _terms(self, application: str) -> Terms:
        if application == "a1":
            return Terms(realtime=self.knobs.realtime, staleness_max_s=0.0 if self.knobs.seed % 3 else 0.5)
        return Terms(age_max_s=2.0 if application == "a2" and self.knobs.seed % 2 else None)

    def run(self) -> None:
        for _ in range(self.knobs.steps):
            self.step()
        self.heal()

    def step(self) -> None:
        dice = self.dice
        self.now_s += dice.choice((0.0, 0.01, 0.05, 0.3))
        publisher = dice.choice(self.publishers)
        roll = dice.random()
        if roll < 0.04 and self.knobs.faults:
            self._go_wrong(dice.choice(self.knobs.faults), publisher)
        elif roll < 0.14:
            self._write()
        elif roll < 0.20:
            publisher.replica.replicate(dice.randint(1, 4))
        elif publisher.core is None:
            if roll < 0.3:
                self._revive(publisher)
        else:
            self._go_on(publisher, roll)

    def _go_on(self, publisher: Publisher, roll: float) -> None:
        dice = self.dice
        if roll < 0.30:
            publisher.fetch(dice, self.knobs.rows_per_batch_max, self.now_s)
        elif roll < 0.42:
            publisher.bring(dice, self.now_s, self.today_us)
        elif roll < 0.50:
            publisher.tick(self.now_s)
        elif roll < 0.55:
            self._attach(publisher)
        elif roll < 0.64:
            publisher.hear(dice, self.now_s)
        elif roll < 0.72:
            publisher.store(dice, self.today_us)
        elif roll < 0.75:
            publisher.watch()
        elif roll < 0.86:
            self._deliver()
        else:
            self._work(dice.choice(self.processes))

    # What works.

    def _write(self) -> None:
        entries = self.log.commit(self.dice, self.dice.randint(1, self.knobs.rows_per_commit_max), self.today_us)
        self.checkers.written(entries)

    def _attach(self, publisher: Publisher) -> None:
        """A flow that has no subscriber gets one: the weighted choice of the shell is left to the dice."""
        assert publisher.core is not None
        alone = [status.flow for status in publisher.core.flows() if status.flow not in publisher.attached]
        if alone:
            self._attach_flow(publisher, publisher.core, self.dice.choice(alone))

    def _attach_flow(self, publisher: Publisher, core: Core, flow: FlowName) -> None:
        process = self.dice.choice([process for process in self.processes if process.application == flow.application])
        link = next((link for link in publisher.links.values() if link.process is process and not link.broken), None)
        if link is None:
            self._links += 1
            link = publisher.links[self._links] = Link(self._links, publisher.name, process)
        publisher.do(core.attached(flow, link.number, 0 if process.grants_first else process.window_bytes, self.now_s))

    def _deliver(self) -> bool:
        talking = [link for publisher in self.publishers for link in publisher.links.values() if link.down]
        if not talking:
            return False
        link = self.dice.choice(talking)
        link.process.receive(link, link.down.popleft(), self.checkers, self.today_us)
        return True

    def _work(self, process: Process) -> bool:
        forced = {publisher.name: publisher.replica.forced for publisher in self.publishers}
        return process.work(self.dice, self.checkers, forced, self.today_us)

    def _revive(self, publisher: Publisher) -> None:
        core = publisher.live(self.now_s)
        self.trace.append(f"{self.now_s:.2f} {publisher.name} lives")
        for flow, record in list(self.datamarkers.records.items()):
            if record.owner == publisher.name:
                self._own(publisher, flow, record.epoch + self.dice.randint(0, 1))
        publisher.watch()
        core.check()

    def _own(self, publisher: Publisher, flow: FlowName, epoch: int) -> None:
        assert publisher.core is not None
        record = self.datamarkers.records[flow]
        track = self.checkers.tracks[flow]
        self.datamarkers.records[flow] = Record(record.position, epoch, publisher.name)
        start = record.position or (track.start if track.terms.realtime else publisher.replica.end)
        if record.position is None and not track.terms.realtime:
            self.checkers.begins_anew(flow, start, epoch)
        publisher.do(publisher.core.add(flow, track.terms, start, epoch, record.position is not None, self.now_s))

    # What does not.

    def _go_wrong(self, fault: str, publisher: Publisher) -> None:
        dice = self.dice
        self.trace.append(f"{self.now_s:.2f} {fault} ({publisher.name})")
        self.counts[fault] += 1
        flow = dice.choice(list(self.datamarkers.records))
        links = [link for one in self.publishers for link in one.links.values()]
        match fault:
            case "promote":
                self.log.promote()
            case "cut":
                self.checkers.cut_by_force = True
                publisher.replica.cut(self.log.end_of(dice.randint(0, publisher.replica.commits)), True)
            case "kill process":
                process = dice.choice(self.processes)
                for link in [link for link in links if link.process is process]:
                    link.break_now()
                process.epochs.clear()
            case "break link":
                if links:
                    dice.choice(links).break_now()
            case "late answers":
                for link in links:
                    link.silent_until_s = self.now_s + dice.choice((1.0, 4.0))
            case "give back":
                dice.choice(self.processes).give_back(dice)
            case "change tempers":
                for process in self.processes[1 if self.knobs.stuck else 0 :]:
                    process.takes = dice.choice((1.0, 0.6, 0.1, 0.0))
                    process.acknowledges = dice.random() < 0.8
            case _ if publisher.core is None:
                pass
            case "kill publisher":
                for _ in range(dice.randint(0, 3)):
                    publisher.store(dice, self.today_us)  # some of what was under way still lands
                publisher.die()
            case "take over":
                record = self.datamarkers.records[flow]
                if record.owner != publisher.name:
                    self._own(publisher, flow, record.epoch + 1)
            case "fail reader":
                publisher.fail_reader(dice)
            case _:
                self._by_an_operator(fault, publisher)

    def _by_an_operator(self, fault: str, publisher: Publisher) -> None:
        dice = self.dice
        assert publisher.core is not None
        owned = [
            status.flow for status in publisher.core.flows() if self.datamarkers.records[status.flow][1:] == (status.epoch, publisher.name)
        ]
        if fault == "configure":
            publisher.limits = replace(
                publisher.limits,
                caravans_max=dice.randint(1, 4),
                buffer_updates_max=dice.randint(2, 20),
                policy=dice.choice(("cluster", "fewest")),
            )
            publisher.do(publisher.core.configure(publisher.limits), True)
        elif not owned:
            return
        elif fault == "reassign":
            publisher.attached.pop(dice.choice(owned), None)  # the next to attach is another
        elif fault == "pause":
            flow = dice.choice(owned)
            publisher.do(publisher.core.pause(flow, "by hand") if dice.random() < 0.5 else publisher.core.resume(flow))
        else:
            self._rewind(publisher, dice.choice(owned))

    def _rewind(self, publisher: Publisher, flow: FlowName) -> None:
        """Back, to what is still there."""
        assert publisher.core is not None
        record = self.datamarkers.records[flow]
        others = [other for other in self.publishers if other is not publisher and other.core is not None]
        if any(status.flow == flow for other in others if other.core is not None for status in other.core.flows()):
            return  # one that was succeeded and does not know it yet keeps the log for itself alone
        oldest = max(one.replica.oldest for one in self.publishers)
        ends = [self.log.end_of(count) for count in range(len(self.log.commits) + 1)]
        places = [
            end for end in ends if record.position is not None and max(oldest, self.checkers.tracks[flow].start) <= end <= record.position
        ]
        if not places:
            return
        position = self.dice.choice(places)
        self.datamarkers.records[flow] = record._replace(position=position, epoch=record.epoch + 1)
        self.checkers.rewound(flow, position, record.epoch + 1)
        publisher.do(publisher.core.rewind(flow, position, record.epoch + 1))
        self._attach_flow(publisher, publisher.core, flow)
        for other in others:
            other.watch()

    # Peace.

    def heal(self) -> None:
        self.trace.append(f"{self.now_s:.2f} peace")
        for process in self.processes[1 if self.knobs.stuck else 0 :]:
            process.takes, process.acknowledges = 1.0, True
        for publisher in self.publishers:
            if publisher.core is None:
                self._revive(publisher)
            publisher.replica.replicate(len(self.log.commits))
            assert publisher.core is not None
            for status in publisher.core.flows():
                publisher.do(publisher.core.resume(status.flow))
        for _ in range(_ROUNDS_MAX):
            self._round()
            if not self._missing():
                return
        raise Broken("caught up", f"still missing: {self._missing()}")

    def _round(self) -> None:
        dice = self.dice
        self.now_s += 0.25
        for publisher in self.publishers:
            publisher.tick(self.now_s)
            self._attach(publisher)
            for _ in range(12):
                publisher.fetch(dice, self.knobs.rows_per_batch_max, self.now_s)
                publisher.bring(dice, self.now_s, self.today_us)
            for _ in range(200):
                if not any([publisher.hear(dice, self.now_s), publisher.store(dice, self.today_us), self._deliver()]):
                    break
            publisher.watch()
        for process in self.processes:
            for _ in range(100):
                if not self._work(process):
                    break

    def _missing(self) -> dict[str, int]:
        """Per flow, how many updates it has not dealt with, or that it is not stored as far. Of a stuck subscriber nothing is expected."""
        missing = {}
        for flow, track in self.checkers.tracks.items():
            if track.terms.realtime or (self.knobs.stuck and flow.application == self.processes[0].application):
                continue
            stored = self.datamarkers.records[flow].position
            behind = self.checkers.behind(flow, self.today_us)
            if behind or (track.wanted and (stored is None or stored < track.wanted[-1])):
                missing[str(flow)] = behind
        return missing


def run(seed: int) -> World:
    """Raises Broken, with the seed, its knobs and what happened last."""
    world = World(knobs_of(seed))
    with told(seed, world):
        try:
            world.run()
        except AssertionError as error:
            raise Broken("invariant", str(error)) from error
    return world


if __name__ == "__main__":
    main(run, int(sys.argv[1]), int(sys.argv[2]))
