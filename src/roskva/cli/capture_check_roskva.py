"""`roskva capture check`: whether rows of a mapping, and no others, come as far as Roskva.

The database must publish them, Roskva's own application must leave none out, and no other table may have the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Final

from roskva.capture.filtering import for_updates
from roskva.capture.filters import Basic, Filter, Key
from roskva.capture.interface import Finding
from roskva.capture.positions import BEGINNING
from roskva.capture.sections import CaptureSettings, Postgres, Rocksdb, Roskva
from roskva.capture.stores.opening import datastore_of
from roskva.capture.updates import Change, Operation, Update

# Whether there is a publication, whether the table is in it, and whether it is among those that `prepare` adds. Nothing is asked of other
# tables by their names: the server may look at each of its own first, and refuses those of schemas that this user may not use.
_PUBLISHED: Final = """
    SELECT p.oid IS NOT NULL,
           EXISTS (SELECT FROM pg_publication_tables t WHERE t.pubname = p.pubname AND (t.schemaname, t.tablename) =
                   (SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                    WHERE c.oid = to_regclass(%(table)s))),
           EXISTS (SELECT FROM unnest(%(tables)s::text[]) AS wanted WHERE to_regclass(wanted) = to_regclass(%(table)s))
    FROM (VALUES (1)) AS one LEFT JOIN pg_publication p ON p.pubname = %(publication)s
"""


def published_finding(store: Postgres, table: str, exact: str) -> Finding:
    """`exact`: as SQL names it."""
    import psycopg2

    from roskva.capture.stores.postgres.connecting import PostgresSettings, connect, named, quoted

    given = PostgresSettings(store.dsn)
    with closing(connect(given)) as connection, connection.cursor() as cursor:
        try:
            cursor.execute(_PUBLISHED, {"table": exact, "tables": list(store.tables), "publication": store.publication})
            exists, published, wanted = cursor.fetchone()
        except psycopg2.Error as error:
            raise named(given, error, f"looking whether {table} is published") from None
    what = f"changes of {table}, which has a mapping, are published"
    if published or wanted or (not exists and not store.tables):
        return Finding(what, True)  # of what `prepare` adds the datastore's own check tells
    if store.tables:
        return Finding(what, False, "it is not among datastore.tables: no row of it will come", f'add "{table}" to datastore.tables')
    command = f"ALTER PUBLICATION {quoted(store.publication)} ADD TABLE {exact}"
    return Finding(what, False, "it is not in the publication: no row of it will come", command)


def databases_findings(settings: CaptureSettings, table: str) -> Iterator[Finding]:
    """A mapping names tables of MariaDB and MySQL without their database: one of the same name elsewhere would be taken for it."""
    from roskva.capture.stores.binlog.protocol import session
    from roskva.capture.stores.binlog.store import BinlogStore

    given, store = settings.roskva, datastore_of(settings)
    assert isinstance(store, BinlogStore)
    assert given is not None
    with session(store.settings) as statements:
        rows = statements.rows("SELECT TABLE_SCHEMA FROM information_schema.TABLES WHERE TABLE_NAME = %s ORDER BY 1", (table,))
    databases = [str(database) for (database,) in rows]
    wanted = settings.applications[given.subscription].wanted
    if len(databases) < 2 or all(any(basic.key == Key("database") for basic in group) for group in wanted.groups):
        return
    tables = ", ".join(f'"{name}"' for name in dict.fromkeys(name for rule in given.mapping for name in rule.tables))
    yield Finding(
        f"{table}, which has a mapping, is in one database",
        False,
        f"it is in {', '.join(databases)}: rows of all of them become the same objects",
        f"in [applications.{given.subscription}]: filter = '[database = \"{databases[0]}\" AND table in ({tables})]', or another of them",
    )


def subscription_findings(settings: CaptureSettings) -> Iterator[Finding]:
    """What Roskva's own application is told to leave out, its clients never learn."""
    given = settings.roskva
    application = None if given is None else settings.applications.get(given.subscription)
    if given is None or application is None:
        return
    what = f"[applications.{given.subscription}] gets all that the mapping is of"
    left_out = [name for name in ("real_time_only", "max_age_s") if getattr(application, name) not in (False, None)]
    if left_out:
        yield Finding(
            what,
            False,
            f"with {' and '.join(left_out)} changes are skipped, and clients keep what they have",
            f"take {' and '.join(left_out)} out of it",
        )
    of_filter = list(_filter_findings(what, settings, given, application.wanted))
    yield from of_filter
    if not (left_out or of_filter):
        yield Finding(what, True)


def _filter_findings(what: str, settings: CaptureSettings, given: Roskva, wanted: Filter) -> Iterator[Finding]:
    told = [
        (table, operation)
        for rule in given.mapping
        for table in rule.tables
        for operation in _operations(settings)
        if rule.deletes or operation is not Operation.DELETE
    ]
    if skipped := [one for one in told if not _passes(wanted.groups, *one)]:
        named = dict.fromkeys(f"{_CALLED.get(operation, f'{operation}s')} of {table}" for table, operation in skipped)
        means = f"its filter leaves out {', '.join(named)}: clients are not told, and keep what they have"
        yield Finding(what, False, means, "widen its filter, or leave it out: what no mapping is of costs little")
    of_tables = [group for group in wanted.groups if not any(basic.key.name for basic in group)]
    if asked := dict.fromkeys(
        table for table, operation in told if (table, operation) not in skipped and not _passes(of_tables, table, operation)
    ):
        means = f"its filter asks {', '.join(asked)} for {', '.join(sorted(wanted.names))}: of a row that does not fit, and of one that an "
        means += "UPDATE takes out of it, clients are not told, and keep what they have"
        yield Finding(what, False, means, "ask in its filter for tables alone, or leave it out")


# Of what is no operation by itself.
_CALLED: Final = {Operation.MESSAGE: "deletions of ranges"}


def _operations(settings: CaptureSettings) -> tuple[Operation, ...]:
    """What may change rows of this datastore."""
    rows = (Operation.INSERT, Operation.UPDATE, Operation.DELETE, Operation.TRUNCATE)
    return (*rows, Operation.MESSAGE) if isinstance(settings.datastore, Rocksdb) else rows


def _passes(groups: Iterable[tuple[Basic, ...]], table: str, operation: Operation) -> bool:
    """Whether any row of this kind may: by what they say of tables and operations alone."""
    of_kind = tuple(tuple(basic for basic in group if basic.key in (Key("table"), Key("operation"))) for group in groups)
    return for_updates(Filter(of_kind))(Update(0, Change(BEGINNING, 0, operation, "", table, {}, {})))
