"""PostgreSQL keeps the contract of a datastore (tests/capture/stores/contract.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from roskva.capture.interface import Datastore
from roskva.capture.positions import Position
from roskva.capture.updates import Change, Value
from tests.capture.stores.contract import Contracted, DatastoreContract, Row
from tests.capture.stores.postgres.place import Place
from tests.capture.stores.servers_postgres import running_postgres

# Each kind of value has a column of its own; bool before int, which it is one of.
_COLUMNS: dict[str, type] = {"flag": bool, "number": int, "ratio": float, "words": str, "raw": bytes}


class PostgresContracted:
    values: Sequence[Value] = (
        None, True, False, 0, 2**63 - 1, -(2**63), 0.1, -1e300, 5e-324, "", "þorn \U0001f600", "a\x01\n\\'\"",
        "x" * 100_000, b"", b"\x00\xff\xfe", bytes(50_000),
    )  # fmt: skip

    def __init__(self, place: Place) -> None:
        self._place = place
        place.execute("CREATE TABLE kept (key bigint PRIMARY KEY, flag bool, number bigint, ratio float8, words text, raw bytea)")
        place.store.prepare()

    def open(self) -> Datastore:
        return self._place.open()

    def commit(self, rows: Sequence[Row]) -> None:
        self._place.transaction(*(self._insert(row) for row in rows))

    def _insert(self, row: Row) -> tuple[str, Sequence[Value]]:
        column = next((name for name, kind in _COLUMNS.items() if isinstance(row.value, kind)), "words")
        return f"INSERT INTO kept (key, {column}) VALUES (%s, %s)", (row.key, row.value)

    def row_of(self, change: Change) -> Row | None:
        if change.table != "kept":
            return None
        key = change.key["key"]
        assert isinstance(key, int)
        return Row(key, next((change.columns[name] for name in _COLUMNS if change.columns[name] is not None), None))

    def restart(self) -> None:
        self._place.server.stop()
        self._place.server.start()

    def cut(self) -> None:
        self._place.execute(f"SELECT pg_replication_slot_advance('{self._place.settings.slot}', pg_current_wal_flush_lsn())")

    def never_had(self) -> Position:
        return self._place.store.retained().end._replace(history=2)


@pytest.fixture(scope="module")
def prepared() -> Iterator[PostgresContracted]:
    with running_postgres(max_slot_wal_keep_size="1GB") as server:
        place = Place(server, "contract")
        yield PostgresContracted(place)
        place.close()


class TestPostgres(DatastoreContract):
    @pytest.fixture
    def contracted(self, prepared: PostgresContracted) -> Contracted:
        return prepared
