"""A Registrar over real SQLite engines, and channels whose other end is the test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from roskva.config import Settings
from roskva.feed import FeedLanes, open_feed
from roskva.feed.interface import REGISTRATIONS
from roskva.model import ClientId, Propagation, Registration
from roskva.protocol.messages import Ack, ClientMessage, Init, Register, ServerMessage, decode_server
from roskva.protocol.summaries import SetDigest
from roskva.protocol.tokens import Claims, Keyring
from roskva.registrar.cells import client_row
from roskva.registrar.events import decode_registration
from roskva.registrar.members import Member, MemberView, member_cell
from roskva.registrar.row import ClientRow
from roskva.registrar.service import Registrar
from roskva.table import TableLanes, open_table

KEYRING = Keyring({1: b"k" * 32})


class Clock:
    """A clock that only the test moves."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class HeldChannel:
    """A channel whose other end is the test."""

    def __init__(self) -> None:
        self.session: object | None = None
        self.received: list[ServerMessage] = []
        self.closed_with: str | None = None
        self.arrived = asyncio.Event()
        self.on_message: Callable[[ServerMessage], None] | None = None

    def send(self, data: bytes) -> None:
        message = decode_server(data)
        self.received.append(message)
        self.arrived.set()
        if self.on_message is not None:
            self.on_message(message)

    def close(self, code: str) -> None:
        self.closed_with = code

    async def until(self, wanted: Callable[[ServerMessage], Any], timeout_s: float = 15.0) -> ServerMessage:
        async with asyncio.timeout(timeout_s):
            while True:
                for message in self.received:
                    if wanted(message):
                        return message
                self.arrived.clear()
                await self.arrived.wait()


class Place:
    """One Registrar over a data directory."""

    def __init__(
        self,
        settings: Settings,
        member: str = "m1",
        others: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.engine = open_table(settings)
        self.feed = open_feed(settings)
        self.table_lanes = TableLanes(self.engine, settings.partitions)
        self.feed_lanes = FeedLanes(self.feed)
        self.members = MemberView(timeout_s=5.0)
        cells = [member_cell(Member(one, "127.0.0.1:1", "127.0.0.1:2"), 1) for one in (member, *others)]
        self.members.observe(cells, 0.0)
        self.registrar = Registrar(
            settings,
            self.table_lanes,
            self.feed_lanes,
            KEYRING,
            member,
            self.members,
            epoch_of=lambda application: self.engine.manifest.seen().epochs.get(application, 0),
            clock=clock,
            wall_clock=wall_clock,
        )

    async def close(self) -> None:
        await self.registrar.stop()
        await self.table_lanes.close()
        await self.feed_lanes.close()

    def say(self, channel: HeldChannel, message: ClientMessage) -> None:
        claims = KEYRING.verify(message.token) if message.token else None
        self.registrar.receive(channel, message, claims)

    async def start_client(self, channel: HeldChannel, device: str = "d1", prior: str | None = None) -> str:
        nonce = f"n{len(channel.received)}"
        self.say(channel, ClientMessage(init=Init(nonce=nonce, application="demo", device=device, prior=prior)))
        granted = await channel.until(lambda m: m.grant and m.grant.nonce == nonce)
        assert granted.grant is not None
        token = granted.grant.token
        self.say(channel, ClientMessage(token=token, summary=SetDigest().summary()))
        await channel.until(lambda m: m.token == token and not m.grant)
        return token

    def claims(self, token: str) -> Claims:
        return KEYRING.verify(token)

    def client(self, token: str) -> ClientId:
        return self.claims(token).client

    def row(self, token: str) -> ClientRow:
        client = self.client(token)
        key = client_row(client, self.settings.partitions)
        return ClientRow(client, self.engine.read([key])[key].values())

    def events(self) -> list[Registration]:
        newest = self.feed.newest(REGISTRATIONS)
        return [
            decode_registration(record.value)
            for partition, position in newest.items()
            for record in self.feed.read(REGISTRATIONS, partition, 0, position.offset)
        ]

    async def register(self, channel: HeldChannel, token: str, name: str, op: int = 1) -> Registration:
        before = len(self.events())
        self.say(channel, ClientMessage(token=token, register=[Register(op=op, object=name)]))
        async with asyncio.timeout(15):
            while len(events := self.events()) == before:
                await asyncio.sleep(0.005)
        return max(events, key=lambda event: event.seqno)


def acknowledging(place: Place, channel: HeldChannel, token: str) -> None:
    """From now on the client acknowledges whatever it is told, at once."""

    def answer(message: ServerMessage) -> None:
        acks = [Ack(object=n.object, seqno=n.seqno, version=n.version, epoch=n.epoch) for n in message.notify]
        if acks:
            asyncio.get_running_loop().call_soon(place.say, channel, ClientMessage(token=token, acks=acks))

    channel.on_message = answer


def told(event: Registration, outcome: int, version: int = 0) -> Propagation:
    return Propagation(event.client, event.object, event.seqno, outcome, version)


@asynccontextmanager
async def serving(place: Place) -> AsyncIterator[Place]:
    await place.registrar.start()
    try:
        yield place
    finally:
        await place.close()
