"""Which flows this publisher owns (Wormhole 3.3.1, 3.3.2).

A round, every `beat_s`: show that we live and what of the log we can read, look who else does and what is written of every flow, and do
what `decide` (ownership.py) says. All that blocks runs in one thread of its own; what may take long, in another. A publisher with peers
that cannot reach the datamarkers for longer than its peers wait for it drops its flows: another one has them by then. Long, since what a
round does to a flow and what an operator does to it must exclude each other, which is seen best in one place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from roskva.capture.actions import Action
from roskva.capture.core import Core
from roskva.capture.datamarkers import Claim, Datamarkers
from roskva.capture.interface import Datastore
from roskva.capture.limits import take_back_s_max
from roskva.capture.ownership import Duty, FlowName, Reach, Record, decide, fit_for, order_of
from roskva.capture.positions import Position
from roskva.capture.publisher.about import WISHED, about_of, elsewhere_of
from roskva.capture.publisher.beginning import Beginning, position_in
from roskva.capture.publisher.notes import BEYOND, Stopped, notes_of, order_noted, paused_of, stopped_of
from roskva.capture.publisher.peers import Peers, Seen
from roskva.capture.publisher.placing import Placing
from roskva.capture.publisher.settings import PublisherSettings, Start
from roskva.capture.publisher.storing import Storing
from roskva.errors import BadRequest, RoskvaError

log = logging.getLogger(__name__)

LEASE_SHARE: Final = 0.7  # of takeover_s, after which a publisher that cannot beat stops by itself
# Why a flow is closed:
HANDED_OVER: Final = "the flow goes to another publisher"
REWOUND: Final = "an operator rewinds the flow"
OTHER_SETTINGS: Final = "its application has other settings"

Answer = TypeVar("Answer")


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
        self.stopped: dict[FlowName, Stopped] = {}  # beyond.py
        self.round = asyncio.Lock()  # held while ownership and datamarkers change
        self._problem: RoskvaError | None = None  # with the place of the datamarkers
        self._core = core
        self._store = store
        self._datastore = datastore
        self._placing = placing
        self._perform = perform
        self._reach = reach
        self.peers = Peers(store, settings.name, settings.takeover_s, settings.steady_s)
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "datamarkers")
        self.storing = Storing(core, store, datastore, self._thread, perform, self._lost)
        self._wake = asyncio.Event()
        self._beginning = Beginning(self.find, self.look_soon)
        self._handing: set[FlowName] = set()
        self._drained: set[FlowName] = set()
        self._releasing: asyncio.Task[None] | None = None
        self._fewer = asyncio.Event()
        self._beaten_s = self._loop.time()
        self.stopping = False

    @property
    def problems(self) -> list[RoskvaError]:
        return [problem for problem in (self._problem, self.storing.problem, *self._beginning.problems.values()) if problem is not None]

    async def _blocking(self, call: Callable[[], Answer]) -> Answer:
        return await self._loop.run_in_executor(self._thread, call)

    def _about(self) -> bytes:
        if len(self.settings.peers) < 2:
            return about_of(self._reach(), {}, [])
        return about_of(self._reach(), self._placing.placed(), self.settings.applications, self._placing.wished())

    # Ownership.

    def _lost(self, flow: FlowName, epoch: int) -> None:
        """Another one owns it."""
        if self.held.get(flow) == epoch:
            log.warning("The flow %s has another owner now.", flow)
            self._no_longer_hold(flow)
            self.storing.drop(flow)
            self._perform(self._core.fenced(flow, epoch))
            self._placing.disowned(flow)

    def look_soon(self) -> None:
        self._wake.set()

    async def look_for_ever(self) -> None:
        while True:
            try:
                await self.look()
                self._problem = None
            except RoskvaError as error:
                self._problem = error
                log.warning("The place of the datamarkers does not answer, which is tried again: %s", error)
            try:
                async with asyncio.timeout(self.settings.beat_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def look(self) -> None:
        """One round."""
        async with self.round:
            if not self.stopping:
                await self._look()

    async def _look(self) -> None:
        began_s = self._loop.time()
        about = self._about()
        seen = await self._blocking(lambda: self._see(about))
        self._beaten_s = began_s
        self.peers.observe(seen, self._loop.time())
        abouts = self.peers.others.values()
        self._placing.elsewhere, self._placing.elsewhere_wished = elsewhere_of(abouts), elsewhere_of(abouts, WISHED)
        self._watch(seen.records)
        if self.stopping:
            return
        self.stopped = stopped_of(seen.notes, seen.records)
        self._placing.pause_only(paused_of(seen.notes, seen.records))
        claims, releases = self._decide(seen)
        if releases:
            await self._blocking(lambda: self._store.release(releases, self.settings.name))
        marked = {flow: record.datamarker for flow, record in seen.records.items() if record.datamarker is not None}
        await self._take([claim for claim in claims if claim.flow in marked], marked, True)
        await self._take_first([claim for claim in claims if claim.flow not in marked])

    def _see(self, about: bytes) -> Seen:
        self.peers.beat(about)
        self.storing.keep()
        return self.peers.read()

    def _watch(self, records: Mapping[FlowName, Record]) -> None:
        """The log is kept for flows of others, too: we may have to go on with them."""
        for flow in self.foreign.keys() - records.keys():
            self._core.unwatch(flow)
        self.foreign = {flow: record for flow, record in records.items() if flow not in self.held}
        for flow, record in self.foreign.items():
            if record.datamarker is not None:
                self._core.watch(flow, record.datamarker)

    def _decide(self, seen: Seen) -> tuple[list[Claim], list[FlowName]]:
        """What to take, and what to release that is not held. What else there is to do is begun."""
        live, able, steady = self.peers.live, self.peers.able, self.peers.steady
        claims, releases = [], []
        for application, settings in self.settings.applications.items():
            noted = order_noted(seen.notes, application)
            for shard in range(self.settings.shards.shards):
                flow = FlowName(application, shard)
                order = order_of(self.settings.peers, settings.regions.get(shard, ""), noted)
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

    async def _take_first(self, claims: Sequence[Claim]) -> None:
        """Flows that have no datamarker yet are taken when it is known where they begin, which a round of before has begun to look for.
        Where that cannot be said, nobody owns them, and it is looked for again. All together: those that begin at the end let go of the log
        that others begin with.
        """
        begins = self._beginning.of([claim.flow for claim in claims], self.settings.applications)
        for flow, position in begins.items():
            self._core.watch(flow, position)
        try:
            await self._take([claim for claim in claims if claim.flow in begins], begins, False)
        finally:
            for flow in begins.keys() - self.held.keys():
                self._core.unwatch(flow)

    async def _take(self, claims: Sequence[Claim], begins: Mapping[FlowName, Position], stored: bool) -> None:
        """`stored`: `begins` are their datamarkers, and not only where they begin."""
        if not claims:
            return
        won = await self._blocking(lambda: self._store.take(claims, self.settings.name))
        if self.stopping:  # whoever hands flows over did not see these
            await self._blocking(lambda: self._store.release(list(won), self.settings.name))
            return
        for flow, epoch in won.items():
            settings = self.settings.applications.get(flow.application)
            if settings is not None:
                actions = self._core.add(flow, settings.terms, begins[flow], epoch, stored, self._loop.time())
                self.held[flow] = epoch
                self.foreign.pop(flow, None)
                self._perform(actions)
                self._placing.owned(flow, self._loop.time())

    def hand_over(self, flow: FlowName) -> None:
        """Stop sending, wait for what is under way, store the datamarker, release."""
        if flow in self.held and flow not in self._handing:
            self._handing.add(flow)
            self._placing.take_back(flow, HANDED_OVER, lambda: self._no_process_has(flow), self._loop.time())

    def _no_process_has(self, flow: FlowName) -> None:
        self._drained.add(flow)
        if self._releasing is None or self._releasing.done():
            self._releasing = self._loop.create_task(self._release())

    async def _release(self) -> None:
        """All that was drained, in one go."""
        while self._drained:
            async with self.round:  # so that no round, which has seen the flows as ours, takes them again
                flows, self._drained = [flow for flow in self._drained if flow in self.held], set()
                try:
                    await self.storing.write()
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

    async def find(self, place: Start) -> Position:
        """May take long, and so keeps none of our threads from anything else."""
        return await self._loop.run_in_executor(None, position_in, self._datastore, place)

    async def rewind(self, flows: Sequence[FlowName], to: Start) -> Position:
        """The datamarker of all of them is this now. Raises BadRequest, and nothing is done, if one is not ours to rewind; and if some were
        lost meanwhile, which it names: the others are rewound.

        First the processes that have them finish what they have begun: two never work on one shard at a time. Whoever asked may go away
        meanwhile: it is done all the same.
        """
        position = await self.find(to)
        rewinding = self._loop.create_task(self._rewind(flows, position))
        rewinding.add_done_callback(_noted)
        await asyncio.shield(rewinding)
        return position

    async def _rewind(self, flows: Sequence[FlowName], position: Position) -> None:
        if refused := [flow for flow in flows if flow not in self.held or flow in self._handing]:
            raise BadRequest(f"The flow {refused[0]} is not this publisher's, or is just being handed over: ask its next owner.")
        await asyncio.gather(*map(self._taken_back, flows))
        try:
            async with self.round:
                lost = [str(flow) for flow in flows if not await self._rewound(flow, position)]
        finally:
            for flow in flows:
                self._handing.discard(flow)
                self._go_on(flow)
        if lost:
            raise BadRequest(f"{', '.join(lost)} went to another publisher meanwhile: ask that one.")

    async def _taken_back(self, flow: FlowName) -> None:
        closed = asyncio.Event()
        self._handing.add(flow)
        self._placing.take_back(flow, REWOUND, closed.set, self._loop.time())
        with suppress(TimeoutError):
            async with asyncio.timeout(take_back_s_max(self.settings.close_s_max)):
                await closed.wait()

    async def _rewound(self, flow: FlowName, position: Position) -> bool:
        """Of a flow that no process has. False: it is not ours any more."""
        if flow not in self.held:
            return False
        epoch = await self._blocking(lambda: self._store.rewind(flow, self.settings.name, position))
        if epoch:
            self.storing.drop(flow)
            self.held[flow] = epoch
            self._perform(self._core.rewind(flow, position, epoch))
            if flow in self.stopped:
                await self.note(f"{BEYOND}{flow}", b"")  # the next round lets it go on
        else:
            self._lost(flow, self.held[flow])
        return bool(epoch)

    async def forget(self, application: str) -> list[FlowName]:
        """All flows of it, and what was noted of them. Raises BadRequest if another publisher has it, or takes it just now: that one would
        begin anew with flows of which nothing is known any more, and skip what they had not got to."""
        async with self.round:
            seen = await self._blocking(self.peers.read)
            claims = [Claim(flow, record.epoch) for flow, record in sorted(seen.records.items()) if flow.application == application]
            self.peers.observe(seen, self._loop.time())
            if having := self.peers.having(application, seen.records):
                raise BadRequest(
                    f"Other publishers that live have the application {application!r}, too: {', '.join(having)}. Take it out of"
                    " the settings of each, restart it, and remove the application then; what is still a publisher's own, at that one."
                )
            self._stop([claim.flow for claim in claims])
            taken = await self._blocking(partial(self._forget, claims, notes_of(seen.notes, application)))
            flows = [claim.flow for claim in claims if claim.flow not in taken]
            for flow in flows:
                self.storing.drop(flow)
                self.foreign.pop(flow, None)
                self._core.unwatch(flow)
        if taken:
            raise BadRequest(
                f"Another publisher has just taken {', '.join(map(str, taken))}, which stay: ask again, and it says which one."
            )
        return flows

    def _forget(self, claims: Sequence[Claim], notes: Sequence[str]) -> list[FlowName]:
        """The answer: those that somebody took meanwhile, for whom the notes stay, too. Whoever is interrupted before they are gone asks
        again: they go then, though there are no flows any more."""
        taken = self._store.forget(claims)
        for name in () if taken else notes:
            self._store.note(name, b"")
        return taken

    async def note(self, name: str, value: bytes) -> None:
        await self._blocking(lambda: self._store.note(name, value))
        self.look_soon()

    def configured(self, before: PublisherSettings, now_s: float) -> None:
        """After `settings` was replaced, as soon as no process has them: flows of applications that are gone are released, and the log is
        kept for them until an operator removes them; flows whose terms changed begin anew from their datamarkers.
        """
        for flow in list(self.held):
            settings, known = self.settings.applications.get(flow.application), before.applications.get(flow.application)
            if flow not in self._handing and (settings is None or known is None or settings.terms != known.terms):
                self._placing.take_back(flow, OTHER_SETTINGS, partial(self._go_on, flow), now_s)
        self.look_soon()

    def _go_on(self, flow: FlowName) -> None:
        """No process has it, and what the settings say of it may have changed meanwhile."""
        settings = self.settings.applications.get(flow.application)
        if settings is None or self.stopping:
            self.hand_over(flow)
        elif flow in self.held:
            self._perform(self._core.ask_anew(flow, settings.terms, self._loop.time()))
            self._placing.owned(flow, self._loop.time())

    async def stop(self, wait_s: float) -> None:
        """Hand all flows over, to whoever comes; as long as that takes, but not longer than this."""
        self.stopping = True
        for flow in list(self.held):
            self.hand_over(flow)
        try:
            async with asyncio.timeout(wait_s):
                async with self.round:
                    pass  # one that is under way may have taken more, and releases them
                while self.held:
                    self._fewer.clear()
                    await self._fewer.wait()
        except TimeoutError:
            log.warning("%d flows were not closed in time: what they were sent since their datamarkers comes again.", len(self.held))
        try:
            await self.storing.write()
            await self._blocking(self.peers.leave)
        except RoskvaError as error:
            log.warning("The publisher could not say that it leaves: %s", error)
        await self._beginning.stop()
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
