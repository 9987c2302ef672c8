"""The process of Roskva's own subscriber: takes the flows of its application, publishes versions (notifying.py; Wormhole 3, Table 1)."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from roskva.capture.mapping import Mapper
from roskva.capture.notifying import HistoryFile, Notifier, Orders
from roskva.capture.running.places import HISTORY, NOTIFIER, key_of, reachable
from roskva.capture.running.tls import for_subscriber
from roskva.capture.settings import CaptureSettings
from roskva.capture.subscriber import Subscriber
from roskva.publisher import Publisher

log = logging.getLogger(__name__)

PUBLISH_S_MAX: Final = 2.0
STOP_S_MAX: Final = 5.0
REQUEST_S_MAX: Final = 10.0


@dataclass(slots=True)
class Notified:
    """What Roskva's own subscriber says of itself."""

    notifier: Notifier
    subscriber: Subscriber

    def status(self) -> dict[str, Any]:
        notifier = self.notifier
        problems = [error for error in (notifier.problem, *self.subscriber.problems.values()) if error is not None]
        return {
            "shards": {str(shard.number): str(position) for shard, position in sorted(self.subscriber.shards.items())},
            "published": notifier.published,
            "invalidated": notifier.invalidated,
            "resets": notifier.resets,
            "losses": notifier.losses,
            "refused": notifier.refused,
            "rows": dict(notifier.mapper.counts),
            "problems": [str(error) for error in problems],
        }


async def notify(
    settings: CaptureSettings, stop: asyncio.Event, admin_key: str = "", ready: Callable[[str], None] = lambda _: None
) -> None:
    """Run Roskva's own subscriber until `stop`. `admin_key`: of the operators, if the settings name no file with one."""
    given = settings.roskva
    assert given is not None
    data = settings.publisher.data
    application = settings.applications[given.subscription]
    publishers = application.publishers or (reachable(settings.publisher.listen),)
    async with AsyncExitStack() as stack:
        # The notifier itself tries again for as long as it takes, and says why it waits: what is under way when it stops is soon given up.
        backend = Publisher(given.url, application=given.application, key=given.key or None, retry_for_s=PUBLISH_S_MAX)
        await stack.enter_async_context(backend)
        orders = Orders(given.url, application=given.application, key=given.key or None, admin_key=given.admin_key or admin_key or None)
        stack.push_async_callback(orders.close)
        notifier = Notifier(Mapper(given.mapping), backend, orders, HistoryFile(data / HISTORY))
        # The same after a restart: its flows wait for nobody else.
        member = f"{socket.gethostname()}:{settings.publisher.name}:roskva"
        key, tls = key_of(settings, given.subscription), for_subscriber(settings, given.subscription)
        subscriber = Subscriber(given.subscription, key, publishers, notifier, member, tls=tls)
        notifier.began_after = lambda shard: subscriber.shards.get(shard)
        await subscriber.start()
        stack.push_async_callback(_stopped, subscriber)
        await stack.enter_async_context(_StatusSocket(data / NOTIFIER, Notified(notifier, subscriber)))
        ready(given.url)
        await stop.wait()


async def _stopped(subscriber: Subscriber) -> None:
    """What it has begun is finished and acknowledged, unless the service does not take it: then it comes again after the next start."""
    try:
        async with asyncio.timeout(STOP_S_MAX):
            await subscriber.stop()
    except TimeoutError:
        log.warning("What was captured is still not taken by the service: it comes again after the next start.")


class _StatusSocket:
    """One line of JSON for a line, whatever that says; its owner alone may ask."""

    def __init__(self, path: Path, notified: Notified) -> None:
        self._path = path
        self._notified = notified
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> None:
        self._path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._serve, self._path)
        finally:
            os.umask(before)

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                await reader.readline()
                writer.write(json.dumps({"ok": True, "answer": self._notified.status()}).encode() + b"\n")
                await writer.drain()
        except (OSError, TimeoutError, ValueError):
            pass  # whoever asked is gone
        finally:
            writer.close()
