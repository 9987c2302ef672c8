"""One flow at the subscriber: a bounded queue, and a task that calls the application with what is in it (Wormhole 3.3.1).

The queue is as long as the credit that was given for it. A flow of a shard begins only after the one before it, on whatever connection, has
returned from the application: so two never run beside each other.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from roskva.capture.positions import Position
from roskva.capture.rows import Decoding
from roskva.capture.subscriber.callbacks import Callbacks, Shard
from roskva.capture.wire import Acknowledge, AnyFrame, Closed, Compressed, Credit, DataLoss, Token, Updates, inflated
from roskva.errors import MalformedMessage, RoskvaError

log = logging.getLogger(__name__)

RESUME_S_MAX: Final = 60.0
RESUME_S: Final = 1.0
GIVEN_S: Final = 10.0  # that a flow which was given away does not come back

# A part of the queue: the frame, and how much credit it used.
Part = tuple[Updates | Compressed | Token | DataLoss, int]


class Line(Protocol):
    """What a flow needs of its connection."""

    decoding: Decoding

    @property
    def closing(self) -> bool: ...

    def send(self, frame: AnyFrame) -> None: ...

    def broken(self, error: RoskvaError) -> None: ...


class Failures:
    """How often in a row the callbacks of a shard have raised: each time it comes back later."""

    def __init__(self) -> None:
        self._count: dict[Shard, int] = {}

    def failed(self, shard: Shard) -> float:
        count = self._count[shard] = self._count.get(shard, 0) + 1
        return float(min(RESUME_S_MAX, RESUME_S * 2 ** min(count - 1, 10)))

    def succeeded(self, shard: Shard) -> None:
        self._count.pop(shard, None)


class ReceivedFlow:
    """Belongs to one connection, under its number there."""

    def __init__(
        self,
        line: Line,
        number: int,
        shard: Shard,
        after: Position,
        callbacks: Callbacks,
        window_bytes: int,
        failures: Failures,
    ) -> None:
        self.number = number
        self.shard = shard
        self.window_bytes = max(1, window_bytes)
        self.held_bytes = 0
        self.updates = 0
        self.processed = after  # all up to here went through the callbacks
        self.acknowledged = after
        self.ended = False  # takes nothing any more
        self._line = line
        self._callbacks = callbacks
        self._failures = failures
        self._queue: deque[Part] = deque()
        self._more = asyncio.Event()
        self._returned_bytes = 0  # dealt with, and not given as credit yet
        self._batched = type(callbacks).on_updates is not Callbacks.on_updates
        self._task: asyncio.Task[None] | None = None
        self._rests_s = 0.0
        self._to = ""

    def start(self, previous: ReceivedFlow | None, done: Callable[[ReceivedFlow], None]) -> None:
        self._task = asyncio.create_task(self._run(previous), name=f"flow {self.shard}")
        self._task.add_done_callback(lambda _: done(self))

    def put(self, frame: Updates | Compressed | Token | DataLoss, size: int) -> None:
        if not self.ended:
            self._queue.append((frame, size))
            self.held_bytes += size
            self._more.set()

    def end(self) -> None:
        """Drop what has not begun; what has, is finished."""
        self.ended = True
        self._queue.clear()
        self.held_bytes = 0
        self._more.set()

    def give(self, to: str) -> None:
        """End, so that another process gets it."""
        self._to, self._rests_s = to, GIVEN_S
        self.end()

    async def finished(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    def cancel(self) -> None:
        """In the middle of a callback, if it must be."""
        if self._task is not None:
            self._task.cancel()

    def acknowledge(self, position: Position) -> None:
        if position > self.acknowledged:
            self.acknowledged = position
            self._failures.succeeded(self.shard)
            self._line.send(Acknowledge(self.number, position))

    async def _run(self, previous: ReceivedFlow | None) -> None:
        if previous is not None:
            await previous.finished()
        pause_s = 0.0
        try:
            if not self.ended:
                await _called(self._callbacks.on_shard_notice(self.shard))
                await self._take()
                if self.processed > self.acknowledged and not self._line.closing:
                    await self._token(self.processed)  # as if the publisher had asked: less comes again, wherever it goes on
                await _called(self._callbacks.on_shard_closed(self.shard))
        except MalformedMessage as error:
            self._line.broken(error)
        except Exception:
            pause_s = self._failures.failed(self.shard)
            log.exception("A callback of %s raised; its flow comes again in %.1f s from its datamarker.", self.shard, pause_s)
            self.end()
            await self._tell_closed()
        self._line.send(Closed(self.number, pause_s or self._rests_s, self._to))

    async def _tell_closed(self) -> None:
        try:
            await _called(self._callbacks.on_shard_closed(self.shard))
        except Exception:
            log.exception("The callback on_shard_closed of %s raised.", self.shard)

    async def _take(self) -> None:
        while not self.ended:
            if not self._queue:
                self._more.clear()
                await self._more.wait()
                continue
            frame, size = self._queue.popleft()
            if isinstance(frame, Updates):
                await self._update(frame)
            elif isinstance(frame, Compressed):
                await self._update(inflated(frame))
            elif isinstance(frame, Token):
                await self._token(frame.position)
            else:
                await _called(self._callbacks.on_data_loss(self.shard, frame.after, frame.upto))
                self.processed = max(self.processed, frame.upto)
            self._dealt_with(size)
            await asyncio.sleep(0)  # plain callbacks never wait: the other flows and the connection have their turn

    def _dealt_with(self, size: int) -> None:
        if self.ended:
            return
        self.held_bytes -= size
        self._returned_bytes += size
        if self._returned_bytes * 2 >= self.window_bytes:
            self._line.send(Credit(self.number, self._returned_bytes))
            self._returned_bytes = 0

    async def _update(self, frame: Updates) -> None:
        updates = self._line.decoding.updates(self.shard.number, frame.history, frame.rows)
        if not updates:
            return
        if self._batched:
            called = self._callbacks.on_updates(self.shard, updates)
            if called is not None:
                await called
        else:
            on_update = self._callbacks.on_update
            for update in updates:
                each = on_update(update)
                if each is not None:
                    await each
                    if self.ended:
                        self.processed = update.change.position
                        return
        self.updates += len(updates)
        self.processed = updates[-1].change.position

    async def _token(self, datamarker: Position) -> None:
        self.processed = max(self.processed, datamarker)
        answer = self._callbacks.on_token(self.shard, datamarker)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is not False:
            self.acknowledge(datamarker)


async def _called(result: Awaitable[None] | None) -> None:
    if result is not None:
        await result
