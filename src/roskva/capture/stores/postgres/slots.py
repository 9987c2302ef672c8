"""The anchor slot: what keeps the log for those who read it. What of the log they see is the publication's (publication.py).

Theory of operation. A slot keeps everything from where it was confirmed on, and can never go back. So the anchor slot is read by nobody:
each reader runs on a temporary copy of it, which begins where the anchor stands and ends with its connection (replication.py). The anchor
is moved by `advance` alone, to the smallest datamarker of all flows (advancing.py: in steps); whatever dies, nothing is dropped that
somebody needs.

Functions over a cursor whose statements are transactions. Nothing here is dropped, except a slot that is lost, if the settings say so.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import psycopg2

from roskva.capture.stores.postgres.connecting import PostgresSettings, literal, named
from roskva.capture.stores.postgres.timelines import lsn_from_text, lsn_to_text
from roskva.errors import CaptureRefused, DatastoreUnavailable

PLUGIN: Final = "pgoutput"
DECODING_ON_STANDBY: Final = 160000  # the first version that can

_STATE: Final = """
    SELECT s.slot_name IS NOT NULL, s.plugin, s.database, s.wal_status, s.restart_lsn::text, s.confirmed_flush_lsn::text, s.active_pid,
           current_database(), pg_is_in_recovery(), current_setting('wal_level'),
           (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END)::text,
           CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint())
                ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END,
           (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size')
    FROM (VALUES (1)) AS one LEFT JOIN pg_replication_slots s ON s.slot_name = %s
"""


class Anchor(NamedTuple):
    """The anchor slot and the log around it, as the server says."""

    exists: bool
    plugin: str
    database: str
    wal_status: str  # reserved, extended, unreserved: there; lost: cut off
    restart: int  # the server keeps the log from here on, for transactions that began before `confirmed` and ended after it
    confirmed: int  # commits from here on can be read
    active_pid: int | None
    here: str  # the database of this connection
    in_recovery: bool  # a standby
    wal_level: str
    end: int  # of the log
    timeline: int
    keep_bytes_max: int | None

    @property
    def readable(self) -> bool:
        return self.exists and self.wal_status != "lost" and self.confirmed > 0


def anchor_of(cursor: Any, slot: str) -> Anchor:
    cursor.execute(_STATE, (slot,))
    exists, plugin, database, status, restart, confirmed, pid, here, recovery, level, end, timeline, keep_mb = cursor.fetchone()
    return Anchor(
        exists, plugin or "", database or "", status or "lost", lsn_from_text(restart or "0/0"), lsn_from_text(confirmed or "0/0"), pid,
        here, recovery, level, lsn_from_text(end), timeline, None if keep_mb < 0 else keep_mb << 20,
    )  # fmt: skip


def check_readable(anchor: Anchor, settings: PostgresSettings, server_version: int) -> None:
    """What keeps everybody from reading, whatever the position. A slot that is lost or was dropped is not of these: that is data loss."""
    if anchor.wal_level != "logical":
        raise CaptureRefused(
            f"{settings.place} has wal_level = {anchor.wal_level}, and its log does not say what changed. "
            "Do this: ALTER SYSTEM SET wal_level = 'logical', and restart the server."
        )
    if anchor.in_recovery and server_version < DECODING_ON_STANDBY:
        raise DatastoreUnavailable(f"{settings.place} is a standby, whose log can be read from PostgreSQL 16 on, or when it is promoted.")
    if anchor.exists and (anchor.plugin != PLUGIN or anchor.database != anchor.here):
        raise CaptureRefused(
            f"The slot {settings.slot!r} of {settings.place} is not ours, but of the plugin {anchor.plugin!r} and the database "
            f"{anchor.database!r}. Do this: set another name for the slot of capture."
        )


def create_slot(cursor: Any, settings: PostgresSettings) -> None:
    """Waits for the transactions that write now: from then on everything can be decoded."""
    try:
        cursor.execute("SELECT pg_create_logical_replication_slot(%s, %s)", (settings.slot, PLUGIN))
    except psycopg2.errors.DuplicateObject:
        return  # somebody else has just made it
    except psycopg2.errors.QueryCanceled:
        raise DatastoreUnavailable(
            f"{settings.place}: the slot {settings.slot!r} was not made within {settings.statement_timeout_s:g} s, since it waits for "
            "transactions that are open. This shows them: "
            "SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start."
        ) from None
    except psycopg2.Error as error:
        raise named(settings, error, f"making the slot {settings.slot!r}") from None


def replace_slot(cursor: Any, settings: PostgresSettings) -> None:
    """One that is lost holds nothing and can never be read again."""
    command = f"SELECT pg_drop_replication_slot({literal(settings.slot)})"
    if not settings.replace_lost_slot:
        raise CaptureRefused(
            f"The slot {settings.slot!r} of {settings.place} is lost: the server has given up its log, and what was not read is gone. "
            f"Do this: {command}, and prepare it again; or set replace_lost_slot."
        )
    try:
        cursor.execute(command)
    except psycopg2.Error as error:
        raise named(settings, error, f"dropping the lost slot {settings.slot!r}") from None
    create_slot(cursor, settings)


def advance(cursor: Any, settings: PostgresSettings, lsn: int) -> None:
    """Nobody needs commits that begin below this LSN."""
    try:
        cursor.execute("SELECT pg_replication_slot_advance(%s, %s)", (settings.slot, lsn_to_text(lsn)))
    except psycopg2.Error as error:
        raise named(settings, error, f"confirming up to {lsn_to_text(lsn)} on the slot {settings.slot!r}") from None
