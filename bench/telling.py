"""What it costs a Registrar to tell a client something, by what its application asks: in this process, over real SQLite, no pipeline.

Calls of the Matcher are made here, and clients are channels that acknowledge at once. So nothing but the Registrar's own work is counted,
which in a whole service is lost in the noise of everything else.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bench.guarded import PREFIX, Guard
from bench.load import until
from bench.service import BenchFailed
from roskva.access import Access
from roskva.config import Settings
from roskva.feed import FeedLanes, open_feed
from roskva.feed.interface import REGISTRATIONS
from roskva.model import OUTCOME_UPDATE, OUTCOME_VERSION, SETTLED, Propagation, Registration
from roskva.protocol.messages import Ack, ClientMessage, Init, Register, ServerMessage, decode_server
from roskva.protocol.summaries import SetDigest
from roskva.protocol.tokens import Claims, Keyring
from roskva.registrar.events import decode_registration
from roskva.registrar.members import Member, MemberView, member_cell
from roskva.registrar.service import Registrar
from roskva.table import TableLanes, open_table

CLIENTS: Final = 100
OBJECTS: Final = 5
CALLS: Final = 40
_WAIT_S: Final = 30.0
_KEYRING: Final = Keyring({1: secrets.token_bytes(32)})


class _Channel:
    """A client that acknowledges whatever it is told, at once."""

    def __init__(self, registrar: Registrar, application: str) -> None:
        self.session: object | None = None
        self.application = application
        self.token = ""
        self.told = 0
        self.granted = asyncio.Event()
        self._claims: Claims | None = None
        self._registrar = registrar
        self._loop = asyncio.get_running_loop()

    def send(self, data: bytes) -> None:
        message = decode_server(data)
        if message.notify:
            self.told += len(message.notify)
            acks = [Ack(object=one.object, seqno=one.seqno, version=one.version, epoch=one.epoch) for one in message.notify]
            self._loop.call_soon(self.say, ClientMessage(token=self.token, acks=acks))
        elif message.grant is not None:
            self._enter(message)

    def _enter(self, message: ServerMessage) -> None:
        assert message.grant is not None
        self.token = message.grant.token
        self._claims = _KEYRING.verify(self.token)
        self.granted.set()

    def close(self, code: str) -> None:
        raise BenchFailed(f"The Registrar closed a client's channel: {code}.")

    def say(self, message: ClientMessage) -> None:
        self._registrar.receive(self, message, self._claims)


class Registry:
    """A Registrar with clients of each application, all registered."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._feed = open_feed(settings)
        self._table_lanes = TableLanes(open_table(settings), settings.partitions)
        self._feed_lanes = FeedLanes(self._feed)
        members = MemberView(timeout_s=60.0)
        members.observe([member_cell(Member("bench", "127.0.0.1:1", "127.0.0.1:2"), 1)], 0.0)
        self._access = Access()
        self._registrar = Registrar(settings, self._table_lanes, self._feed_lanes, _KEYRING, "bench", members, access=self._access)
        self._channels: list[_Channel] = []
        self._registered: dict[str, list[Registration]] = {}
        self._version = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, guards: Sequence[Guard], clients: int = CLIENTS) -> AsyncIterator[Registry]:
        with tempfile.TemporaryDirectory(prefix="roskva-bench-") as folder:
            applications = {guard.kind.application: guard.settings for guard in guards}
            registry = cls(Settings(data=Path(folder), settling_s=0.0, applications=applications))
            try:
                await registry._registrar.start()
                for guard in guards:
                    await registry._join(guard, clients)
                yield registry
            finally:
                await registry._registrar.stop()
                await registry._access.close()
                await registry._table_lanes.close()
                await registry._feed_lanes.close()

    async def _join(self, guard: Guard, clients: int) -> None:
        names = [f"{PREFIX}told-{number}" for number in range(OBJECTS)]
        digest = SetDigest().summary()
        for number in range(clients):
            channel = _Channel(self._registrar, guard.kind.application)
            self._channels.append(channel)
            client = guard.kind(f"told-{number}", names, None)  # type: ignore[arg-type]
            client.prepare()
            init = Init(nonce="n", application=channel.application, device=client.device)
            channel.say(ClientMessage(init=init, credential=client.credential()))
            async with asyncio.timeout(_WAIT_S):
                await channel.granted.wait()
            wishes = [Register(op=place, object=name) for place, name in enumerate(names, 1)]
            channel.say(ClientMessage(token=channel.token, summary=digest, register=wishes))
        await self._take_effect(guard.kind.application, clients * OBJECTS)

    async def _take_effect(self, application: str, count: int) -> None:
        """As the Matcher would say it."""
        mine = {_KEYRING.verify(channel.token).client for channel in self._channels if channel.application == application}
        if not await until(lambda: sum(event.client in mine for event in self._events()) >= count, _WAIT_S):
            raise BenchFailed(f"Not all of {count:,} registrations were made.")
        self._registered[application] = found = [event for event in self._events() if event.client in mine]
        await self._propagate(found, OUTCOME_VERSION)

    def _events(self) -> list[Registration]:
        return [
            decode_registration(record.value)
            for partition, position in self._feed.newest(REGISTRATIONS).items()
            for record in self._feed.read(REGISTRATIONS, partition, 0, position.offset)
        ]

    async def _propagate(self, registered: Sequence[Registration], outcome: int) -> None:
        self._version += 1
        told = [Propagation(one.client, one.object, one.seqno, outcome, self._version) for one in registered]
        verdicts = await self._registrar.propagate(told)
        if verdicts.count(SETTLED) != len(told):
            raise BenchFailed("The Registrar did not take what the Matcher told it.")

    async def tell(self, application: str, calls: int = CALLS) -> tuple[int, float]:
        """So many updates of every object of an application: how many notifications, and their CPU seconds."""
        channels = [channel for channel in self._channels if channel.application == application]
        before, began_s = sum(channel.told for channel in channels), time.process_time()
        for _ in range(calls):
            await self._propagate(self._registered[application], OUTCOME_UPDATE)
        used_s = time.process_time() - began_s
        return sum(channel.told for channel in channels) - before, used_s
