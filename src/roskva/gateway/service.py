"""The gateway as a whole: wires the rooms together, starts and stops them in order.

Start: engines, keys, internal port, membership, Registrar, and only then the public port. Stop: accept nobody, leave the
members so that the others take over, close the clients' connections with "going away", then finish what was accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import secrets
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import uvloop
from aiohttp import web

from roskva.access import Access, check_access
from roskva.config import LiveApplications, Settings, Sources
from roskva.errors import RoskvaError
from roskva.feed import FeedLanes, open_feed
from roskva.gateway.admission import Admission
from roskva.gateway.answering import Answering
from roskva.gateway.collecting import Collecting
from roskva.gateway.commands import Commands
from roskva.gateway.details import Details
from roskva.gateway.disk import DiskWatch
from roskva.gateway.door import Door, door_application
from roskva.gateway.hinting import ByBusiness, Hinting, Told
from roskva.gateway.http import Routes
from roskva.gateway.inspection import Inspection
from roskva.gateway.intake import Intake
from roskva.gateway.links import InternalPort, Links
from roskva.gateway.members import Membership
from roskva.gateway.memory import MemoryWatch
from roskva.gateway.peers import Peers
from roskva.gateway.permission import Permission
from roskva.gateway.publish import Publishing
from roskva.gateway.reloading import Reloading
from roskva.gateway.routing import Router
from roskva.gateway.server import Port
from roskva.gateway.tls import certificates_of
from roskva.gateway.users import Users
from roskva.keys import load_keys
from roskva.model import ClientId, Stamps, Update
from roskva.registrar.members import Member, MemberView
from roskva.registrar.service import Registrar
from roskva.table import TableLanes, open_manifest, open_table
from roskva.table.manifest import Manifest
from roskva.telemetry.metrics import Metrics, registry_of

log = logging.getLogger(__name__)

# Of one partition of a table. At 570 restarts a second nearly every grant had a commit of its own, which was a third of its CPU. No
# notification waits for these; handshakes and registrations do, for one and for two of them. Half of it after a single call, twice after
# many (table/lanes.py), as of the next:
_TABLE_COMMITS_APART_S: Final = 0.02
# Of one partition of the feed. A commit of one update takes 0.2 ms of CPU in its lane, and as much again for the loop that is interrupted.
_COMMITS_APART_S: Final = 0.005
_HTTP_STOP_S: Final = 2.0  # for requests under way
# For the next request's head on a connection that stays open, whole; longer than the 60 s of nginx, so that it is nginx that closes.
HTTP_IDLE_S: Final = 75.0


class Gateway:
    """One gateway. `await start()`, then it serves at `url` until `await stop()`."""

    def __init__(self, settings: Settings, member_id: str = "", sources: Sources | None = None) -> None:
        self.applications = LiveApplications(settings.applications)
        self.settings = replace(settings, applications=self.applications)
        self.reloading = Reloading(self.settings, self.applications, sources)
        self.member_id = member_id or secrets.token_hex(8)  # of this boot: never used again
        self.name = settings.gateway_name or self.member_id
        self.metrics = Metrics()
        self.url = ""
        self.collecting = Collecting(self._sessions)
        self._http: Callable[[], asyncio.Protocol] | None = None
        self._stopping = contextlib.AsyncExitStack()

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self._stopping.aclose()
            raise

    async def stop(self) -> None:
        """Undo `start`, step by step, in the opposite order."""
        await self._stopping.aclose()

    async def _start(self) -> None:
        settings, metrics, undo = self.settings, self.metrics, self._stopping
        certificates = await asyncio.to_thread(certificates_of, settings)
        admission = Admission(settings, metrics)
        manifest = await asyncio.to_thread(open_manifest, settings)
        keys = await asyncio.to_thread(load_keys, settings.data)
        table = TableLanes(await asyncio.to_thread(open_table, settings), settings.partitions, _TABLE_COMMITS_APART_S)
        undo.push_async_callback(table.close)
        # An append ends with a look at the manifest that began after its fsync, to know that the file still counts: what that
        # look has seen is what publishing asks for.
        self._hinting = hinting = Hinting(lambda *accepted: self.registrar.fast.updated(*accepted), ByBusiness(self._told))
        opened = await asyncio.to_thread(open_feed, settings)
        feed = FeedLanes(opened, lambda: manifest.seen().epochs, _COMMITS_APART_S, hinting.flush)
        undo.push_async_callback(feed.close)
        # Never on the loop: somebody may be writing the manifest. The Registrar's rounds look at it every second, off the loop.
        epoch_seen = partial(_epoch_seen, manifest)
        self.view = MemberView(settings.member_timeout_s)
        await asyncio.to_thread(_check_access, settings)
        access = Access()
        undo.push_async_callback(access.close)
        self.registrar = Registrar(settings, table, feed, keys.keyring, self.member_id, self.view, epoch_of=epoch_seen, access=access)
        self.reloading.observers.append(self.registrar.users.applications_changed)
        self.links = Links(keys.internal, self.member_id, lambda identity: self.membership.suspect(identity))
        undo.callback(self.links.stop)
        self.router = Router(settings, keys.keyring, self.registrar, self.view, self.member_id, self.links, metrics, admission)
        self.links.router = self.router
        self.reloading.observers.append(lambda before, after: admission.origins.end_unlisted(list(self.router.connections.values())))
        undo.callback(self.router.stop)
        undo.push_async_callback(self.registrar.stop)
        await self.registrar.start()

        door = Door(settings.data, self.name)
        undo.push_async_callback(door.close)  # late: what clients are told at the end may go through it
        await asyncio.to_thread(door.bind)
        internal_port = InternalPort(keys.internal, self.member_id, self.router, self.registrar.propagate, self._hinted, metrics)
        undo.push_async_callback(internal_port.stop)
        internal = await internal_port.start(settings.internal_listen)
        self.port = Port(settings, self.router, metrics, admission, self._http_protocol, certificates, self.member_id)
        public = await asyncio.to_thread(self.port.bind, settings.listen)
        member = Member(self.member_id, internal, public, name=settings.gateway_name)
        self.membership = Membership(table, self.view, member, settings.member_heartbeat_s)
        self.membership.observers.append(self._members_changed)

        self.disk = DiskWatch(settings.data, settings.disk_free_bytes_min, metrics, self._refuse_registrations)
        await self.disk.start()
        undo.callback(self.disk.stop)
        peers = Peers(settings.data, self.member_id, lambda: self.view.live)
        undo.push_async_callback(peers.close)
        self.port.relays = lambda: door.connections + peers.relaying
        inspect = Inspection(
            settings,
            table,
            feed.feed,
            self.membership,
            metrics,
            epoch_seen,
            self._sessions,
            self._outstanding,
            manifest,
            self._unfinished,
            self.disk.report,
            peers,
            self.registrar.trails.latency,
        )
        details = Details(settings, table.table, feed.feed, manifest, self.membership, self.registrar, self._is_connected)
        registry = registry_of(metrics, self.name, self.registrar.counters.items, self._gauges, self.registrar.trails.latency)
        hint = self._hint if settings.fast_path else None
        undo.callback(hinting.stop)
        publishing = Publishing(settings, feed, epoch_seen, metrics, hint=hint, trails=self.registrar.trails)
        self.intake = Intake(settings.publish_waiting_bytes_max, metrics, lambda: self.registrar.room.pressed)
        commands = Commands(settings, feed, epoch_seen, manifest.raise_epoch, manifest.epoch)
        permission = Permission(self.applications, keys.admin, metrics)
        users = Users(settings, table.table, manifest, self.registrar)
        undo.push_async_callback(users.stop)
        self.routes = Routes(
            settings,
            publishing,
            inspect,
            registry,
            metrics,
            self.intake,
            commands,
            details,
            self.disk,
            permission,
            users,
            peers,
            self.port,
            keys.trusted,
        )
        memory = MemoryWatch(settings.gateway_memory_bytes_max, self._press, self.registrar.relieve)
        memory.start()
        undo.callback(memory.stop)
        undo.callback(self.collecting.stop)
        runner = web.AppRunner(self.routes.application(), shutdown_timeout=_HTTP_STOP_S)
        await runner.setup()
        server = runner.server
        assert server is not None
        self._http = partial(Answering, server, HTTP_IDLE_S, self.routes.publish_plainly)
        self.port.served_by(server)
        undo.push_async_callback(runner.cleanup)
        undo.push_async_callback(self.port.stop)
        undo.push_async_callback(self.membership.stop)
        undo.callback(self.port.stop_accepting)
        self.reloading.start()
        undo.push_async_callback(self.reloading.stop)
        await self.membership.start()
        await self.port.start()
        if certificates is not None:
            certificates.start()
            undo.callback(certificates.stop)
        await door.open(door_application(self.routes))  # last of all: whoever is answered there knows that this gateway serves
        self.url = f"{'http' if certificates is None else 'https'}://{public}"

    def _http_protocol(self) -> asyncio.Protocol:
        assert self._http is not None
        return self._http()

    def _members_changed(self) -> None:
        self.links.members_changed(self.view.live)
        self.router.members_changed()

    def _hint(self, updates: Sequence[Update], stamps: Sequence[Stamps]) -> None:
        """What was accepted here."""
        self.links.hint(updates, stamps)
        self._tell(updates, stamps)

    def _hinted(self, updates: Sequence[Update], stamps: Sequence[Stamps]) -> None:
        """What another gateway accepted."""
        self.registrar.trails.noted(stamps)
        self._tell(updates, stamps)

    def _tell(self, updates: Sequence[Update], stamps: Sequence[Stamps]) -> None:
        """What nobody here follows waits in no line, before what somebody does: a burst of it would."""
        followed, of_these = self.registrar.fast.followed(updates, stamps)
        if followed:
            self._hinting.hint(followed, of_these)

    def _told(self) -> Told:
        """An update that a newer one has overtaken counts as one that needed no message of its own."""
        fast = self.registrar.fast
        return Told(fast.notified + self._hinting.overtaken, fast.messages)

    def _press(self, reason: str) -> None:
        self.registrar.room.pressed = reason

    def _refuse_registrations(self, reason: str) -> None:
        self.registrar.disk_full = reason

    def _is_connected(self, client: ClientId) -> bool:
        """Whether this gateway holds the client's connection, whoever owns the client."""
        session = self.registrar.sessions.get(client)
        return self.router.carries(client, None if session is None else session.channel)

    def _unfinished(self) -> dict[str, Any]:
        registrar = self.registrar
        owed_to = list(registrar.unacknowledged.sessions)
        return {
            "pending": {"clients": len(registrar.recovery.unfinished), "registrations": registrar.recovery.on_their_way},
            # Of clients that are online here; what waits in the rows of others nobody knows without reading them.
            "unacknowledged": {
                "clients": len(owed_to),
                "notifications": registrar.unacknowledged.count,
                "rows_with_more": sum(session.more for session in owed_to),
            },
            "rows_to_read": len(registrar.rounds.marked),
        }

    def _sessions(self) -> int:
        return len(self.registrar.sessions)

    def _outstanding(self) -> int:
        return self.registrar.unacknowledged.count

    def _gauges(self) -> list[tuple[str, int]]:
        registrar = self.registrar
        return [
            ("sessions", self._sessions()),
            *((f"connections_{channel}", count) for channel, count in self.port.by_channel.items()),
            ("outstanding", self._outstanding()),
            ("operations_waiting", registrar.room.waiting),
            ("registrations_on_their_way", registrar.recovery.on_their_way),
            ("marked_clients", len(registrar.rounds.marked)),
            ("rows_cached", len(registrar.rows)),
            ("publish_bytes_waiting", self.intake.bytes_waiting),
            ("disk_free_bytes", self.disk.free_bytes or 0),
            ("disk_full", int(bool(self.disk.full))),
            ("hints_left_out", self._hinting.left_out),
            ("collection_ms_max", round(self.collecting.longest_ms)),
        ]


def _check_access(settings: Settings) -> None:
    """What could verify nobody is said at once, not when the first client comes."""
    for name, application in settings.applications.items():
        check_access(name, application)


def _epoch_seen(manifest: Manifest, application: str) -> int:
    return manifest.seen().epochs.get(application, 0)


def run(settings: Settings, sources: Sources | None = None, member_id: str = "") -> int:
    """Serve until SIGTERM or SIGINT. 0 after a clean stop, 1 when it could not start. `member_id`: of this boot alone; empty: drawn."""
    if not logging.getLogger().handlers:
        logging.basicConfig(level=settings.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _raise_file_limit()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, sources, member_id))
    except RoskvaError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(settings: Settings, sources: Sources | None, member_id: str) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    gateway = Gateway(settings, member_id, sources)
    await gateway.start()
    gateway.collecting.start()
    print(f"gateway: listening on {gateway.url}", flush=True)
    await stop.wait()
    log.info("stopping")
    await gateway.stop()
    print("gateway: stopped", flush=True)


def _raise_file_limit() -> None:
    """Every connection is a file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
