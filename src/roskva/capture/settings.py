"""The settings of capture: `capture.toml`, read and checked. sections.py has every setting, with its default and when to change it.

    [dataset]              what the data is called, and how it is divided into shards
    [datastore]            where its log is read: kind = "postgres", "mariadb", "mysql", "rocksdb" or "files", each with keys of its own
    [publisher]            what reads it, beside the database, and what that may use
    [applications.NAME]    who subscribes, to what, and from where on
    [roskva]               Roskva as one of these, with a [[roskva.mapping]] for each table

`load` checks everything, filters and rules included, and raises InvalidSetting with the path of what does not fit. `example` is a file to
begin with. Nothing here opens a datastore or listens; the files that hold keys are read, and a strategy of the user's own is imported.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from roskva.capture.balance import strategy
from roskva.capture.datamarkers.opening import check_place
from roskva.capture.filters import EVERYTHING, Basic, Filter, Key, OneOf, parse_filter
from roskva.capture.mapping import parse_mapping
from roskva.capture.own_strategy import own_strategy
from roskva.capture.positions import position_from_text
from roskva.capture.sections import (
    DATASTORES,
    Application,
    BinlogServer,
    CaptureSettings,
    Dataset,
    Datastore,
    Files,
    Mariadb,
    Mysql,
    Postgres,
    Publisher,
    Rocksdb,
    Roskva,
    RowMapping,
    Start,
)
from roskva.capture.sharding import Sharding, parse_rule
from roskva.capture.toml_tables import table_of, unknown, written
from roskva.capture.updates import MALFORMED
from roskva.errors import BadRequest, InvalidSetting
from roskva.model import check_application

__all__ = [
    "DATASTORES",
    "FILE_NAME",
    "Application",
    "BinlogServer",
    "CaptureSettings",
    "Dataset",
    "Files",
    "Mariadb",
    "Mysql",
    "Postgres",
    "Publisher",
    "Rocksdb",
    "example",
    "load",
    "settings_of",
]

FILE_NAME: Final = "capture.toml"
KEY_BYTES_MIN: Final = 16
FILE_BYTES_MAX: Final = 4 << 20


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
    _check_publisher(publisher)
    if publisher.peers and publisher.name not in {peer.partition("@")[0] for peer in publisher.peers}:
        raise InvalidSetting(
            f"publisher.peers does not name this publisher, {publisher.name!r}: all of them are listed, the primary first."
        )
    dataset, datastore = _dataset(tables["dataset"]), _datastore(tables["datastore"])
    applications = _applications(tables.get("applications", {}))
    roskva = _roskva(tables["roskva"]) if "roskva" in tables else None
    if isinstance(datastore, Postgres):
        _check_names(dataset, applications, roskva)
    if roskva is not None:
        applications[roskva.subscription] = _of_roskva(roskva, applications.get(roskva.subscription), datastore)
    return CaptureSettings(dataset, datastore, publisher, MappingProxyType(applications), roskva)


def _of_roskva(roskva: Roskva, given: Application | None, datastore: Datastore) -> Application:
    """Nobody has to repeat the tables of the mapping in a filter. A line that cannot be read may be of any of them, whatever the filter."""
    if given is not None and (given.wanted == EVERYTHING or not isinstance(datastore, Files)):
        return given
    mapped = tuple(dict.fromkeys(table for rule in roskva.mapping for table in rule.tables))
    groups = ((Basic(Key("table"), OneOf(mapped)),),) if given is None else given.wanted.groups
    wanted = Filter((*groups, (Basic(Key("table"), OneOf((MALFORMED,))),)) if isinstance(datastore, Files) else groups)
    return replace(given or Application(), filter=str(wanted), wanted=wanted)


def _check_names(dataset: Dataset, applications: Mapping[str, Application], roskva: Roskva | None) -> None:
    """Of tables of Postgres, as changes have them: `datastore.tables` is SQL, and these are not. What never matches is never missed."""
    named = [(f"dataset.tables.{table}", table) for table in dataset.tables]
    for name, application in applications.items():
        for basic in (basic for group in application.wanted.groups for basic in group):
            if basic.key == Key("table") and isinstance(basic.test, OneOf):
                named += [(f"applications.{name}.filter", str(value)) for value in basic.test.values]
    for number, rule in enumerate(() if roskva is None else roskva.mapping):
        named += [(f"roskva.mapping[{number}].table", table) for table in rule.tables]
    for path, table in named:
        meant = re.sub(r'(^|\.)"([^"]+)"(?=\.|$)', r"\1\2", table)
        meant = meant.removeprefix("public.") or meant
        if meant != table:
            raise InvalidSetting(
                f"{path} is {table!r}, and changes call this table {meant!r}: write that, without quotes, and without the schema public."
            )


def _check_publisher(publisher: Publisher) -> None:
    with _at("publisher.datamarkers"):
        check_place(publisher.datamarkers)
    _check_pair(publisher.tls_certificate, publisher.tls_key, "publisher")
    if publisher.tls_client_ca and not publisher.tls_certificate:
        raise InvalidSetting("publisher.tls_client_ca is given without publisher.tls_certificate: nobody shows anything without TLS.")
    if publisher.tls_certificate and publisher.listen.startswith("unix:"):
        raise InvalidSetting("publisher.tls_certificate is given, and publisher.listen is a Unix socket, where there is no TLS.")


def _check_pair(certificate: str, key: str, path: str) -> None:
    if bool(certificate) != bool(key):
        given, missing = ("tls_certificate", "tls_key") if certificate else ("tls_key", "tls_certificate")
        raise InvalidSetting(f"{path}.{given} is given without {path}.{missing}: TLS needs both.")


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
        raise InvalidSetting(f"datastore.kind must be one of {', '.join(DATASTORES)}, not {str(kind)[:64]!r}.")
    found = table_of(DATASTORES[kind], {name: value for name, value in given.items() if name != "kind"}, "datastore")
    if isinstance(found, BinlogServer) and found.password_file:
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
        _check_pair(application.tls_certificate, application.tls_key, path)
        with _at(f"{path}.filter"):
            wanted = parse_filter(application.filter) if application.filter else EVERYTHING
        with _at(f"{path}.balance"):
            balance = (own_strategy if ":" in application.balance else strategy)(application.balance)
        found[name] = replace(application, wanted=wanted, strategy=balance, start=_start(application.start, f"{path}.start"))
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
# postgres, mariadb, mysql, rocksdb or files.
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
