"""The publisher's process: opens what the settings name, publishes until it is told to stop, says in time that the log fills its disk."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from roskva.address import bound_socket
from roskva.capture.datamarkers import Datamarkers, open_datamarkers
from roskva.capture.filtering import for_updates
from roskva.capture.filters import EVERYTHING
from roskva.capture.flows import Terms
from roskva.capture.interface import Datastore, Signing
from roskva.capture.limits import Limits
from roskva.capture.ownership import Peer
from roskva.capture.publisher import ApplicationSettings, Publisher, PublisherSettings
from roskva.capture.publisher.notes import secret_of
from roskva.capture.publisher.status import passed_over
from roskva.capture.running.places import CONTROL, check_places, datamarkers_of, key_of
from roskva.capture.running.tls import for_publisher
from roskva.capture.running.unchanged import check_unchanged
from roskva.capture.settings import Application, CaptureSettings
from roskva.capture.stores.opening import datastore_of, free_bytes, place_of_disk
from roskva.capture.watching import Level, log_share, metrics_text
from roskva.durable import private_directory
from roskva.errors import CaptureRefused, DatastoreUnavailable, Unavailable

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5
RETRY_S_MAX: Final = 10.0
LOOK_S: Final = 5.0  # how often it is looked whether the log fills what there is for it
REMIND_S: Final = 600.0  # how often a trouble that stays is said again
REQUEST_BYTES_MAX: Final = 8_192
REQUEST_S_MAX: Final = 10.0
BEATS_MIN: Final = 10  # that a peer must miss before it counts as dead

Made = TypeVar("Made")


def publisher_settings(settings: CaptureSettings) -> PublisherSettings:
    """Of the file's settings what the publisher takes. Makes the key, if an application needs it and there is none."""
    check_places(settings)
    given = settings.publisher
    return PublisherSettings(
        name=given.name,
        listen=given.listen,
        control=given.data / CONTROL,
        applications={name: _application(settings, name, one) for name, one in settings.applications.items()},
        shards=settings.dataset.sharding,
        peers=tuple(Peer(*peer.split("@")) for peer in given.peers),
        limits=Limits(
            policy=given.policy,
            caravans_max=given.caravans_max,
            caravan_rate_max=given.caravan_rate_max_bytes_per_s,
            caravans_rate_total_max=given.caravans_rate_total_max_bytes_per_s,
            datamarker_period_s=given.datamarker_period_s,
        ),
        memory_mib_max=given.memory_mib_max,
        beat_s=min(1.0, given.takeover_s / BEATS_MIN),
        takeover_s=given.takeover_s,
        steady_s=given.takeover_s / 2,
    )


def _application(settings: CaptureSettings, name: str, given: Application) -> ApplicationSettings:
    return ApplicationSettings(
        key=key_of(settings, name),
        passes=None if given.wanted == EVERYTHING else for_updates(given.wanted),
        terms=Terms(given.real_time_only, given.max_age_s, given.max_staleness_s),
        start=given.start,
        balance=given.strategy,
        regions=dict.fromkeys(range(settings.dataset.shards), given.region) if given.region else {},
    )


