"""Publishers of the shell's world: the real server, owning, placing and connections, on a loop of virtual time.

What is simulated: the log and its readers, the place of the datamarkers, the network (network.py), and the threads for what blocks: a call
takes time, has its effect somewhere within it, and has it also if whoever asked dies meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from random import Random
from typing import Any, Final, Protocol, TypeVar

from roskva.capture import actions
from roskva.capture.datamarkers import Beat, Claim, Mark
from roskva.capture.flows import Routed
from roskva.capture.interface import Finding, Reader, Retained
from roskva.capture.ownership import FlowName, Reach, Record
from roskva.capture.positions import Position
from roskva.capture.publisher.server import Publisher
from roskva.capture.publisher.settings import PublisherSettings
from roskva.capture.updates import Change, Operation
from roskva.errors import LogCut, Unavailable
from roskva.simulation.capture_checkers import Broken, Checkers
from roskva.simulation.capture_log import Replica
from roskva.simulation.loop import VirtualLoop
from roskva.simulation.network import Network
from roskva.simulation.processes import Process

_CALL_S: Final = 0.02  # that a call takes, on average, to have its effect, and again to answer
_READ_S: Final = 0.1
_CONFIRMED_S_MAX: Final = 3.0  # after which what may be dropped by what a publisher knew is dropped

Answer = TypeVar("Answer")


class ShellLoop(VirtualLoop):
    """Calls that block take time, those of one executor one after the other."""

    def __init__(self, dice: Random) -> None:
        super().__init__()
        self._dice = dice
        self._free_s: dict[Any, float] = {}

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        future = self.create_future()
        lands_s = max(self.time(), self._free_s.get(executor, 0.0)) + self._dice.expovariate(1 / _CALL_S)
        answers_s = lands_s + self._dice.expovariate(1 / _CALL_S)
        if executor is not None:
            self._free_s[executor] = answers_s
        self.call_at(lands_s, self._land, future, answers_s, func, args)
        return future

    def _land(self, future: asyncio.Future[Any], answers_s: float, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            result = func(*args)
        except Exception as error:
            self.call_at(answers_s, _fail, future, error)
        else:
            self.call_at(answers_s, _answer, future, result)


def _answer(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


class Ordered(dict[Any, None]):
    """A set in the order of its making: that of objects in a real one is another in each run."""

    def add(self, one: Any) -> None:
        self[one] = None

    def discard(self, one: Any) -> None:
        self.pop(one, None)


class Host(Protocol):
    """What a publisher and its place need of the world."""

    dice: Random
    loop: ShellLoop
    network: Network
    checkers: Checkers

    def watching(self) -> AbstractContextManager[None]:
        """What is found broken inside is the world's failure."""
        ...

    def holders(self, flow: FlowName) -> list[str]:
        """The publishers that live and believe that the flow is theirs."""
        ...


class Place:
    """Where the datamarkers are: durable, in steps that only one can win (datamarkers/interface.py)."""

    def __init__(self, world: Host) -> None:
        self.world = world
        self.records: dict[FlowName, Record] = {}
        self.counters: dict[str, Beat] = {}
        self.noted: dict[str, bytes] = {}
        self.away_until_s: dict[str, float] = {}  # of each publisher that does not reach it
        self.began_s: dict[FlowName, float] = {}  # when it was first durable where it begins
        self.looked_s: dict[str, float] = {}  # when each publisher last saw the records
        # Flows of which something may be gone at a replica: its publisher did not know yet that they begin, or were rewound, there.
        self.may_lose: set[FlowName] = set()
        self.served: dict[tuple[FlowName, int], str] = {}  # by whom, under each epoch

    def store(self, marks: Sequence[Mark]) -> list[FlowName]:
        refused = []
        for flow, position, epoch in marks:
            record = self.records.get(flow)
            if record is None or record.epoch != epoch:
                refused.append(flow)
            elif record.datamarker is None or position > record.datamarker:
                with self.world.watching():
                    if record.datamarker is None:
                        self.world.checkers.begins_anew(flow, position, epoch)
                        self.began_s[flow] = self.world.loop.time()
                    self.world.checkers.durable(flow, position, 0)
                self.records[flow] = record._replace(datamarker=position)
        return refused

    def take(self, claims: Sequence[Claim], publisher: str) -> dict[FlowName, int]:
        won = {}
        for flow, seen in claims:
            record = self.records.get(flow, Record(None, 0, "", True))
            if record.epoch == seen:
                others = [name for name in self.world.holders(flow) if name != publisher]
                with self.world.watching():
                    if others:
                        raise Broken("one owner", f"{publisher} takes {flow}, and {others} still serves it")
                won[flow] = seen + 1
                self.records[flow] = Record(record.datamarker, seen + 1, publisher, False)
        return won

    def release(self, flows: Sequence[FlowName], publisher: str) -> None:
        for flow in flows:
            record = self.records.get(flow)
            if record is not None and record.owner == publisher:
                self.records[flow] = record._replace(released=True)

    def rewind(self, flow: FlowName, publisher: str, position: Position) -> int:
        record = self.records.get(flow)
        if record is None or record.owner != publisher or record.released:
            return 0
        self.may_lose.add(flow)
        self.records[flow] = record._replace(datamarker=position, epoch=record.epoch + 1)
        self.world.checkers.rewound(flow, position, record.epoch + 1)
        return record.epoch + 1


