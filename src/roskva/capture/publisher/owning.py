"""Which flows this publisher owns, and their datamarkers (Wormhole 3.3.1, 3.3.2).

A round, every `beat_s`: show that we live and what of the log we can read, look who else does and what is written of every flow, and do
what `decide` (ownership.py) says.
Datamarkers that were acknowledged while the last ones were being written go together in the next write. All that blocks runs in one thread
of its own. A publisher with peers that cannot reach the datamarkers for longer than its peers wait for it drops its flows: another one has
them by then.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar, cast

from roskva.capture.actions import Action, Store
from roskva.capture.core import Core
from roskva.capture.datamarkers import Beat, Claim, Datamarkers, Mark
from roskva.capture.interface import Datastore
from roskva.capture.ownership import Duty, FlowName, Liveness, Reach, Record, decide, fit_for, order_of
from roskva.capture.positions import Position
from roskva.capture.publisher.about import about_of, elsewhere_of, reach_from
from roskva.capture.publisher.placing import Placing
from roskva.capture.publisher.settings import PublisherSettings, Start
from roskva.errors import BadRequest, LogCut, RoskvaError

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5
LEASE_SHARE: Final = 0.7  # of takeover_s, after which a publisher that cannot beat stops by itself
PUBLISHER: Final = "publisher:"  # members that are publishers
ORDER: Final = "order:"  # a note: the publishers of an application, the first first
PAUSED: Final = "paused:"  # a note: why a flow is paused

Answer = TypeVar("Answer")


class Seen(NamedTuple):
    members: dict[str, Beat]
    records: dict[FlowName, Record]
    notes: Mapping[str, bytes]


class Owning:
    def __init__(
        self,
        core: Core,
        settings: PublisherSettings,
        store: Datamarkers,
        datastore: Datastore,
        placing: Placing,
        perform: Callable[[list[Action]], None],
        reach: Callable[[], Reach | None],
    ) -> None:
        """`reach`: what of the log can be read here; None: nothing can, since a while."""
        self.settings = settings
        self.held: dict[FlowName, int] = {}  # the epoch
        self.foreign: dict[FlowName, Record] = {}  # what is written, and not ours
        self.problem: RoskvaError | None = None
        self._core = core
        self._store = store
        self._datastore = datastore
        self._placing = placing
        self._perform = perform
        self._reach = reach
        self._liveness = Liveness(PUBLISHER + settings.name, settings.takeover_s, settings.steady_s)
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "datamarkers")
        self._pending: dict[FlowName, tuple[Position, int]] = {}
        self._writing = asyncio.Lock()
        self._round = asyncio.Lock()
        self._wake = asyncio.Event()
        self._more = asyncio.Event()
        self._handing: set[FlowName] = set()
        self._drained: set[FlowName] = set()
        self._releasing: asyncio.Task[None] | None = None
        self._fewer = asyncio.Event()
        self._beaten_s = self._loop.time()
        self.stopping = False

    async def _blocking(self, call: Callable[[], Answer]) -> Answer:
        return await self._loop.run_in_executor(self._thread, call)

    async def _slow(self, call: Callable[[], Answer]) -> Answer:
        """For what may take long, such as looking for a time in the log: our counter moves meanwhile, so that nobody takes our flows."""
        work = self._loop.run_in_executor(None, call)
        while not (await asyncio.wait([work], timeout=self.settings.beat_s))[0]:
            began_s, about = self._loop.time(), self._about()
            with suppress(RoskvaError):  # the next round says so
                await self._blocking(partial(self._store.beat, PUBLISHER + self.settings.name, about))
                self._beaten_s = began_s
        return work.result()

    def _about(self) -> bytes:
        return about_of(self._reach(), self._placing.placed() if len(self.settings.peers) > 1 else {})

    # Datamarkers.

    def store(self, action: Store) -> None:
        self._pending[action.flow] = (action.position, action.epoch)
        self._more.set()

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
        async with self._writing:
            self._more.clear()  # also if what waited here was dropped in the meantime: there is nothing to wake up for
            while self._pending:
                batch, self._pending = self._pending, {}
                marks = [Mark(flow, position, epoch) for flow, (position, epoch) in batch.items()]
                try:
                    refused = set(await self._blocking(partial(self._store.store, marks)))
                except BaseException:
                    self._pending = batch | self._pending
                    self._more.set()
                    raise
                self.problem = None
                for flow, position, epoch in marks:
                    if flow in refused:
                        self._lost(flow, epoch)
                    else:
                        self._perform(self._core.stored(flow, position, epoch))

    def _lost(self, flow: FlowName, epoch: int) -> None:
        """Another one owns it."""
        if self.held.get(flow) == epoch:
            log.warning("The flow %s has another owner now.", flow)
            self._no_longer_hold(flow)
            self._pending.pop(flow, None)
            self._perform(self._core.fenced(flow, epoch))
            self._placing.disowned(flow)

    # Ownership.

    def look_soon(self) -> None:
        self._wake.set()

    async def look_for_ever(self) -> None:
        while True:
            try:
                await self.look()
                self.problem = None
            except RoskvaError as error:
                self.problem = error
                log.warning("The place of the datamarkers does not answer, which is tried again: %s", error)
            try:
                async with asyncio.timeout(self.settings.beat_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def look(self) -> None:
        """One round."""
        async with self._round:
            if not self.stopping:
                await self._look()

    async def _look(self) -> None:
        began_s = self._loop.time()
        about = self._about()
        seen = await self._blocking(lambda: self._see(about))
        self._beaten_s = began_s
        publishers = {name: beat for name, beat in seen.members.items() if name.startswith(PUBLISHER)}
        reaches = {name: reach for name, beat in publishers.items() if (reach := reach_from(beat.about)) is not None}
        self._liveness.observe({name: beat.counter for name, beat in publishers.items()}, reaches, self._loop.time())
        me = PUBLISHER + self.settings.name
        self._placing.elsewhere = elsewhere_of(
            [publishers[name].about for name in self._liveness.live if name in publishers and name != me]
        )
        self._watch(seen.records)
        if self.stopping:
            return
        self._pause({flow: why.decode() for flow in seen.records if (why := seen.notes.get(f"{PAUSED}{flow}")) is not None})
        claims, releases = self._decide(seen, reaches)
        if releases:
            await self._blocking(lambda: self._store.release(releases, self.settings.name))
        if claims:
            won = await self._blocking(lambda: self._store.take(claims, self.settings.name))
            for flow, epoch in won.items():
                await self._begin(flow, epoch, seen.records.get(flow))

    def _pause(self, paused: Mapping[FlowName, str]) -> None:
        """By the notes, which an operator may have left at another publisher."""
        before = self._placing.paused
        for flow in before.keys() - paused.keys():
            self._placing.resume(flow)
        for flow in paused.keys() - before.keys():
            self._placing.pause(flow, paused[flow])

    def _see(self, about: bytes) -> Seen:
        self._store.beat(PUBLISHER + self.settings.name, about)
        return Seen(self._store.members(), self._store.records(), self._store.notes())

    def _watch(self, records: Mapping[FlowName, Record]) -> None:
        """The log is kept for flows of others, too: we may have to go on with them."""
        for flow in self.foreign.keys() - records.keys():
            self._core.unwatch(flow)
        self.foreign = {flow: record for flow, record in records.items() if flow not in self.held}
        for flow, record in self.foreign.items():
            if record.datamarker is not None:
                self._core.watch(flow, record.datamarker)

    def _decide(self, seen: Seen, reaches: Mapping[str, Reach]) -> tuple[list[Claim], list[FlowName]]:
        """What to take, and what to release that is not held. What else there is to do is begun."""
        live = {name.removeprefix(PUBLISHER) for name in self._liveness.live}
        able = {name.removeprefix(PUBLISHER): reaches[name] for name in self._liveness.able}
        steady = {name.removeprefix(PUBLISHER) for name in self._liveness.steady}
        claims, releases = [], []
        for application, settings in self.settings.applications.items():
            note = seen.notes.get(ORDER + application)
            noted = tuple(json.loads(note)) if note else ()
            for shard in range(self.settings.shards.shards):
                flow = FlowName(application, shard)
                order = noted or order_of(self.settings.peers, settings.regions.get(shard, ""))
                record = seen.records.get(flow)
                me, held = self.settings.name, self.held.get(flow, 0)
                duty = decide(me, held, record, order or (me,), live, fit_for(record, able), steady)
                if duty is Duty.TAKE:
                    claims.append(Claim(flow, 0 if record is None else record.epoch))
                elif duty is Duty.RELEASE:
                    releases.append(flow)
                elif duty is Duty.STOP:
                    self._lost(flow, self.held[flow])
                elif duty is Duty.HAND_OVER:
                    self.hand_over(flow)
        return claims, releases

    async def _begin(self, flow: FlowName, epoch: int, record: Record | None) -> None:
        settings = self.settings.applications.get(flow.application)
        if settings is None:
            return
        datamarker = None if record is None else record.datamarker
        if datamarker is not None:
            actions = self._core.add(flow, settings.terms, datamarker, epoch, True, self._loop.time())
        else:
            position = await self._slow(lambda: self.position(settings.start))
            actions = self._core.add(flow, settings.terms, position, epoch, False, self._loop.time())
        self.held[flow] = epoch
        self.foreign.pop(flow, None)
        self._perform(actions)
        self._placing.owned(flow, self._loop.time())

    def position(self, start: Start) -> Position:
        """Blocks."""
        if isinstance(start, Position):
            return start
        if start == "end":
            return self._datastore.retained().end
        if start == "oldest":
            return self._datastore.retained().oldest
        try:
            return self._datastore.at_time(float(start))
        except LogCut as error:
            return cast(Position, error.oldest)  # it wished for more than there is

    def hand_over(self, flow: FlowName) -> None:
        """Stop sending, wait for what is under way, store the datamarker, release."""
        if flow in self.held and flow not in self._handing:
            self._handing.add(flow)
            self._placing.take_back(flow, lambda: self._no_process_has(flow), self._loop.time())

    def _no_process_has(self, flow: FlowName) -> None:
        self._drained.add(flow)
        if self._releasing is None or self._releasing.done():
            self._releasing = self._loop.create_task(self._release())

    async def _release(self) -> None:
        """All that was drained, in one go."""
        while self._drained:
            async with self._round:  # so that no round, which has seen the flows as ours, takes them again
                flows, self._drained = [flow for flow in self._drained if flow in self.held], set()
                try:
                    await self.write()
                    # From here on nothing of these flows is sent or stored by us, so that the next owner may go on.
                    self._stop(flows)
                    await self._blocking(partial(self._store.release, flows, self.settings.name))
                except RoskvaError as error:
                    # If they are still ours, the next round takes them again under another epoch.
                    log.warning("%d flows could not be released: %s", len(flows), error)
                    self._stop(flows)

    def _stop(self, flows: list[FlowName]) -> None:
        stored = {status.flow: status.stored or status.datamarker for status in self._core.flows()}
        for flow in flows:
            if flow in self.held:
                self._perform(self._core.remove(flow))
                self._core.watch(flow, stored[flow])
                self._no_longer_hold(flow)
                self._placing.disowned(flow)

    def _no_longer_hold(self, flow: FlowName) -> None:
        del self.held[flow]
        self._handing.discard(flow)
        self._fewer.set()

    def tick(self) -> None:
        """Drop all flows if nobody has seen us for too long. With nobody else who could have taken over, there is nothing to fear."""
        if self.held and len(self.settings.peers) > 1 and self._loop.time() - self._beaten_s > LEASE_SHARE * self.settings.takeover_s:
            log.error("The place of the datamarkers was not reached for so long that others may have taken over: all flows are dropped.")
            for flow, epoch in list(self.held.items()):
                self._lost(flow, epoch)

    # Operators.

    async def rewind(self, flows: Sequence[FlowName], to: Start) -> Position:
        """The datamarker of all of them is this now. Raises BadRequest, and nothing is done, if one is not ours to rewind; and if some were
        lost meanwhile, which it names: the others are rewound.

        First the processes that have them finish what they have begun: two never work on one shard at a time. Whoever asked may go away
        meanwhile: it is done all the same.
        """
        position = await self._slow(lambda: self.position(to))
        rewinding = self._loop.create_task(self._rewind(flows, position))
        rewinding.add_done_callback(_noted)
        await asyncio.shield(rewinding)
        return position

    async def _rewind(self, flows: Sequence[FlowName], position: Position) -> None:
        if refused := [flow for flow in flows if flow not in self.held or flow in self._handing]:
            raise BadRequest(f"The flow {refused[0]} is not this publisher's, or is just being handed over: ask its next owner.")
        await asyncio.gather(*map(self._taken_back, flows))
        try:
            async with self._round:
                lost = [str(flow) for flow in flows if not await self._rewound(flow, position)]
        finally:
            for flow in flows:
                self._handing.discard(flow)
                if flow in self.held:
                    self._placing.owned(flow, self._loop.time())
        if lost:
            raise BadRequest(f"{', '.join(lost)} went to another publisher meanwhile: ask that one.")

    async def _taken_back(self, flow: FlowName) -> None:
        closed = asyncio.Event()
        self._handing.add(flow)
        self._placing.take_back(flow, closed.set, self._loop.time())
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * self.settings.close_s_max):
                await closed.wait()

    async def _rewound(self, flow: FlowName, position: Position) -> bool:
        """Of a flow that no process has. False: it is not ours any more."""
        if flow not in self.held:
            return False
        epoch = await self._blocking(lambda: self._store.rewind(flow, self.settings.name, position))
        if epoch:
            self._pending.pop(flow, None)
            self.held[flow] = epoch
            self._perform(self._core.rewind(flow, position, epoch))
        else:
            self._lost(flow, self.held[flow])
        return bool(epoch)

    async def forget(self, flows: list[FlowName]) -> None:
        async with self._round:
            for flow in flows:
                if flow in self.held:
                    self._no_longer_hold(flow)
                    self._pending.pop(flow, None)
                    self._perform(self._core.remove(flow))
                    self._placing.disowned(flow)
                self.foreign.pop(flow, None)
                self._core.unwatch(flow)
            await self._blocking(lambda: self._store.forget(flows))

    async def note(self, name: str, value: bytes) -> None:
        await self._blocking(lambda: self._store.note(name, value))
        self.look_soon()

    def configured(self, before: PublisherSettings, now_s: float) -> None:
        """After `settings` was replaced: flows of applications that are gone are released, and the log is kept for them until an operator
        removes them; flows whose terms changed begin anew from their datamarkers.
        """
        flows = {status.flow: status for status in self._core.flows()}
        for flow, epoch in list(self.held.items()):
            settings = self.settings.applications.get(flow.application)
            if settings is None:
                self.hand_over(flow)
            elif settings.terms != before.applications[flow.application].terms and flow not in self._handing:
                stored = flows[flow].stored  # what was acknowledged since, and is not durable yet, comes again
                begins = flows[flow].datamarker if stored is None else stored
                self._perform(self._core.add(flow, settings.terms, begins, epoch, stored is not None, now_s))
                self._placing.detached_by_core(flow, now_s)
        self.look_soon()

    async def stop(self, wait_s: float) -> None:
        """Hand all flows over, to whoever comes; as long as that takes, but not longer than this."""
        self.stopping = True
        for flow in list(self.held):
            self.hand_over(flow)
        try:
            async with asyncio.timeout(wait_s):
                while self.held:
                    self._fewer.clear()
                    await self._fewer.wait()
        except TimeoutError:
            log.warning("%d flows were not closed in time: what they were sent since their datamarkers comes again.", len(self.held))
        try:
            await self.write()
            await self._blocking(lambda: self._store.leave(PUBLISHER + self.settings.name))
        except RoskvaError as error:
            log.warning("The publisher could not say that it leaves: %s", error)
        if self._releasing is not None:
            self._releasing.cancel()
            await asyncio.gather(self._releasing, return_exceptions=True)

    def close(self) -> None:
        """After the tasks that use it have ended."""
        self._thread.shutdown(wait=False)


def _noted(task: asyncio.Task[None]) -> None:
    """Nobody may be left to hear of it."""
    if not task.cancelled() and isinstance(task.exception(), RoskvaError):
        log.warning("A flow could not be rewound: %s", task.exception())
