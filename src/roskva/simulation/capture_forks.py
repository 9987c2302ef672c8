"""A world of MariaDB servers that are lost with commits which no replica had: numbers come again, and publishers are restarted meanwhile.

The core, the witness and the rules of forks are the real ones; servers, the shell and subscribers are as small as can be. Commits are known
by who wrote them, whatever their positions are. `python -m roskva.simulation.capture_forks 1 300` runs seeds. Three promises:

- at least once: in the end every flow got all of the log that is left; a flow that acknowledged what was undone was told of a loss.
- kept: nobody is told of a loss where nothing that was read is undone, and each promotion that lost something begins at most one history.
- caught up: no flow stands for ever.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeAlias

from roskva.capture.actions import Action, Close, DataLoss, Notice, Open, Send, Store, Token
from roskva.capture.core import Core
from roskva.capture.flows import Routed, Terms
from roskva.capture.interface import Retained
from roskva.capture.limits import Limits
from roskva.capture.ownership import FlowName
from roskva.capture.positions import BEGINNING, WHOLE, Position
from roskva.capture.stores.mariadb.forks import Known, history_of, known_from, undone
from roskva.capture.stores.mariadb.witness import OwnMemory, Witness
from roskva.simulation.capture_checkers import Broken

Commit: TypeAlias = tuple[int, int, int]  # its number, the server that wrote it, and a number of its own

_ROUNDS_MAX: Final = 300  # of peace
_WINDOW_BYTES: Final = 1_000


@dataclass(eq=False)
class Server:
    number: int
    log: list[Commit] = field(default_factory=list)

    def lasts(self, sequence: int) -> dict[int, int]:
        return {server: number for number, server, _ in self.log if number <= sequence}

    @property
    def end(self) -> int:
        return self.log[-1][0] if self.log else 0


class Track:
    """What a flow's subscribers got, over all of its publishers."""

    def __init__(self) -> None:
        self.got: set[Commit] = set()
        self.acknowledged: set[Commit] = set()
        self.losses = 0


