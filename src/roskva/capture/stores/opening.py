"""Which datastore the settings of capture name, and the disk that its log fills."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

from roskva.address import is_loopback
from roskva.capture.interface import Datastore
from roskva.capture.settings import BinlogServer, CaptureSettings, Files, Mariadb, Mysql, Postgres, Rocksdb
from roskva.errors import RoskvaError


def datastore_of(settings: CaptureSettings) -> Datastore:
    """The datastore that the settings name. Its library is imported here, so that nobody needs those of the others."""
    store = settings.datastore
    if isinstance(store, Postgres):
        from roskva.capture.stores.postgres import PostgresSettings, PostgresStore

        return PostgresStore(
            PostgresSettings(store.dsn, store.slot, store.publication, store.tables, store.message_prefix, store.replace_lost_slot)
        )
    if isinstance(store, Mariadb):
        from roskva.capture.stores.mariadb import MariadbSettings, MariadbStore

        return MariadbStore(MariadbSettings(**_server(store, settings.dataset.name), domain=store.domain))
    if isinstance(store, Mysql):
        from roskva.capture.stores.mysql import MysqlSettings, MysqlStore

        return MysqlStore(MysqlSettings(**_server(store, settings.dataset.name), source=store.source))
    if isinstance(store, Rocksdb):
        from roskva.capture.stores.rocksdb import RocksDBDatastore

        return RocksDBDatastore(
            store.path, store.database, identity=store.identity or None, wal_directory=Path(store.wal_dir) if store.wal_dir else None
        )
    from roskva.capture.stores.files import FileDatastore

    assert isinstance(store, Files)
    return FileDatastore(store.path, store.database)


def _server(store: BinlogServer, dataset: str) -> dict[str, Any]:
    """What a store of MariaDB and one of MySQL are told alike."""
    same = ("host", "port", "unix_socket", "user", "password", "tls_ca", "event_bytes_max", "prepared_xa_counts")
    return {"dataset": dataset, **{name: getattr(store, name) for name in same}}


def place_of_disk(settings: CaptureSettings) -> Path | None:
    """A path on the disk that the datastore's log fills; None: it is on another machine, or does not say. Blocks."""
    store = settings.datastore
    if isinstance(store, Files | Rocksdb):
        return store.path
    return _place_of_postgres(store) if isinstance(store, Postgres) else None  # nothing in MariaDB or MySQL keeps a log for us


def _place_of_postgres(store: Postgres) -> Path | None:
    """Only a superuser, or who has pg_read_all_settings, is told. A server in a container names a place that is not here."""
    import psycopg2

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
