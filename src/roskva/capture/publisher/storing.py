"""Datamarkers on their way to the place that keeps them (Wormhole 3.3.1).

Those that were acknowledged while the last ones were being written go together in the next write. What cannot be written waits, one
datamarker for each flow, and is tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from roskva.capture.actions import Action, Store
from roskva.capture.core import Core
from roskva.capture.datamarkers import Datamarkers, Mark
from roskva.capture.interface import Datastore, Remembering
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position
from roskva.errors import RoskvaError

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5


class Storing:
    def __init__(
        self,
        core: Core,
        store: Datamarkers,
        datastore: Datastore,
        thread: ThreadPoolExecutor,
        perform: Callable[[list[Action]], None],
        lost: Callable[[FlowName, int], None],
    ) -> None:
        """`thread`: for all that blocks. `lost`: this flow, of this epoch, has another owner now."""
        self.problem: RoskvaError | None = None
        self._core = core
        self._store = store
        self._datastore = datastore
        self._thread = thread
        self._perform = perform
        self._lost = lost
        self._pending: dict[FlowName, tuple[Position, int]] = {}
        self._writing = asyncio.Lock()
        self._more = asyncio.Event()

    def put(self, action: Store) -> None:
        self._pending[action.flow] = (action.position, action.epoch)
        self._more.set()

    def drop(self, flow: FlowName) -> None:
        """It has another owner, or another datamarker."""
        self._pending.pop(flow, None)

    async def write_for_ever(self) -> None:
        while True:
            await self._more.wait()
            try:
                await self.write()
            except RoskvaError as error:
                self.problem = error
                log.warning("Datamarkers are not stored, which is tried again: %s", error)
                await asyncio.sleep(RETRY_S)

    async def write(self) -> None:
        """All that is to be stored."""
        loop = asyncio.get_running_loop()
        async with self._writing:
            self._more.clear()  # also if what waited here was dropped in the meantime: there is nothing to wake up for
            while self._pending:
                batch, self._pending = self._pending, {}
                marks = [Mark(flow, position, epoch) for flow, (position, epoch) in batch.items()]
                try:
                    refused = set(await loop.run_in_executor(self._thread, partial(self._stored, marks)))
                except BaseException:
                    self._pending = batch | self._pending
                    self._more.set()
                    raise
                for flow, position, epoch in marks:
                    if flow in refused:
                        self._lost(flow, epoch)
                    else:
                        self._perform(self._core.stored(flow, position, epoch))
            self.problem = None

    def _stored(self, marks: Sequence[Mark]) -> list[FlowName]:
        """First what the datastore must know of what was read up to there: a datamarker of which it does not may skip something later."""
        self.keep()
        return self._store.store(marks)

    def keep(self) -> None:
        """Blocks."""
        if isinstance(self._datastore, Remembering):
            self._datastore.keep()
