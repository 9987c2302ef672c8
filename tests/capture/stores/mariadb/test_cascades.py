"""`capture check` of foreign keys: what InnoDB does below the log is found, and the statement that is advised brings it into the log."""

from __future__ import annotations

import pytest

from roskva.capture.interface import Finding
from roskva.capture.stores.binlog.cascades import check_cascades, rules_of
from roskva.capture.stores.mariadb import MariadbSettings, MariadbStore
from roskva.capture.updates import Operation
from tests.capture.stores.binlog.reading import read_to
from tests.capture.stores.servers_mariadb import MariadbServer

PARENT = "CREATE TABLE documents (id INT PRIMARY KEY)"


def found(settings: MariadbSettings, database: str, *tables: str) -> list[Finding]:
    return list(check_cascades(settings, lambda where, table: where == database and (not tables or table in tables)))


def test_rows_that_cascade_are_not_in_the_log_until_what_is_advised_was_done(
    server: MariadbServer, store: MariadbStore, database: str
) -> None:
    child = "CREATE TABLE `com``ments` (id INT PRIMARY KEY, document INT, CONSTRAINT c FOREIGN KEY (document) REFERENCES documents (id) {})"
    server.run(PARENT, child.format("ON DELETE CASCADE ON UPDATE SET NULL"), database=database)
    fill, delete = ("INSERT INTO documents VALUES (1)", "INSERT INTO `com``ments` VALUES (10, 1)"), "DELETE FROM documents"
    server.run(*fill, database=database)

    def deleted() -> list[str]:
        before = store.retained().end
        server.run(delete, database=database)
        assert server.rows("SELECT * FROM `com``ments`", database) == []
        return [change.table for change in read_to(store, before) if change.operation is Operation.DELETE]

    assert deleted() == ["documents"], "the child's row went below the log"
    (finding,) = found(server.settings(), database)
    assert not finding.ok
    assert f"{database}.com`ments" in finding.what
    assert "c has ON DELETE CASCADE and ON UPDATE SET NULL" in finding.means

    statement, advice = finding.do.split("; ")
    assert f"a trigger BEFORE DELETE of `{database}`.`documents`" in advice
    trigger = "CREATE TRIGGER t BEFORE DELETE ON documents FOR EACH ROW DELETE FROM `com``ments` WHERE document = OLD.id"
    server.run(statement, trigger, *fill, database=database)
    assert found(server.settings(), database) == []
    assert sorted(deleted()) == ["com`ments", "documents"]


@pytest.mark.parametrize("rule", ["ON DELETE CASCADE", "ON DELETE SET NULL", "ON UPDATE CASCADE", "ON UPDATE SET NULL"])
def test_every_rule_that_changes_rows_is_found_and_those_that_refuse_are_none(server: MariadbServer, database: str, rule: str) -> None:
    made = "CREATE TABLE {} (id INT PRIMARY KEY, a INT, FOREIGN KEY (a) REFERENCES documents (id) {})"
    server.run(PARENT, made.format("silent", rule), made.format("loud", "ON DELETE RESTRICT ON UPDATE NO ACTION"), database=database)
    (finding,) = found(server.settings(), database)
    assert f"{database}.silent" in finding.what
    assert rule in finding.means


def test_a_key_of_several_columns_and_one_within_its_own_table_can_be_mended_as_is_said(server: MariadbServer, database: str) -> None:
    server.run(
        "CREATE TABLE nodes (tree INT, id INT, above INT, PRIMARY KEY (tree, id),"
        " FOREIGN KEY (tree, above) REFERENCES nodes (tree, id) ON DELETE CASCADE)",
        database=database,
    )
    (finding,) = found(server.settings(), database)
    statement, advice = finding.do.split("; ")
    assert "trigger" not in advice, "no trigger may change the table that it is of"
    server.run(statement, database=database)
    assert found(server.settings(), database) == []


def test_only_tables_that_somebody_is_told_of_are_looked_at(server: MariadbServer, database: str) -> None:
    made = "CREATE TABLE {} (id INT PRIMARY KEY, a INT, FOREIGN KEY (a) REFERENCES documents (id) ON DELETE CASCADE)"
    server.run(PARENT, made.format("comments"), made.format("others"), database=database)
    assert [f"{database}.comments" in finding.what for finding in found(server.settings(), database, "comments")] == [True]


def test_the_rights_that_check_asks_for_are_enough_to_see_them(server: MariadbServer, store: MariadbStore, database: str) -> None:
    made = "CREATE TABLE comments (id INT PRIMARY KEY, a INT, FOREIGN KEY (a) REFERENCES documents (id) ON DELETE CASCADE)"
    server.run(PARENT, made, "CREATE OR REPLACE USER sees@'%' IDENTIFIED BY 'sees'", database=database)
    server.run("GRANT REPLICATION SLAVE, BINLOG MONITOR, SLAVE MONITOR, SELECT ON *.* TO 'sees'@'%'")
    assert len(found(server.settings(user="sees", password="sees"), database)) == 1


def test_only_the_rules_of_the_key_itself_count() -> None:
    written = """CREATE TABLE `t` (
  `a` int(11) COMMENT 'CONSTRAINT `k` FOREIGN KEY (`a`) ON DELETE CASCADE',
  CONSTRAINT `k` FOREIGN KEY (`a`) REFERENCES `on ON DELETE CASCADE` (`id`) ON UPDATE NO ACTION,
  CONSTRAINT `k2` FOREIGN KEY (`a`) REFERENCES `p` (`id`) ON DELETE SET NULL ON UPDATE CASCADE
) ENGINE=InnoDB"""
    assert rules_of(written, "k") == ()
    assert rules_of(written, "k2") == ("ON DELETE SET NULL", "ON UPDATE CASCADE")
