"""What must hold of invalidations, and of what sweeps forget (docs/sweeps.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roskva.client.actions import Notification
from roskva.matcher import cells as matcher_cells
from roskva.matcher.cells import object_row
from roskva.model import ClientId, ObjectKey, epoch_of, name_of, object_key
from roskva.registrar import cells
from roskva.registrar.row import ClientRow
from roskva.simulation.checkers import Checker
from roskva.simulation.processes import DAY_S
from roskva.table.interface import Cell, RowKey

if TYPE_CHECKING:
    from roskva.simulation.clients import Application
    from roskva.simulation.operators import Invalidated, Operator
    from roskva.simulation.world import World

_CLOCK_SET_DAYS = 200_000.0 / DAY_S
_LONG_S = 40.0  # no sweep looks at a row and forgets so much later
_KEPT = (cells.REG, cells.PENDING, cells.LOG, cells.UNKNOWN)


@dataclass(frozen=True)
class _Owed:
    """Somebody who was registered when an invalidation was accepted."""

    client: ClientId
    epoch: int
    asked_s: float


class EveryoneInvalidated(Checker):
    """Whoever was registered when an invalidation was accepted, and still is, was told "unknown" since, or has started anew."""

    def __init__(self) -> None:
        self._asked: dict[Operator, dict[tuple[Application, bytes], _Owed]] = {}
        self._unknown_s: dict[tuple[Application, bytes], float] = {}
        self._owed: dict[tuple[Application, bytes], _Owed] = {}

    def asked(self, operator: Operator, what: Invalidated) -> None:
        """Registered is who was told so, and whom the Matcher has, since the last reset."""
        world = operator.world
        found = self._asked[operator] = {}
        for name in (name for name in world.names if what.holds(name)):
            row = object_row(object_key("demo", world.epoch, name), world.settings.partitions)
            copies = {copy.client for copy in matcher_cells.read_copies(world.stores.rows.get(row, {}))}
            for application in world.applications if copies else ():
                client = world.client_of(application)
                if client in copies and name in application.wishes and application.confirmed.get(name, (False, 0.0))[0]:
                    found[application, name] = _Owed(client, world.epoch, world.loop.time())

    def accepted(self, operator: Operator) -> None:
        for (application, name), owed in self._asked.pop(operator).items():
            told_s = self._unknown_s.get((application, name), -1.0)
            if name in application.wishes and told_s < owed.asked_s:
                self._owed[application, name] = owed

    def unregistered(self, application: Application, name: bytes) -> None:
        for owed in (self._owed, *self._asked.values()):
            owed.pop((application, name), None)

    def notified(self, application: Application, notification: Notification) -> None:
        key = (application, notification.name)
        owed = self._owed.get(key)
        if notification.version is None:
            self._unknown_s[key] = application.world.loop.time()
        if owed is not None and (notification.version is None or notification.epoch > owed.epoch):
            del self._owed[key]

    def reason(self, world: World) -> str | None:
        for (application, name), owed in list(self._owed.items()):
            if application.cloned or world.client_of(application) != owed.client or world.epoch < owed.epoch:
                del self._owed[application, name]
            elif application.running:
                return f"{application.device} does not know that {name.decode()} was invalidated at {owed.asked_s:.1f}"
        return None


class SweptRightly(Checker):
    """Sweeps take nothing that somebody needs, and nothing that they forgot comes back. It watches the tables themselves.

    - A client that was seen within its retention is not collected: by its owner's own write, clocks that are wrong allowed for.
    - What was closed, and forgotten in the row of a client or an object, is not open again at its timestamp or before.
    - A version is forgotten only while nobody is registered.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: dict[RowKey, int] = {}  # the day that the row shows
        self._closed: dict[tuple[RowKey, bytes], int] = {}
        self._copied_s: dict[tuple[RowKey, str], float] = {}
        self.versions_forgotten: set[bytes] = set()
        self.counts: dict[str, int] = {}
        knobs = world.knobs
        wrong_days = _CLOCK_SET_DAYS if "set clock" in knobs.faults else 0.0
        self._kept_days = knobs.client_retention_days - wrong_days - 2 * knobs.skew_s / DAY_S

    def landed(self, row: RowKey, before: Mapping[bytes, Cell], cell: Cell) -> None:
        if row.table == "registrar":
            if cell.name == cells.SEEN:
                self._seen[row] = cell.timestamp
            elif cell.name == cells.CREATED and cell.value is None:
                self._collected(row)
        elif row.table == "matcher" and matcher_cells.is_registered(cell) and cell.name.startswith(matcher_cells.REG):
            self._copied_s[row, cell.name[len(matcher_cells.REG) :].decode()] = self._world.loop.time()
        forgotten = self._closed.get((row, cell.name)) if self._closed else None
        if forgotten is not None and cell.timestamp <= forgotten and _is_open(row, cell) and not _is_nobodys(row, before):
            self._world.fail(self.broken(f"{cell.name!r} of {row.key!r} @{cell.timestamp} is open again; it was forgotten @{forgotten}"))

    def _collected(self, row: RowKey) -> None:
        if ClientId(row.key.decode()) in self._world.departures.asked_to:
            return  # at its own wish
        self._count("clients collected")
        ago_days = self._world.calendar.now_s() / DAY_S - self._seen.pop(row, 0)
        if ago_days < self._kept_days:
            self._world.fail(self.broken(f"a client was collected that was seen {ago_days:.1f} days ago"))

    def forgotten(self, row: RowKey, before: Mapping[bytes, Cell], cell: Cell) -> None:
        if row.table == "matcher" and cell.name == matcher_cells.VERSION:
            self._count("versions forgotten")
            self._forgot_version(row, before)
        elif row.table in ("registrar", "matcher") and _is_closed(row, cell) and not _is_nobodys(row, before):
            self._count("closed cells forgotten")
            self._closed[row, cell.name] = max(cell.timestamp, self._closed.get((row, cell.name), 0))
        elif cell.name.startswith(_KEPT) and not _is_closed(row, cell) and not self._is_over(row, before):
            self._world.fail(self.broken(f"{cell.name!r} of {row.key!r} was forgotten while it was open"))

    def _is_over(self, row: RowKey, before: Mapping[bytes, Cell]) -> bool:
        """Nobody's: of a client that was collected, or of an object before a reset; or of a table that is not looked at here."""
        if row.table == "matcher":
            return epoch_of(ObjectKey(row.key)) < self._world.epoch
        return row.table != "registrar" or _is_nobodys(row, before)

    def _forgot_version(self, row: RowKey, before: Mapping[bytes, Cell]) -> None:
        if epoch_of(ObjectKey(row.key)) < self._world.epoch:
            return
        self.versions_forgotten.add(name_of(ObjectKey(row.key)))
        registered_s = [self._copied_s.get((row, copy.client), 0.0) for copy in matcher_cells.read_copies(dict(before))]
        if registered_s and self._world.loop.time() - min(registered_s) > _LONG_S:
            self._world.fail(self.broken(f"the version of {row.key!r} was forgotten, though somebody was registered for long"))

    def lost(self, table: str, partition: int) -> None:
        self._seen = {row: day for row, day in self._seen.items() if row[:2] != (table, partition)}
        self._closed = {(row, name): at for (row, name), at in self._closed.items() if row[:2] != (table, partition)}

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def _is_nobodys(row: RowKey, before: Mapping[bytes, Cell]) -> bool:
    """Of a client that was collected: whatever lands there is a zombie's."""
    created = before.get(cells.CREATED)
    return row.table == "registrar" and (created is None or created.value is None)


