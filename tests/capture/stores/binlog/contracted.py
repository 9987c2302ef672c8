"""What a server with a binary log is to the contract of datastores."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from roskva.capture.interface import Datastore
from roskva.capture.positions import Position
from roskva.capture.stores.binlog.store import BinlogStore
from roskva.capture.updates import Change, Value
from tests.capture.stores.contract import Row
from tests.capture.stores.servers_binlog import BinlogServer

CUT_S_MAX = 20.0
COLUMNS = {int: "i", float: "f", str: "s", bytes: "b"}


class BinlogContracted(ABC):
    values: Sequence[Value] = [
        None,
        0,
        -(2**63),
        2**63 - 1,
        0.5,
        -1e300,
        "",
        "Þjálfi \x00 \U0001f41d",
        "x" * 70_000,
        b"",
        b"\x00\xff\xfe" * 30_000,
    ]

    def __init__(self, server: BinlogServer, database: str) -> None:
        self.server = server
        self.database = database
        server.run("CREATE TABLE t (k BIGINT PRIMARY KEY, i BIGINT, f DOUBLE, s LONGTEXT, b LONGBLOB)", database=database)

    @abstractmethod
    def _store(self) -> BinlogStore[Any, Any]: ...

    @abstractmethod
    def _last(self) -> int:
        """The number of the last commit."""

    def open(self) -> Datastore:
        store = self._store()
        store.prepare()
        return store

    def commit(self, rows: Sequence[Row]) -> None:
        with closing(self.server.connect(self.database)) as connection, connection.cursor() as cursor:
            connection.begin()
            for row in rows:
                column = COLUMNS.get(type(row.value), "i")
                cursor.execute(f"INSERT INTO t (k, {column}) VALUES (%s, %s)", (row.key, row.value))
            connection.commit()

    def row_of(self, change: Change) -> Row | None:
        if (change.database, change.table) != (self.database, "t"):
            return None
        key = change.key["k"]
        assert isinstance(key, int)
        filled = [value for name, value in change.columns.items() if name != "k" and value is not None]
        return Row(key, filled[0] if filled else None)

    def restart(self) -> None:
        self.server.kill()
        self.server.start()

    def cut(self) -> None:
        """A file that somebody reads is not dropped, and the server notices a moment later that nobody does any more."""
        self.server.run("FLUSH BINARY LOGS")
        until_s = time.monotonic() + CUT_S_MAX
        while len(files := self.server.rows("SHOW BINARY LOGS")) > 1:
            assert time.monotonic() < until_s
            self.server.run(f"PURGE BINARY LOGS TO '{files[-1][0]}'")
            time.sleep(0.05)

    def never_had(self) -> Position:
        return Position(0, self._last() + 1000)
