"""`capture check` of a MariaDB server: what is wrong is named, with what mends it."""

from __future__ import annotations

import pytest

from roskva.capture.interface import Finding
from roskva.capture.settings import settings_of
from roskva.capture.stores.mariadb import MariadbSettings, MariadbStore
from roskva.cli.capture_check_roskva import databases_findings
from roskva.errors import InvalidSetting
from tests.capture.stores.binlog.findings import check_that_it_is_named, wrong
from tests.capture.stores.servers_mariadb import MariadbServer


def test_a_server_that_is_set_up_well_is_found_well(store: MariadbStore) -> None:
    findings = store.check()
    assert wrong(findings) == []
    assert {"binlog_format = ROW", "binlog_row_metadata = FULL", "reading the log"} <= {finding.what for finding in findings}


@pytest.mark.parametrize(
    ("variable", "bad", "good"),
    [
        ("binlog_format", "'MIXED'", "'ROW'"),
        ("binlog_row_metadata", "'NO_LOG'", "'FULL'"),
        ("binlog_row_image", "'MINIMAL'", "'FULL'"),
        ("gtid_strict_mode", "OFF", "ON"),
        ("sync_binlog", "0", "1"),
    ],
)
def test_a_setting_that_is_wrong_is_named_with_what_mends_it(
    server: MariadbServer, store: MariadbStore, variable: str, bad: str, good: str
) -> None:
    check_that_it_is_named(server, store, variable, bad, good)


def test_a_log_that_is_kept_too_short_is_a_finding(server: MariadbServer, store: MariadbStore) -> None:
    server.run("SET GLOBAL binlog_expire_logs_seconds = 3600")
    try:
        (finding,) = wrong(store.check())
        server.run("SET GLOBAL binlog_expire_logs_seconds = 604800")
        assert wrong(store.check()) == []
    finally:
        server.run("SET GLOBAL binlog_expire_logs_seconds = 0")
    assert finding.what == "the log is kept for 1 hours"


def test_rights_that_are_missing_are_named_one_after_the_other(server: MariadbServer) -> None:
    server.run("CREATE OR REPLACE USER poor@'%' IDENTIFIED BY 'poor'")
    store = MariadbStore(server.settings(user="poor", password="poor"))
    assert {finding.what for finding in wrong(store.check())} == {
        "the list of the log's files, and one GTID domain",
        "whether this is a replica",
    }
    server.run("GRANT BINLOG MONITOR, SLAVE MONITOR ON *.* TO poor@'%'")
    (finding,) = wrong(store.check())
    assert finding.what == "reading the log"
    assert finding.do == "GRANT REPLICATION SLAVE, BINLOG MONITOR, SLAVE MONITOR, SELECT ON *.* TO 'poor'@'%'"
    server.run(finding.do)
    assert wrong(store.check()) == []
    store.close()


def test_a_server_that_does_not_answer_is_the_only_finding(server: MariadbServer) -> None:
    store = MariadbStore(server.settings(port=1))
    (finding,) = store.check()
    assert not finding.ok
    assert "127.0.0.1:1" in finding.means
    store.close()


@pytest.mark.parametrize("changed", [{"dataset": ""}, {"dataset": "a/b"}, {"domain": -1}, {"heartbeat_s": 0.0}, {"event_bytes_max": 10}])
def test_settings_that_make_no_sense_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting):
        MariadbSettings(**{"dataset": "d", **changed})  # type: ignore[arg-type]


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(MariadbSettings(dataset="d", password="secret"))


def test_a_mapped_table_that_several_databases_have_is_told_until_a_filter_names_one(server: MariadbServer, database: str) -> None:
    def found(**application: str) -> list[Finding]:
        given = server.settings()
        datastore = {"kind": "mariadb", "host": given.host, "port": given.port, "user": given.user, "password": given.password}
        mapping = [{"table": "mapped", "object": "doc:{id}"}]
        more = {"applications": {"roskva": application}} if application else {}
        roskva = {"application": "demo", "mapping": mapping}
        settings = settings_of({"dataset": {"name": "shop"}, "datastore": datastore, "roskva": roskva, **more})
        return list(databases_findings(settings, "mapped"))

    server.run("CREATE TABLE mapped (id int PRIMARY KEY)", database=database)
    assert found() == []
    server.run(f"CREATE DATABASE another_{database}")
    try:
        server.run("CREATE TABLE mapped (id int PRIMARY KEY)", database=f"another_{database}")
        (finding,) = found()
        assert f"it is in another_{database}, {database}" in finding.means
        assert found(filter=finding.do.partition("filter = '")[2].partition("'")[0]) == []
    finally:
        server.run(f"DROP DATABASE another_{database}")
