"""A database on a test's server, and the store that captures it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from roskva.capture.interface import Reader
from roskva.capture.positions import Position
from roskva.capture.stores.postgres import PostgresSettings, PostgresStore
from roskva.capture.updates import Change
from tests.capture.stores.servers_postgres import PostgresServer

WITHIN_S = 20.0


class Place:
    def __init__(self, server: PostgresServer, name: str, options: str = "", exists: bool = False) -> None:
        self.server = server
        self.name = name
        self.secret = f"secret of {name}"
        if not exists:
            server.create_database(name, options)
        self.settings = PostgresSettings(server.dsn(name), slot=f"slot_{name}", publication="Roskva's")
        self.stores: list[PostgresStore] = []
        self.store = self.open()

    def open(self, **changes: object) -> PostgresStore:
        """One more store of the same slot; settings may differ. All are closed with the place."""
        store = PostgresStore(dataclasses.replace(self.settings, **changes))  # type: ignore[arg-type]  # any setting, each of its own type
        store.sign_with(lambda: self.secret)  # as all publishers of the same data
        self.stores.append(store)
        return store

    def execute(self, *statements: str, user: str = "postgres") -> list[tuple[Any, ...]]:
        return self.server.execute(self.name, *statements, user=user)

    def transaction(self, *statements: str | tuple[str, Sequence[Any]]) -> None:
        self.server.transaction(self.name, *statements)

    def changes(self, count: int, after: Position | None = None) -> list[Change]:
        """The next changes after a position, or of all that there are."""
        reader = self.store.read_after(self.store.retained().oldest if after is None else after)
        try:
            return take(reader, count)
        finally:
            reader.close()

    def one(self, *statements: str) -> Change:
        """What the last of these statements, each a transaction, has the log say; the others say nothing or as much before it."""
        end = self.store.retained().end
        self.execute(*statements)
        return self.changes(1, end)[0]

    def close(self) -> None:
        for store in self.stores:
            store.close()
        self.server.release(self.name)


def take(reader: Reader, count: int, changes_max: int = 1000) -> list[Change]:
    """Exactly so many changes."""
    found: list[Change] = []
    until_s = time.monotonic() + WITHIN_S
    while len(found) < count and time.monotonic() < until_s:
        found += reader.read(min(changes_max, count - len(found)), 0.5).changes
    assert len(found) == count, f"{len(found)} of {count} came: {found[-3:]}"
    return found


def read_past(reader: Reader, position: Position) -> list[Change]:
    """Everything up to a position, however far beyond it that is."""
    found: list[Change] = []
    until_s = time.monotonic() + WITHIN_S
    while time.monotonic() < until_s:
        batch = reader.read(1000, 0.2)
        found += batch.changes
        if batch.reached >= position:
            return found
    raise AssertionError(f"{position} was not reached")
