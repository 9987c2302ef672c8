"""`roskva capture check`: the settings against the live database and the service, each point with what follows from it and what to do.

Changes nothing. What capture makes by itself at its start (publication, slot, data directory) is said, and is no fault.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from roskva.address import bound_socket
from roskva.capture.datamarkers.opening import is_server
from roskva.capture.filtering import for_tables
from roskva.capture.interface import Datastore, Finding
from roskva.capture.mapping import Rule
from roskva.capture.running.places import CONTROL, check_places, datamarkers_of
from roskva.capture.running.tls import for_publisher, for_subscriber
from roskva.capture.settings import BinlogServer, CaptureSettings, Postgres, load
from roskva.capture.stores.opening import datastore_of, free_bytes, place_of_disk
from roskva.capture.watching import Level, in_bytes, log_share
from roskva.cli.capture_check_roskva import databases_findings, published_finding, subscription_findings
from roskva.cli.capture_check_shards import OF_DELETED, shards_findings
from roskva.cli.capture_control import NotRunning, ask, config_of
from roskva.cli.http import get_json
from roskva.errors import AddressInUse, InvalidSetting, RoskvaError, ServiceUnreachable, Unavailable, UnknownObject
from roskva.keys import bearer

MADE_BY_US: Final = "roskva capture makes it"  # how datastores begin what is to be done about what `prepare` does
NO_OBJECT: Final = "capture-check"
FREE_BYTES_MIN: Final = 1 << 30
_WHOLE_NUMBERS: Final = (
    "int",
    "serial",
    "numeric",
    "decimal",
)  # how names of types begin that hold versions; also bigint, smallint, tinyint


def check(arguments: argparse.Namespace) -> int:
    """1 if anything is wrong."""
    settings = load(config_of(arguments))
    wrong = 0
    for finding in findings(settings):
        later = not finding.ok and finding.do.startswith(MADE_BY_US)
        wrong += not finding.ok and not later
        if arguments.json:
            print(json.dumps({**finding._asdict(), "made_at_start": later}))
        else:
            print("\n".join(finding_lines(finding, later)))
    if not arguments.json:
        print(f"\n{wrong} to mend." if wrong else "\nAll is well.")
    return 1 if wrong else 0


def finding_lines(finding: Finding, later: bool = False) -> Iterator[str]:
    yield f"{'ok  ' if finding.ok else 'soon' if later else 'FAIL'}  {finding.what}"
    if finding.means:
        yield f"      {finding.means}"
    if finding.do:
        yield f"      {'could' if finding.ok else 'do'}: {finding.do}"


def findings(settings: CaptureSettings) -> Iterator[Finding]:
    yield Finding("the settings file can be used", True)
    yield from _publisher(settings)
    yield from _datamarkers(settings)
    yield from _tls(settings)
    datastore = datastore_of(settings)
    try:
        of_store = datastore.check()
        yield from of_store
        yield from _disk(settings, datastore)
    finally:
        datastore.close()
    yield from _shards(settings)
    yield from _mappings(settings)
    yield from subscription_findings(settings)
    yield from _cascades(settings)
    yield from _service(settings)


def _publisher(settings: CaptureSettings) -> Iterator[Finding]:
    """Where it keeps its state, and whether its address is free, or its own."""
    given, data = settings.publisher, settings.publisher.data
    try:
        check_places(settings)
    except InvalidSetting as error:
        yield Finding("directory and address of the publisher", False, error.what, "correct it in [publisher]")
        return
    if not data.exists():
        yield Finding(f"there is no data directory {data}", False, "datamarkers are kept there", MADE_BY_US)
    elif not os.access(data, os.W_OK | os.X_OK):
        yield Finding(f"the data directory {data} cannot be written", False, "datamarkers are kept there", f"chown {os.getuid()} {data}")
    else:
        yield Finding(f"the data directory {data} can be written", True)
    if not settings.applications:
        yield Finding(
            "somebody subscribes",
            False,
            "without any application nothing is read for anybody",
            "add [roskva] with a mapping, or [applications.NAME]",
        )
    try:
        ask(data / CONTROL, "flows", 5.0, application="-")
        yield Finding(f"a publisher runs at {given.listen}", True)
        return
    except NotRunning:
        pass
    except RoskvaError as error:
        yield Finding(f"the publisher that runs at {given.listen} answers", False, str(error), "look into its log")
        return
    if not given.listen.startswith("unix:"):
        try:
            bound_socket(given.listen).close()
            yield Finding(f"{given.listen} is free for the publisher", True)
        except (AddressInUse, InvalidSetting) as error:
            yield Finding(
                f"{given.listen} is free for the publisher",
                False,
                error.what,
                "set publisher.listen to another port, or end what listens there",
            )


def _datamarkers(settings: CaptureSettings) -> Iterator[Finding]:
    try:
        place = datamarkers_of(settings)
    except InvalidSetting as error:
        yield Finding("all publishers share their datamarkers", False, error.what, "set publisher.datamarkers, to the same at each of them")
        return
    if is_server(place):
        from roskva.capture.datamarkers.postgres import findings as of_server

        yield from of_server(place, settings.dataset.name)
        if without := [name for name in settings.applications if not settings.key_of(name)]:
            yield Finding(
                f"all publishers know the keys of {', '.join(without)}",
                False,
                "each makes one of its own, in its data directory, and a subscriber shows the same to all",
                "set publisher.key_file to a file with the same contents at each of them",
            )
    elif settings.publisher.datamarkers:
        folder = Path(place).expanduser().absolute().parent
        ok = os.access(folder if folder.exists() else folder.parent, os.W_OK | os.X_OK)
        yield Finding(
            f"datamarkers can be kept in {place}",
            ok,
            "" if ok else "its folder cannot be written",
            "" if ok else f"chown {os.getuid()} {folder}",
        )


def _tls(settings: CaptureSettings) -> Iterator[Finding]:
    """Of the publisher's port, and of each application that has anything of it."""
    contexts: dict[str, Callable[[], object]] = {}
    if settings.publisher.tls_certificate:
        contexts["the publisher's certificate can be used"] = lambda: for_publisher(settings)
    for name, application in settings.applications.items():
        if application.tls_ca or application.tls_certificate:
            contexts[f"the certificates of {name} can be used"] = partial(for_subscriber, settings, name)
    for what, make in contexts.items():
        try:
            make()
            yield Finding(what, True)
        except InvalidSetting as error:
            yield Finding(what, False, error.what, "correct it in the settings, or give this user the right to read the files")


