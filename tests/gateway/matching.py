"""Matchers for one gateway, in its process and without Spark: one as small as the promise allows, and one with feed and table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from roskva.feed import REGISTRATIONS, UPDATES, Position, open_feed
from roskva.gateway.service import Gateway
from roskva.matcher.core import Batch, accept, collapse, match
from roskva.matcher.forms import Form, Malformed, Stamp, check, extract
from roskva.model import (
    OUTCOME_UNKNOWN,
    OUTCOME_UNREGISTERED,
    OUTCOME_UPDATE,
    OUTCOME_VERSION,
    SETTLED,
    UNAVAILABLE,
    ClientId,
    ObjectKey,
    Propagation,
    Registration,
    Update,
    object_key,
)
from roskva.registrar.events import decode_registration
from roskva.table import open_table


class SmallMatcher:
    """`async with` it; then registrations take effect by themselves, and `publish` returns when nothing more is owed."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._read: dict[int, int] = {}
        self._copies: dict[ObjectKey, dict[ClientId, int]] = {}
        self._versions: dict[ObjectKey, int] = {}
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    async def publish(self, name: str, version: int) -> None:
        key = object_key("demo", 0, name.encode())
        self._versions[key] = version
        copies = self._copies.get(key, {})
        await self._propagate([Propagation(client, key, seqno, OUTCOME_UPDATE, version) for client, seqno in copies.items()])

    async def _run(self) -> None:
        feed = open_feed(self._gateway.settings)
        while True:
            for partition, end in feed.newest(REGISTRATIONS).items():
                records = feed.read(REGISTRATIONS, partition, self._read.get(partition, 0), end.offset)
                self._read[partition] = end.offset
                await self._propagate([self._registered(record.value) for record in records])
            await asyncio.sleep(0.02)

    def _registered(self, value: bytes) -> Propagation:
        one = decode_registration(value)
        copies = self._copies.setdefault(one.object, {})
        if not one.registered:
            copies.pop(one.client, None)
            return Propagation(one.client, one.object, one.seqno, OUTCOME_UNREGISTERED, 0)
        copies[one.client] = one.seqno
        version = self._versions.get(one.object)
        outcome = OUTCOME_UNKNOWN if version is None else OUTCOME_VERSION
        return Propagation(one.client, one.object, one.seqno, outcome, version or 0)

    async def _propagate(self, propagations: list[Propagation]) -> None:
        async with asyncio.timeout(20):
            while propagations:
                verdicts = await self._gateway.registrar.propagate(propagations)
                propagations = [one for one, verdict in zip(propagations, verdicts, strict=True) if verdict != SETTLED]
                await asyncio.sleep(0.01 if propagations else 0)


def always(incarnation: int) -> Callable[[ObjectKey], int]:
    return lambda key: incarnation


async def run_matcher(gateway: Gateway) -> None:
    """What the pipeline does, batch by batch, without Spark: read, write, read, match, propagate."""
    settings = gateway.settings
    feed, table = open_feed(settings), open_table(settings)
    seen: dict[tuple[str, int], int] = {}
    while True:
        updates: list[Update] = []
        registrations: list[Registration] = []
        newest: dict[str, dict[int, Position]] = {topic: dict(feed.newest(topic)) for topic in (UPDATES, REGISTRATIONS)}
        for topic, positions in newest.items():
            for partition, end in positions.items():
                for record in feed.read(topic, partition, seen.get((topic, partition), 0), end.offset):
                    if topic == REGISTRATIONS:
                        registrations.append(decode_registration(record.value))
                        continue
                    fields = extract(record.value, Form())
                    update = fields if isinstance(fields, Malformed) else check(Stamp.decode(record.headers).application, 0, fields)
                    if isinstance(update, Update):
                        updates.append(update)
                seen[topic, partition] = end.offset
        batch: Batch = collapse(updates, registrations)
        if not batch.empty:
            incarnation = newest[UPDATES][0].incarnation
            accepted = accept(batch, settings.partitions, always(incarnation))
            table.write(accepted.writes)
            rows = table.read([*accepted.read_whole, *accepted.read_version])
            propagations = match(batch, rows, settings.partitions, always(incarnation))
            for _ in range(100):  # the pipeline, too, asks again for those whose rows could not be written
                verdicts = await gateway.registrar.propagate(propagations)
                propagations = [one for one, verdict in zip(propagations, verdicts, strict=True) if verdict == UNAVAILABLE]
                if not propagations:
                    break
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.05)
