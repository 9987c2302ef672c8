"""`capture check` of a MySQL server: what is wrong is named, with what mends it."""

from __future__ import annotations

import pytest

from roskva.capture.stores.mysql import MysqlSettings, MysqlStore
from roskva.errors import InvalidSetting
from tests.capture.stores.binlog.findings import check_that_it_is_named, wrong
from tests.capture.stores.servers_mysql import MysqlServer


def test_a_server_that_is_set_up_well_is_found_well(store: MysqlStore) -> None:
    findings = store.check()
    assert wrong(findings) == []
    expected = {"gtid_mode = ON", "binlog_format = ROW", "binlog_row_metadata = FULL", "reading the log", "the log is kept for 720 hours"}
    assert expected <= {finding.what for finding in findings}


@pytest.mark.parametrize(
    ("variable", "bad", "good"),
    [
        ("binlog_format", "'MIXED'", "'ROW'"),
        ("binlog_row_metadata", "'MINIMAL'", "'FULL'"),
        ("binlog_row_image", "'MINIMAL'", "'FULL'"),
        ("binlog_row_value_options", "'PARTIAL_JSON'", "''"),
        ("binlog_transaction_compression", "ON", "OFF"),
        ("sync_binlog", "0", "1"),
    ],
)
def test_a_setting_that_is_wrong_is_named_with_what_mends_it(
    server: MysqlServer, store: MysqlStore, variable: str, bad: str, good: str
) -> None:
    check_that_it_is_named(server, store, variable, bad, good)


def test_rights_that_are_missing_are_named_one_after_the_other(server: MysqlServer) -> None:
    """Over TCP without TLS, as a password of caching_sha2_password goes only when it is encrypted."""
    server.run("CREATE USER poor@'%' IDENTIFIED BY 'poor'")
    store = MysqlStore(server.settings(user="poor", password="poor"))
    (finding,) = wrong(store.check())
    assert finding.what == "the list of the log's files, and one source of GTIDs"
    server.run("GRANT REPLICATION CLIENT ON *.* TO poor@'%'")
    (finding,) = wrong(store.check())
    assert finding.what == "the list of the log's files, and one source of GTIDs", "what a file begins with is not shown yet"
    assert finding.do == "GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO 'poor'@'%'"
    server.run(finding.do)
    assert wrong(store.check()) == []
    store.close()


@pytest.mark.parametrize("changed", [{"dataset": "a/b"}, {"source": "db1"}, {"heartbeat_s": 0.0}, {"event_bytes_max": 10}])
def test_settings_that_make_no_sense_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting):
        MysqlSettings(**{"dataset": "d", **changed})  # type: ignore[arg-type]


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(MysqlSettings(dataset="d", password="secret"))
