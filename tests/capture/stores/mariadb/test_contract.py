"""The MariaDB datastore keeps the contract of datastores."""

from __future__ import annotations

import pytest

from roskva.capture.stores.mariadb import MariadbStore
from tests.capture.stores.binlog.contracted import BinlogContracted
from tests.capture.stores.contract import Contracted, DatastoreContract
from tests.capture.stores.servers_mariadb import MariadbServer


class MariadbContracted(BinlogContracted):
    def _store(self) -> MariadbStore:
        assert isinstance(self.server, MariadbServer)
        return MariadbStore(self.server.settings(statement_s_max=0.0, heartbeat_s=0.5))

    def _last(self) -> int:
        (gtid,) = self.server.rows("SELECT @@gtid_binlog_pos")[0]
        return int(gtid.rpartition("-")[2])


class TestMariadb(DatastoreContract):
    @pytest.fixture
    def contracted(self, server: MariadbServer, database: str) -> Contracted:
        return MariadbContracted(server, database)
