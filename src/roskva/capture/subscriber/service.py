"""A subscriber: one process of an application, connected to every publisher of its datasets (Wormhole 3, Table 1).

    class Invalidate(Callbacks):
        def on_update(self, update):
            cache.delete(f"doc:{update.change.key['id']}")

    async with Subscriber("cache", key, ["db1:7471", "db2:7471"], Invalidate()):
        await asyncio.Event().wait()

It keeps no state of its own: where a flow goes on is the publishers' to know.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import ssl
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from roskva.address import host_and_port
from roskva.capture import wire
from roskva.capture.positions import Position
from roskva.capture.subscriber.callbacks import Callbacks, Shard
from roskva.capture.subscriber.connection import HANDSHAKE_S, Connection, new_nonce
from roskva.capture.subscriber.flow import Failures, ReceivedFlow
from roskva.errors import BadRequest, InvalidSetting, MemberConnected, RoskvaError, ServiceUnreachable

log = logging.getLogger(__name__)

WINDOW_BYTES: Final = 2**20  # of one flow: what may wait here for the application
RECONNECT_S: Final = 0.1
RECONNECT_S_MAX: Final = 10.0
STOP_S_MAX: Final = 10.0
CANCELLED_S_MAX: Final = 2.0
PUBLISHERS_MAX: Final = 10_000


class Subscriber:
    """Belongs to the event loop on which it is started."""

    def __init__(
        self,
        application: str,
        key: bytes,
        publishers: Sequence[str],
        callbacks: Callbacks,
        member: str = "",
        *,
        weight: float = 1.0,
        load: Callable[[], float] | None = None,
        window_bytes: int = WINDOW_BYTES,
        tls: ssl.SSLContext | None = None,
        beat_s: float = wire.PING_S,
        reconnect_s_max: float = RECONNECT_S_MAX,
    ) -> None:
        """`publishers`: HOST:PORT or unix:PATH each. `member`: this process' name among those of the application, the same after a restart
        (default: host and pid). `weight`: its share of the flows beside others. `load`: how busy it is (1: just able to follow); by
        default, how full its queues are. `window_bytes`: of each flow, so much may be under way or wait for the callbacks.
        """
        if len(key) < wire.KEY_BYTES_MIN:
            raise InvalidSetting(f"The key of application {application!r} is too short: {wire.KEY_BYTES_MIN} bytes at least.")
        if not publishers or len(publishers) > PUBLISHERS_MAX:
            raise InvalidSetting(f"A subscriber needs from 1 to {PUBLISHERS_MAX:,} publishers.")
        self.application = application
        self.member = member or f"{socket.gethostname()}:{os.getpid()}"
        self._key = key
        self._publishers = tuple(dict.fromkeys(publishers))
        self._callbacks = callbacks
        self._weight = weight
        self._load = load
        self._window_bytes = window_bytes
        self._tls = tls
        self._beat_s = beat_s
        self._reconnect_s_max = reconnect_s_max
        self._connections: dict[str, Connection] = {}
        self._problems: dict[str, RoskvaError] = {}
        self._flows: dict[Shard, ReceivedFlow] = {}  # the latest of each shard; it may have ended
        self._running: set[ReceivedFlow] = set()
        self._streams: dict[Shard, tuple[int, int]] = {}  # the latest of each: the owner's epoch, and the flow's number
        self._late: set[Shard] = set()  # whose flow was last opened under an epoch of before
        self._failures = Failures()
        self._tasks: list[asyncio.Task[None]] = []
        self._dice = random.Random()
        self._stopping = False

    async def start(self) -> None:
        """Returns at once; connections are made, and made again, behind it."""
        for address in self._publishers:
            self._tasks.append(asyncio.create_task(self._keep_connected(address), name=f"capture {address}"))
        self._tasks.append(asyncio.create_task(self._beat(), name="capture beat"))

    async def stop(self) -> None:
        """Callbacks that run are finished, or cancelled after STOP_S_MAX; what went through them is acknowledged, unless `on_token` says
        otherwise.
        """
        self._stopping = True
        for flow in self._running:
            flow.end()
        if self._running:
            await asyncio.wait([asyncio.ensure_future(flow.finished()) for flow in self._running], timeout=STOP_S_MAX)
        for flow in self._running:
            log.warning("A callback of %s did not return, and is cancelled.", flow.shard)
            flow.cancel()
        if self._running:  # one that swallows its cancellation is left to itself
            await asyncio.wait([asyncio.ensure_future(flow.finished()) for flow in self._running], timeout=CANCELLED_S_MAX)
        await asyncio.gather(*(connection.leave() for connection in list(self._connections.values())))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    @property
    def shards(self) -> dict[Shard, Position]:
        """Those whose flows are here, and what of each went through the callbacks."""
        return {shard: flow.processed for shard, flow in self._flows.items() if not flow.ended}

    @property
    def problems(self) -> dict[str, RoskvaError]:
        """Publishers that are not connected, and why."""
        return dict(self._problems)

    @property
    def load(self) -> float:
        if self._load is not None:
            try:
                return self._load()
            except Exception:
                log.exception("The load of this process could not be told: the length of its queues stands for it.")
        flows = [flow for flow in self._flows.values() if not flow.ended]
        # A queue that is four fifths full is that of a process which cannot follow: what is under way never lets it be quite full.
        return 1.25 * sum(flow.held_bytes / flow.window_bytes for flow in flows) / len(flows) if flows else 0.0

    def acknowledge(self, shard: Shard, position: Position) -> bool:
        """All of the shard up to this position is dealt with. False: its flow is not here now, and the publisher does not learn of it.

        Raises BadRequest for a position that was not given to a callback yet.
        """
        flow = self._flows.get(shard)
        if flow is None or flow.ended:
            return False
        if position > flow.processed:
            raise BadRequest(
                f"{position} of {shard} cannot be acknowledged: only what is up to {flow.processed} went through the callbacks."
            )
        flow.acknowledge(position)
        return True

    def hand_over(self, shard: Shard, to: str = "") -> bool:
        """Give a flow to another process of the application: the named one if it is there, or whoever the publisher chooses.

        With balance = "coordinated" it stays with the named one, as after `roskva capture reassign`, for as long as that one is connected.
        Without a name it does not come here for GIVEN_S (10 s); after that flows are spread evenly again.
        """
        flow = self._flows.get(shard)
        if flow is None or flow.ended:
            return False
        flow.give(to)
        return True

    async def _keep_connected(self, address: str) -> None:
        delay_s = RECONNECT_S
        while not self._stopping:
            try:
                connection = await self._connected(address)
            except (OSError, TimeoutError) as error:
                self._problems[address] = ServiceUnreachable(
                    f"The publisher at {address} is not reached: {str(error) or type(error).__name__}."
                )
            except RoskvaError as error:
                self._problems[address] = error
                if not error.transient or isinstance(error, MemberConnected):
                    log.warning("The publisher at %s: %s", address, error)
                    delay_s = self._reconnect_s_max
            else:
                self._problems.pop(address, None)
                delay_s = RECONNECT_S
                self._problems[address] = await connection.lost
                self._connections.pop(address, None)
            # Full jitter: when a publisher comes back, its subscribers do not come all at once.
            await asyncio.sleep(delay_s * self._dice.uniform(0.5, 1.0))
            delay_s = min(self._reconnect_s_max, delay_s * 2)

    async def _connected(self, address: str) -> Connection:
        hello = wire.Hello(wire.VERSION, self.application, self.member, new_nonce(), self._window_bytes, self._weight)
        loop = asyncio.get_running_loop()

        def make() -> Connection:
            return Connection(hello, self._key, self._opened)

        async with asyncio.timeout(HANDSHAKE_S):
            if address.startswith("unix:"):
                transport, connection = await loop.create_unix_connection(make, address.removeprefix("unix:"))
            else:
                host, port = host_and_port(address)
                transport, connection = await loop.create_connection(make, host, port, ssl=self._tls)
            try:
                await connection.greeted
            except BaseException:
                transport.abort()
                raise
        self._connections[address] = connection
        return connection

    def _opened(self, connection: Connection, frame: wire.Open) -> ReceivedFlow | None:
        shard = connection.shard_of(frame)
        stream = (frame.epoch, frame.flow)
        if self._stopping:
            return None
        if stream < self._streams.get(shard, (0, 0)):
            self._is_late(shard, frame.epoch)
            return None
        self._streams[shard] = stream
        self._late.discard(shard)
        previous = self._flows.get(shard)
        if previous is not None:
            previous.end()
        flow = ReceivedFlow(connection, frame.flow, shard, frame.position, self._callbacks, frame.window_bytes, self._failures)
        connection.flows[frame.flow] = flow
        self._flows[shard] = flow

        def done(ended: ReceivedFlow) -> None:
            connection.flows.pop(frame.flow, None)
            self._running.discard(ended)

        self._running.add(flow)
        flow.start(previous, done)
        return flow

    def _is_late(self, shard: Shard, epoch: int) -> None:
        """A publisher does not know yet that it is not the owner any more; or its datamarkers were begun anew: then it goes on like this,
        for all shards, and nothing comes. Told once, not for each shard and each time.
        """
        if not self._late:
            log.warning(
                "The flow of %s was opened under epoch %d, and epoch %d was here already: it is refused, as that of a publisher that does"
                " not own it any more. If datamarkers were begun anew, restart this process.",
                shard,
                epoch,
                self._streams[shard][0],
            )
        self._late.add(shard)

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + self._beat_s
            await asyncio.sleep(self._beat_s)
            load, away_s = self.load, loop.time() - due_s
            for connection in list(self._connections.values()):
                connection.beat(load, away_s)
