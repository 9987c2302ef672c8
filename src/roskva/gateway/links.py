"""The internal port of a gateway, and its links to the internal ports of the others.

A gateway calls every other living one. Over the link that it made go the messages and announcements of its own connections,
and what the owner answers to them; so each pair has two links, and each link has one direction of asking. The pipeline's
tasks call the same port with `Propagate`. Both sides prove that they know the internal key, and who is called does it first: on a dead
gateway's port somebody else may listen, and what is forwarded holds users' credentials. When a link is made, for the
first time or again, the caller announces its connections anew; when it breaks, the owner forgets them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from roskva.address import address_of, host_and_port
from roskva.gateway.frames import FrameConnection
from roskva.gateway.server import listening_socket
from roskva.model import UNAVAILABLE, Propagation, Stamps, Update
from roskva.protocol.internal import (
    NONCE_BYTES,
    Announce,
    Challenge,
    Closed,
    Deliver,
    Disconnect,
    Forward,
    Frame,
    Hello,
    Hints,
    Probe,
    Probed,
    Propagate,
    Propagated,
    Prove,
    SessionNoted,
    callee_proof,
    caller_proof,
    is_proof,
)
from roskva.registrar.members import Member
from roskva.registrar.sessions import Session
from roskva.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from roskva.gateway.routing import Router

log = logging.getLogger(__name__)

PROVE_S: Final = 5.0
CONNECT_S: Final = 2.0
RETRY_MIN_S: Final = 0.1
RETRY_MAX_S: Final = 2.0
HINTS_PER_FRAME_MAX: Final = 10_000
CALLS_MAX: Final = 256  # of one caller at once; more are answered with "unavailable"

PropagateCall = Callable[[list[Propagation], Sequence[Stamps]], Awaitable[list[int]]]


def _expire(connection: FrameConnection) -> None:
    if not connection.proven:
        connection.abort()


class RemoteChannel:
    """A client's connection at another gateway, as the Registrar here sees it."""

    __slots__ = ("_caller", "_metrics", "_note", "_number", "token")

    def __init__(self, caller: FrameConnection, number: int, metrics: Metrics) -> None:
        self._caller = caller
        self._number = number
        self._metrics = metrics
        self.token = ""
        self._note: object | None = None

    @property
    def session(self) -> object | None:
        return self._note

    @session.setter
    def session(self, note: object | None) -> None:
        """The gateway of the connection counts by it (gateway/admission.py), and closes those without a session."""
        before, self._note = self._note, note
        if isinstance(note, Session):
            self._caller.send(SessionNoted(self._number, note.application))
        elif isinstance(before, Session):
            self._caller.send(SessionNoted(self._number, ""))

    def send(self, data: bytes) -> None:
        if not self._caller.send(Deliver(self._number, data), may_be_lost=True):
            self._metrics.messages_dropped += 1

    def close(self, code: str) -> None:
        self._caller.send(Disconnect(self._number, code))