def _is_closed(row: RowKey, cell: Cell) -> bool:
    if row.table == "matcher":
        return cell.name.startswith(matcher_cells.REG) and not matcher_cells.is_registered(cell)
    return cell.name.startswith(_KEPT) and cells.is_closed(cell)


def _is_open(row: RowKey, cell: Cell) -> bool:
    """Not `log`: a backend that publishes an old version once more has it told once more."""
    return cell.value is not None and not _is_closed(row, cell) and (row.table == "matcher" or not cell.name.startswith(cells.LOG))


class ViewsAgree(Checker):
    """When every sweep has been over a world at rest: nobody's rows are gone, and the two views of registrations are the same."""

    def __init__(self) -> None:
        self.swept = False

    def reason(self, world: World) -> str | None:
        if not self.swept:
            return None
        rows, copies = self._registrations(world), self._copies(world)
        if rows is None:
            return "the row of a client that is gone is still there"
        if rows != copies:
            client, key, seqno = min(rows ^ copies)
            return f"of {len(rows)} registrations and {len(copies)} copies, {key!r} of {client} @{seqno} is in one view only"
        return None

    def _registrations(self, world: World) -> set[tuple[str, bytes, int]] | None:
        found: set[tuple[str, bytes, int]] = set()
        for row, held in world.stores.rows.items():
            if row.table == "registrar":
                client = ClientRow(ClientId(row.key.decode()), held.values(), world.epoch)
                if client.created is None:
                    return None
                found |= {(client.client, key, held[cells.REG + key].timestamp) for key in client.registered()}
        return found

    def _copies(self, world: World) -> set[tuple[str, bytes, int]]:
        return {
            (copy.client, row.key, copy.seqno)
            for row, held in world.stores.rows.items()
            if row.table == "matcher" and epoch_of(ObjectKey(row.key)) == world.epoch
            for copy in matcher_cells.read_copies(held)
        }
