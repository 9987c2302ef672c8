"""How to reach a PostgreSQL server, and its errors by the names that capture knows.

Knows psycopg2 and nothing of slots. A connection that the network swallows is noticed by TCP itself, within about half a minute: the
server may be silent for longer than that for good reasons, while it sorts a large transaction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg2
from psycopg2.extensions import parse_dsn
from psycopg2.extras import LogicalReplicationConnection

from roskva.errors import CaptureRefused, DatastoreUnavailable, InvalidSetting, RoskvaError

VERSION_MIN: Final = 150000
SLOT_NAME: Final = re.compile(r"[a-z0-9_]{1,40}")  # Postgres allows 63, and a reader's copy has a longer name

# Whoever reads the same log gets the same text, whatever the role's or the server's own settings.
_SESSION: Final = {
    "datestyle": "ISO", "intervalstyle": "postgres", "timezone": "UTC", "bytea_output": "hex", "extra_float_digits": "1",
    "lc_monetary": "C", "idle_session_timeout": "0",
}  # fmt: skip
_ALIVE: Final = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4, "tcp_user_timeout": 30_000}

# libpq gives no code for what went wrong while connecting, only the server's words. What is none of these is tried again.
_REFUSALS: Final = (
    ("max_wal_senders", "ALTER SYSTEM SET max_wal_senders = 20, and restart the server"),
    ("replication role", "ALTER ROLE {user} REPLICATION"),  # 15: "must be superuser or replication role to start walsender"
    ("permission denied to start WAL sender", "ALTER ROLE {user} REPLICATION"),  # 16 and later
    ("pg_hba.conf", "add a line for {user} and {database} to pg_hba.conf, and SELECT pg_reload_conf()"),
    ("authentication failed", "give the right password, or ALTER ROLE {user} PASSWORD '...'"),
    ("no password supplied", "add the password to the connection string, or to the file that passfile names"),
    ("not permitted to log in", "ALTER ROLE {user} LOGIN"),
    ("permission denied for database", "GRANT CONNECT ON DATABASE {database} TO {user}"),
    ('database "', "correct dbname in the connection string, or CREATE DATABASE {database}"),
    ('role "', "correct user in the connection string, or CREATE ROLE {user} LOGIN REPLICATION"),
)


@dataclass(frozen=True)
class PostgresSettings:
    """Where the database is, and what belongs to capture in it."""

    dsn: str = field(repr=False)  # libpq's: "host=db.example port=5432 dbname=shop user=roskva", or a postgresql:// address
    slot: str = "roskva"  # the anchor: it keeps the log for all who read, and nobody reads from it
    publication: str = "roskva"
    tables: tuple[str, ...] = ()  # to publish, as SQL names them; empty: all, which a superuser must do
    message_prefix: str = "roskva"  # of the messages that attach keys to their transaction
    replace_lost_slot: bool = False  # whether `prepare` may drop a slot whose log the server has given up, and make a new one
    connect_timeout_s: int = 5
    statement_timeout_s: float = 60.0  # of everything but reading, and letting go much of the log
    advance_bytes_per_s: float = 64 << 20  # of log that the server may read to let go what nobody needs any more, in longer ways

    def __post_init__(self) -> None:
        if not SLOT_NAME.fullmatch(self.slot):
            raise InvalidSetting(f"{self.slot[:64]!r} is not a name for a slot: use 1 to 40 of a-z, 0-9 and _.")
        if self.advance_bytes_per_s <= 0:
            raise InvalidSetting("advance_bytes_per_s is 0: nothing would ever be let go.")
        if not 1 <= len(self.publication.encode()) <= 63 or "\0" in self.publication:
            raise InvalidSetting(f"{self.publication[:64]!r} is not a name for a publication: use 1 to 63 bytes.")
        try:
            parse_dsn(self.dsn)
        except psycopg2.ProgrammingError:  # its words may hold the password
            raise InvalidSetting(
                "The connection string of Postgres cannot be read: host=... port=... dbname=... user=... is expected."
            ) from None

    @property
    def parts(self) -> dict[str, str]:
        return dict(parse_dsn(self.dsn))

    @property
    def place(self) -> str:
        """For people: without user or password."""
        parts = self.parts
        return f"{parts.get('dbname', 'postgres')} at {parts.get('host', 'this machine')}:{parts.get('port', 5432)}"


def connect(settings: PostgresSettings, replication: bool = False) -> Any:
    """A connection, each of whose statements is a transaction."""
    session = dict(_SESSION)
    if not replication:
        session["statement_timeout"] = str(int(settings.statement_timeout_s * 1000))
    options = " ".join([settings.parts.get("options", ""), *(f"-c {name}={value}" for name, value in session.items())]).strip()
    factory = {"connection_factory": LogicalReplicationConnection} if replication else {}
    try:
        connection = psycopg2.connect(
            settings.dsn,
            client_encoding="UTF8",
            application_name="roskva capture",
            connect_timeout=settings.connect_timeout_s,
            options=options,
            **_ALIVE,
            **factory,
        )
    except psycopg2.Error as error:
        raise refusal_to_connect(settings, str(error)) from None
    if not replication:
        connection.autocommit = True
    if connection.server_version < VERSION_MIN:
        connection.close()
        raise CaptureRefused(f"The server of {settings.place} is older than PostgreSQL 15: update it.")
    return connection


def refusal_to_connect(settings: PostgresSettings, words: str) -> RoskvaError:
    said = one_line(words)
    for fragment, remedy in _REFUSALS:
        if fragment in said and "FATAL" in said and "too many connections" not in said:
            parts = settings.parts
            do = remedy.format(user=quoted(parts.get("user", "postgres")), database=quoted(parts.get("dbname", "postgres")))
            return CaptureRefused(f"{settings.place} refuses: {said}. Do this: {do}.")
    return DatastoreUnavailable(f"{settings.place} cannot be reached: {said}.")


def named(settings: PostgresSettings, error: Exception, doing: str) -> RoskvaError:
    """What the server or the network said while something was done. Codes: PostgreSQL's manual, appendix A."""
    said = one_line(str(error))
    code = getattr(error, "pgcode", None) or ""
    what = f"{settings.place}: {doing}: {said}."
    if code == "42501":
        return CaptureRefused(f"{what} Do this: ALTER ROLE {quoted(settings.parts.get('user', 'postgres'))} REPLICATION.")
    if code == "53400" and "slot" in said:
        return CaptureRefused(f"{what} Do this: ALTER SYSTEM SET max_replication_slots = 20, and restart the server.")
    if code == "42704" and "publication" in said:
        # The log is decoded with the catalogs as they were then: a publication made later is of no use to it.
        reason = f"at this place in the log there was no publication {settings.publication!r}"
        return CaptureRefused(f"{what} This is so because {reason}: drop the slot {settings.slot!r} and prepare it again.")
    return DatastoreUnavailable(what)


def one_line(words: str) -> str:
    return " ".join(words.split())[:400].rstrip(".") or "the connection was closed"


def quoted(name: str) -> str:
    """An identifier, as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string, as SQL has it."""
    return "'" + text.replace("'", "''") + "'"
