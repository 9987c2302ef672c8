"""What the processes of `roskva capture` run: a publisher beside its datastore, and Roskva's own subscriber (Wormhole 3 and 5).

`publish` and `notify` run until they are told to stop, and raise what they cannot go on with; whoever started their process starts it
again, and both go on from the datamarkers. They are processes of their own, so that a service that does not take versions, or a mapping
that costs time, holds up nobody else's flow. Everything that must survive is in the data directory:

    datamarkers.sqlite   how far each flow has come, and who owns it
    control.sock         commands to the publisher (publisher/control.py)
    notifier.sock        what Roskva's own subscriber says of itself, as JSON, to whoever sends a line
    key                  the secret of applications that have none in the settings; made at the first start, its owner's alone
    history.json         the log's history that was published last

Reads no settings file, and knows nothing of command lines, signals or supervision: that is cli/capture_run.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from roskva.address import address_of, bound_socket, host_and_port, is_loopback
from roskva.capture.datamarkers import SqliteDatamarkers
from roskva.capture.filtering import for_updates
from roskva.capture.filters import EVERYTHING
from roskva.capture.flows import Terms
from roskva.capture.interface import Datastore
from roskva.capture.limits import Limits
from roskva.capture.mapping import Mapper
from roskva.capture.mending import Mended
from roskva.capture.notifying import HistoryFile, Notifier, Orders
from roskva.capture.ownership import Peer
from roskva.capture.publisher import ApplicationSettings, Publisher, PublisherSettings
from roskva.capture.settings import Application, CaptureSettings, Files, Mariadb, Postgres, Rocksdb
from roskva.capture.subscriber import Subscriber
from roskva.capture.watching import Level, log_share, metrics_text
from roskva.durable import private_directory, sync_directory
from roskva.errors import InvalidSetting, RoskvaError, Unavailable
from roskva.publisher import Publisher as Backend

log = logging.getLogger(__name__)

CONTROL: Final = "control.sock"
DATAMARKERS: Final = "datamarkers.sqlite"
NOTIFIER: Final = "notifier.sock"
KEY: Final = "key"
RETRY_S: Final = 0.5
RETRY_S_MAX: Final = 10.0
LOOK_S: Final = 5.0  # how often it is looked whether the log fills what there is for it
REMIND_S: Final = 600.0  # how often a trouble that stays is said again
SOCKET_PATH_BYTES_MAX: Final = 107  # of Linux, for a Unix socket
PUBLISH_S_MAX: Final = 2.0
STOP_S_MAX: Final = 5.0
REQUEST_BYTES_MAX: Final = 8_192
REQUEST_S_MAX: Final = 10.0


def datastore_of(settings: CaptureSettings) -> Datastore:
    """The datastore that the settings name. Its library is imported here, so that nobody needs those of the others."""
    store = settings.datastore
    if isinstance(store, Postgres):
        from roskva.capture.stores.postgres import PostgresSettings, PostgresStore

        return PostgresStore(PostgresSettings(store.dsn, store.slot, store.publication, store.tables, store.message_prefix))
    if isinstance(store, Mariadb):
        from roskva.capture.stores.mariadb import MariadbSettings, MariadbStore

        return MariadbStore(
            MariadbSettings(
                dataset=settings.dataset.name,
                host=store.host,
                port=store.port,
                unix_socket=store.unix_socket,
                user=store.user,
                password=store.password,
                tls_ca=store.tls_ca,
                domain=store.domain,
            )
        )
    if isinstance(store, Rocksdb):
        from roskva.capture.stores.rocksdb import RocksDBDatastore

        return RocksDBDatastore(store.path, store.database)
    from roskva.capture.stores.files import FileDatastore

    assert isinstance(store, Files)
    return FileDatastore(store.path, store.database)


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
    )


def check_places(settings: CaptureSettings) -> None:
    """Raises InvalidSetting for a directory or an address that nobody could use."""
    given = settings.publisher
    if len(os.fsencode(str(given.data / NOTIFIER))) > SOCKET_PATH_BYTES_MAX:
        raise InvalidSetting(
            f"publisher.data is {str(given.data)!r}, which is too long: the path of a socket in it may have {SOCKET_PATH_BYTES_MAX} bytes."
        )
    if not given.listen.startswith("unix:") and host_and_port(given.listen)[1] == 0:
        raise InvalidSetting("publisher.listen has port 0: subscribers must know where the publisher is, so it needs a port of its own.")


def check_datamarkers(settings: CaptureSettings, datamarkers: Path | None) -> None:
    """Publishers that do not see each other's datamarkers would all own every flow."""
    if len(settings.publisher.peers) > 1 and datamarkers is None:
        raise InvalidSetting(
            "publisher.peers names several publishers, which must share the place of their datamarkers: start each with --datamarkers FILE."
        )


def _application(settings: CaptureSettings, name: str, given: Application) -> ApplicationSettings:
    return ApplicationSettings(
        key=key_of(settings, name),
        passes=None if given.wanted == EVERYTHING else for_updates(given.wanted),
        terms=Terms(given.real_time_only, given.max_age_s, given.max_staleness_s),
        start=given.start,
        balance=given.balance,
        regions=dict.fromkeys(range(settings.dataset.shards), given.region) if given.region else {},
    )