class Shell:
    """A publisher beside one server. `records` is the place of the datamarkers: of each flow the position, the epoch and the owner."""

    def __init__(self, world: World, name: str, server: Server) -> None:
        self.world, self.name, self.server = world, name, server
        self.witness = Witness()
        self.witness.memory = self
        self.core = Core(Limits(datamarker_period_s=0.5, allocation_period_s=0.2, caravans_max=3))
        self.readers: dict[int, Position] = {}
        self.sent: dict[FlowName, list[tuple[Position, Commit]]] = {}
        self.stores: list[Store] = []
        self.look()
        self.do(self.core.start(self.position(server.end), world.now_s))

    # The memory, which only an owner changes.

    def recall(self) -> bytes:
        return self.world.memory.recall()

    def swap(self, before: bytes, after: bytes) -> bool:
        swapped = any(owner == self.name for _, _, owner in self.world.records.values()) and self.world.memory.swap(before, after)
        self.world.check(known_from(after) if swapped else Known())
        return swapped

    # The datastore.

    def look(self) -> None:
        self.witness.look(self.witness.recall(), self.server.lasts, self.server.number, lambda: self.server is not self.world.primary)

    def position(self, sequence: int) -> Position:
        return Position(history_of(self.witness.forks, sequence), sequence) if sequence else BEGINNING

    def fetch(self, caravan: int) -> bool:
        """The next commit. False: there is none, or none that can be read here."""
        after = self.readers[caravan]
        forks = self.witness.forks
        if after.history > (forks[-1].history if forks else 0):
            return False
        begins = undone(forks, after)
        found = next((one for one in self.server.log if (one[0], WHOLE) > after[1:]), None)
        if begins is None and found is not None:
            begins = undone(forks, Position(after.history, found[0], 0))
        if begins is not None:
            self.do(self.core.cut(caravan, begins, self.world.now_s))
            return True
        if found is None or after.sequence > self.server.end:
            return False
        number, server, _ = found
        if not self.witness.saw(number, server):
            self.look()
            return True
        reached = self.readers[caravan] = Position(max(after.history, history_of(forks, number)), number)
        self.world.read.add(found)
        update = Routed(reached._replace(index=1), 0, self.world.applications, 1, 0, found)
        self.do(self.core.read(caravan, after, [update], reached, 1, self.world.now_s, 0))
        return True

    # What the core wants done.

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Open():
                    self.readers[action.caravan] = action.after
                case Close():
                    del self.readers[action.caravan]
                case Notice():
                    self.sent[action.flow] = []
                case Send():
                    self._send(action)
                case Token():
                    if self.world.dice.random() < 0.7:
                        self._acknowledge(action)
                case DataLoss():
                    self.world.tracks[action.flow].losses += 1
                    self.world.told(action)
                case Store():
                    self.stores.append(action)
        self.core.check()

    def _send(self, action: Send) -> None:
        for update in action.updates:
            commit: Any = update.payload
            self.world.tracks[action.flow].got.add(commit)
            self.sent[action.flow].append((update.position, commit))
        self.do(self.core.granted(action.flow, action.stream, len(action.updates), self.world.now_s))

    def _acknowledge(self, action: Token) -> None:
        self.do(self.core.acknowledged(action.flow, action.stream, action.position))

    def store(self) -> None:
        """As the publisher does: first what was read, then the datamarkers that stand on it."""
        self.witness.keep()
        for flow, position, epoch in self.stores:
            before, now, owner = self.world.records[flow]
            if (now, owner) == (epoch, self.name):
                self.world.records[flow] = (max(before, position), now, owner)
                self.world.tracks[flow].acknowledged |= {commit for at, commit in self.sent.get(flow, ()) if at <= position}
                self.do(self.core.stored(flow, position, epoch))
            else:
                self.do(self.core.fenced(flow, epoch))
        self.stores.clear()

    def own(self, flow: FlowName) -> None:
        position, epoch, _ = self.world.records[flow]
        self.world.records[flow] = (position, epoch + 1, self.name)
        self.do(self.core.add(flow, Terms(), position, epoch + 1, True, self.world.now_s))
        self.do(self.core.attached(flow, 1, _WINDOW_BYTES, self.world.now_s))

    def tick(self) -> None:
        self.do(self.core.tick(self.world.now_s, Retained(BEGINNING, self.position(self.server.end))))


