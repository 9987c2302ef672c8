"""One connection to a gateway, over whatever channel: messages out, messages in, until it ends.

A channel may drop messages: what does not fit the queue is dropped, and the core repeats what needs an answer.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp

from roskva.client.choice import Failure
from roskva.errors import MalformedMessage
from roskva.protocol.messages import ServerMessage, decode_server

log = logging.getLogger(__name__)

CONNECT_S: Final = 15.0
CLOSE_S: Final = 2.0  # for the other side's part in closing
MESSAGE_BYTES_MAX: Final = 16 << 20
QUEUE_MAX: Final = 1_000
BATCH_MAX: Final = 100  # messages of one request
BATCH_BYTES_MAX: Final = 256 << 10

Work = Callable[[], Awaitable[None]]
Received = Callable[[ServerMessage], None]


class NotConnected(Exception):
    """Why a connection did not come about, for a person and for the choice of the next."""

    def __init__(self, what: str, why: Failure) -> None:
        super().__init__(what)
        self.what = what
        self.why = why


def not_connected(url: str, error: BaseException) -> NotConnected:
    if isinstance(error, aiohttp.ClientConnectorError):
        return NotConnected(f"{url} cannot be reached: {error}.", Failure.UNREACHABLE)
    if isinstance(error, TimeoutError):
        return NotConnected(f"Nothing answered at {url} within {CONNECT_S:.0f} s.", Failure.BROKEN)
    return NotConnected(f"{url} cannot be reached: {error}.", Failure.BROKEN)


def answered(url: str, status: int, reason: str | None) -> NotConnected:
    """Not as was hoped. Above 500 it is often a proxy's word for a service that is down."""
    refused = status < 500 or status == 501
    return NotConnected(f"{url} answered {status} {reason or ''}.", Failure.REFUSED if refused else Failure.BROKEN)


class Link(ABC):
    """What the shell knows of a connection. The channels below it read, put and shut."""

    def __init__(self) -> None:
        self._waiting: deque[bytes | Work] = deque()
        self._ready = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._hang_up = asyncio.Event()
        self._hung_up_why = ""
        self.heard = False  # the service said something over it
        self.cut = False  # it ended without a goodbye

    def send(self, data: bytes) -> None:
        """Never blocks. Dropped if the other side has not taken what was sent before."""
        if len(self._waiting) < QUEUE_MAX:
            self._add(data)

    def first(self, work: Work) -> None:
        """Do this before anything that is sent from now on."""
        self._add(work)

    def hang_up(self, why: str = "closed by this client") -> None:
        self._hung_up_why = self._hung_up_why or why
        self._hang_up.set()

    async def drained(self) -> None:
        """Everything queued so far has been handed to the network."""
        await self._idle.wait()

    async def run(self, received: Received) -> str:
        """Until either side hangs up; answers why it ended. Work that had to be done first is done in any case."""
        tasks = {
            asyncio.create_task(self._read(received), name="roskva-read"),
            asyncio.create_task(self._write(), name="roskva-write"),
            asyncio.create_task(self._hung_up(), name="roskva-hang-up"),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (defect := task.exception()) is not None:
                    log.error("a connection ended by a defect of this library", exc_info=defect)
            reasons = [str(task.exception() or task.result()) for task in done]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.close()
        return reasons[0]

    async def close(self) -> None:
        for item in self._waiting:
            if not isinstance(item, bytes):
                await item()
        self._waiting.clear()
        self._idle.set()
        await self._shut()

    @abstractmethod
    async def _read(self, received: Received) -> str:
        """Call `received` with every message, until the connection ends; answer why."""

    @abstractmethod
    async def _put(self, messages: list[bytes]) -> None:
        """Bring these to the other side, or raise a ConnectionError or ClientError."""

    @abstractmethod
    async def _shut(self) -> None:
        """End the connection, whatever its state; raises nothing."""

    def _decoded(self, data: bytes, received: Received) -> None:
        try:
            message = decode_server(data)
        except MalformedMessage as error:
            log.warning("a message of the service was ignored: %s", error)
            return
        self.heard = True
        received(message)

    def _add(self, item: bytes | Work) -> None:
        self._waiting.append(item)
        self._idle.clear()
        self._ready.set()

    async def _write(self) -> str:
        while True:
            try:
                if not self._waiting:
                    self._idle.set()
                    self._ready.clear()
                    await self._ready.wait()
                elif isinstance(work := self._waiting[0], bytes):
                    await self._put(self._batch())
                else:
                    await work()
                    self._waiting.popleft()  # not before: if this is cancelled, it is done at the end
            except (ConnectionError, aiohttp.ClientError) as error:
                self.cut = True
                return f"broken: {error}"

    def _batch(self) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        while self._waiting and isinstance(data := self._waiting[0], bytes) and len(batch) < BATCH_MAX:
            size += len(data)
            if batch and size > BATCH_BYTES_MAX:
                break
            batch.append(data)
            self._waiting.popleft()
        return batch

    async def _hung_up(self) -> str:
        await self._hang_up.wait()
        return self._hung_up_why
