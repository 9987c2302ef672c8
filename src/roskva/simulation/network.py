"""The network: messages that are lost, repeated, late and out of order; streams that stall and break; machines that are cut off.

Clients' messages go one by one, since the protocol promises to bear whatever a channel may do. Internal connections are streams: in order,
or broken. A cut between two machines is silent: nothing arrives, nobody is told, and a stream goes on when it heals, if it still lives.
A clogged direction holds messages back, and gives them up in any order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from roskva.simulation.fibers import block
from roskva.simulation.loop import VirtualLoop
from roskva.simulation.processes import PAUSE_LOOK_S, Process

_STALL_S: Final = 0.25  # how often a held-up stream is tried again
_CONNECT_S: Final = 30.0  # a connection over a cut is never made


@dataclass
class Conditions:
    """How bad it is at the moment."""

    delay_min_s: float = 0.0005
    delay_max_s: float = 0.002
    jitter_s: float = 0.0  # of messages, but not of streams
    late: float = 0.0  # the part of messages that take much longer
    late_max_s: float = 5.0
    loss: float = 0.0
    repeat: float = 0.0


class Network:
    def __init__(self, loop: VirtualLoop, chance: Random, jitter_s: float = 0.0) -> None:
        loop.network = self
        self.loop = loop
        self.conditions = Conditions(jitter_s=jitter_s)
        self.counts = {"sent": 0, "requested": 0, "lost": 0, "repeated": 0, "cut": 0, "clogged": 0, "broken": 0}
        self._chance = chance
        self._cuts: set[frozenset[str]] = set()
        self._clogged: dict[tuple[str, str], list[tuple[Process, Callable[[], None]]]] = {}
        self._listeners: dict[str, tuple[Process, Callable[[], asyncio.Protocol]]] = {}
        self._streams: dict[Stream, None] = {}

    # What may go wrong.

    def cut(self, one: str, other: str) -> None:
        self._cuts.add(frozenset((one, other)))

    def mend(self, one: str, other: str) -> None:
        self._cuts.discard(frozenset((one, other)))

    def clog(self, source: str, target: str) -> None:
        self._clogged.setdefault((source, target), [])

    def unclog(self, source: str, target: str) -> None:
        held = self._clogged.pop((source, target), [])
        self._chance.shuffle(held)
        for process, deliver in held:
            self._arrive_later(process, deliver)

    def break_streams(self, one: str, other: str) -> None:
        for stream in list(self._streams):
            if {stream.process.host, stream.peer.process.host} == {one, other}:
                self.counts["broken"] += 1
                stream.abort()

    def heal(self) -> None:
        self.conditions = Conditions()
        self._cuts.clear()
        for source, target in list(self._clogged):
            self.unclog(source, target)

    def is_cut(self, one: Process, other: Process) -> bool:
        return frozenset((one.host, other.host)) in self._cuts

    # Messages.

    def post(self, source: Process, target: Process, deliver: Callable[[], None], kind: str = "sent") -> None:
        """Carry one message, if fate will: `deliver` is called in the target's process."""
        if not source.alive:
            return
        self.counts[kind] += 1
        chance, conditions = self._chance, self.conditions
        if self.is_cut(source, target):
            self.counts["cut"] += 1
            return
        if conditions.loss and chance.random() < conditions.loss:
            self.counts["lost"] += 1
            return
        held = self._clogged.get((source.host, target.host))
        if held is not None:
            self.counts["clogged"] += 1
            held.append((target, deliver))
            return
        self._arrive_later(target, deliver, max(0.0, source.paused_until_s - self.loop.time()))
        if conditions.repeat and chance.random() < conditions.repeat:
            self.counts["repeated"] += 1
            self._arrive_later(target, deliver)

    def _arrive_later(self, target: Process, deliver: Callable[[], None], more_s: float = 0.0) -> None:
        if self.conditions.jitter_s:
            more_s += self._chance.uniform(0, self.conditions.jitter_s)
        self.loop.call_later(self.delay_s() + more_s, self._arrive, target, deliver, context=target.context.copy())

    def _arrive(self, target: Process, deliver: Callable[[], None]) -> None:
        if not target.alive:
            return
        wait_s = target.paused_until_s - self.loop.time()
        if wait_s > 0:
            self.loop.call_later(min(wait_s, PAUSE_LOOK_S), self._arrive, target, deliver, context=target.context.copy())
        else:
            deliver()

    def delay_s(self) -> float:
        chance, conditions = self._chance, self.conditions
        if conditions.late and chance.random() < conditions.late:
            return chance.uniform(0, conditions.late_max_s)
        return chance.uniform(conditions.delay_min_s, conditions.delay_max_s)

    async def request(self, source: Process, target: Process, work: Callable[[], Coroutine[Any, Any, Any]], timeout_s: float) -> Any:
        """A request over HTTP: the answer, or TimeoutError when either way was lost."""
        answer: asyncio.Future[Any] = self.loop.create_future()

        def come_back(result: Any) -> None:
            if not answer.done():
                answer.set_result(result)

        async def serve() -> None:
            result = await work()
            self.post(target, source, lambda: come_back(result), "requested")

        self.post(source, target, lambda: None if not target.alive else _forget(target.spawn(serve())), "requested")
        async with asyncio.timeout(timeout_s):
            return await answer

    # Streams.

    def listen(self, process: Process, address: str, factory: Callable[[], asyncio.Protocol]) -> None:
        self._listeners[address] = (process, factory)

    def unlisten(self, address: str) -> None:
        self._listeners.pop(address, None)

    async def connect(
        self, process: Process, address: str, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        await asyncio.sleep(self.delay_s())
        await process.breathe()
        listener, accept = self._listeners.get(address, (None, None))
        if listener is None or accept is None or not listener.alive:
            raise ConnectionRefusedError(f"nobody listens at {address}")
        if self.is_cut(process, listener):
            await asyncio.sleep(_CONNECT_S)
            raise TimeoutError(f"no way to {address}")
        here, there = Stream(self, process), Stream(self, listener)
        here.peer, there.peer = there, here
        for stream in (here, there):
            self._streams[stream] = None
            stream.process.at_death(stream.die)
        here.begin(factory())
        self.loop.call_soon(lambda: there.begin(accept()) if listener.alive else None, context=listener.context.copy())
        return here, here.protocol

    def forget(self, stream: Stream) -> None:
        self._streams.pop(stream, None)


def _forget(_: object) -> None:
    pass


class Stream(asyncio.Transport):
    """One end of a connection."""

    peer: Stream
    protocol: Any

    def __init__(self, network: Network, process: Process) -> None:
        super().__init__()
        self.process = process
        self._network = network
        self._loop = network.loop
        self._to_peer: deque[bytes | None] = deque()  # None: the end
        self._pumping = False
        self._closing = False
        self._lost = False

    def begin(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol
        protocol.connection_made(self)
        if self.peer._to_peer:
            self.peer._pump_later()

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return sum(len(data) for data in self._to_peer if data is not None)

    def write(self, data: Any) -> None:
        if not self._closing and self.process.alive:
            self._to_peer.append(bytes(data))
            self._pump_later()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._to_peer.append(None)
            self._pump_later()
            self._loop.call_soon(self._lose, context=self.process.context.copy())

    def abort(self) -> None:
        self._to_peer.clear()
        self.close()

    def die(self) -> None:
        """The process of this end is gone: its machine says so to the other one, if it can."""
        self._lost = True
        self.abort()

    def _pump_later(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._loop.call_later(self._network.delay_s(), self._pump, context=self.peer.process.context.copy())

    def _pump(self) -> None:
        """Bring what was written to the other end, in order."""
        self._pumping = False
        peer = self.peer
        held_up = self._network.is_cut(self.process, peer.process) or peer.process.paused_until_s > self._loop.time()
        if held_up and peer.process.alive:
            self._pumping = True
            self._loop.call_later(_STALL_S, self._pump, context=peer.process.context.copy())
            return
        while self._to_peer and hasattr(peer, "protocol"):
            data = self._to_peer.popleft()
            if data is None:
                peer._closing = True
                peer._lose()
            elif peer.process.alive and not peer._lost:
                peer.protocol.data_received(data)

    def _lose(self) -> None:
        self._network.forget(self)
        if not self._lost and hasattr(self, "protocol"):
            self._lost = True
            if self.process.alive:
                self.protocol.connection_lost(None)


class _Collector(asyncio.Protocol):
    """What came, until somebody takes it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False
        self.news = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.news.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        self.news.set()


class FiberSocket:
    """As much of a socket as a task's link uses, for code in a fiber."""

    def __init__(self, transport: asyncio.Transport, collector: _Collector) -> None:
        self._transport = transport
        self._collector = collector
        self._timeout_s: float | None = None

    @classmethod
    def dial(cls, network: Network, process: Process, address: tuple[str, int], timeout: float) -> FiberSocket:
        async def connect() -> FiberSocket:
            async with asyncio.timeout(timeout):
                transport, collector = await network.connect(process, f"{address[0]}:{address[1]}", _Collector)
                assert isinstance(collector, _Collector)
                return cls(transport, collector)

        return block(connect())

    def setsockopt(self, *options: object) -> None:
        pass

    def settimeout(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    def sendall(self, data: bytes) -> None:
        if self._transport.is_closing():
            raise BrokenPipeError("the connection is gone")
        self._transport.write(data)

    def recv(self, size: int) -> bytes:
        collector = self._collector
        if not collector.data and not collector.ended:
            block(self._wait())
        data = bytes(collector.data[:size])
        del collector.data[: len(data)]
        return data

    async def _wait(self) -> None:
        self._collector.news.clear()
        async with asyncio.timeout(self._timeout_s):
            await self._collector.news.wait()

    def close(self) -> None:
        self._transport.close()