class World:
    def __init__(self, seed: int) -> None:
        self.dice = Random(f"forks {seed}")
        self.now_s = 100.0
        self.memory = OwnMemory()
        self._written = 2
        self.read: set[Commit] = set()
        self.lost: set[Commit] = set()
        self.counts: Counter[str] = Counter()
        # All begin with the same: of a log that shares nothing with what was read, nobody can tell whether it began later.
        self.servers = [Server(number, [(1, 1, 1), (2, 1, 2)]) for number in range(1, self.dice.randint(3, 4))]
        self.primary = self.servers[0]
        flows = [FlowName(f"a{number}", 0) for number in range(self.dice.randint(1, 3))]
        self.applications = frozenset(flow.application for flow in flows)
        self.tracks = {flow: Track() for flow in flows}
        self.records: dict[FlowName, tuple[Position, int, str]] = dict.fromkeys(flows, (BEGINNING, 1, "p1"))
        self.shells: dict[str, Shell | None] = {}
        for server in self.servers:
            self._start(server)

    def _start(self, server: Server) -> Shell:
        shell = Shell(self, f"p{server.number}", server)
        self.shells[shell.name] = shell
        for flow, (_, _, owner) in list(self.records.items()):
            if owner == shell.name:
                shell.own(flow)
        return shell

    def step(self) -> None:
        dice = self.dice
        self.now_s += dice.choice((0.0, 0.05, 0.3))
        server = dice.choice(self.servers)
        shell = self.shells[f"p{server.number}"]
        roll = dice.random()
        if roll < 0.15:
            self._write()
        elif roll < 0.25:
            self._replicate(server, dice.randint(1, 3))
        elif roll < 0.27:
            self._promote(server, dice.random() < 0.7)
        elif roll < 0.29:
            self.counts["kill"] += 1
            self.shells[f"p{server.number}"] = None
        elif roll < 0.30:
            self.counts["kill all"] += 1
            self.shells = dict.fromkeys(self.shells)
        elif shell is None:
            if roll < 0.45:
                self._start(server)
        elif roll < 0.33:
            shell.own(dice.choice(list(self.records)))
        else:
            self._go_on(shell, roll)

    def _go_on(self, shell: Shell, roll: float) -> None:
        if roll < 0.40:
            shell.look()
        elif roll < 0.48:
            shell.store()
        elif roll < 0.60:
            shell.tick()
        else:
            shell.fetch(self.dice.choice(list(shell.readers)))

    def _write(self) -> None:
        self._written += 1
        self.primary.log.append((self.primary.end + 1, self.primary.number, self._written))

    def _replicate(self, server: Server, commits: int) -> None:
        """One that has what its primary lacks is built anew."""
        if server.log != self.primary.log[: len(server.log)]:
            server.log = list(self.primary.log)
        server.log = self.primary.log[: max(len(server.log), min(len(server.log) + commits, len(self.primary.log)))]

    def _promote(self, server: Server, lossy: bool) -> None:
        if server is self.primary or server.log != self.primary.log[: len(server.log)]:
            return
        if any(by == server.number and number > server.end for number, by, _ in self.lost):
            return  # it would give its own numbers again, which nobody can tell apart (docs/capture.md, What is not there yet)
        if not lossy:
            server.log = list(self.primary.log)
        gone = set(self.primary.log) - set(server.log)
        self.lost |= gone
        self.counts["switchover" if not gone else "fork" if gone & self.read else "unread loss"] += 1
        self.primary = server

    def told(self, loss: DataLoss) -> None:
        if not self.lost & self.read:
            raise Broken("kept", f"{loss.flow} lost what is after {loss.lost_after} up to {loss.lost_to}, and nothing is undone")
        self.counts["told"] += 1

    def check(self, known: Known) -> None:
        if known.history > self.counts["fork"] + self.counts["unread loss"]:
            raise Broken("kept", f"a history began at {known.forks[-1]}, and no commit was lost there")

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        for number in range(3):  # what the last primary wrote last was given before, perhaps
            self._write()
            if number == 0:
                self._peace()
        self._peace()
        for flow, track in self.tracks.items():
            if track.acknowledged & self.lost and not track.losses:
                raise Broken("at least once", f"{flow} acknowledged what was undone, and was not told")

    def _peace(self) -> None:
        for server in self.servers:
            self._replicate(server, len(self.primary.log))
        shells = [self.shells[f"p{server.number}"] or self._start(server) for server in self.servers]
        for _ in range(_ROUNDS_MAX):
            self.now_s += 0.3
            for shell in shells:
                shell.look()
                shell.tick()
                for _ in range(10):
                    for caravan in list(shell.readers):
                        if caravan in shell.readers:
                            shell.fetch(caravan)
                shell.store()
            if not self._missing():
                return
        raise Broken("at least once", f"never came: {self._missing()}")

    def _missing(self) -> dict[str, list[Commit]]:
        log = self.primary.log
        return {str(flow): gone for flow, track in self.tracks.items() if (gone := [one for one in log if one not in track.got])}


def run(seed: int) -> World:
    """Raises Broken, with the seed."""
    world = World(seed)
    try:
        try:
            world.run(world.dice.randint(150, 500))
        except AssertionError as error:
            raise Broken("invariant", str(error)) from error
    except Broken as broken:
        broken.add_note(f"seed {seed}: {dict(world.counts)}")
        raise
    return world


if __name__ == "__main__":
    total: Counter[str] = Counter()
    for each in range(int(sys.argv[1]), int(sys.argv[2]) + 1):
        total += run(each).counts
    sys.stdout.write(f"{dict(total)}\n")
