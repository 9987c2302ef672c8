"""One server for all tests of this folder, a database for each."""

from __future__ import annotations

from roskva.capture.stores.mysql import MysqlStore
from tests.capture.stores.binlog.fixtures import fixtures_of
from tests.capture.stores.servers_mysql import MysqlServer

server, database, store = fixtures_of(MysqlServer, MysqlStore)
