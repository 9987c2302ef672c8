"""The clients of one user: to look at them, and to erase them (`roskva user`, docs/http.md).

A client's row says whose it is, and no index does: all rows are walked, partition by partition, off the event loop, one request at a time.
A request looks at so many rows, or for so long, and answers where to go on. To erase a client is to collect it: its owner, whichever
gateway that is, does it in the client's turn, as it does for sweeps, and tells the client to start anew.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from roskva.config import Settings
from roskva.errors import MalformedMessage, Overloaded, RoskvaError, UnknownApplication
from roskva.gateway.details import Page
from roskva.model import DAY_S, DROP_COPY, OUTCOME_ERASE, ClientId, ObjectKey, Propagation, client_partition
from roskva.propagation.links import Links
from roskva.registrar.cells import CREATED, Created, read_created
from roskva.registrar.row import ClientRow
from roskva.registrar.service import Registrar
from roskva.table.interface import Row, Table
from roskva.table.manifest import Manifest

ROWS_MAX: Final = 20_000  # that one request looks at
ERASE_S: Final = 20.0  # that one request erases for
_ROWS_AT_A_TIME: Final = 200
_ASKED_AT_A_TIME: Final = 500
_ROUNDS_MAX: Final = 5  # of telling Registrars: what is open then is counted as failed, and may be asked for again
_WAITING_MAX: Final = 4
_NO_OBJECT: Final = ObjectKey(b"")

T = TypeVar("T")
Elsewhere = Callable[[list[str]], Awaitable[dict[str, bool]]]


class _Erase(Struct, forbid_unknown_fields=True):
    application: str
    user: str
    after: str = ""


class _Place(NamedTuple):
    """Where a walk goes on: after a row of a partition."""

    partition: int
    key: bytes

    @classmethod
    def of(cls, after: bytes) -> _Place:
        partition, _, key = after.partition(b":")
        if after and not (partition.isdigit() and len(partition) < 10):
            raise MalformedMessage("`after` is not what an earlier answer gave as `next`.")
        return cls(int(partition or 0), key)

    def text(self) -> str:
        return base64.urlsafe_b64encode(b"%d:%b" % self).rstrip(b"=").decode()


class _Found(NamedTuple):
    place: _Place
    client: ClientId
    created: Created
    row: Row


class Users:
    def __init__(
        self, settings: Settings, table: Table, manifest: Manifest, registrar: Registrar, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._table = table
        self._manifest = manifest
        self._registrar = registrar
        self._clock = clock
        self._links = Links(settings, table)  # used in one thread at a time
        self._turn = asyncio.Lock()
        self._asking = 0
        self._stopped = False

    async def stop(self) -> None:
        self._stopped = True
        async with self._turn:
            await asyncio.to_thread(self._links.close)

    async def clients(self, application: str, user: str, page: Page, elsewhere: Elsewhere) -> dict[str, Any]:
        """A page of them, and where to go on; empty: there is no more. A page may be empty, and not the last.

        `elsewhere` asks the other gateways which of theirs are online.
        """
        self._check(application, user)
        place = _Place.of(page.after)
        found, following = await self._in_turn(lambda: self._look(application, user, place, page.limit))
        clients = [known | {"online": self.online_here(ClientId(known["client"]))} for known in found]
        others = await elsewhere([known["client"] for known in clients if known["online"] is None])
        for known in clients:
            known["online"] = others.get(known["client"], known["online"])
        return {"application": application, "user": user, "clients": clients, "next": following}

    async def erase(self, body: bytes) -> dict[str, Any]:
        """Those that were erased are gone for good. Repeat it for those that failed, and go on after `next`."""
        try:
            request = msgspec.json.decode(body, type=_Erase)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessage(f"The request is not of the documented form: {error}.") from None
        self._check(request.application, request.user)
        place = _Place.of(Page.of(request.after, "1").after)
        return await self._in_turn(lambda: self._erase(request.application, request.user, place))

    def _check(self, application: str, user: str) -> None:
        if application not in self._settings.applications:
            raise UnknownApplication(application)
        if not user:
            raise MalformedMessage("No user is named.")

    async def _in_turn(self, work: Callable[[], T]) -> T:
        if self._asking >= _WAITING_MAX:
            raise Overloaded("Others are looking at users' clients.")
        self._asking += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(work)
        finally:
            self._asking -= 1

    # In a thread.

    def _look(self, application: str, user: str, place: _Place, limit: int) -> tuple[list[dict[str, Any]], str]:
        """What their rows say."""
        epoch = self._manifest.epoch(application)
        found, following = self._walk(application, user, place, limit)
        return [_described(one, epoch) for one in found], following

    def _walk(self, application: str, user: str, place: _Place, limit: int) -> tuple[list[_Found], str]:
        """Some of them, and where to go on; nowhere, after the last row."""
        found: list[_Found] = []
        looked_at = 0
        for rows in self._pages(place):
            for one in rows:
                place, looked_at = one[0], looked_at + 1
                mine = _of_user(one, application, user)
                if mine is not None:
                    found.append(mine)
                if len(found) >= limit or looked_at >= ROWS_MAX:
                    return found, place.text()
        return found, ""

    def _erase(self, application: str, user: str, place: _Place) -> dict[str, Any]:
        until_s = self._clock() + ERASE_S
        erased = failed = 0
        while True:
            found, following = self._walk(application, user, place, _ASKED_AT_A_TIME)
            asked = [Propagation(one.client, _NO_OBJECT, 0, OUTCOME_ERASE, 0) for one in found]
            verdicts = self._links.propagate(asked, rounds_max=_ROUNDS_MAX).verdicts if asked else []
            erased += verdicts.count(DROP_COPY)
            failed += len(verdicts) - verdicts.count(DROP_COPY)
            if not following or self._clock() >= until_s or self._stopped:
                return {"application": application, "user": user, "erased": erased, "failed": failed, "next": following}
            place = _Place.of(Page.of(following, "1").after)

    def _pages(self, place: _Place) -> Iterator[list[tuple[_Place, Row]]]:
        for partition in range(place.partition, self._settings.partitions):
            after = place.key if partition == place.partition else b""
            while page := list(self._table.scan("registrar", partition, after, _ROWS_AT_A_TIME)):
                yield [(_Place(partition, key), row) for key, row in page]
                after = page[-1][0]

    # On the event loop.

    def online_here(self, client: ClientId) -> bool | None:
        """None: only its owner knows."""
        owned = self._registrar.owns(client_partition(client, self._settings.partitions))
        return client in self._registrar.sessions if owned else None


def _described(one: _Found, epoch: int) -> dict[str, Any]:
    row = ClientRow(one.client, one.row.values(), epoch)
    return {
        "client": one.client,
        "device": one.created.device,
        "registrations": row.digest.count,
        "seen_day": time.strftime("%Y-%m-%d", time.gmtime(row.seen_day * DAY_S)) if row.seen_day else None,
    }


def _of_user(one: tuple[_Place, Row], application: str, user: str) -> _Found | None:
    """What nobody can read is nobody's."""
    place, row = one
    try:
        created = read_created(row.get(CREATED))
        client = ClientId(place.key.decode())
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RoskvaError):
        return None
    if created is None or created.application != application or created.user != user:
        return None
    return _Found(place, client, created, row)
