"""Publishing inside a transaction of SQLAlchemy: Core, ORM and asyncio; on SQLite, Postgres and MariaDB."""

from __future__ import annotations

import subprocess
import sys

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from roskva.errors import BadRequest, InvalidApplication, InvalidDevice, InvalidName, InvalidSetting, InvalidVersion
from roskva.outbox import sqlalchemy as outbox
from roskva.outbox.rows import DDL, Row
from tests.outbox.conftest import APPLICATION

pytestmark = pytest.mark.timeout(120)


def waiting(engine: sa.Engine) -> list[tuple[str, int | None, str | None]]:
    database = outbox.database(engine)
    rows = database.waiting(APPLICATION, 1_000)
    database.close()
    return [(row.object, row.version, row.source) for row in rows]


def test_what_is_published_is_committed_with_the_change_or_not_at_all(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO documents VALUES (1, 'a')"))
        outbox.publish(connection, APPLICATION, "doc:1")
    with engine.connect() as connection:
        outbox.publish(connection, APPLICATION, "doc:2")
        with pytest.raises(sa.exc.IntegrityError):
            connection.execute(sa.text("INSERT INTO documents VALUES (1, 'again')"))
    with Session(engine) as session, session.begin():
        outbox.publish(session, APPLICATION, "doc:3", 2**63 - 1, "phone")
        outbox.publish(session, APPLICATION, b"\xff", "7")
    with Session(engine) as session:
        outbox.publish(session, APPLICATION, "doc:4")
        session.rollback()
    makes = scoped_session(sessionmaker(engine))
    outbox.publish(makes, APPLICATION, "é" * 64, source="tablet")
    makes.commit()
    makes.remove()
    assert waiting(engine) == [
        ("doc:1", None, None),
        ("doc:3", 2**63 - 1, "phone"),
        ("base64:_w", 7, None),
        ("é" * 64, None, "tablet"),
    ]


def test_the_longest_name_fits(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        outbox.publish(connection, APPLICATION, b"\xff" * 128, source="d" * 128)
    ((name, _, source),) = waiting(engine)
    assert name.startswith("base64:")
    assert len(name) == 178
    assert source == "d" * 128


def test_mistakes_are_raised_where_the_transaction_can_be_rolled_back(sqlite: sa.Engine) -> None:
    with sqlite.begin() as connection:
        for error, arguments in (
            (InvalidApplication, ("Shop", "x")),
            (InvalidName, (APPLICATION, "")),
            (InvalidName, (APPLICATION, 5)),
            (InvalidVersion, (APPLICATION, "x", -1)),
            (InvalidVersion, (APPLICATION, "x", "many")),
            (InvalidDevice, (APPLICATION, "x", None, "")),
        ):
            with pytest.raises(error):
                outbox.publish(connection, *arguments)
    assert waiting(sqlite) == []


def test_a_connection_that_commits_by_itself_is_refused(sqlite: sa.Engine) -> None:
    with sqlite.connect().execution_options(isolation_level="AUTOCOMMIT") as connection, pytest.raises(BadRequest, match="commits every"):
        outbox.publish(connection, APPLICATION, "x")
    assert waiting(sqlite) == []


def test_an_engine_that_commits_by_itself_is_refused(engine: sa.Engine) -> None:
    automatic = sa.create_engine(engine.url, isolation_level="AUTOCOMMIT")
    with automatic.connect() as connection, pytest.raises(BadRequest, match="commits every"):
        outbox.publish(connection, APPLICATION, "x")
    with Session(automatic) as session, pytest.raises(BadRequest, match="commits every"):
        outbox.publish(session, APPLICATION, "x")
    if engine.dialect.name != "sqlite":  # whose levels are but two
        with automatic.connect().execution_options(isolation_level="READ COMMITTED") as connection, connection.begin():
            outbox.publish(connection, APPLICATION, "in a transaction all the same")
    automatic.dispose()
    assert [name for name, _, _ in waiting(engine)] == (["in a transaction all the same"] if engine.dialect.name != "sqlite" else [])


def test_a_driver_that_commits_by_itself_is_not_meant_if_an_event_begins_the_transaction(sqlite: sa.Engine) -> None:
    by_hand = sa.create_engine(sqlite.url)
    sa.event.listen(by_hand, "connect", lambda raw, _: setattr(raw, "isolation_level", None))
    with by_hand.connect() as connection, pytest.raises(BadRequest, match="commits every"):
        outbox.publish(connection, APPLICATION, "x")
    sa.event.listen(by_hand, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    with by_hand.connect() as connection:
        outbox.publish(connection, APPLICATION, "doc:1")
        connection.rollback()
        outbox.publish(connection, APPLICATION, "doc:2")
        connection.commit()
    by_hand.dispose()
    assert waiting(sqlite) == [("doc:2", None, None)]


def test_the_tables_of_the_metadata_are_the_documented_ones(engine: sa.Engine) -> None:
    """Column for column, whether SQLAlchemy or the documented statements make them."""
    documented = _columns(engine)
    outbox.metadata.drop_all(engine)
    outbox.metadata.create_all(engine)
    assert _columns(engine) == documented
    with engine.begin() as connection:
        outbox.publish(connection, APPLICATION, "doc:1")
    assert waiting(engine) == [("doc:1", None, None)]
    other = sa.MetaData()
    outbox.add_to(other)
    assert set(other.tables) == {"roskva_outbox", "roskva_outbox_relay"}


def _columns(engine: sa.Engine) -> dict[str, list[tuple[str, str, bool]]]:
    inspector = sa.inspect(engine)
    sqlite = engine.dialect.name == "sqlite"  # whose types are but names
    return {
        table: [
            (column["name"], "" if sqlite else str(column["type"]).removesuffix(" COLLATE utf8mb4_bin"), column["nullable"])
            for column in inspector.get_columns(table)
        ]
        for table in ("roskva_outbox", "roskva_outbox_relay")
        if inspector.get_indexes("roskva_outbox")[0]["column_names"] == ["application", "id"]
    }


@pytest.mark.parametrize("made_by", ["statements", "metadata"])
def test_ids_are_never_used_twice(engine: sa.Engine, made_by: str) -> None:
    """A slow relay deletes by id what it has read: that must not be somebody else's row."""
    if made_by == "metadata":
        outbox.metadata.drop_all(engine)
        outbox.metadata.create_all(engine)
    seen: set[int] = set()
    for _ in range(3):
        with engine.begin() as connection:
            outbox.publish(connection, APPLICATION, "doc:1")
        database = outbox.database(engine)
        (row,) = database.waiting(APPLICATION, 10)
        database.delete([row.id])
        database.close()
        assert isinstance(row, Row)
        assert row.id not in seen
        seen.add(row.id)


def test_an_engine_of_asyncio_is_refused_for_relays(sqlite: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(sqlite.dialect), "is_async", True)
    with pytest.raises(InvalidSetting, match="one that blocks"):
        outbox.database(sqlite)


def test_without_sqlalchemy_it_says_what_to_install() -> None:
    check = "import sys; sys.modules['sqlalchemy'] = None; import roskva.outbox.sqlalchemy"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, env={"PYTHONPATH": "src"})
    assert "InvalidSetting: roskva.outbox.sqlalchemy needs SQLAlchemy 2" in done.stderr


def test_the_outbox_alone_needs_neither_sqlalchemy_nor_django() -> None:
    check = "import sys, roskva.outbox; print(sorted({'sqlalchemy', 'django', 'aiohttp'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, env={"PYTHONPATH": "src"})
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", DDL)
def test_the_statements_are_printed(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    from roskva.outbox.__main__ import main

    assert main(["--ddl", kind]) == 0
    assert capsys.readouterr().out.count("CREATE TABLE") == 2
