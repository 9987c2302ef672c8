"""A gateway of the simulated world: the real Registrar, router, links, membership and publishing, over simulated stores and streams."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from roskva.errors import Unavailable
from roskva.gateway.commands import Commands
from roskva.gateway.hinting import REST_S_MAX, Hinting
from roskva.gateway.intake import Intake
from roskva.gateway.links import InternalPort, Links
from roskva.gateway.members import Membership
from roskva.gateway.publish import Publishing
from roskva.gateway.routing import Party, Router
from roskva.model import Stamps, Update
from roskva.protocol.messages import Notify
from roskva.registrar.fast import Bounds
from roskva.registrar.members import Member, MemberView
from roskva.registrar.rounds import TICK_S
from roskva.registrar.service import Registrar
from roskva.registrar.sessions import Session
from roskva.simulation.processes import Process
from roskva.simulation.stores import Epochs, FeedFront, TableFront
from roskva.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from roskva.simulation.backends import Backend
    from roskva.simulation.clients import ClientEnd
    from roskva.simulation.world import World

_RESET_S = 0.05
_SHORT_MEMORY = 100  # notifications


class GatewayEnd:
    """A client's connection as the gateway has it (gateway.routing.Connection)."""

    def __init__(self, gateway: SimulatedGateway, client: ClientEnd) -> None:
        self.number = 0
        self.token = ""
        self.owner: str | None = None
        self.malformed = 0
        self.address = ""
        self.party = Party("", "")
        self.session: object | None = None
        self.open = True
        self._gateway = gateway
        self._client = client

    def send(self, data: bytes) -> None:
        if self.open:
            client, world = self._client, self._gateway.world
            # A dead client's machine is reached again, and says that nobody is there. Not where memory is short: nobody may wait for it.
            if not client.process.alive and not world.faulty and world.knobs.outstanding_max > _SHORT_MEMORY:
                world.loop.call_later(_RESET_S, self.gone, context=self._gateway.process.context.copy())
            world.network.post(self._gateway.process, client.process, lambda: client.received(data))

    def close(self, code: str) -> None:
        if self.open:
            self.gone()
            client = self._client
            self._gateway.world.network.post(self._gateway.process, client.process, client.lost)

    def received(self, data: bytes) -> None:
        if self.open:
            self._gateway.router.received(self, data)

    def gone(self) -> None:
        """The connection is no more, and this side knows it."""
        if self.open:
            self.open = False
            self._gateway.ends.pop(self, None)
            self._gateway.router.closed(self)


class HeardRegistrar(Registrar):
    """The real one; a checker hears what it says to clients, at the moment at which it does."""

    heard: Callable[[Registrar, Session, Sequence[Notify]], None] | None = None

    def speak(self, session: Session, **what: Any) -> None:
        if self.heard is not None and what.get("notify"):
            self.heard(self, session, what["notify"])
        super().speak(session, **what)


