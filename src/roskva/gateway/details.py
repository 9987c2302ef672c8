"""One client or one object, looked at closely: what the rows say, and what only this gateway's memory knows.

For people: `roskva inspect` and `GET /v1/inspect/...`. It only reads, a bounded number of cells for a request, in a thread; one request at
a time is at it, a few may wait, so that looking never slows the service. Any gateway may answer from the table. Whether a client is online
is known to the gateway that owns it, and said by no other: the routes ask that one (gateway/peers.py).
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from roskva.config import Settings
from roskva.errors import MalformedMessage, Overloaded, UnknownApplication, UnknownClient
from roskva.feed.interface import FAN_OUTS, UPDATES, Feed
from roskva.feed.known import known_since
from roskva.gateway.members import Membership
from roskva.matcher import cells as matcher_cells
from roskva.matcher.cells import object_row, read_copies, read_version
from roskva.model import (
    DAY_S,
    ClientId,
    ObjectKey,
    client_partition,
    epoch_of,
    name_from_text,
    name_of,
    name_to_text,
    object_key,
    session_of,
)
from roskva.registrar import cells
from roskva.registrar.cells import Pending, client_row, is_waiting, log_name, read_created, read_pending, waiting_since_s
from roskva.registrar.members import Member
from roskva.registrar.row import ClientRow
from roskva.registrar.service import Registrar
from roskva.registrar.sessions import Session
from roskva.table.interface import Cell, Row, RowKey, Table
from roskva.table.manifest import COMPLETE, Manifest

CELLS_MAX: Final = 5_000  # of one kind, of one row: what is beyond is not counted
PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1_000
WAITING_MAX: Final = 8  # requests; more are answered "overloaded"
_OF_ONE_OBJECT_MAX: Final = 1_000  # cells: of each registration that a client ever made for it, one

T = TypeVar("T")


class Page(NamedTuple):
    """Which part of a long list is asked for: what comes after a place, and how much of it."""

    after: bytes
    limit: int

    @classmethod
    def of(cls, after: str, limit: str) -> Page:
        """From a query: `after` is what an earlier answer gave as `next`."""
        if not (limit.isascii() and limit.isdigit() and len(limit) < 10 and 1 <= int(limit) <= PAGE_MAX):
            raise MalformedMessage(f"`limit` must be a number from 1 to {PAGE_MAX}.")
        try:
            place = base64.b64decode(after.encode() + b"=" * (-len(after) % 4), altchars=b"-_", validate=True)
        except ValueError:
            raise MalformedMessage("`after` is not what an earlier answer gave as `next`.") from None
        return cls(place, int(limit))


def _next(found: Iterable[bytes], limit: int, prefix: bytes) -> str:
    """The place to go on from; empty: there is no more."""
    names = list(found)
    return base64.urlsafe_b64encode(names[-1][len(prefix) :]).rstrip(b"=").decode() if len(names) >= limit else ""


@dataclass(slots=True)
class Details:
    settings: Settings
    table: Table
    feed: Feed
    manifest: Manifest
    membership: Membership
    registrar: Registrar
    connected_here: Callable[[ClientId], bool]
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _asking: int = 0

    async def client(self, client: ClientId, page: Page) -> dict[str, Any]:
        key = client_row(client, self.settings.partitions)
        row, registered, following = await self._in_turn(lambda: self._read_client(client, key, page))
        session = self.registrar.sessions.get(client)
        created = row.created
        return {
            "client": client,
            "application": None if created is None else created.application,
            "device": None if created is None else created.device,
            "gone": created is None,  # collected or lost: it starts anew when it is heard of
            "session": session_of(row.seqno),
            "seen_day": time.strftime("%Y-%m-%d", time.gmtime(row.seen_day * DAY_S)) if row.seen_day else None,
            **self._presence(client, key.partition, session),
            "registrations": {
                "count": row.digest.count,
                "more": len(list(row.objects())) >= CELLS_MAX,  # only so many were counted
                "list": registered,
                "next": following,
            },
            "pending": self._pending(row, page.limit),
            "unacknowledged": self._unacknowledged(row, session, page.limit),
        }

    def owner_of(self, client: ClientId) -> Member | None:
        return self.membership.view.owner(client_partition(client, self.settings.partitions))

    async def object(self, application: str, text: str, page: Page) -> dict[str, Any]:
        if application not in self.settings.applications:
            raise UnknownApplication(application)
        name = name_from_text(text)
        return await self._in_turn(lambda: self._read_object(application, name, page))

    async def _in_turn(self, read: Callable[[], T]) -> T:
        if self._asking >= WAITING_MAX:
            raise Overloaded("Others are looking at clients and objects.")
        self._asking += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(read)
        finally:
            self._asking -= 1

    # A client.

    def _read_client(self, client: ClientId, key: RowKey, page: Page) -> tuple[ClientRow, list[dict[str, Any]], str]:
        """In a thread. The row, as far as it was read; a page of its registrations; and where that goes on."""
        found: dict[bytes, Cell] = {}
        for prefix in (cells.CREATED, cells.SEQNO, cells.SEEN, cells.LOG, cells.UNKNOWN, cells.PENDING, cells.REG):
            found |= self.table.read([key], prefix, CELLS_MAX)[key]
        if not found:
            raise UnknownClient(client)
        found |= self._standings(key, found)
        created = read_created(found.get(cells.CREATED))
        epoch = 0 if created is None else self.manifest.epoch(created.application)
        listed = self.table.read([key], cells.REG, page.limit, cells.REG + page.after if page.after else b"")[key]
        registered = [
            {"object": _text(name[len(cells.REG) :]), "seqno": str(cell.timestamp)}
            for name, cell in listed.items()
            if cells.is_registered(cell) and epoch_of(ObjectKey(name[len(cells.REG) :])) == epoch
        ]
        return ClientRow(client, found.values(), epoch), registered, _next(listed, page.limit, cells.REG)

    def _standings(self, key: RowKey, found: Row) -> dict[bytes, Cell]:
        """The registrations of what waits or is pending, where a long row was not read as far as them."""
        if sum(name.startswith(cells.REG) for name in found) < CELLS_MAX:
            return {}
        stored = [cell for cell in found.values() if cell.name.startswith((cells.LOG, cells.UNKNOWN)) and is_waiting(cell)]
        named = [cells.read_log_name(cell).object for cell in stored]
        named += [ObjectKey(name[len(cells.PENDING) :]) for name, cell in found.items() if _is_pending(cell)]
        missing = [cells.REG + one for one in named[:PAGE_MAX] if cells.REG + one not in found]
        return {name: cell for one in missing for name, cell in self.table.read([key], one, 1)[key].items()}

    def _presence(self, client: ClientId, partition: int, session: Session | None) -> dict[str, Any]:
        owner = self.membership.view.owner(partition)
        here = self.registrar.owns(partition)
        presence: dict[str, Any] = {
            "owner": None if owner is None else {"member": owner.id, "address": owner.public, "name": owner.name or owner.id},
            "owned_here": here,
            "online": session is not None if here else None,  # None: only the owner knows
            "online_since_ms": None,
            "heard_s_ago": None,
            "connected_here": self.connected_here(client),
        }
        if here and session is not None:
            now_s = self.clock()
            presence["online_since_ms"] = self._wall_ms(session.since_s)
            presence["heard_s_ago"] = round(now_s - session.heard_s, 1)
        return presence

    def _pending(self, row: ClientRow, limit: int) -> dict[str, Any]:
        on_their_way = []
        for key, seqno, pending in row.pending():
            standing = row.standing(key)
            if standing is not None and standing.seqno == seqno:
                on_their_way.append((key, standing.registered, pending))
        return {
            "count": len(on_their_way),
            "list": [self._on_its_way(row.client, key, registered, pending) for key, registered, pending in on_their_way[:limit]],
        }

    def _on_its_way(self, client: ClientId, key: ObjectKey, registered: bool, pending: Pending) -> dict[str, Any]:
        since_s = self.registrar.recovery.since_s(client, key)
        return {
            "object": _text(key),
            "operation": "register" if registered else "unregister",
            "repair": pending.repair,
            "since_ms": None if since_s is None else self._wall_ms(since_s),  # None: this gateway did not send it on its way
        }

    def _unacknowledged(self, row: ClientRow, session: Session | None, limit: int) -> dict[str, Any]:
        """What the row says waits, and what is only in memory so far: for a moment after it was sent."""
        waiting: dict[tuple[ObjectKey, bool], dict[str, Any]] = {}
        for one in row.waiting():
            cell = row.unknown(one.object) if one.version is None else row.logged(one.object, one.seqno)
            since_s = None if cell is None else waiting_since_s(cell)
            waiting[one.object, one.version is None] = _owed(one.object, one.version, since_s, stored=True)
        now_s = self.clock()
        for name, entry in ({} if session is None else session.outstanding).items():
            known = waiting.setdefault(name, _owed(entry.object, entry.version, None, stored=False))
            known["sent_s_ago"] = round(max(0.0, now_s - entry.sent_s), 1)
        return {"count": len(waiting), "more": session is not None and session.more, "list": list(waiting.values())[:limit]}

    def _wall_ms(self, then_s: float) -> int:
        return int((self.wall_clock() - (self.clock() - then_s)) * 1_000)

    # An object.

    def _read_object(self, application: str, name: bytes, page: Page) -> dict[str, Any]:
        """In a thread."""
        key = object_key(application, self.manifest.epoch(application), name)
        row_key = object_row(key, self.settings.partitions)
        version = self.table.read([row_key], matcher_cells.VERSION, 1)[row_key]
        place = matcher_cells.REG + page.after if page.after else b""
        listed = self.table.read([row_key], matcher_cells.REG, page.limit, place)[row_key]
        answer = {
            "application": application,
            "object": name_to_text(name),
            "epoch": epoch_of(key),
            "partition": row_key.partition,
            **self._known(version, row_key.partition),
            "clients": self._copies(key, listed),
            "next": _next(listed, page.limit, matcher_cells.REG),
        }
        if not page.after:
            counted = self.table.read([row_key], matcher_cells.REG, CELLS_MAX)[row_key]
            answer["registered"] = {"count": len(read_copies(counted)), "more": len(counted) >= CELLS_MAX}
        return answer

    def _known(self, row: Row, partition: int) -> dict[str, Any]:
        """The version, and whether it counts: by the same rule by which a registration is answered."""
        found = read_version(row)
        since = known_since(self.manifest.record, partition, self.settings.partitions)
        feed = self.manifest.record("feed", UPDATES, partition)
        matcher = self.manifest.record("table", "matcher", partition)
        why = ""
        if found is None:
            why = "no version has come through the pipeline"
        elif feed.state != COMPLETE:
            why = f"the feed's partition is {feed.state}: publishers may still repeat what was lost"
        elif matcher.state != COMPLETE:
            why = f"the Matcher's partition is {matcher.state}"
        elif since is None:
            why = "a partition of scratch is being recovered: later versions may have been lost with it"
        elif found.incarnation != since:
            why = "the feed or scratch was lost after this version came: later ones may have been lost with it"
        return {
            "version": None if found is None else str(found.version),
            "source": None if found is None else found.source or None,
            "known": not why,
            "why_unknown": why,
            "records_behind": self._behind(partition),  # of all objects of the partition: what the pipeline has not come to
        }

    def _behind(self, partition: int) -> int:
        from roskva.pipeline.offsets import SUBSCRIPTION

        behind = 0
        for topic in (UPDATES, FAN_OUTS):
            newest = self.feed.newest(topic)[partition]
            done = {**self.feed.oldest(topic), **self.feed.committed(SUBSCRIPTION, topic)}[partition]
            behind += max(0, newest.offset - done.offset)
        return behind

    def _copies(self, key: ObjectKey, listed: Row) -> dict[str, Any]:
        """Of a page of the Matcher's copies: who has not acknowledged what is stored for that registration."""
        copies = read_copies(listed)
        rows = {copy.client: client_row(copy.client, self.settings.partitions) for copy in copies}
        found = self._cells_about(key, list(rows.values()))
        unacknowledged: list[dict[str, Any]] = []
        outdated = pending = 0
        for copy in copies:
            cells_of = found[rows[copy.client]]
            standing = cells_of.get(cells.REG + key)
            if cells.CREATED not in cells_of or standing is None or standing.timestamp != copy.seqno or not cells.is_registered(standing):
                outdated += 1  # the client is gone or registered anew: the next update shows it, and the copy goes
                continue
            on_its_way = cells_of.get(cells.PENDING + key)
            pending += on_its_way is not None and _is_pending(on_its_way)
            owed = _owed_of(cells_of, key, copy.seqno, self.registrar.sessions.get(copy.client))
            unacknowledged += [{"client": copy.client, "device": copy.device} | one for one in owed]
        return {"looked_at": len(copies), "outdated": outdated, "pending": pending, "unacknowledged": unacknowledged}

    def _cells_about(self, key: ObjectKey, rows: Sequence[RowKey]) -> dict[RowKey, dict[bytes, Cell]]:
        """Of each client's row, what concerns this object: rows may be long."""
        found: dict[RowKey, dict[bytes, Cell]] = {row: {} for row in rows}
        # The name itself sorts before all that only begin with it.
        wanted = [(cells.CREATED, 1), (cells.REG + key, 1), (cells.PENDING + key, 1), (cells.UNKNOWN + key, 1)]
        for prefix, limit in [*wanted, (cells.LOG + key + b":", _OF_ONE_OBJECT_MAX)]:
            for row, some in (self.table.read(rows, prefix, limit) if rows else {}).items():
                found[row] |= some
        return found


