"""What happens when: events of that table in docs/architecture.md, against a real service. Some have files of their own.

A gateway or pipeline that dies: test_kill.py, test_two_gateways.py. Lost files: test_loss.py. Bad input: tests/gateway.
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import roskva
from roskva.config import Settings
from roskva.model import ClientId
from roskva.registrar.cells import CREATED, SEEN, client_row, read_created
from roskva.table import open_table
from roskva.table.interface import Mutation, Table

from .load import Listener
from .relay import Relay
from .service import Service

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

WAIT_S = 60.0


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {WAIT_S:.0f} s") from None


def fresh_names(count: int) -> list[str]:
    run = uuid.uuid4().hex[:8]
    return [f"happens-{run}-{number}" for number in range(count)]


async def test_messages_are_lost_repeated_and_reordered(service: Service) -> None:
    names = fresh_names(10)
    async with (
        Relay(service.url, lost=0.2, repeated=0.3, delayed_max_s=0.05, seed=7) as relay,
        roskva.Publisher(service.url, application="demo") as publisher,
    ):
        listeners = [Listener(relay.url) for _ in range(4)]
        for listener in listeners:
            await listener.client.start()
            for name in names:
                await listener.client.register(name)
        for version in range(1, 6):
            await asyncio.gather(*(publisher.publish(name, version) for name in names))
            await asyncio.sleep(0.2)
        for listener in listeners:
            await until(listener.has_all(names, 5), "the last version of every object")
            shown = [[version for name, version in listener.told if name == one and version is not None] for one in names]
            assert all(versions == sorted(set(versions)) for versions in shown), "a version was shown twice, or after a later one"
            await listener.client.close()
        assert relay.counts["lost"] >= 5
        assert relay.counts["repeated"] >= 5


async def test_a_client_restarts_and_nothing_is_sent_again(service: Service, tmp_path: Path) -> None:
    names = fresh_names(3)
    state = tmp_path / "client.state"
    async with roskva.Publisher(service.url, application="demo") as publisher:
        for name in names:
            await publisher.publish(name, 1)
        first = Listener(service.url, state)
        async with first.client:
            for name in names:
                await first.client.register(name)
            await until(lambda: all(first.has(name, 1)() or (name, None) in first.told for name in names), "the first versions")
            for name in names:
                await publisher.publish(name, 2)
            await until(first.has_all(names, 2), "the second versions")
            await first.client.synced(WAIT_S)
            for name in names:
                await _matched(service, name, 2)
            await asyncio.sleep(0.5)  # the pipeline comes after the fast path: who leaves before is told again
        again = Listener(service.url, state)
        async with again.client:
            for name in names:
                await again.client.register(name)
            await again.client.synced(WAIT_S)
            await asyncio.sleep(1.0)  # what would be resent is resent within a second
            assert again.told == []
            await publisher.publish(names[0], 3)
            await until(again.has(names[0], 3), "what changed after the restart")
            assert again.told == [(names[0], 3)]


async def test_a_client_was_offline_and_hears_once_of_each_object_that_changed(service: Service, tmp_path: Path) -> None:
    names = fresh_names(4)
    state = tmp_path / "client.state"
    async with roskva.Publisher(service.url, application="demo") as publisher:
        first = Listener(service.url, state)
        async with first.client:
            for name in names:
                await first.client.register(name)
            await first.client.synced(WAIT_S)
        for version in range(1, 31):
            await asyncio.gather(*(publisher.publish(name, version) for name in names[:3]))
        await _matched(service, names[2], 30)
        again = Listener(service.url, state)
        async with again.client:
            for name in names:
                await again.client.register(name)
            await until(again.has_all(names[:3], 30), "the latest versions")
            await again.client.synced(WAIT_S)
        assert sorted(again.told) == [(name, 30) for name in names[:3]]


async def test_a_collected_client_starts_anew_and_is_told_unknown(service: Service, tmp_path: Path) -> None:
    (name,) = fresh_names(1)
    state = tmp_path / "client.state"
    first = Listener(service.url, state)
    async with first.client:
        await first.client.register(name)
        await first.client.synced(WAIT_S)
        device = first.client.device
    table = open_table(Settings(data=service.data))
    try:
        _not_seen_for_years(table, device)
        swept = await asyncio.to_thread(service.run, "sweep", "collect", "--data", str(service.data), timeout_s=120)
        assert swept.returncode == 0, swept.stdout + swept.stderr
        assert not _rows(table, device), "the row is still there"
    finally:
        table.close()
    again = Listener(service.url, state)
    async with again.client:
        await again.client.register(name)
        await until(lambda: (name, None) in again.told, "unknown")
        await again.client.synced(WAIT_S)
        async with roskva.Publisher(service.url, application="demo") as publisher:
            await publisher.publish(name, 9)
        await until(again.has(name, 9), "the next version")


async def test_a_gateway_hangs_and_everyone_is_told_when_it_is_back(service: Service) -> None:
    """Stopped for some seconds only: the pipeline writes in its stead, and its clients are still connected when it goes on."""
    names = fresh_names(5)
    listener = Listener(service.url)
    async with listener.client, roskva.Publisher(service.url, application="demo", retry_for_s=120) as publisher:
        for name in names:
            await listener.client.register(name)
        await listener.client.synced(WAIT_S)
        gateway = service.child("gateway")
        assert gateway is not None
        publishing = [asyncio.create_task(publisher.publish(name, 1)) for name in names]
        os.kill(gateway, signal.SIGSTOP)
        try:
            await asyncio.sleep(4.0)
        finally:
            os.kill(gateway, signal.SIGCONT)
        await asyncio.wait_for(asyncio.gather(*publishing), WAIT_S)
        await until(listener.has_all(names, 1), "what was published around the hang")
        await listener.client.synced(WAIT_S)


async def _matched(service: Service, name: str, version: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while await asyncio.to_thread(_version_of, service, name) != version:
            await asyncio.sleep(0.1)


def _version_of(service: Service, name: str) -> int:
    try:
        return int(service.get(f"/v1/objects/demo/{name}")["version"])
    except OSError:  # not known yet
        return -1


def _rows(table: Table, device: str) -> list[ClientId]:
    """The living clients of this device."""
    return [
        ClientId(key.decode())
        for partition in range(Settings().partitions)
        for key, row in table.scan("registrar", partition, limit=100_000)
        if (created := read_created(row.get(CREATED))) is not None and created.device == device
    ]


def _not_seen_for_years(table: Table, device: str) -> None:
    (client,) = _rows(table, device)
    row = client_row(client, Settings().partitions)
    table.forget([Mutation(row, [table.read([row])[row][SEEN]])])