class PlaceOf:
    """As one publisher sees it (datamarkers.interface.Datamarkers). If it is away, nobody knows whether a call had its effect."""

    def __init__(self, place: Place, name: str) -> None:
        self._place = place
        self._name = name

    def _call(self, call: Callable[[], Answer]) -> Answer:
        if self._place.world.loop.time() < self._place.away_until_s.get(self._name, 0.0):
            if self._place.world.dice.random() < 0.3:
                call()
            raise Unavailable("The place of the datamarkers is away.")
        return call()

    def records(self) -> dict[FlowName, Record]:
        return self._call(self._look)

    def _look(self) -> dict[FlowName, Record]:
        self._place.looked_s[self._name] = self._place.world.loop.time()
        return dict(self._place.records)

    def store(self, marks: Sequence[Mark]) -> list[FlowName]:
        return self._call(lambda: self._place.store(marks))

    def take(self, claims: Sequence[Claim], publisher: str) -> dict[FlowName, int]:
        return self._call(lambda: self._place.take(claims, publisher))

    def release(self, flows: Sequence[FlowName], publisher: str) -> None:
        self._call(lambda: self._place.release(flows, publisher))

    def rewind(self, flow: FlowName, publisher: str, position: Position) -> int:
        return self._call(lambda: self._place.rewind(flow, publisher, position))

    def forget(self, claims: Sequence[Claim]) -> list[FlowName]:
        raise NotImplementedError

    def beat(self, member: str, about: bytes) -> None:
        counters = self._place.counters
        self._call(lambda: counters.update({member: Beat(counters[member].counter + 1 if member in counters else 1, about)}))

    def members(self) -> dict[str, Beat]:
        return self._call(lambda: dict(self._place.counters))

    def leave(self, member: str) -> None:
        self._call(lambda: self._place.counters.pop(member, None))

    def note(self, name: str, value: bytes) -> None:
        self._call(lambda: self._place.noted.update({name: value}))

    def swap(self, name: str, before: bytes, after: bytes) -> bool:
        raise NotImplementedError  # only a datastore that remembers needs it

    def notes(self) -> Mapping[str, bytes]:
        return self._call(lambda: {name: value for name, value in self._place.noted.items() if value})

    def close(self) -> None: ...


class SimulatedDatastore:
    """A replica of the log, as publishers ask for it (interface.Datastore)."""

    identity = "log"

    def __init__(self, replica: Replica, place: Place, publisher: str) -> None:
        self.replica = replica
        self._place = place
        self._publisher = publisher

    def retained(self) -> Retained:
        return Retained(self.replica.oldest, self.replica.end)

    def confirm(self, position: Position) -> None:
        place = self._place
        with place.world.watching():
            for flow, record in place.records.items():
                if record.datamarker is None or record.datamarker >= position or flow in place.may_lose:
                    continue
                if place.began_s[flow] < place.looked_s[self._publisher] - _CONFIRMED_S_MAX:
                    raise Broken("kept", f"{position} is confirmed, and {flow} is stored at {record.datamarker}")
                place.may_lose.add(flow)
        self.replica.cut(position, False)

    def at_time(self, time_s: float) -> Position:
        return self.replica.oldest

    def read_after(self, position: Position) -> Reader:
        raise NotImplementedError  # see SimulatedReading

    def prepare(self) -> None: ...

    def check(self) -> list[Finding]:
        return []

    def close(self) -> None: ...