def _disk(settings: CaptureSettings, datastore: Datastore) -> Iterator[Finding]:
    """What is held for us, of what there is room for."""
    place = place_of_disk(settings)
    free = free_bytes(place)
    if free is not None:
        enough = free >= FREE_BYTES_MIN
        yield Finding(
            f"{in_bytes(free)} are free on the disk of the datastore's log ({place})",
            enough,
            "" if enough else "while capture stands still the log grows, and a database whose disk is full stops",
            "" if enough else "free some space, or limit what is kept: max_slot_wal_keep_size in Postgres",
        )
    try:
        retained = datastore.retained()
    except RoskvaError:
        return  # what `check` says of it says more
    held = log_share({"bytes_behind": retained.bytes_behind, "bytes_max": retained.bytes_max}, free)
    if held.share is not None and held.level is not Level.FINE:
        yield Finding(
            f"{held.share:.0%} of {held.limit} are held for capture",
            False,
            "at 100 % what was not read is lost, or the disk is full",
            "roskva capture status shows which flow is behind",
        )


class TableSeen(NamedTuple):
    """A table as it is now."""

    columns: Mapping[str, str]  # name -> type
    of_deleted: frozenset[str]  # what the log has of a deleted row
    more: str = ""  # the statement that makes it have all


def _mappings(settings: CaptureSettings) -> Iterator[Finding]:
    rules = () if settings.roskva is None else settings.roskva.mapping
    if not rules:
        return
    if not isinstance(settings.datastore, Postgres | BinlogServer):
        yield Finding("the mapping cannot be tried: this datastore does not say which columns its rows have", True)
        return
    for table in dict.fromkeys(table for rule in rules for table in rule.tables):
        try:
            seen = (
                _postgres_table(settings.datastore, table) if isinstance(settings.datastore, Postgres) else _binlog_table(settings, table)
            )
        except RoskvaError as error:
            yield Finding(f"the table {table} of the mapping can be looked at", False, error.what, error.advice)
            return
        if seen is None:
            yield Finding(
                f"the table {table} of the mapping is there",
                False,
                "no row of it will come",
                f"CREATE TABLE {table}, or correct roskva.mapping",
            )
            continue
        if isinstance(settings.datastore, Postgres):
            yield published_finding(settings.datastore, table, _exact(table))
        else:
            yield from databases_findings(settings, table)
        for rule in (rule for rule in rules if table in rule.tables):
            yield from mapping_findings(rule, table, seen)


def mapping_findings(rule: Rule, table: str, seen: TableSeen) -> Iterator[Finding]:
    """What one mapping means for one table."""
    named = [*rule.objects, *([] if rule.source is None else [rule.source])]
    unknown = sorted({column for template in named for column in template.columns} - seen.columns.keys())
    if rule.version is not None and rule.version not in seen.columns:
        unknown.append(rule.version)
    if unknown:
        yield Finding(
            f"the columns of the mapping of {table}: {', '.join(unknown)}",
            False,
            f"{table} has no such column now; unless producers attach such a key, nobody knows which object a row is",
            f"correct roskva.mapping; {table} has {', '.join(sorted(seen.columns))}",
        )
        return
    if rule.version is not None and not any(kind in seen.columns[rule.version].lower() for kind in _WHOLE_NUMBERS):
        yield Finding(
            f"{table}.{rule.version} is a version", False, f"it is of the type {seen.columns[rule.version]}, which holds no whole number",
            'use a bigint that grows with each change, or version = "commit position"',
        )  # fmt: skip
        return
    lacking = sorted({column for template in rule.objects for column in template.columns} - seen.of_deleted)
    if lacking and rule.deletes and not rule.skip_missing:
        yield Finding(
            f"rows that are deleted from {table} say which object they were",
            False,
            f"the log has no {', '.join(lacking)} of a deleted row: every object that begins like the mapping's is invalidated then",
            f'{seen.more}; or missing = "skip" or deletes = false in roskva.mapping',
        )
        return
    yield Finding(f"rows of {table} become objects", True)