class InternalPort:
    """Where other gateways and the pipeline's tasks call."""

    def __init__(
        self,
        key: bytes,
        member: str,
        router: Router,
        propagate: PropagateCall,
        hinted: Callable[[Sequence[Update], Sequence[Stamps]], None],
        metrics: Metrics,
    ) -> None:
        self._key = key
        self._member = member
        self._router = router
        self._propagate = propagate
        self._hinted = hinted
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._callers: dict[FrameConnection, dict[int, RemoteChannel]] = {}
        self._calls: dict[FrameConnection, set[asyncio.Task[None]]] = {}

    async def start(self, listen: str) -> str:
        listener = listening_socket(listen)
        self._server = await asyncio.get_running_loop().create_server(self.accept, sock=listener)
        return address_of(*listener.getsockname()[:2])

    def accept(self) -> FrameConnection:
        """The protocol of a new caller's connection."""
        return FrameConnection(self._frame, self._made, self._lost)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        calls = [call for of_caller in self._calls.values() for call in of_caller]
        if calls:  # let what is under way be answered: the pipeline would only repeat it
            await asyncio.wait(calls, timeout=1.0)
        for caller in list(self._callers):
            caller.close()

    def _made(self, caller: FrameConnection) -> None:
        self._callers[caller] = {}
        self._calls[caller] = set()
        asyncio.get_running_loop().call_later(PROVE_S, _expire, caller)

    def _lost(self, caller: FrameConnection) -> None:
        for call in self._calls.pop(caller, ()):
            call.cancel()
        for channel in self._callers.pop(caller, {}).values():
            self._router.remote_closed(channel)

    def _frame(self, caller: FrameConnection, frame: Frame) -> None:
        if not caller.proven:
            self._prove(caller, frame)
            return
        match frame:
            case Propagate():
                self._begin(caller, frame)
            case Forward():
                self._router.forwarded(self._channel(caller, frame.connection), frame.data)
            case Announce():
                self._router.announced(self._channel(caller, frame.connection), frame.token)
            case Closed():
                channel = self._callers[caller].pop(frame.connection, None)
                if channel is not None:
                    self._router.remote_closed(channel)
            case Hints():
                self._hinted(frame.updates, frame.stamps)
            case Probe():
                caller.send(Probed(frame.call))
            case _:
                log.warning("a caller sent %s, which is not for this side", type(frame).__name__)

    def _prove(self, caller: FrameConnection, frame: Frame) -> None:
        if isinstance(frame, Hello) and caller.hello is None and frame.member == self._member and len(frame.nonce) == NONCE_BYTES:
            caller.hello, caller.nonce = frame, secrets.token_bytes(NONCE_BYTES)
            caller.send(Challenge(caller.nonce, callee_proof(self._key, frame, caller.nonce)))
        elif (
            isinstance(frame, Prove)
            and caller.hello is not None
            and is_proof(frame.mac, caller_proof(self._key, caller.hello, caller.nonce))
        ):
            caller.proven = True
        else:
            log.warning("a caller at the internal port does not know the key, or calls another gateway")
            caller.close()

    def _channel(self, caller: FrameConnection, number: int) -> RemoteChannel:
        channels = self._callers[caller]
        channel = channels.get(number)
        if channel is None:
            channel = channels[number] = RemoteChannel(caller, number, self._metrics)
        return channel

    def _begin(self, caller: FrameConnection, call: Propagate) -> None:
        calls = self._calls[caller]
        if len(calls) >= CALLS_MAX:
            caller.send(Propagated(call.call, [UNAVAILABLE] * len(call.propagations)))
            return
        task = asyncio.get_running_loop().create_task(self._answer(caller, call))
        calls.add(task)
        task.add_done_callback(calls.discard)

    async def _answer(self, caller: FrameConnection, call: Propagate) -> None:
        began_s = time.perf_counter()
        try:
            verdicts = await self._propagate(call.propagations, call.stamps)
        except Exception:
            log.exception("a call of the pipeline failed; its tuples are tried one by one")
            verdicts = [await self._propagate_alone(told) for told in call.propagations]
        self._metrics.propagate_calls += 1
        self._metrics.propagate_ms.observe((time.perf_counter() - began_s) * 1000)
        caller.send(Propagated(call.call, verdicts))

    async def _propagate_alone(self, told: Propagation) -> int:
        try:
            return (await self._propagate([told], ()))[0]
        except Exception:
            # Not the object: its name may be private.
            log.exception("a tuple of the pipeline could not be judged: client %s, registration %d", told.client, told.seqno)
            return UNAVAILABLE  # the caller writes in our stead when it has heard this often enough