async def publish(
    settings: CaptureSettings,
    stop: asyncio.Event,
    metrics: str = "",
    datamarkers: str = "",
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Run the publisher until `stop`.

    `metrics`: HOST:PORT for Prometheus. `datamarkers`: their place, if not that of the settings. `ready` is told the publisher's address
    when it reads and listens.
    """
    place_of_datamarkers = datamarkers_of(settings, datamarkers)
    given, tls = publisher_settings(settings), for_publisher(settings)
    private_directory(settings.publisher.data)
    async with AsyncExitStack() as stack:
        datastore = datastore_of(settings)
        stack.push_async_callback(asyncio.to_thread, datastore.close)
        marks = await _waited_for("The datamarkers", lambda: open_datamarkers(place_of_datamarkers, settings.dataset.name), stop)
        if marks is None:
            return
        stack.push_async_callback(asyncio.to_thread, marks.close)
        if await _waited_for("The datastore", lambda: _prepared(datastore, marks), stop) is None:
            return
        await asyncio.to_thread(check_unchanged, marks, settings.dataset, datastore.identity)
        publisher = Publisher(given, datastore, marks, tls)
        starting = asyncio.create_task(publisher.start())
        if not await _first(starting, stop):
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            return
        stack.push_async_callback(publisher.stop)
        place = await asyncio.to_thread(place_of_disk, settings)
        publisher.disk_free_bytes = lambda: free_bytes(place)
        watch = asyncio.create_task(Watch(publisher, place).for_ever(), name="watch")
        stack.push_async_callback(_ended, watch)
        if metrics:
            await stack.enter_async_context(_MetricsServer(metrics, lambda: metrics_text(publisher.status(), free_bytes(place))))
        ready(publisher.address)
        assert publisher.failed is not None
        await _first(publisher.failed, stop)


def _prepared(datastore: Datastore, datamarkers: Datamarkers) -> Datastore:
    """Publication and slot are there. Once there are flows, what is refused is no reason not to start: the others go on, and the publisher
    looks again every ten seconds, and says in its status what is missing, as if it had not been away. At a first start a person is there,
    who has mistaken something."""
    if isinstance(datastore, Signing):
        datastore.sign_with(partial(secret_of, datamarkers))
    try:
        datastore.prepare()
    except CaptureRefused as refused:
        if not datamarkers.records():
            raise
        log.error("The datastore is not as it should be, which is looked at again while it is read: %s", refused)
        try:
            datastore.retained()
        except CaptureRefused as error:
            raise DatastoreUnavailable(error.what) from None  # nothing can be asked of it: it is waited for
    return datastore


async def _waited_for(what: str, make: Callable[[], Made], stop: asyncio.Event) -> Made | None:
    """What `make` answers, in a thread; again and again for as long as that is unavailable. None: it shall stop."""
    delay_s = RETRY_S
    while not stop.is_set():
        try:
            return await asyncio.to_thread(make)
        except Unavailable as error:
            log.warning("%s cannot be prepared yet, which is tried again in %.1f s: %s", what, delay_s, error)
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await stop.wait()
        delay_s = min(RETRY_S_MAX, delay_s * 2)
    return None


async def _first(work: asyncio.Future[None], stop: asyncio.Event) -> bool:
    """Wait for either. True: the work is done, and was not in vain; what it raised is raised."""
    stopped = asyncio.create_task(stop.wait())
    either: list[asyncio.Future[Any]] = [work, stopped]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _ended(stopped)
    if not work.done():
        return False
    work.result()
    return True


async def _ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class Watch:
    """Says in time that the log fills what there is for it, and again while that is so; and that it has lines that cannot be read."""

    def __init__(self, publisher: Publisher, place: Path | None) -> None:
        self._publisher = publisher
        self._place = place
        self._level = Level.FINE
        self._said_s = 0.0
        self._malformed = 0

    async def for_ever(self) -> None:
        while True:
            try:
                self.look(time.monotonic())
            except Exception:
                log.exception("It could not be looked how full the log is.")
            await asyncio.sleep(LOOK_S)

    def look(self, now_s: float) -> None:
        self._look_at_lines()
        self._look_at_share(now_s)

    def _look_at_lines(self) -> None:
        malformed = self._publisher.malformed()
        if malformed is not None and malformed.lines > self._malformed:
            self._malformed = malformed.lines
            for problem in passed_over(malformed):
                log.error("%s", problem)

    def _look_at_share(self, now_s: float) -> None:
        retained = self._publisher.retained
        held = log_share({"bytes_behind": retained.bytes_behind, "bytes_max": retained.bytes_max}, free_bytes(self._place))
        if held.share is None and self._level is not Level.FINE:
            return  # nobody knows: that is no reason to say that all is well again
        before, self._level = self._level, held.level
        if self._level is Level.FINE:
            if before is not Level.FINE:
                log.warning("The log that is held for capture is %.0f %% of %s again.", 100 * (held.share or 0.0), held.limit)
            return
        if self._level is before and now_s - self._said_s < REMIND_S:
            return
        self._said_s = now_s
        log.log(
            logging.ERROR if self._level is Level.ALARM else logging.WARNING,
            "The log that is held for capture is %.0f %% of %s. At 100 %% it is cut, or the disk is full and the database stops. "
            "`roskva capture status` shows which flow is behind: bring its subscriber back, or take it out of the settings and "
            "`roskva capture remove` it, which drops what it has not read.",
            100 * (held.share or 0.0),
            held.limit,
        )


class _MetricsServer:
    """GET, whatever the path: the text of now. Nothing else, and no framework for it."""

    def __init__(self, listen: str, text: Callable[[], str]) -> None:
        self._listen = listen
        self._text = text
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> None:
        self._server = await asyncio.start_server(self._serve, sock=bound_socket(self._listen), limit=REQUEST_BYTES_MAX)

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                request = await reader.readuntil(b"\r\n\r\n")
                if request.startswith(b"GET "):
                    body = self._text().encode()
                    head = f"200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {len(body)}"
                else:
                    body, head = b"", "405 Method Not Allowed\r\nAllow: GET\r\nContent-Length: 0"
                writer.write(f"HTTP/1.1 {head}\r\nConnection: close\r\n\r\n".encode() + body)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked is gone, or does not speak HTTP
        finally:
            writer.close()
