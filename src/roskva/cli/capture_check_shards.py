"""`capture check`: whether the log says of a deleted row in which shard it was.

A rule over a column that is not in the log's word of a deletion leads every deletion to shard 0, where it may overtake what came before it
in the row's own shard (sharding.py). MariaDB has the whole row if binlog_row_image is FULL, which the datastore's own check looks at; what
a log in files has of a deleted row its producer knows, and RocksDB has the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

from roskva.capture.interface import Finding
from roskva.capture.sections import CaptureSettings, Dataset, Postgres
from roskva.capture.sharding import parse_rule

TABLES_SHOWN_MAX: Final = 20

# Whether the log has column `a` of a deleted row of table `c`: an index may have columns that are none of its key.
OF_DELETED: Final = """(c.relreplident = 'f' OR EXISTS (
        SELECT FROM pg_index i WHERE i.indrelid = c.oid AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])
        AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END))"""

# Tables that are published, or that `prepare` publishes, with their columns, and those of them that the log has of a deleted row.
_TABLES: Final = f"""
    WITH publication AS (SELECT FROM pg_publication WHERE pubname = %(publication)s)
    SELECT n.nspname, c.relname, array_agg(a.attname::text), coalesce(array_agg(a.attname::text) FILTER (WHERE {OF_DELETED}), '{{}}')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND (
        (n.nspname, c.relname) IN (SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %(publication)s)
        OR c.oid IN (SELECT to_regclass(wanted) FROM unnest(%(tables)s::text[]) AS wanted)
        OR (NOT EXISTS (SELECT FROM publication) AND cardinality(%(tables)s::text[]) = 0))
    GROUP BY n.nspname, c.relname ORDER BY n.nspname, c.relname
"""


def shards_findings(settings: CaptureSettings) -> Iterator[Finding]:
    if settings.dataset.shards == 1 or not isinstance(settings.datastore, Postgres):
        return
    import psycopg2

    from roskva.capture.stores.postgres.connecting import PostgresSettings, connect, named

    store = settings.datastore
    given = PostgresSettings(store.dsn)
    with closing(connect(given)) as connection, connection.cursor() as cursor:
        try:
            cursor.execute(_TABLES, {"publication": store.publication, "tables": list(store.tables)})
            tables: list[tuple[str, str, list[str], list[str]]] = cursor.fetchall()
        except psycopg2.Error as error:
            raise named(given, error, "looking at the shards of deleted rows") from None
    found = [finding for table in tables for finding in _of_table(settings.dataset, *table)]
    yield from found[:TABLES_SHOWN_MAX]
    if len(found) > TABLES_SHOWN_MAX:
        yield Finding(f"so it is with {len(found) - TABLES_SHOWN_MAX} more tables", False)
    if not found:
        yield Finding("rows that are deleted say in which shard they were", True)


def _of_table(dataset: Dataset, schema: str, table: str, columns: Sequence[str], of_deleted: Sequence[str]) -> Iterator[Finding]:
    from roskva.capture.stores.postgres.connecting import quoted

    name = table if schema == "public" else f"{schema}.{table}"
    rule = parse_rule(dataset.tables.get(name, dataset.shard), dataset.shards)
    # Of a column that it does not have at all every row is in shard 0, unless producers attach one, also to deletions.
    if lacking := ", ".join(column for column in rule.columns if column in columns and column not in of_deleted):
        exact = f"{quoted(schema)}.{quoted(table)}"
        yield Finding(
            f"rows that are deleted from {name} say in which shard they were, by {rule}",
            False,
            f"the log has no {lacking} of a deleted row: it is told of in shard 0, perhaps before what came earlier in the row's own shard",
            f"ALTER TABLE {exact} REPLICA IDENTITY FULL; or have a unique index of NOT NULL columns with {lacking} in it, and "
            f"ALTER TABLE {exact} REPLICA IDENTITY USING INDEX ...",
        )