_POSTGRES_TABLE: Final = f"""
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), {OF_DELETED}
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped WHERE c.oid = to_regclass(%s)
"""


def _exact(table: str) -> str:
    """As SQL names a table of Postgres; by the name that capture has for it: with its schema, unless that is the default one."""
    from roskva.capture.stores.postgres.connecting import quoted

    schema, _, name = table.rpartition(".")
    return f"{quoted(schema or 'public')}.{quoted(name)}"


def _postgres_table(store: Postgres, table: str) -> TableSeen | None:
    import psycopg2

    from roskva.capture.stores.postgres.connecting import PostgresSettings, connect, named

    given, exact = PostgresSettings(store.dsn), _exact(table)
    with closing(connect(given)) as connection, connection.cursor() as cursor:
        try:
            cursor.execute(_POSTGRES_TABLE, (exact,))
            rows: list[tuple[str, str, bool]] = cursor.fetchall()
        except psycopg2.Error as error:
            raise named(given, error, f"looking at {table}") from None
    if not rows:
        return None
    columns = {column: kind for column, kind, _ in rows}
    return TableSeen(columns, frozenset(column for column, _, there in rows if there), f"ALTER TABLE {exact} REPLICA IDENTITY FULL")


def _binlog_table(settings: CaptureSettings, table: str) -> TableSeen | None:
    """In whatever database: a mapping names tables alone. The row image of its log is whole, or `check` of the datastore says otherwise."""
    from roskva.capture.stores.binlog.protocol import session
    from roskva.capture.stores.binlog.store import BinlogStore

    store = datastore_of(settings)
    assert isinstance(store, BinlogStore)
    with session(store.settings) as statements:
        rows = statements.rows("SELECT COLUMN_NAME, COLUMN_TYPE FROM information_schema.COLUMNS WHERE TABLE_NAME = %s", (table,))
    columns = {str(column): str(kind) for column, kind in rows}
    return TableSeen(columns, frozenset(columns)) if columns else None


def _shards(settings: CaptureSettings) -> Iterator[Finding]:
    try:
        yield from shards_findings(settings)
    except RoskvaError as error:
        yield Finding("the shards of deleted rows can be looked at", False, error.what, error.advice)


def _cascades(settings: CaptureSettings) -> Iterator[Finding]:
    """Of the tables that any application may be told of, by what its filter says of tables."""
    if not isinstance(settings.datastore, BinlogServer):
        return
    from roskva.capture.stores.binlog.cascades import check_cascades
    from roskva.capture.stores.binlog.store import BinlogStore

    store = datastore_of(settings)
    assert isinstance(store, BinlogStore)
    filters = [for_tables(application.wanted) for application in settings.applications.values()]
    try:
        yield from check_cascades(store.settings, lambda database, table: any(passes(database, table) for passes in filters))
    except RoskvaError as error:
        yield Finding("the foreign keys of the tables can be looked at", False, error.what, error.advice)


def _service(settings: CaptureSettings) -> Iterator[Finding]:
    """Whether the service is there and takes versions of this application with this key: asked by reading, under the same right."""
    given = settings.roskva
    if given is None:
        return
    what = f"the service at {given.url} takes versions of {given.application}"
    url = f"{given.url.rstrip('/')}/v1/objects/{given.application}/{NO_OBJECT}"
    try:
        get_json(url, 5.0, bearer(given.key) if given.key else {})
    except ServiceUnreachable as error:
        yield Finding(what, False, f"{error.what} What is captured waits until it does.", "roskva up, or correct roskva.url")
        return
    except Unavailable as error:
        yield Finding(what, False, error.what, error.advice)
        return
    except RoskvaError as error:
        if error.what != str(UnknownObject(given.application, NO_OBJECT)):  # that there is none is all that was to be learned
            yield Finding(what, False, str(error), f"roskva app create {given.application}, or give roskva.key_file a publish key of it")
            return
    yield Finding(what, True)
    if isinstance(settings.datastore, Postgres) and settings.publisher.peers and not given.admin_key:
        yield Finding(
            "the application can be reset when a replica is promoted",
            False,
            "versions of the new primary may be lower than those of the old: until somebody resets the application, nothing is published",
            "set roskva.admin_key_file to a file with the key `admin` of the service's keys.json",
        )
