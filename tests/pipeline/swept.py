"""What the tests of sweeps over closed cells share: rows as a Registrar and the Matcher leave them, a sweep of a day, interruptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from roskva.config import Settings
from roskva.matcher.cells import object_row
from roskva.model import ClientId, ObjectKey, object_key
from roskva.pipeline.connections import Connections
from roskva.pipeline.sweeps import Progress, Request, Swept
from roskva.pipeline.sweeps.frame import DAY_MS, task_of
from roskva.registrar.cells import Created, client_row, created_cell, seqno_cell
from roskva.table import open_table
from roskva.table.interface import Cell, Mutation, RowKey

TODAY = 20_000
SEQNO = 1 << 32 | 1
KEY = object_key("demo", 0, b"an object")
CLIENT = ClientId("client")


def write(settings: Settings, row: RowKey, *cells: Cell) -> None:
    open_table(settings).write([Mutation(row, cells)])


def a_client(settings: Settings, *cells: Cell, client: ClientId = CLIENT, seqno: int = SEQNO) -> RowKey:
    row = client_row(client, settings.partitions)
    write(settings, row, created_cell(Created("demo", client)), seqno_cell(seqno), *cells)
    return row


def an_object(settings: Settings, *cells: Cell, key: ObjectKey = KEY) -> RowKey:
    row = object_row(key, settings.partitions)
    if cells:
        write(settings, row, *cells)
    return row


def cells_of(settings: Settings, row: RowKey) -> dict[bytes, Cell]:
    return dict(open_table(settings).read([row])[row])


def sweep(settings: Settings, name: str, day: int = TODAY, dry_run: bool = False, connected: Connections | None = None) -> Swept:
    mine = connected or Connections(settings)
    task = task_of(name)(mine, Request(name, day * DAY_MS, dry_run=dry_run), Progress())
    total = Swept()
    for partition in range(settings.partitions):
        total.add(task.run(partition))
    if "links" in vars(mine):
        mine.links.close()
    return total


class Interrupted:
    """A table in which something else happens right before or after calls of some kind."""

    def __init__(self, settings: Settings, before: dict[str, Callable[[], object]], after: dict[str, Callable[[], object]]) -> None:
        self._table = open_table(settings)
        self._before = before
        self._after = after
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._table, name)

        def call(*arguments: Any, **more: Any) -> Any:
            if name in ("write", "forget") and not arguments[0]:
                return None
            self.calls.append(name)
            self._before.pop(name, lambda: None)()
            answer = real(*arguments, **more)
            if name == "scan":
                answer = list(answer)
                if not answer:  # the page that matters is the one with the row
                    return iter(answer)
            self._after.pop(name, lambda: None)()
            return iter(answer) if name == "scan" else answer

        return call


def interrupted(
    settings: Settings, before: dict[str, Callable[[], object]] | None = None, after: dict[str, Callable[[], object]] | None = None
) -> Connections:
    connected = Connections(settings)
    connected.table = Interrupted(settings, before or {}, after or {})
    return connected


def names_of(cells: Sequence[Cell]) -> set[bytes]:
    return {cell.name for cell in cells}
