"""A publisher: the core (core.py), performed (Wormhole 3). One per datastore host.

Everything but reading and what blocks happens on one event loop: what readers bring, what subscribers say and what time does goes to the
core, one call at a time, and what the core answers is done at once, in order, with one write per connection at the end. Long, since each
of the core's actions has its few lines here, and what each does to the others is seen best in one place.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from roskva.address import bound_socket
from roskva.capture import actions, wire
from roskva.capture.core import Core
from roskva.capture.datamarkers import Datamarkers
from roskva.capture.flows import Routed
from roskva.capture.interface import Datastore, Lenient, Malformed, Remembering, Retained
from roskva.capture.ownership import Reach
from roskva.capture.positions import Position
from roskva.capture.publisher.beyond import Beyond
from roskva.capture.publisher.connection import HANDSHAKE_S, SubscriberConnection
from roskva.capture.publisher.control import Control
from roskva.capture.publisher.notes import SharedMemory
from roskva.capture.publisher.owning import Owning
from roskva.capture.publisher.placing import Placing
from roskva.capture.publisher.reading import Opening, Reading, Router, Routing
from roskva.capture.publisher.settings import ApplicationSettings, PublisherSettings
from roskva.capture.publisher.status import Statistics, status_of
from roskva.capture.rows import Schemas
from roskva.errors import InvalidSetting, LogCut, RoskvaError

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5
RETRY_S_MAX: Final = 10.0
STOP_S_MAX: Final = 5.0  # that flows may take to be closed when the publisher stops
JOIN_S_MAX: Final = 5.0
SWITCH_INTERVAL_S: Final = 0.0005  # readers are busy threads: with Python's own 5 ms the loop would wait that long for its turn


class Publisher:
    """Belongs to the event loop on which it is started. `datastore` and `datamarkers` are the caller's to close, after `stop`."""

    def __init__(
        self, settings: PublisherSettings, datastore: Datastore, datamarkers: Datamarkers, tls: ssl.SSLContext | None = None
    ) -> None:
        self.settings = settings
        self.schemas = Schemas()
        self.statistics = Statistics()
        self.address = settings.listen  # with the port, once it listens
        self.failed: asyncio.Future[None] | None = None  # done with an error if the publisher cannot go on
        self.disk_free_bytes: Callable[[], int | None] = lambda: None  # of the disk that the datastore's log fills; None: nobody knows
        self._datastore = datastore
        self._opening = Opening(datastore)
        self._store = datamarkers
        self._tls = tls
        self._router = Router(_routing(settings), self.schemas)
        self._readings: dict[int, Reading] = {}
        self._ending: list[Reading] = []
        self._admitted: set[SubscriberConnection] = set()
        self._touched: set[SubscriberConnection] = set()
        self._connections = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._thread = ThreadPoolExecutor(1, "datastore")
        self._server: asyncio.Server | None = None
        self._control: Control | None = None
        self._confirmable: Position | None = None
        self._confirmed: Position | None = None
        self._prepared_s = time.monotonic()
        self._unprepared: RoskvaError | None = None  # why the datastore could not be prepared
        self._do: dict[type[Any], Callable[[Any], None]] = {
            actions.Open: self._open,
            actions.Close: self._close,
            actions.Pace: self._pace,
            actions.Notice: self._notice,
            actions.Send: self._send,
            actions.Token: self._token,
            actions.DataLoss: self._data_loss,
            actions.Ended: self._ended,
            actions.Store: self._stored,
            actions.Confirm: self._confirm,
        }

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def dataset(self) -> str:
        return self._dataset

    @property
    def applications(self) -> Mapping[str, ApplicationSettings]:
        return self.settings.applications

    @property
    def retained(self) -> Retained:
        return self._retained

    # Life.

    async def start(self) -> None:
        """Returns when it reads and listens. Waits for a datastore that does not answer yet."""
        sys.setswitchinterval(min(SWITCH_INTERVAL_S, sys.getswitchinterval()))
        self._loop = asyncio.get_running_loop()
        self.failed = self._loop.create_future()
        memory = SharedMemory(self._store)
        if isinstance(self._datastore, Remembering):
            self._datastore.remember_in(memory)
        self._dataset, self._retained = await self._first_look()
        self._answered_s = time.monotonic()
        self.core = Core(self.settings.limits_of_core())
        self.placing = Placing(self.core, self.settings, self.perform)
        self.owning = Owning(self.core, self.settings, self._store, self._datastore, self.placing, self.perform, self._reach)
        memory.owns = lambda: bool(self.owning.held)
        self.beyond = Beyond(self.core, self.owning)
        try:
            await self._listen()
            if self.settings.control is not None:
                self._control = Control(self, self.settings.control)
                await self._control.start()
        except BaseException:
            if self._server is not None:
                self._server.close()
            self._thread.shutdown(wait=False)
            self.owning.close()
            raise
        self.perform(self.core.start(self._retained.end, self._loop.time()))
        for work in (self._tick_for_ever, self._look_for_ever, self.owning.storing.write_for_ever, self.owning.look_for_ever):
            task = asyncio.create_task(work(), name=work.__name__)
            task.add_done_callback(self._task_ended)
            self._tasks.append(task)

    async def stop(self) -> None:
        """Flows are closed and released, so that whoever comes next goes on at once; bounded by STOP_S_MAX."""
        if self._server is not None:
            self._server.close()
        if self._control is not None:
            await self._control.stop()
        await self.owning.stop(STOP_S_MAX)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.owning.close()
        await asyncio.gather(*(connection.leave("the publisher stops") for connection in list(self._admitted)))
        for reading in self._readings.values():
            reading.close()
        self._ending += self._readings.values()
        self._readings.clear()
        for reading in self._ending:
            await self._loop.run_in_executor(self._thread, reading.join, JOIN_S_MAX)
        self._thread.shutdown(wait=False)
        if self._server is not None:
            await self._server.wait_closed()
            _remove_socket(self.settings.listen)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    def configure(self, settings: PublisherSettings) -> None:
        """Other settings, from now on. Name, addresses and the number of shards stay as they are."""
        before = self.settings
        if (settings.name, settings.listen, settings.control) != (before.name, before.listen, before.control):
            raise InvalidSetting("A publisher that runs keeps its name and its addresses.")
        if settings.shards.shards != before.shards.shards:
            raise InvalidSetting("The number of shards cannot change while a publisher runs: order is promised within a shard.")
        self.perform(self.core.configure(settings.limits_of_core()))  # first: it may refuse
        self.settings = self.placing.settings = self.owning.settings = settings
        self._router.routing = _routing(settings)
        for reading in self._readings.values():
            reading.changes_max = settings.changes_max
        self.owning.configured(before, self._loop.time())
        for connection in list(self._admitted):
            known, knew = settings.applications.get(connection.application), before.applications.get(connection.application)
            if connection.ready and (known is None or knew is None or known.key != knew.key):
                connection.abort()
        self.placing.due(self._loop.time())

    def status(self) -> dict[str, Any]:
        """What `capture status` shows. For programs: names and numbers."""
        return status_of(self)

    @property
    def filter_failures(self) -> int:
        return self._router.failures

    def reading_problems(self) -> list[RoskvaError]:
        return [reading.problem for reading in self._readings.values() if reading.problem is not None]

    def malformed(self) -> Malformed | None:
        """None: whatever this log has can be read, or reading it fails."""
        return self._datastore.malformed() if isinstance(self._datastore, Lenient) else None

    def _reach(self) -> Reach | None:
        """None: the datastore has not answered, or the end of its log could not be read, for as long as peers wait for one that is dead."""
        lead = next(caravan.caravan for caravan in self.core.caravans() if caravan.lead)
        since_s = min(self._answered_s, self._readings[lead].well_s)
        return Reach(self._retained.oldest, self._retained.end.history) if time.monotonic() - since_s < self.settings.takeover_s else None

    # What readers bring (reading.Taking).

    def taken(self, caravan: int, after: Position, routed: list[Routed], reached: Position, bytes_read: int) -> None:
        self.statistics.bytes_read += bytes_read
        try:
            self.perform(self.core.read(caravan, after, routed, reached, bytes_read, self._loop.time(), time.time_ns() // 1000))
        except Exception as error:
            self._fail(error)

    def cut(self, caravan: int, oldest: Position) -> None:
        log.error("What flows need of the log up to %s is lost, and they are told.", oldest)
        try:
            self.perform(self.core.cut(caravan, oldest, self._loop.time()))
        except Exception as error:
            self._fail(error)

    def position_of(self, caravan: int) -> Position | None:
        return self.core.position_of(caravan)

    # What subscribers say (connection.Host).

    def admits(self, connection: SubscriberConnection) -> bool:
        if len(self._admitted) >= self.settings.connections_max:
            return False
        self._admitted.add(connection)
        return True

    def greeted(self, connection: SubscriberConnection) -> None:
        self.placing.joined(connection, self._loop.time())

    def heard(self, connection: SubscriberConnection, frame: wire.ToPublisher) -> None:
        try:
            self._heard(connection, frame)
        except Exception as error:
            self._fail(error)

    def _heard(self, connection: SubscriberConnection, frame: wire.ToPublisher) -> None:
        if isinstance(frame, wire.Credit | wire.Acknowledge):
            found = connection.flows.get(frame.flow)
            if found is None:
                return
            if isinstance(frame, wire.Credit):
                if frame.bytes > 0:
                    self.perform(self.core.granted(*found, frame.bytes, self._loop.time()))
            else:
                self.perform(self.core.acknowledged(*found, frame.position))
        elif isinstance(frame, wire.Closed):
            self.placing.closed(connection, frame, self._loop.time())
        elif isinstance(frame, wire.Load):
            connection.load = frame.load
        elif isinstance(frame, wire.Ping):
            connection.send(wire.Pong(frame.number))
            connection.flush()
        elif isinstance(frame, wire.Bye):
            connection.abort()

    def lost(self, connection: SubscriberConnection) -> None:
        self._admitted.discard(connection)
        self.placing.left(connection, self._loop.time())

    # What the core wants done.

    def perform(self, wanted: list[actions.Action]) -> None:
        for action in wanted:
            self._do[type(action)](action)
        if self._touched:
            for connection in self._touched:
                connection.flush()
            self._touched.clear()

    def _open(self, action: actions.Open) -> None:
        reading = Reading(action.caravan, action.after, self._opening, self._router, self.settings.changes_max, self)
        self._readings[action.caravan] = reading
        reading.start()

    def _close(self, action: actions.Close) -> None:
        reading = self._readings.pop(action.caravan)
        reading.close()
        self._ending = [other for other in self._ending if not other.join(0)]
        self._ending.append(reading)

    def _pace(self, action: actions.Pace) -> None:
        self._readings[action.caravan].pace(action.bytes_per_s)

    def _line(self, connection: int) -> SubscriberConnection | None:
        found = self.placing.connections.get(connection)
        if found is not None:
            self._touched.add(found)
        return found

    def _notice(self, action: actions.Notice) -> None:
        connection = self._line(action.connection)
        if connection is not None:
            self.placing.opened(action.flow, connection, action.stream)
            number, epoch = action.stream.number, action.stream.epoch
            window_bytes = self.placing.windows_bytes[action.flow]
            connection.send(wire.Open(number, action.flow.shard, epoch, action.after, window_bytes))

    def _send(self, action: actions.Send) -> None:
        connection = self._line(action.connection)
        if connection is not None and action.updates:
            application = self.settings.applications.get(action.flow.application)
            connection.send_updates(action.stream, action.updates, application is not None and application.terms.staleness_max_s > 0)
            self.statistics.sent(action.flow, action.updates)

    def _token(self, action: actions.Token) -> None:
        connection = self._line(action.connection)
        if connection is not None:
            connection.send(wire.Token(action.stream.number, action.position))
            self.statistics.asked(action.flow, action.position)

    def _data_loss(self, action: actions.DataLoss) -> None:
        connection = self._line(action.connection)
        if connection is not None:
            connection.send(wire.DataLoss(action.stream.number, action.lost_after, action.lost_to))

    def _ended(self, action: actions.Ended) -> None:
        connection = self._line(action.connection)
        if connection is not None:
            connection.send(wire.Close(action.stream.number, "ended"))

    def _stored(self, action: actions.Store) -> None:
        self.owning.storing.put(action)
        self.statistics.answered(action.flow, action.position)

    def _confirm(self, action: actions.Confirm) -> None:
        self._confirmable = action.position

    # Time.

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.tick_s)
            now_s = self._loop.time()
            self.perform(self.core.tick(now_s, self._retained))
            self.placing.tick(now_s)
            self.owning.tick()
            self.statistics.tick(now_s, self)
            self._look_at_connections()

    def _look_at_connections(self) -> None:
        """Whoever is silent is given up; and whoever has most to take while all together have more to take than there is memory for."""
        waiting = 0
        for connection in list(self._admitted):
            connection.hang_up_if_silent()
            waiting += connection.waiting_bytes
        if waiting > self.settings.memory_mib_max * 2**20:
            max(self._admitted, key=lambda connection: connection.waiting_bytes).abort()

    async def _look_for_ever(self) -> None:
        """At the datastore: how long its log is, what of it is not needed any more, and whether all is there that reading needs."""
        while True:
            await asyncio.sleep(self.settings.look_s)
            try:
                self.statistics.datastore = await self._look()
            except RoskvaError as error:
                self.statistics.datastore = error
                log.warning("The datastore does not answer: %s", error)
            except Exception as error:
                self.statistics.datastore = RoskvaError(f"Asking the datastore failed: {type(error).__name__} {error}.")
                log.exception("Asking the datastore failed, which is tried again.")

    async def _look(self) -> RoskvaError | None:
        """What is not as it should be, though it answers."""
        datamarkers = self.beyond.before()
        self._retained = await self._loop.run_in_executor(self._thread, self._datastore.retained)
        self._answered_s = time.monotonic()
        await self.beyond.look(datamarkers, self._retained, self._loop.time())
        gone: LogCut | None = None
        position, now = self._confirmable, self.core.confirmable()
        if position is not None and now is not None and now < position:
            position = now  # a flow has begun further back since that was said
        position = None if position is None else self.beyond.needed(position)
        if position is not None and (self._confirmed is None or position > self._confirmed):
            try:
                await self._loop.run_in_executor(self._thread, self._datastore.confirm, position)
                self._confirmed = position
            except LogCut as error:
                gone = error
                log.warning("Nothing keeps the log for us any more: %s", error)
        if gone is not None or self._answered_s - self._prepared_s >= self.settings.prepare_s:
            self._prepared_s = self._answered_s
            self._unprepared = await self._prepare()
        return self._unprepared or gone

    async def _prepare(self) -> RoskvaError | None:
        """Again and again: a slot that was dropped keeps nothing, and a table that was created anew is not published any more. Made again
        now, and not when a reader opens next, they keep and tell all that comes from now on. The answer: why it could not be."""
        try:
            await self._loop.run_in_executor(self._thread, self._datastore.prepare)
        except RoskvaError as error:
            log.warning("The datastore cannot be prepared again: %s", error)
            return error
        return None

    async def _first_look(self) -> tuple[str, Retained]:
        delay_s = RETRY_S
        while True:
            try:
                return await self._loop.run_in_executor(self._thread, lambda: (self._datastore.identity, self._datastore.retained()))
            except RoskvaError as error:
                if not error.transient:
                    raise
                log.warning("The datastore does not answer yet: %s", error)
            await asyncio.sleep(delay_s)
            delay_s = min(RETRY_S_MAX, delay_s * 2)

    async def _listen(self) -> None:
        if self.settings.listen.startswith("unix:"):
            # One that a predecessor left behind is replaced.
            self._server = await self._loop.create_unix_server(self._connection, self.settings.listen.removeprefix("unix:"))
        else:
            holder = bound_socket(self.settings.listen)
            patience_s = None if self._tls is None else HANDSHAKE_S
            self._server = await self._loop.create_server(self._connection, sock=holder, ssl=self._tls, ssl_handshake_timeout=patience_s)
            host, port = holder.getsockname()[:2]
            self.address = f"{host}:{port}"

    def _connection(self) -> SubscriberConnection:
        self._connections += 1
        return SubscriberConnection(self, self._connections)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._fail(task.exception())

    def _fail(self, error: BaseException | None) -> None:
        """A defect: what the core says and what is do not agree. Whoever runs the publisher starts it anew, from the datamarkers."""
        log.error("The publisher cannot go on.", exc_info=error)
        for reading in self._readings.values():
            reading.close()
        if self.failed is not None and not self.failed.done() and error is not None:
            self.failed.set_exception(error)


def _remove_socket(listen: str) -> None:
    if listen.startswith("unix:"):
        Path(listen.removeprefix("unix:")).unlink(missing_ok=True)


def _routing(settings: PublisherSettings) -> Routing:
    return Routing(settings.shards, {name: application.passes for name, application in settings.applications.items()})