def key_of(settings: CaptureSettings, application: str) -> bytes:
    """The application's own, or the publisher's, or the one in the data directory, which is made if it is not there."""
    given = settings.applications[application].key or settings.publisher.key
    if given:
        return given.encode()
    path = settings.publisher.data / KEY
    private_directory(path.parent)
    with suppress(FileExistsError):
        # Written aside and linked: two processes that start together find one key, and never half of it.
        fresh = path.with_name(f"{KEY}.{os.getpid()}")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(fresh, path)
            sync_directory(path.parent)
        finally:
            fresh.unlink()
    return path.read_text().strip().encode()


def place_of_disk(settings: CaptureSettings) -> Path | None:
    """A path on the disk that the datastore's log fills; None: it is on another machine, or does not say. Blocks."""
    store = settings.datastore
    if isinstance(store, Files | Rocksdb):
        return store.path
    return _place_of_postgres(store) if isinstance(store, Postgres) else None  # no setting of MariaDB's keeps a log for us


def _place_of_postgres(store: Postgres) -> Path | None:
    """Only a superuser, or who has pg_read_all_settings, is told. A server in a container names a place that is not here."""
    import psycopg2  # type: ignore[import-untyped]  # it has no types

    from roskva.capture.stores.postgres.connecting import PostgresSettings, connect

    given = PostgresSettings(store.dsn)
    host = given.parts.get("host", "")
    if host and not host.startswith(("/", "@")) and not is_loopback(host):
        return None
    try:
        with closing(connect(given)) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('data_directory')")
            directory = Path(cursor.fetchone()[0])
    except (psycopg2.Error, RoskvaError):
        return None
    return next((place for place in (directory / "pg_wal", directory) if free_bytes(place) is not None), None)


def free_bytes(place: Path | None) -> int | None:
    if place is None:
        return None
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


async def publish(
    settings: CaptureSettings,
    stop: asyncio.Event,
    metrics: str = "",
    datamarkers: Path | None = None,
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Run the publisher until `stop`.

    `metrics`: HOST:PORT for Prometheus. `datamarkers`: their file, if it is not in the data directory: publishers of the same data on one
    machine share one. `ready` is told the publisher's address when it reads and listens.
    """
    check_datamarkers(settings, datamarkers)
    given = publisher_settings(settings)
    private_directory(settings.publisher.data)
    async with AsyncExitStack() as stack:
        datastore = Mended(datastore_of(settings))
        stack.push_async_callback(asyncio.to_thread, datastore.close)
        marks = SqliteDatamarkers(datamarkers or settings.publisher.data / DATAMARKERS, settings.dataset.name)
        stack.push_async_callback(asyncio.to_thread, marks.close)
        if not await _prepared(datastore, stop):
            return
        publisher = Publisher(given, datastore, marks)
        starting = asyncio.create_task(publisher.start())
        if not await _first(starting, stop):
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            return
        stack.push_async_callback(publisher.stop)
        place = await asyncio.to_thread(place_of_disk, settings)
        watch = asyncio.create_task(Watch(publisher, place).for_ever(), name="watch")
        stack.push_async_callback(_ended, watch)
        if metrics:
            await stack.enter_async_context(_MetricsServer(metrics, lambda: metrics_text(publisher.status(), free_bytes(place))))
        ready(publisher.address)
        assert publisher.failed is not None
        await _first(publisher.failed, stop)


async def _prepared(datastore: Datastore, stop: asyncio.Event) -> bool:
    """Publication and slot are there; waits for a datastore that does not answer yet. False: it shall stop."""
    delay_s = RETRY_S
    while not stop.is_set():
        try:
            await asyncio.to_thread(datastore.prepare)
            return True
        except Unavailable as error:
            log.warning("The datastore cannot be prepared yet, which is tried again in %.1f s: %s", delay_s, error)
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await stop.wait()
        delay_s = min(RETRY_S_MAX, delay_s * 2)
    return False


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
    """Says in time that the log fills what there is for it, and says it again while that is so."""

    def __init__(self, publisher: Publisher, place: Path | None) -> None:
        self._publisher = publisher
        self._place = place
        self._level = Level.FINE
        self._said_s = 0.0

    async def for_ever(self) -> None:
        while True:
            try:
                self.look(time.monotonic())
            except Exception:
                log.exception("It could not be looked how full the log is.")
            await asyncio.sleep(LOOK_S)

    def look(self, now_s: float) -> None:
        retained = self._publisher.retained
        held = log_share({"bytes_behind": retained.bytes_behind, "bytes_max": retained.bytes_max}, free_bytes(self._place))
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
        backend = Backend(given.url, application=given.application, key=given.key or None, retry_for_s=PUBLISH_S_MAX)
        await stack.enter_async_context(backend)
        orders = Orders(given.url, application=given.application, key=given.key or None, admin_key=given.admin_key or admin_key or None)
        stack.push_async_callback(orders.close)
        notifier = Notifier(Mapper(given.mapping), backend, orders, HistoryFile(data / "history.json"))
        # The same after a restart: its flows wait for nobody else.
        member = f"{socket.gethostname()}:{settings.publisher.name}:roskva"
        subscriber = Subscriber(given.subscription, key_of(settings, given.subscription), publishers, notifier, member)
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


def reachable(listen: str) -> str:
    """Where a process of this machine reaches who listens there."""
    if listen.startswith("unix:"):
        return listen
    host, port = host_and_port(listen)
    return address_of({"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host), port)


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
