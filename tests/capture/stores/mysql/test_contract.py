"""The MySQL datastore keeps the contract of datastores."""

from __future__ import annotations

import pytest

from roskva.capture.stores.mysql import MysqlStore
from tests.capture.stores.binlog.contracted import BinlogContracted
from tests.capture.stores.contract import Contracted, DatastoreContract
from tests.capture.stores.servers_mysql import MysqlServer


class MysqlContracted(BinlogContracted):
    def _store(self) -> MysqlStore:
        assert isinstance(self.server, MysqlServer)
        return MysqlStore(self.server.settings(statement_s_max=0.0, heartbeat_s=0.5))

    def _last(self) -> int:
        ((executed,),) = self.server.rows("SELECT @@gtid_executed")
        return int(executed.rpartition("-")[2])


class TestMysql(DatastoreContract):
    @pytest.fixture
    def contracted(self, server: MysqlServer, database: str) -> Contracted:
        return MysqlContracted(server, database)