class Link:
    """The connection to one other gateway, made again whenever it breaks, until `stop`."""

    def __init__(self, member: Member, links: Links) -> None:
        self.member = member
        self._links = links
        self._connection: FrameConnection | None = None
        self._broken = asyncio.Event()
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    @property
    def up(self) -> bool:
        return self._connection is not None and self._connection.proven and self._connection.open

    def send(self, frame: Frame) -> bool:
        if self._connection is None or not self._connection.proven:
            return False
        return self._connection.send(frame, may_be_lost=isinstance(frame, Forward | Hints))

    def stop(self) -> None:
        self._keeping.cancel()
        if self._connection is not None:
            self._connection.close()

    async def _keep(self) -> None:
        pause_s = RETRY_MIN_S
        host, port = host_and_port(self.member.internal)
        loop = asyncio.get_running_loop()
        while True:
            self._broken.clear()
            try:
                async with asyncio.timeout(CONNECT_S):
                    made = await loop.create_connection(lambda: FrameConnection(self._frame, self._made, self._lost), host, port)
                self._connection = made[1]
                await self._broken.wait()
                pause_s = RETRY_MIN_S if self._connection.proven else pause_s
            except ConnectionRefusedError:
                self._links.unanswered(self.member.id)
            except (OSError, TimeoutError) as error:
                log.warning("no link to member %s: %s", self.member.id, error)
            self._connection = None
            await asyncio.sleep(pause_s * (0.5 + self._links.random()))
            pause_s = min(RETRY_MAX_S, pause_s * 2)

    def _made(self, connection: FrameConnection) -> None:
        connection.hello = Hello(secrets.token_bytes(NONCE_BYTES), self._links.member, self.member.id)
        connection.send(connection.hello)
        asyncio.get_running_loop().call_later(PROVE_S, _expire, connection)

    def _lost(self, connection: FrameConnection) -> None:
        self._broken.set()

    def _prove(self, connection: FrameConnection, frame: Frame) -> None:
        key, hello = self._links.key, connection.hello
        if hello is None or not isinstance(frame, Challenge) or not is_proof(frame.mac, callee_proof(key, hello, frame.nonce)):
            log.warning("who listens at %s is not member %s, or does not know the key: told nothing", self.member.internal, self.member.id)
            connection.close()
            return
        connection.send(Prove(caller_proof(key, hello, frame.nonce)))
        connection.proven = True
        self._connection = connection  # the challenge may come before `_keep` runs again
        self._links.link_up(self.member.id)

    def _frame(self, connection: FrameConnection, frame: Frame) -> None:
        if not connection.proven:
            self._prove(connection, frame)
        elif isinstance(frame, Deliver):
            self._links.router.deliver(frame.connection, frame.data)
        elif isinstance(frame, SessionNoted):
            self._links.router.session_noted(frame.connection, frame.application)
        elif isinstance(frame, Disconnect):
            self._links.router.disconnect(frame.connection, frame.code)
        else:
            log.warning("member %s sent %s, which is not for this side", self.member.id, type(frame).__name__)


class Links:
    """The links to all other living members."""

    router: Router  # set by the service: routing and links need each other

    def __init__(self, key: bytes, member: str, unanswered: Callable[[str], None], random: Callable[[], float] = random.random) -> None:
        self.key = key
        self.random = random  # for pauses
        self.member = member
        self.unanswered = unanswered
        self._links: dict[str, Link] = {}
        self._hints: list[Update] = []  # of this turn of the event loop
        self._stamps: list[Stamps] = []

    def members_changed(self, live: dict[str, Member]) -> None:
        for identity in [identity for identity in self._links if identity not in live]:
            self._links.pop(identity).stop()
        for identity, member in live.items():
            if identity != self.member and identity not in self._links:
                self._links[identity] = Link(member, self)

    def link_up(self, identity: str) -> None:
        self.router.link_up(identity)

    def send(self, member: str, frame: Frame) -> bool:
        link = self._links.get(member)
        return link is not None and link.send(frame)

    def hint(self, updates: Sequence[Update], stamps: Sequence[Stamps] = ()) -> None:
        """Tell all others of updates that were accepted here, those of one turn of the event loop together: each tells its clients at its
        own pace. A link that is down or full passes on nothing."""
        if not self._links:
            return
        if not self._hints:
            asyncio.get_running_loop().call_soon(self._pass_hints)
        self._hints += updates
        self._stamps += stamps

    def _pass_hints(self) -> None:
        updates, self._hints = self._hints, []
        stamps, self._stamps = self._stamps, []
        for start in range(0, len(updates), HINTS_PER_FRAME_MAX):
            frame = Hints(updates[start : start + HINTS_PER_FRAME_MAX], [] if start else stamps)
            for link in self._links.values():
                link.send(frame)

    def stop(self) -> None:
        for link in self._links.values():
            link.stop()
        self._links.clear()
