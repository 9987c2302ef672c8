"""What capture needs of a PostgreSQL server, looked at one by one, each with the command that mends it. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from roskva.capture.interface import Finding
from roskva.capture.stores.postgres.connecting import PostgresSettings, literal, quoted
from roskva.capture.stores.postgres.publication import PUBLISHED_NAME, TABLES, TABLES_SHOWN_MAX, WITHOUT_IDENTITY
from roskva.capture.stores.postgres.slots import DECODING_ON_STANDBY, PLUGIN, Anchor, anchor_of

SPARE_MIN: Final = 2  # slots and connections for readers: one at the log's end, one for flows that lag
ALARM_SHARE: Final = 0.5  # of what the server keeps for a slot before it gives it up

Look = Callable[[Any, PostgresSettings, Anchor], Iterator[Finding]]


def findings(cursor: Any, settings: PostgresSettings) -> list[Finding]:
    anchor = anchor_of(cursor, settings.slot)
    looks: tuple[Look, ...] = (_server, _permissions, _room, _publication, _identities, _slot, _retention)
    return [finding for look in looks for finding in look(cursor, settings, anchor)]


def _found(what: str, ok: bool, means: str, do: str) -> Finding:
    """`means` and `do` are about what is not so."""
    return Finding(what, ok) if ok else Finding(what, ok, means, do)


def _ask(cursor: Any, question: str, *arguments: object) -> Any:
    cursor.execute(question, arguments or None)
    return cursor.fetchone()


def _server(cursor: Any, settings: PostgresSettings, anchor: Anchor) -> Iterator[Finding]:
    yield _found(
        f"wal_level is {anchor.wal_level}",
        anchor.wal_level == "logical",
        "The log says what changed only if it is logical.",
        "ALTER SYSTEM SET wal_level = 'logical'; and restart the server",
    )
    if anchor.in_recovery:
        version = cursor.connection.server_version
        yield _found(
            "The server is a standby",
            version >= DECODING_ON_STANDBY,
            "A standby's log can be read from PostgreSQL 16 on. An earlier one can be read when it is promoted: it has no slots of the "
            "primary's, so what was committed between the last datamarker and its new slot is reported as lost.",
            "read from the primary, or update the servers to PostgreSQL 16 or later",
        )


def _permissions(cursor: Any, settings: PostgresSettings, anchor: Anchor) -> Iterator[Finding]:
    user, may = _ask(cursor, "SELECT rolname, rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user")
    yield _found(
        f"The role {user} may {'' if may else 'not '}read the log",
        may,
        "It needs REPLICATION, and then sees every change of the published tables; it needs no SELECT on them.",
        f"ALTER ROLE {quoted(user)} REPLICATION",
    )


def _room(cursor: Any, settings: PostgresSettings, anchor: Anchor) -> Iterator[Finding]:
    slots_max, slots = _ask(cursor, "SELECT current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots)")
    senders_max, senders = _ask(cursor, "SELECT current_setting('max_wal_senders')::int, (SELECT count(*) FROM pg_stat_replication)")
    needed = SPARE_MIN + (0 if anchor.exists else 1)
    yield _found(
        f"{slots} of {slots_max} replication slots are in use",
        slots_max - slots >= needed,
        "The anchor is one, and each caravan takes another for as long as it runs.",
        f"ALTER SYSTEM SET max_replication_slots = {slots + needed + 8}; and restart the server",
    )
    yield _found(
        f"{senders} of {senders_max} connections for replication are in use",
        senders_max - senders >= SPARE_MIN,
        "Each caravan takes one.",
        f"ALTER SYSTEM SET max_wal_senders = {senders + SPARE_MIN + 8}; and restart the server",
    )


def _publication(cursor: Any, settings: PostgresSettings, anchor: Anchor) -> Iterator[Finding]:
    name = quoted(settings.publication)
    found = _ask(
        cursor,
        "SELECT puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = %s",
        settings.publication,
    )
    if found is None:
        what = f"TABLE {', '.join(settings.tables)}" if settings.tables else "ALL TABLES"
        command = f"CREATE PUBLICATION {name} FOR {what} WITH (publish_via_partition_root = true)"
        yield _found(
            f"There is no publication {name}", False, "It says which tables are captured.", f"roskva capture makes it; or: {command}"
        )
        return
    (count,) = _ask(cursor, "SELECT count(*) FROM pg_publication_tables WHERE pubname = %s", settings.publication)
    yield _found(f"The publication {name} has {count} tables", count > 0, "Nothing is captured.", f"ALTER PUBLICATION {name} ADD TABLE ...")
    if not found[1]:
        yield _found(
            f"The publication {name} leaves out operations",
            False,
            "Some inserts, updates, deletes or truncates are never captured.",
            f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')",
        )
    cursor.execute(
        "SELECT prrelid::regclass::text FROM pg_publication_rel JOIN pg_publication p ON p.oid = prpubid"
        " WHERE pubname = %s AND (prqual IS NOT NULL OR prattrs IS NOT NULL) ORDER BY 1",
        (settings.publication,),
    )
    if filtered := [table for (table,) in cursor.fetchall()]:
        yield _found(
            f"The publication {name} filters rows or columns of {_some(filtered)}",
            False,
            "What it leaves out is never captured, and a filter on a column outside of the key makes UPDATE and DELETE fail.",
            f"ALTER PUBLICATION {name} DROP TABLE {filtered[0]}; ALTER PUBLICATION {name} ADD TABLE {filtered[0]}",
        )
    for table in settings.tables:
        (there,) = _ask(
            cursor,
            f"SELECT EXISTS (SELECT FROM pg_publication_tables WHERE pubname = %s AND to_regclass({PUBLISHED_NAME}) = to_regclass(%s))",
            settings.publication,
            table,
        )
        if not there:
            yield _found(
                f"The table {table} is not published", False,
                "It is not captured. If it was before, every flow is told of a loss, since what changed in between cannot be read.",
                f"roskva capture makes it so; or, as its owner, while roskva capture runs: ALTER PUBLICATION {name} ADD TABLE {table}",
            )  # fmt: skip


def _identities(cursor: Any, settings: PostgresSettings, anchor: Anchor) -> Iterator[Finding]:
    cursor.execute(
        f"SELECT t.name, t.identity, t.has_key, {WITHOUT_IDENTITY} FROM ({TABLES}) AS t"
        f" JOIN pg_publication_tables p ON {PUBLISHED_NAME} = t.name WHERE p.pubname = %s ORDER BY 1",
        (settings.publication,),
    )
    tables = cursor.fetchall()
    broken = [name for name, _, _, bad in tables if bad]
    if broken:
        yield _found(
            f"Published without replica identity: {_some(broken)}",
            False,
            "Every UPDATE and DELETE of such a table fails, for everybody.",
            "; ".join(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in broken[:TABLES_SHOWN_MAX]),
        )
    elif tables:
        yield Finding(f"Each of {len(tables)} published tables has a replica identity", True)
    if keyless := [name for name, identity, has_key, _ in tables if identity == "f" and not has_key]:
        yield Finding(
            f"No primary key: {_some(keyless)}",
            True,
            "Changes of their rows have no key: the columns tell which row it was.",
            f"ALTER TABLE {keyless[0]} ADD PRIMARY KEY (...)",
        )


def _slot(cursor: Any, settings: PostgresSettings, anchor: Anchor) -> Iterator[Finding]:
    slot = repr(settings.slot)
    if not anchor.exists:
        command = f"SELECT pg_create_logical_replication_slot({literal(settings.slot)}, '{PLUGIN}')"
        yield _found(f"There is no slot {slot}", False, "Nothing keeps the log for capture.", f"roskva capture makes it; or: {command}")
        return
    if anchor.plugin != PLUGIN or anchor.database != anchor.here:
        means = f"It is of the plugin {anchor.plugin!r} and the database {anchor.database!r}."
        yield _found(f"The slot {slot} is not ours", False, means, "set another name for the slot of capture")
        return
    yield _found(
        f"The slot {slot} is {anchor.wal_status}",
        anchor.readable,
        "The server has given up its log: what was not read is gone.",
        f"SELECT pg_drop_replication_slot({literal(settings.slot)}); and start capture again",
    )
    if anchor.active_pid is not None:
        yield _found(
            f"The slot {slot} is read by process {anchor.active_pid}",
            False,
            "Nobody may read from the anchor: what is confirmed there is gone for every flow.",
            f"SELECT pg_terminate_backend({anchor.active_pid})",
        )


def _retention(cursor: Any, settings: PostgresSettings, anchor: Anchor) -> Iterator[Finding]:
    held = max(0, anchor.end - anchor.restart) if anchor.readable else 0
    if anchor.keep_bytes_max is None:
        yield _found(
            f"max_slot_wal_keep_size is unlimited, and the slot holds {held >> 20} MB of log",
            False,
            "If capture stops for long, the log fills the disk, and the database stops.",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf()",
        )
        return
    share = held / max(1, anchor.keep_bytes_max)
    yield _found(
        f"The slot holds {held >> 20} of at most {anchor.keep_bytes_max >> 20} MB of log",
        share < ALARM_SHARE,
        f"{share:.0%} of what the server keeps: at 100 % it gives up the slot, and what was not read is lost.",
        "see in capture status which flow is behind, or raise max_slot_wal_keep_size",
    )


def _some(tables: list[str]) -> str:
    more = f" and {len(tables) - TABLES_SHOWN_MAX} more" if len(tables) > TABLES_SHOWN_MAX else ""
    return ", ".join(tables[:TABLES_SHOWN_MAX]) + more