class Rests:
    """A pace: busy by chance. One gateway in two never is."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._rest_s_max = chance.choice((0.0, 0.0, 0.02, REST_S_MAX))

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def rest_s(self, now_s: float) -> float:
        return self._chance.random() * self._rest_s_max


class SimulatedGateway:
    """One boot of a gateway."""

    def __init__(self, world: World, slot: int, boot: int) -> None:
        self.world = world
        self.slot = slot
        self.member_id = f"g{slot}-{boot}"
        self.address = f"gateway-{slot}-{boot}:1"
        chance = world.chance_for(f"gateway {self.member_id}")
        self.process = Process(
            self.member_id, world.loop, host=f"gateway-{slot}", wall_skew_s=world.skew_s(chance), calendar=world.calendar
        )
        self.serving = False
        self.ends: dict[GatewayEnd, None] = {}
        settings, process = world.settings, self.process
        epochs = Epochs(world.stores)
        table, feed = TableFront(world.stores, process, epochs), FeedFront(world.stores, process, epochs)
        self.metrics = Metrics()
        self.view = MemberView(settings.member_timeout_s)
        self.registrar = HeardRegistrar(
            settings,
            table,  # type: ignore[arg-type]
            feed,  # type: ignore[arg-type]
            world.keyring,
            self.member_id,
            self.view,
            epoch_of=epochs.of,
            clock=process.clock,
            wall_clock=process.wall_clock,
            tick_s=TICK_S * world.knobs.pace,
            unguessable=lambda size: base64.urlsafe_b64encode(chance.randbytes(size)).decode().rstrip("="),
        )
        if world.knobs.notify_interval_ms or world.knobs.own_interval_ms:
            self.registrar.heard = world.intervals.said
        self.links = Links(world.internal_key, self.member_id, lambda identity: self.membership.suspect(identity), random=chance.random)
        self.router = Router(settings, world.keyring, self.registrar, self.view, self.member_id, self.links, self.metrics)
        self.links.router = self.router
        self.internal_port = InternalPort(
            world.internal_key, self.member_id, self.router, self.registrar.propagate, self._hinted, self.metrics
        )
        member = Member(self.member_id, self.address, self.address)
        self.membership = Membership(table, self.view, member, settings.member_heartbeat_s, clock=process.clock)
        self.membership.observers.append(self._members_changed)
        turns = {"told_per_turn": 3, "waiting_max": 2} if world.knobs.tiny_turns else {}
        gathering = Hinting(self.registrar.fast.updated, Rests(world.chance_for(f"rests of {self.member_id}")), process.clock, **turns)
        # Rests hide a little, as what else worlds of even seeds have none of.
        self._tell_followed: Callable[[Sequence[Update], Sequence[Stamps]], object] = (
            gathering.hint if world.knobs.seed % 2 else self.registrar.fast.updated
        )
        hint = self._hint if settings.fast_path else None
        self._publishing = Publishing(settings, feed, epochs.of, self.metrics, clock=process.clock, hint=hint, trails=self.registrar.trails)
        if world.knobs.tiny_turns:
            self.registrar.fast.bounds = Bounds(crowd=2, told_per_turn=1, looked_at_per_turn=2, gathered_max=3, pause_s=0.05, crowds_max=2)
            self._publishing.large_bytes, self._publishing.piece = 0, 2
        self.intake = Intake(settings.publish_waiting_bytes_max, self.metrics, lambda: self.registrar.room.pressed)
        stores = world.stores
        self._commands = Commands(
            settings, feed, epochs.of, stores.raise_epoch, lambda application: stores.epochs.get(application, 0), process.clock
        )
        process.at_death(self._break_connections)

    def start(self) -> None:
        self.process.spawn(self._start())

    async def _start(self) -> None:
        """In the order of the real one: the Registrar, the internal port, membership, and only then clients."""
        await self.registrar.start()
        self.world.network.listen(self.process, self.address, self.internal_port.accept)
        while True:
            try:
                await self.membership.start()
                break
            except Exception as error:  # the real one gives up and is started again
                self.world.tell(self.process.name, f"cannot join the members: {error}")
                self.process.kill()
        self.serving = True

    async def publish(self, backend: Backend, body: bytes) -> bool:
        """A request to publish: whether all of it was accepted. As the HTTP front does it."""
        history = self.world.history
        if self.registrar.disk_full or not history.takes(backend):
            return False
        history.served += 1
        try:
            with self.intake.request(len(body)):
                status, _ = await self._publishing.publish(body)
            return status == 200
        except Unavailable:
            return False
        finally:
            history.served -= 1

    async def obey(self, command: str, body: bytes) -> dict[str, Any] | None:
        """A request of an operator: the answer, or None if it should be repeated."""
        try:
            return await (self._commands.reset(body) if command == "reset" else self._commands.invalidate(body))
        except Unavailable:
            return None

    def _hint(self, updates: Sequence[Update], stamps: Sequence[Stamps]) -> None:
        self.links.hint(updates, stamps)
        self._tell(updates, stamps)

    def _hinted(self, updates: Sequence[Update], stamps: Sequence[Stamps]) -> None:
        self.registrar.trails.noted(stamps)
        self._tell(updates, stamps)

    def _tell(self, updates: Sequence[Update], stamps: Sequence[Stamps]) -> None:
        followed, of_these = self.registrar.fast.followed(updates, stamps)
        if followed:
            self._tell_followed(followed, of_these)

    def press(self, reason: str) -> None:
        """As gateway.memory does when memory is short, and when it is not any more."""
        self.registrar.room.pressed = reason
        if reason:
            self.registrar.relieve()

    def fill_disk(self, reason: str) -> None:
        self.registrar.disk_full = reason

    async def stop(self) -> None:
        """A clean stop: leave the members, then end."""
        self.serving = False
        await self.membership.stop()
        self.process.kill()

    def _members_changed(self) -> None:
        self.links.members_changed(self.view.live)
        self.router.members_changed()

    def _break_connections(self) -> None:
        """The machine says so to the clients, where the network lets it."""
        for end in list(self.ends):
            client = end._client
            if not self.world.network.is_cut(self.process, client.process):
                self.world.loop.call_later(self.world.network.delay_s(), client.lost, context=client.process.context.copy())
        self.ends.clear()

    def accept(self, client: ClientEnd) -> GatewayEnd | None:
        if not self.serving:
            return None
        end = GatewayEnd(self, client)
        self.ends[end] = None
        self.router.opened(end)
        return end
