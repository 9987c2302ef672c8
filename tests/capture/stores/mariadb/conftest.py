"""One server for all tests of this folder, a database for each."""

from __future__ import annotations

from roskva.capture.stores.mariadb import MariadbStore
from tests.capture.stores.binlog.fixtures import fixtures_of
from tests.capture.stores.servers_mariadb import MariadbServer

server, database, store = fixtures_of(MariadbServer, MariadbStore)