def change_of(entry: Routed) -> Change:
    """What a reader would have found; the filters of the applications find again who wants it."""
    assert isinstance(entry.applications, frozenset)
    wanted = " ".join(sorted(entry.applications))
    columns: dict[str, Any] = {"shard": entry.shard, "wanted": wanted, "filling": "x" * entry.size}
    return Change(entry.position, entry.committed_us, Operation.INSERT, "db", "rows", {"shard": entry.shard}, columns)


class SimulatedReading:
    """In place of reading.Reading and its thread."""

    problem = None
    changes_max = 0

    def __init__(self, caravan: int, after: Position, rows_max: int, replica: Replica, publisher: SimulatedPublisher) -> None:
        self._caravan = caravan
        self._position = after
        self._rows_max = rows_max
        self._replica = replica
        self._publisher = publisher
        self._moving = asyncio.Event()
        self._closed = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def pace(self, bytes_per_s: float) -> None:
        if bytes_per_s > 0:
            self._moving.set()
        else:
            self._moving.clear()

    def close(self) -> None:
        self._closed = True
        self._moving.set()

    def join(self, timeout_s: float) -> bool:
        return True

    async def _run(self) -> None:
        dice = self._publisher.world.dice
        while not self._closed:
            await asyncio.sleep(dice.expovariate(1 / _READ_S))
            await self._moving.wait()
            if self._publisher.position_of(self._caravan) is None:
                return  # it was closed
            try:
                found, reached = self._replica.read_after(self._position, dice.randint(1, self._rows_max))
            except LogCut:
                self._publisher.cut(self._caravan, self._replica.oldest)
                continue
            if reached != self._position:
                after, self._position = self._position, reached
                self._publisher.brought(self._caravan, after, found, reached)


class _Listener:
    """In place of asyncio.Server."""

    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._address = address

    def close(self) -> None:
        self._network.unlisten(self._address)

    async def wait_closed(self) -> None: ...


class SimulatedPublisher(Publisher):
    """All of the real one but its clock, its readers and its sockets."""

    def __init__(self, settings: PublisherSettings, replica: Replica, place: Place, process: Process, rows_max: int) -> None:
        super().__init__(settings, SimulatedDatastore(replica, place, settings.name), PlaceOf(place, settings.name))
        self.world = place.world
        self.process = process
        self.ready_now = False
        self._replica = replica
        self._rows_max = rows_max
        self._place = place
        self._touched: Any = Ordered()
        self._admitted: Any = Ordered()

    async def _listen(self) -> None:
        self.placing._dice = Random(self.world.dice.random())
        self.world.network.listen(self.process, self.settings.listen, self._connection)
        self._server: Any = _Listener(self.world.network, self.settings.listen)
        self.ready_now = True

    def _reach(self) -> Reach | None:
        return Reach(self._replica.oldest, self._replica.end.history)

    def _open(self, action: actions.Open) -> None:
        reading: Any = SimulatedReading(action.caravan, action.after, self._rows_max, self._replica, self)
        self._readings[action.caravan] = reading
        reading.start()

    def brought(self, caravan: int, after: Position, found: Sequence[Routed], reached: Position) -> None:
        routed = self._router.route([change_of(entry) for entry in found], self._router.routing)
        self.taken(caravan, after, routed, reached, sum(entry.size for entry in found) + 8)

    def _notice(self, action: actions.Notice) -> None:
        with self.world.watching():
            owner = self._place.served.setdefault((action.flow, action.stream.epoch), self.name)
            if owner != self.name:
                raise Broken("one owner", f"{owner} and {self.name} both serve {action.flow} under epoch {action.stream.epoch}")
        super()._notice(action)
