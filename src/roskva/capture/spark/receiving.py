"""The subscriber in Spark's driver: brings the flows into the buffers, and the datamarkers back (Wormhole 3, Table 1).

Everything here runs on one event loop, in a thread of its own (source.py). A flow that finds the buffers full waits, its credit is used up,
and the publisher sends no more: memory is bounded by two batches and the windows of the flows. What a batch that is repeated needs finds
room always.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from roskva.capture.positions import Position
from roskva.capture.spark.buffers import Buffers
from roskva.capture.spark.columns import Row, row_of
from roskva.capture.spark.offsets import BEGINNING, Offset
from roskva.capture.spark.options import Options
from roskva.capture.subscriber import Callbacks, Shard, Subscriber
from roskva.capture.subscriber.service import WINDOW_BYTES
from roskva.capture.updates import Update
from roskva.errors import BadRequest, RoskvaError, ServiceUnreachable

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0  # how often what could not be acknowledged is tried again, and what is missing is looked for
REPEAT_S_MAX: Final = 600.0  # that a batch which is repeated may take to come; then the query ends, and whoever restarts it tries again
MISSING_S: Final = 60.0  # after which it is logged that a shard is not here
WINDOW_BYTES_MIN: Final = 2**16


class Receiving(Callbacks):
    def __init__(self, options: Options) -> None:
        self._options = options
        self._buffers = Buffers(options.fail_on_data_loss)
        self._subscriber = Subscriber(
            options.application,
            options.secret(),
            options.publishers,
            self,
            window_bytes=max(WINDOW_BYTES_MIN, min(WINDOW_BYTES, options.bytes_max)),
            tls=options.tls(),
        )
        self._came = asyncio.Event()
        self._left = asyncio.Event()
        self._repeating = BEGINNING  # the end of a batch that Spark waits for
        self._acknowledging: dict[Shard, Position] = {}  # done, and the publisher does not know it yet
        self._dropped: set[Shard] = set()  # whose flow has ended, and the last that it brought is not in the buffers
        self._problem: RoskvaError | None = None
        self._looking: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self, at: Offset) -> None:
        self._buffers.at(at)
        await self._subscriber.start()
        self._looking = asyncio.create_task(self._look())

    async def stop(self) -> None:
        self._stopping = True
        self._left.set()
        if self._looking is not None:
            self._looking.cancel()
        await self._subscriber.stop()

    # What Spark asks.

    async def end_after(self, start: Offset, updates_max: int, wait_s: float, committed_us_max: int | None = None) -> Offset:
        """The end of the next batch; `start` itself, if no update comes within `wait_s`."""
        self._finished(start)
        deadline_s = asyncio.get_running_loop().time() + wait_s
        while True:
            self._check()
            self._came.clear()
            end = self._buffers.end_after(start, updates_max, self._options.bytes_max, committed_us_max)
            if end.beyond(start):
                return end
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._came.wait()
            except TimeoutError:
                return start

    async def quiet_end(self, start: Offset) -> Offset:
        """As far as no updates are: the end of an empty batch."""
        return self._buffers.end_after(start, 0, 0)

    async def between(self, start: Offset, end: Offset) -> dict[int, list[Row]]:
        """The rows of a batch. They are here, unless it is one of a run before this one: then they come again."""
        self._finished(start)
        self._repeating = end
        self._left.set()
        try:
            async with asyncio.timeout(REPEAT_S_MAX):
                while True:
                    self._check()
                    self._came.clear()
                    found = self._buffers.between(start, end)
                    if found is not None:
                        return found
                    await self._came.wait()
        except TimeoutError:
            raise ServiceUnreachable(
                f"The last batch of the checkpoint did not come again within {REPEAT_S_MAX:.0f} s. "
                f"{self._missing() or 'Was the filter of the application changed?'}"
            ) from None
        finally:
            self._repeating = BEGINNING

    async def acknowledge(self, end: Offset) -> None:
        for number, reached in end.shards.items():
            self._acknowledging[Shard(end.dataset, number)] = reached.acknowledgement
        self._acknowledge()

    async def receives(self) -> bool:
        """Whether any flow is here."""
        return bool(self._subscriber.shards)

    # What the publishers say.

    def on_shard_notice(self, shard: Shard) -> None:
        self._dropped.discard(shard)
        datamarker = self._subscriber.shards.get(shard)
        if datamarker is None:
            return  # it has ended already
        try:
            self._buffers.of(shard.dataset)
        except RoskvaError as error:
            self._fail(error)
            return
        self._buffers.opened(shard.number, datamarker)
        self._came.set()

    async def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:
        while not self._has_room(shard.number):
            if self._stopping or shard not in self._subscriber.shards:
                # The flow has ended: these come again, from its datamarker on. The library takes them for dealt with, and asks for a
                # token behind them: were the buffers told so, these would be dropped as known when they come.
                self._dropped.add(shard)
                return
            self._left.clear()
            await self._wait_for_room()
        if self._problem is None:
            self._buffers.put(shard.number, [row_of(update.change) for update in updates])
            self._came.set()

    def on_token(self, shard: Shard, datamarker: Position) -> bool:
        """It is acknowledged when a batch that ends there is done, and not before."""
        if self._problem is None and shard not in self._dropped:
            self._buffers.sent(shard.number, datamarker)
        return False

    def on_data_loss(self, shard: Shard, after: Position, upto: Position) -> None:
        if self._problem is None:
            self._buffers.lost(shard.number, after, upto)
            self._came.set()

    def _has_room(self, shard: int) -> bool:
        buffers, options = self._buffers, self._options
        # Two batches: one that Spark works on, one that follows it.
        if buffers.count < 2 * options.updates_max and buffers.size < 2 * options.bytes_max:
            return True
        return buffers.behind(shard, self._repeating)

    async def _wait_for_room(self) -> None:
        try:
            async with asyncio.timeout(LOOK_S):
                await self._left.wait()
        except TimeoutError:
            return

    def _finished(self, upto: Offset) -> None:
        self._buffers.at(upto)
        self._left.set()

    # Now and then.

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        complete_s = loop.time()
        while True:
            await asyncio.sleep(LOOK_S)
            self._acknowledge()
            self._came.set()  # so that who waits sees what has become of the publishers
            if not self._missing():
                complete_s = loop.time()
            elif loop.time() - complete_s >= MISSING_S:
                complete_s = loop.time()
                log.warning("The query of application %r lacks flows. %s", self._options.application, self._missing())

    def _acknowledge(self) -> None:
        for shard, position in list(self._acknowledging.items()):
            try:
                told = self._subscriber.acknowledge(shard, position)
            except BadRequest:
                continue  # after an interruption: the flow is not there again yet
            if told:
                del self._acknowledging[shard]

    def _check(self) -> None:
        if self._problem is not None:
            raise self._problem
        self._buffers.raise_if_lost()
        problems = self._subscriber.problems
        if len(problems) == len(self._options.publishers) and not any(problem.transient for problem in problems.values()):
            raise next(iter(problems.values()))  # all have refused: waiting does not help

    def _missing(self) -> str:
        """What is not here, and why. Empty: nothing is known to be."""
        here = {shard.number for shard in self._subscriber.shards}
        missing = set(range(self._options.shards or 0)) - here if self._options.shards else set(self._buffers.shards) - here
        problems = "; ".join(f"{address}: {problem.what}" for address, problem in self._subscriber.problems.items())
        if not missing and here:
            return ""
        names = ", ".join(map(str, sorted(missing)[:10])) or "all"
        return f"Shards that no publisher gives us: {names} ({len(missing) or 'all'}). {problems}".rstrip()

    def _fail(self, error: RoskvaError) -> None:
        self._problem = self._problem or error
        self._came.set()
