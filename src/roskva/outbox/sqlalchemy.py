"""The outbox with SQLAlchemy 2: Core connections, ORM sessions, and asyncio's through `run_sync`.

outbox.metadata.create_all(engine)                     or rows.DDL, or `outbox.add_to(Base.metadata)` for Alembic

with Session(engine) as session, session.begin():
    outbox.publish(session, "shop", "doc:7")           a version is made when it is relayed
    outbox.publish(session, "shop", "doc:8", version=document.revision, source=request.headers["Device"])

await async_session.run_sync(outbox.publish, "shop", "doc:7")

outbox.database(engine)                                what a Relay reads
"""

from __future__ import annotations

from typing import Any, Final

from roskva.errors import BadRequest, InvalidSetting
from roskva.outbox.rows import OBJECT_CHARACTERS_MAX, RELAYS, TABLE, Connection, Database, over_dbapi, record_of

try:
    import sqlalchemy as sa
    from sqlalchemy.orm import Session, scoped_session
except ImportError as error:
    raise InvalidSetting("roskva.outbox.sqlalchemy needs SQLAlchemy 2, which is not installed: pip install 'sqlalchemy>=2'.") from error

_MARKS: Final = {"qmark": "?", "format": "%s", "pyformat": "%s"}

metadata: Final = sa.MetaData()
_NAME = sa.String(64).with_variant(sa.String(64, collation="utf8mb4_bin"), "mysql", "mariadb")
_OBJECT = sa.String(OBJECT_CHARACTERS_MAX).with_variant(sa.String(OBJECT_CHARACTERS_MAX, collation="utf8mb4_bin"), "mysql", "mariadb")
_SOURCE = sa.String(128).with_variant(sa.String(128, collation="utf8mb4_bin"), "mysql", "mariadb")

outbox: Final = sa.Table(
    TABLE,
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("application", _NAME, nullable=False),
    sa.Column("object", _OBJECT, nullable=False),
    sa.Column("version", sa.BigInteger),
    sa.Column("source", _SOURCE),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("refused", sa.String(64)),
    sa.Index(f"{TABLE}_waiting", "application", "id"),
    sqlite_autoincrement=True,  # an id must never be used twice
)
relays: Final = sa.Table(
    RELAYS,
    metadata,
    sa.Column("application", _NAME, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("holder", sa.String(64), nullable=False),
    sa.Column("until_ms", sa.BigInteger, nullable=False),
)


def add_to(other: sa.MetaData) -> None:
    """The same tables in the application's own metadata, so that its migrations make them."""
    for table in (outbox, relays):
        table.to_metadata(other)


def publish(
    target: Session | scoped_session[Any] | sa.Connection,
    application: str,
    name: str | bytes,
    version: int | str | None = None,
    source: str | None = None,
) -> None:
    """In the transaction that the session or the connection is in, or begins with this: told if that commits, and not otherwise."""
    record = record_of(application, name, version, source)
    connection = target if isinstance(target, sa.Connection) else target.connection()
    if _commits_by_itself(connection):
        raise BadRequest(
            "This connection commits every statement by itself: what is published would be told whatever becomes of the change."
        )
    connection.execute(
        sa.insert(outbox).values(
            application=record.application,
            object=record.object,
            version=record.version,
            source=record.source,
            created_ms=record.created_ms,
        )
    )


def _commits_by_itself(connection: sa.Connection) -> bool:
    """Whether each statement is a transaction of its own: by an option of this connection, of its engine, or of the driver's connection."""
    level = connection.get_execution_options().get("isolation_level")
    if level is not None:
        return bool(level == "AUTOCOMMIT")
    dialect, pooled = connection.dialect, connection.connection
    if not hasattr(dialect, "detect_autocommit_setting"):  # before SQLAlchemy 2.0.43
        return getattr(dialect, "_on_connect_isolation_level", None) == "AUTOCOMMIT"
    if pooled.dbapi_connection is None or not dialect.detect_autocommit_setting(pooled.dbapi_connection):
        return False
    if dialect.name != "sqlite":
        return True
    # SQLite's driver is told so, too, by those who have an event write BEGIN: then there is a transaction once it is begun.
    if not connection.in_transaction():
        connection.begin()
    return not getattr(pooled.driver_connection, "in_transaction", False)


def database(engine: sa.Engine) -> Database:
    """For a Relay. An engine of asyncio is given as its `sync_engine` only if its driver is not asyncio's own: make another engine."""
    mark = _MARKS.get(engine.dialect.paramstyle)
    if mark is None or engine.dialect.is_async:
        raise InvalidSetting(
            f"A relay cannot use the driver {engine.dialect.driver!r}: make an engine with one that blocks, such as psycopg."
        )

    def connect() -> Connection:
        return engine.raw_connection()

    return over_dbapi(connect, mark)
