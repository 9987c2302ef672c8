"""The sections of `capture.toml` as frozen dataclasses: every setting with its unit, its default, and one line on when to change it.

Data only: settings.py reads and checks them, and makes the example of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from roskva.address import PORT_MAX
from roskva.capture.balance import Strategy, coordinated
from roskva.capture.filters import EVERYTHING, Filter
from roskva.capture.mapping import COMMIT_POSITION, Rule
from roskva.capture.ownership import TAKEOVER_S
from roskva.capture.policies import POLICIES
from roskva.capture.positions import Position
from roskva.capture.sharding import SHARDS_MAX, Sharding
from roskva.capture.toml_tables import setting
from roskva.model import APPLICATION_PATTERN

NAME: Final[dict[str, Any]] = {"pattern": APPLICATION_PATTERN.pattern, "form": "1 to 64 of a-z, 0-9, dot, underscore and hyphen"}
ADDRESS: Final[dict[str, Any]] = {
    "pattern": r"unix:[^\0]+|(?:\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):"
    r"(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])",  # ports end at 65535
    "form": "HOST:PORT, such as 127.0.0.1:8480 or [::1]:8480, or unix:PATH",
}
URL: Final[dict[str, Any]] = {"pattern": r"https?://[^\s/]+\S*", "form": "a URL, such as http://127.0.0.1:8470"}

# Where a flow begins that has no datamarker yet: at the log's end, at its oldest, at a time (seconds since 1970), or at a position.
Start: TypeAlias = Literal["end", "oldest"] | float | Position


@dataclass(frozen=True, slots=True)
class Dataset:
    name: str = setting(MISSING, "What the data is called: the same at every replica of it.", example="shop", **NAME)
    shards: int = setting(
        1, "Shards of the dataset: order is promised within one. More let more processes share the work.", least=1, most=SHARDS_MAX
    )
    shard: str = setting(
        "0", 'The rule that says of which shard a row is: a column, "user_id % 64" or "hash(user_id) % 64"; 0: all of one.'
    )
    tables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # [dataset.tables]: other rules for some tables
    sharding: Sharding = field(default_factory=lambda: Sharding(1), compare=False, repr=False)  # what these rules make


@dataclass(frozen=True, slots=True)
class Postgres:
    """kind = "postgres" """

    dsn: str = setting(
        MISSING, "Where it is, as libpq reads it. Keep the password out of it: a pass file or PGPASSWORD holds it better.", secret=True,
        example="host=127.0.0.1 dbname=shop user=roskva",
    )  # fmt: skip
    slot: str = setting(
        "roskva", "The slot that keeps the log for us. One for each publisher.", pattern="[a-z0-9_]{1,40}", form="1 to 40 of a-z, 0-9 and _"
    )
    publication: str = setting("roskva", "The publication, which says which tables are in it.")
    tables: tuple[str, ...] = setting((), "Tables to publish; none: all.", example=("documents", "users"))
    message_prefix: str = setting("roskva", "Of pg_logical_emit_message, with which a producer attaches keys to its transaction.")
    replace_lost_slot: bool = setting(False, "Whether a slot that the server gave up (max_slot_wal_keep_size) is dropped, and made anew.")


@dataclass(frozen=True, slots=True)
class BinlogServer:
    """What MariaDB and MySQL have in common."""

    host: str = setting("127.0.0.1", "The server, which writes a row-based binary log.")
    port: int = setting(3306, "Its port.", least=1, most=PORT_MAX)
    unix_socket: str = setting("", "Its socket, instead of host and port.", example="/run/mysqld/mysqld.sock")
    user: str = setting("roskva", "A user with REPLICATION SLAVE, REPLICATION CLIENT (in MariaDB: BINLOG MONITOR) and SELECT.")
    password: str = setting("", "Its password; better in a file.", secret=True, example="secret")
    password_file: str = setting("", "A file that holds it.", example="/etc/roskva/database-password")
    tls_ca: str = setting(
        "", "A file of certificates: the connection is encrypted, and the server must show one of theirs.", example="/etc/ssl/db.pem"
    )
    event_bytes_max: int = setting(
        256 * 2**20, "Of one event of the log, which has whole rows: a larger one is refused. Memory for one is needed.", least=2**20
    )
    prepared_xa_counts: bool = setting(
        False, "Whether rows of an XA transaction are told when it is prepared; if not, a log that has one is refused."
    )


@dataclass(frozen=True, slots=True)
class Mariadb(BinlogServer):
    """kind = "mariadb" """

    domain: int = setting(0, "The GTID domain of the data.", least=0, most=2**32 - 1)


@dataclass(frozen=True, slots=True)
class Mysql(BinlogServer):
    """kind = "mysql" """

    source: str = setting(
        "", "server_uuid of the server that is written to; none: the only one of which there are commits.",
        pattern="[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", form="a UUID, as SELECT @@server_uuid says it",
        example="3e11fa47-71ca-11e1-9e33-c80aa9429562",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rocksdb:
    """kind = "rocksdb" """

    path: Path = setting(MISSING, "The database's directory.", example="/var/lib/shop/rocksdb")
    wal_dir: str = setting("", "Where its log is, if the database was opened with wal_dir.", example="/var/lib/shop/wal")
    identity: str = setting("", "What checkpoints and copies of one database have in common; none: its file IDENTITY.", example="shop")
    database: str = setting("rocksdb", "How the database is called in filters; a table of it is a column family, such as default.")


@dataclass(frozen=True, slots=True)
class Files:
    """kind = "files": append-only JSON lines"""

    path: Path = setting(MISSING, "The directory of the log.", example="/var/lib/shop/log")
    database: str = setting("files", "How the database is called in filters.")


Datastore: TypeAlias = Postgres | Mariadb | Mysql | Rocksdb | Files
DATASTORES: Final[Mapping[str, type[Datastore]]] = {
    "postgres": Postgres, "mariadb": Mariadb, "mysql": Mysql, "rocksdb": Rocksdb, "files": Files,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Publisher:
    name: str = setting("publisher", "What this publisher is called among those of the same data.", **NAME)
    listen: str = setting("127.0.0.1:8480", "Where subscribers come to: HOST:PORT, or unix:PATH.", **ADDRESS)
    data: Path = setting(Path("roskva-capture"), "The data directory: datamarkers, and what must survive a restart.")
    peers: tuple[str, ...] = setting(
        (), "All publishers of the same data, this one too, the primary first, each as NAME or NAME@REGION; none: this one alone.",
        pattern=rf"{APPLICATION_PATTERN.pattern}(?:@{APPLICATION_PATTERN.pattern})?", form="NAME or NAME@REGION",
        example=("db1@eu", "db2@us"),
    )  # fmt: skip
    datamarkers: str = setting(
        "", "Where datamarkers are, for all peers: a PostgreSQL server, as libpq reads it, or a file; none: in the data directory.",
        secret=True, example="host=db1,db2 dbname=roskva user=roskva",
    )  # fmt: skip
    takeover_s: float = setting(
        TAKEOVER_S, "A peer that shows no life for so long, or whose database does not, loses its flows to the next.", least=1, most=3600
    )
    key: str = setting(
        "", "The secret that applications show that have none of their own; better in a file.", secret=True, example="32 random characters"
    )
    key_file: str = setting("", "A file that holds it.", example="/etc/roskva/capture-key")
    tls_certificate: str = setting(
        "", "A file with the certificate chain in PEM: subscribers come by TLS alone.", example="/etc/roskva/capture.pem"
    )
    tls_key: str = setting("", "The file with the certificate's private key in PEM.", example="/etc/roskva/capture-tls.key")
    tls_client_ca: str = setting(
        "", "A file of certificates: subscribers must show one of theirs, too; none: the key is enough.", example="/etc/roskva/clients.pem"
    )
    memory_mib_max: int = setting(
        512, "Memory for what waits to be sent. At the limit buffers are discarded, and read again later.", least=16
    )
    caravans_max: int = setting(
        4, "Readers of the log at a time. At the limit flows that lag share one; with 1 all wait for the last.", most=64
    )
    caravan_rate_max_bytes_per_s: float = setting(64.0 * 2**20, "Log that one reader may read. Lower it if the database's disk is busy.")
    caravans_rate_total_max_bytes_per_s: float = setting(128.0 * 2**20, "Log that all readers may read together.")
    policy: str = setting("cluster", "Which flows share a reader: cluster is quick, fewest reads least.", one_of=tuple(POLICIES))
    datamarker_period_s: float = setting(
        30.0, "How often a subscriber is asked how far it is. Shorter repeats less after a crash, costs writes."
    )


@dataclass(frozen=True, slots=True)
class Application:
    filter: str = setting("", 'Which updates it gets: OR of groups in brackets, such as [table = "users"]; none: all.')
    start: Start = setting(
        "end", "Where it begins the first time: end, oldest, a time such as 2026-01-31T12:00:00Z, or a position such as 1/4711."
    )
    real_time_only: bool = setting(False, "Only what is new: after an interruption it goes on at the log's end.")
    max_age_s: float | None = setting(None, "Updates older than this are skipped, and counted; none: none are.", example=3600.0)
    max_staleness_s: float = setting(0.0, "Updates may wait so long to be sent together, which costs less.", least=0, most=3600)
    publishers: tuple[str, ...] = setting(
        (), "Addresses of the publishers that its subscribers connect to, the primary's first; none: `listen` of this one.",
        example=("127.0.0.1:8480",), **ADDRESS,
    )  # fmt: skip
    region: str = setting("", "Whose publishers it prefers.", example="eu", **NAME)
    balance: str = setting(
        "coordinated",
        "Which of its processes gets a flow: coordinated spreads evenly, weighted by dice and load; package.module:function is your own.",
    )
    key: str = setting("", "The secret that its subscribers show; none: the publisher's.", secret=True, example="32 random characters")
    key_file: str = setting("", "A file that holds it.", example="/etc/roskva/search-key")
    tls_ca: str = setting(
        "", "A file of certificates: publishers must show one of theirs; none: that of this publisher, if it has one.",
        example="/etc/roskva/publishers.pem",
    )  # fmt: skip
    tls_certificate: str = setting(
        "", "What its subscribers show to publishers with tls_client_ca, in PEM.", example="/etc/roskva/search.pem"
    )
    tls_key: str = setting("", "The private key of that.", example="/etc/roskva/search-tls.key")
    wanted: Filter = EVERYTHING  # what the text of the filter says
    strategy: Strategy = coordinated  # what `balance` names


@dataclass(frozen=True, slots=True)
class RowMapping:
    table: tuple[str, ...] = setting(MISSING, "The table, or several.", example="documents")
    object: tuple[str, ...] = setting(MISSING, "The objects that a row is: text with columns in braces, or several.", example="doc:{id}")
    version: str = setting(COMMIT_POSITION, "What its version is: the commit position, or a column that grows with each change.")
    source: str = setting("", "Which device made the change: it is not told of it.", example="{updated_by}")
    deletes: bool = setting(True, "Whether deletions are told.")
    missing: str = setting(
        "invalidate",
        "If the log lacks a column that names the object: invalidate all that begin like it, or skip.",
        one_of=("invalidate", "skip"),
    )


@dataclass(frozen=True, slots=True)
class Roskva:
    application: str = setting(MISSING, "The application whose objects these are.", example="demo", **NAME)
    url: str = setting("http://127.0.0.1:8470", "Where the service is.", **URL)
    key: str = setting("", "A publish key of it, if it has any; better in a file.", secret=True, example="from `roskva app key add`")
    key_file: str = setting("", "A file that holds it.", example="/etc/roskva/publish-key")
    admin_key_file: str = setting(
        "", "A file with the operators' key: needed when a replica is promoted, to reset the application.", example="/etc/roskva/admin-key"
    )
    subscription: str = setting("roskva", "The application of capture, of [applications.NAME], that it subscribes as.", **NAME)
    admin_key: str = field(default="", repr=False)
    mapping: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    dataset: Dataset
    datastore: Datastore
    publisher: Publisher
    applications: Mapping[str, Application]
    roskva: Roskva | None = None

    def key_of(self, application: str) -> str:
        """What subscribers of the application show: its own key, or the publisher's. Empty: none was given."""
        return self.applications[application].key or self.publisher.key
