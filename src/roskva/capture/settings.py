"""The settings of capture: `capture.toml`, every setting with its unit, its default, and one line on when to change it.

    [dataset]              what the data is called, and how it is divided into shards
    [datastore]            where its log is read: kind = "postgres", "mariadb", "rocksdb" or "files", each with keys of its own
    [publisher]            what reads it, beside the database, and what that may use
    [applications.NAME]    who subscribes, to what, and from where on
    [roskva]               Roskva as one of these, with a [[roskva.mapping]] for each table

`load` checks everything, filters and rules included, and raises InvalidSetting with the path of what does not fit. `example` is a file to
begin with. Nothing here opens a datastore or listens; the files that hold keys are read.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, TypeVar

from roskva.address import PORT_MAX
from roskva.capture.balance import STRATEGIES
from roskva.capture.filters import EVERYTHING, Basic, Filter, Key, OneOf, parse_filter
from roskva.capture.mapping import COMMIT_POSITION, Rule, parse_mapping
from roskva.capture.policies import POLICIES
from roskva.capture.positions import Position, position_from_text
from roskva.capture.sharding import SHARDS_MAX, Sharding, parse_rule
from roskva.capture.toml_tables import setting, table_of, unknown, written
from roskva.errors import BadRequest, InvalidSetting
from roskva.model import APPLICATION_PATTERN, check_application

FILE_NAME: Final = "capture.toml"
KEY_BYTES_MIN: Final = 16
FILE_BYTES_MAX: Final = 4 << 20

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


@dataclass(frozen=True, slots=True)
class Mariadb:
    """kind = "mariadb" """

    host: str = setting("127.0.0.1", "The server, which writes a row-based binary log.")
    port: int = setting(3306, "Its port.", least=1, most=PORT_MAX)
    unix_socket: str = setting("", "Its socket, instead of host and port.", example="/run/mysqld/mysqld.sock")
    user: str = setting("roskva", "A user with REPLICATION SLAVE, REPLICATION CLIENT (BINLOG MONITOR) and SELECT.")
    password: str = setting("", "Its password; better in a file.", secret=True, example="secret")
    password_file: str = setting("", "A file that holds it.", example="/etc/roskva/mariadb-password")
    tls_ca: str = setting(
        "", "A file of certificates: the connection is encrypted, and the server must show one of theirs.", example="/etc/ssl/db.pem"
    )
    domain: int = setting(0, "The GTID domain of the data.", least=0, most=2**32 - 1)


@dataclass(frozen=True, slots=True)
class Rocksdb:
    """kind = "rocksdb" """

    path: Path = setting(MISSING, "The database's directory.", example="/var/lib/shop/rocksdb")
    database: str = setting("rocksdb", "How the database is called in filters; a table of it is a column family, such as default.")


@dataclass(frozen=True, slots=True)
class Files:
    """kind = "files": append-only JSON lines"""

    path: Path = setting(MISSING, "The directory of the log.", example="/var/lib/shop/log")
    database: str = setting("files", "How the database is called in filters.")


Datastore: TypeAlias = Postgres | Mariadb | Rocksdb | Files
DATASTORES: Final[Mapping[str, type[Datastore]]] = {"postgres": Postgres, "mariadb": Mariadb, "rocksdb": Rocksdb, "files": Files}


@dataclass(frozen=True, slots=True)
class Publisher:
    name: str = setting("publisher", "What this publisher is called among those of the same data.", **NAME)
    listen: str = setting("127.0.0.1:8480", "Where subscribers come to: HOST:PORT, or unix:PATH.", **ADDRESS)
    data: Path = setting(Path("roskva-capture"), "The data directory: datamarkers, and what must survive a restart.")
    region: str = setting("", "Where it is. Applications of the same region prefer it.", example="eu", **NAME)
    peers: tuple[str, ...] = setting(
        (), "All publishers of the same data, this one too, the primary first, each as NAME or NAME@REGION; none: this one alone.",
        pattern=rf"{APPLICATION_PATTERN.pattern}(?:@{APPLICATION_PATTERN.pattern})?", form="NAME or NAME@REGION",
        example=("db1@eu", "db2@us"),
    )  # fmt: skip
    key: str = setting(
        "", "The secret that applications show that have none of their own; better in a file.", secret=True, example="32 random characters"
    )
    key_file: str = setting("", "A file that holds it.", example="/etc/roskva/capture-key")
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
        "Which of its processes gets a flow: coordinated has one owner for each, weighted throws dice.",
        one_of=tuple(STRATEGIES),
    )
    key: str = setting("", "The secret that its subscribers show; none: the publisher's.", secret=True, example="32 random characters")
    key_file: str = setting("", "A file that holds it.", example="/etc/roskva/search-key")
    wanted: Filter = EVERYTHING  # what the text of the filter says


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


def load(file: Path) -> CaptureSettings:
    """Raises InvalidSetting, with the path of what is unknown, missing or does not fit, and a guess at what was meant."""
    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidSetting(f"The settings file {file} cannot be read: {error.strerror}.") from None
    if len(data) > FILE_BYTES_MAX:
        raise InvalidSetting(f"The settings file {file} has more than {FILE_BYTES_MAX:,} bytes.")
    try:
        tables = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidSetting(f"The settings file {file} is not TOML: {error}.") from None
    try:
        return settings_of(tables)
    except InvalidSetting as error:
        raise InvalidSetting(f"{file}: {error.what}") from None


def settings_of(tables: Mapping[str, Any]) -> CaptureSettings:
    """Of what is in the file."""
    sections = ("dataset", "datastore", "publisher", "applications", "roskva")
    for name in tables:
        if name not in sections:
            raise unknown(name, name, sections)
    for name in ("dataset", "datastore"):
        if name not in tables:
            raise InvalidSetting(f"The section [{name}] must be given.")
    publisher = _with_key(table_of(Publisher, tables.get("publisher", {}), "publisher"), "publisher")
    if publisher.peers and publisher.name not in {peer.partition("@")[0] for peer in publisher.peers}:
        raise InvalidSetting(
            f"publisher.peers does not name this publisher, {publisher.name!r}: all of them are listed, the primary first."
        )
    applications = _applications(tables.get("applications", {}))
    roskva = _roskva(tables["roskva"]) if "roskva" in tables else None
    if roskva is not None and roskva.subscription not in applications:
        mapped = tuple(dict.fromkeys(table for rule in roskva.mapping for table in rule.tables))
        wanted = Filter(((Basic(Key("table"), OneOf(mapped)),),))
        applications[roskva.subscription] = Application(filter=str(wanted), wanted=wanted)
    return CaptureSettings(_dataset(tables["dataset"]), _datastore(tables["datastore"]), publisher, MappingProxyType(applications), roskva)


def _dataset(given: Any) -> Dataset:
    rules = dict(given).pop("tables", {}) if isinstance(given, Mapping) else {}
    rest = {name: value for name, value in given.items() if name != "tables"} if isinstance(given, Mapping) else given
    dataset = table_of(Dataset, rest, "dataset")
    if not isinstance(rules, Mapping) or not all(isinstance(rule, str) for rule in rules.values()):
        raise InvalidSetting('dataset.tables must be a table of rules: NAME = "id % 64".')
    with _at("dataset.shard"):
        rule = parse_rule(dataset.shard, dataset.shards)
    of_tables = {}
    for table, text in rules.items():
        with _at(f"dataset.tables.{table}"):
            of_tables[table] = parse_rule(text, dataset.shards)
    return replace(dataset, tables=MappingProxyType(dict(rules)), sharding=Sharding(dataset.shards, rule, of_tables))


def _datastore(given: Any) -> Datastore:
    if not isinstance(given, Mapping):
        raise InvalidSetting("datastore must be a table.")
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in DATASTORES:
        hint = " (MariaDB is read, MySQL itself is not)" if kind == "mysql" else ""
        raise InvalidSetting(f"datastore.kind must be one of {', '.join(DATASTORES)}, not {str(kind)[:64]!r}{hint}.")
    found = table_of(DATASTORES[kind], {name: value for name, value in given.items() if name != "kind"}, "datastore")
    if isinstance(found, Mariadb) and found.password_file:
        return replace(found, password=_secret(found.password, found.password_file, "datastore.password"))
    return found


def _applications(given: Any) -> dict[str, Application]:
    if not isinstance(given, Mapping) or not all(isinstance(table, Mapping) for table in given.values()):
        raise InvalidSetting("Applications are written as tables, one [applications.NAME] for each.")
    found = {}
    for name, table in given.items():
        path = f"applications.{name}"
        with _at(path):
            check_application(name)
        application = _with_key(table_of(Application, table, path), path)
        with _at(f"{path}.filter"):
            wanted = parse_filter(application.filter) if application.filter else EVERYTHING
        found[name] = replace(application, wanted=wanted, start=_start(application.start, f"{path}.start"))
    return found


def _start(given: object, path: str) -> Start:
    """As TOML has it: text, or a time."""
    if given in ("end", "oldest"):
        return "end" if given == "end" else "oldest"
    if isinstance(given, str):
        if re.fullmatch(r"[0-9]+/.*", given):
            with _at(path):
                return position_from_text(given)
        expected = "end, oldest, a time such as 2026-01-31T12:00:00Z, or a position such as 1/4711"
        try:
            given = datetime.fromisoformat(given)
        except ValueError:
            raise InvalidSetting(f"{path} is {str(given)[:64]!r}; it must be {expected}.") from None
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise InvalidSetting(f"{path} is {str(given)[:64]!r}; a time needs its zone, such as 2026-01-31T12:00:00Z.")
    return given.timestamp()


def _roskva(given: Any) -> Roskva:
    if not isinstance(given, Mapping):
        raise InvalidSetting("roskva must be a table.")
    rows = given.get("mapping", [])
    if not isinstance(rows, list) or not rows:
        raise InvalidSetting("roskva.mapping must say which rows are which objects: one [[roskva.mapping]] for each table.")
    roskva = table_of(Roskva, {name: value for name, value in given.items() if name != "mapping"}, "roskva")
    rules = []
    for number, row in enumerate(rows):
        path = f"roskva.mapping[{number}]"
        one = table_of(RowMapping, row, path)
        with _at(path):
            rules.append(parse_mapping(one.table, one.object, one.version, one.source, one.deletes, one.missing == "skip"))
    admin_key = _secret("", roskva.admin_key_file, "roskva.admin_key") if roskva.admin_key_file else ""
    key = _secret(roskva.key, roskva.key_file, "roskva.key") if roskva.key_file else roskva.key
    return replace(roskva, key=key, admin_key=admin_key, mapping=tuple(rules))


Keyed = TypeVar("Keyed", Publisher, Application)


def _with_key(found: Keyed, path: str) -> Keyed:
    key = _secret(found.key, found.key_file, f"{path}.key") if found.key_file else found.key
    if key and len(key.encode()) < KEY_BYTES_MIN:
        raise InvalidSetting(f"{path}.key has {len(key.encode())} bytes; it needs {KEY_BYTES_MIN} at least.")
    return replace(found, key=key)


def _secret(text: str, file: str, path: str) -> str:
    if text:
        raise InvalidSetting(f"{path} and {path}_file are both given: one of them must go.")
    try:
        found = Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"{path}_file, {file}, cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}.") from None
    if not found:
        raise InvalidSetting(f"{path}_file, {file}, is empty.")
    return found


@contextmanager
def _at(path: str) -> Iterator[None]:
    """What is wrong there is named with its path."""
    try:
        yield
    except BadRequest as error:
        raise InvalidSetting(f"{path}: {error.what}") from None


def example(kind: str = "postgres") -> str:
    """A file to begin with: what must be given is, everything else stands there as a comment with its default."""
    given = {
        "postgres": {"dsn": "host=127.0.0.1 dbname=shop user=roskva"},
        "rocksdb": {"path": "/var/lib/shop/rocksdb"},
        "files": {"path": "/var/lib/shop/log"},
    }
    return f"""\
# {FILE_NAME}: what is read from which log, and who gets it. Lines that begin with # show defaults, or examples.

[dataset]
{written(Dataset, {"name": "shop"})}

# Other rules for some tables: [dataset.tables], then for each NAME = "id % 64".

[datastore]
# postgres, mariadb, rocksdb or files.
kind = "{kind}"
{written(DATASTORES[kind], given.get(kind, {}))}

[publisher]
{written(Publisher, {})}

# Who else subscribes, each under a name of its own.
[applications.search]
{written(Application, {"filter": '[table in ("documents", "users")]'})}

# Roskva itself: rows become objects, whose versions its clients learn.
[roskva]
{written(Roskva, {"application": "demo"})}

[[roskva.mapping]]
{written(RowMapping, {"table": "documents", "object": "doc:{id}"})}
"""


if __name__ == "__main__":
    print(example(), end="")