def with_more_owed(found: dict[str, Any], others: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What one gateway says of an object, and of what others say, notifications that are so far only in their memory."""
    owed = found["clients"]["unacknowledged"]
    seen = {(one["client"], one["version"]) for one in owed}
    for other in others:
        owed += [one for one in other["clients"]["unacknowledged"] if not one["stored"] and (one["client"], one["version"]) not in seen]
    return found


def _owed_of(row: Row, key: ObjectKey, seqno: int, session: Session | None) -> list[dict[str, Any]]:
    """What is unacknowledged of one registration: a version, an unknown, or both."""
    owed: dict[bool, dict[str, Any]] = {}
    logged, unknown = row.get(log_name(key, seqno)), row.get(cells.UNKNOWN + key)
    if logged is not None and is_waiting(logged):
        owed[False] = _owed(key, logged.timestamp, waiting_since_s(logged), stored=True)
    if unknown is not None and is_waiting(unknown) and unknown.timestamp == seqno:
        owed[True] = _owed(key, None, waiting_since_s(unknown), stored=True)
    if session is not None:
        for is_unknown in (False, True):
            entry = session.outstanding.get((key, is_unknown))
            if entry is not None and entry.seqno == seqno:
                owed.setdefault(is_unknown, _owed(key, entry.version, None, stored=False))
    return [{name: value for name, value in one.items() if name != "object"} for one in owed.values()]


def _owed(key: ObjectKey, version: int | None, since_s: int | None, stored: bool) -> dict[str, Any]:
    return {
        "object": _text(key),
        "version": None if version is None else str(version),  # None: unknown
        "since_ms": None if since_s is None else since_s * 1_000,
        "stored": stored,
        "sent_s_ago": None,
    }


def _is_pending(cell: Cell) -> bool:
    return cell.name.startswith(cells.PENDING) and read_pending(cell) is not None


def _text(key: bytes) -> str:
    return name_to_text(name_of(ObjectKey(key)))
