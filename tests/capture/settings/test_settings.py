"""capture.toml: what is read, and that everything wrong is named with its path and a guess at what was meant."""

from __future__ import annotations

import re
import tomllib
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roskva.capture.balance import Subscriber, coordinated, strategy
from roskva.capture.filters import EVERYTHING
from roskva.capture.mapping import Column
from roskva.capture.positions import Position
from roskva.capture.running.publisher import publisher_settings
from roskva.capture.settings import (
    DATASTORES,
    Application,
    Dataset,
    Files,
    Mariadb,
    Postgres,
    Publisher,
    Rocksdb,
    example,
    load,
    settings_of,
)
from roskva.errors import InvalidSetting

SMALL = """
[dataset]
name = "shop"
[datastore]
kind = "postgres"
dsn = "host=127.0.0.1 dbname=shop"
"""


def of(text: str) -> Any:
    return settings_of(tomllib.loads(SMALL + text))


def test_little_is_needed() -> None:
    settings = of("")
    assert settings.dataset == Dataset("shop")
    assert settings.datastore == Postgres("host=127.0.0.1 dbname=shop")
    assert settings.publisher == Publisher()
    assert settings.publisher.datamarker_period_s == 30
    assert settings.applications == {}
    assert settings.roskva is None
    with pytest.raises(FrozenInstanceError):
        settings.publisher.caravans_max = 1


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, '[table = "t"] OR [table = "malformed-line"]'),
        ({"roskva": {"filter": '[table = "t" AND a = 1]'}}, '[table = "t" AND a = 1] OR [table = "malformed-line"]'),
        ({"roskva": {}}, "[]"),
    ],
)
def test_roskvas_own_application_gets_lines_that_cannot_be_read_whatever_its_filter(given: dict[str, Any], wanted: str) -> None:
    mapping = [{"table": "t", "object": "t:{id}"}]
    found = settings_of(
        {
            "dataset": {"name": "shop"},
            "datastore": {"kind": "files", "path": "/nowhere"},
            "applications": {"search": {"filter": "[a = 1]"}, **given},
            "roskva": {"application": "demo", "mapping": mapping},
        }
    )
    assert str(found.applications["roskva"].wanted) == wanted
    assert str(found.applications["search"].wanted) == "[a = 1]"


def test_a_whole_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a key of 16 bytes or more\n")
    (tmp_path / "capture.toml").write_text(f"""
[dataset]
name = "shop"
shards = 64
shard = "hash(user_id) % 64"
[dataset.tables]
users = "id % 64"

[datastore]
kind = "mariadb"
host = "db.example"
password_file = "{tmp_path}/key"

[publisher]
name = "db1"
listen = "unix:/run/roskva/capture.sock"
peers = ["db1@eu", "db2"]
datamarkers = "host=db1,db2 dbname=marks user=roskva password=very-secret"
takeover_s = 20
key_file = "{tmp_path}/key"
caravan_rate_max_bytes_per_s = "8 MiB"
policy = "fewest"

[applications.search]
filter = '[table = "users" AND shard in 0..31]'
start = 2026-01-31T12:00:00Z
max_age_s = 60
publishers = ["127.0.0.1:8480", "[::1]:8481"]
balance = "weighted"

[applications.replay]
start = "1/4711"

[roskva]
application = "demo"
key_file = "{tmp_path}/key"
admin_key_file = "{tmp_path}/key"
[[roskva.mapping]]
table = "documents"
object = ["doc:{{id}}", "folder:{{folder}}"]
source = "{{updated_by}}"
[[roskva.mapping]]
table = ["users", "documents"]
object = "user:{{id}}"
version = "revision"
deletes = false
missing = "skip"
""")
    settings = load(tmp_path / "capture.toml")
    assert settings.dataset.sharding.shards == 64
    assert settings.dataset.tables == {"users": "id % 64"}
    assert isinstance(settings.datastore, Mariadb)
    assert settings.datastore.password == settings.publisher.key == "a key of 16 bytes or more"
    assert settings.publisher.caravan_rate_max_bytes_per_s == 8 * 2**20
    search = settings.applications["search"]
    assert str(search.wanted) == search.filter
    assert (search.start, search.max_age_s, search.balance) == (1769860800.0, 60.0, "weighted")
    assert settings.applications["replay"].start == Position(1, 4711)
    assert settings.applications["replay"].wanted == EVERYTHING
    assert settings.roskva is not None
    first, second = settings.roskva.mapping
    assert first.objects[1].parts == (b"folder:", Column("folder"))
    assert (second.version, second.deletes, second.skip_missing) == ("revision", False, True)
    # Nobody has to repeat the tables of the mapping in a filter.
    assert settings.applications["roskva"].filter == '[table in ("documents", "users")]'
    assert settings.key_of("search") == settings.publisher.key
    assert "a key of" not in repr(settings)
    assert settings.publisher.takeover_s == 20
    assert settings.publisher.datamarkers.startswith("host=db1,db2")
    assert "very-secret" not in repr(settings)


def test_the_other_datastores() -> None:
    base = {"dataset": {"name": "shop"}}
    assert settings_of(base | {"datastore": {"kind": "rocksdb", "path": "/x"}}).datastore == Rocksdb(Path("/x"))
    assert settings_of(base | {"datastore": {"kind": "files", "path": "~/x"}}).datastore == Files(Path("~/x").expanduser())


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A strategy in a file that PYTHONPATH finds."""
    (tmp_path / "placement_of_tests.py").write_text(
        "def apart(shards, placed, subscribers, dice):\n"
        "    members = sorted(one.member for one in subscribers)\n"
        "    return {shard: members[0 if shard == 0 else -1] for shard in shards}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "placement_of_tests:apart"


def test_a_strategy_of_the_users_own_is_named_in_the_file_and_reaches_the_publisher(own: str, tmp_path: Path) -> None:
    settings = of(f"[publisher]\ndata = '{tmp_path}'\n[applications.x]\nbalance = '{own}'\n[applications.y]")
    placed = publisher_settings(settings).applications
    subscribers = [Subscriber(member) for member in ("b", "a", "c")]
    assert strategy(placed["x"].balance)(range(4), {}, subscribers, lambda: 0.5) == {0: "a", 1: "c", 2: "c", 3: "c"}
    assert strategy(placed["y"].balance) is coordinated


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[aplications.x]", "There is no setting aplications. Did you mean 'applications'?"),
        ("[publisher]\ncaravan_max = 3", "There is no setting publisher.caravan_max. Did you mean 'caravans_max'?"),
        ("[publisher]\nxyz = 3", "There is no setting publisher.xyz. There are name, listen"),
        ("[publisher]\ncaravans_max = 0", "publisher.caravans_max is 0; it must be greater than 0"),
        ("[publisher]\ncaravans_max = 1.5", "publisher.caravans_max must be a whole number, not 1.5"),
        ("[publisher]\ncaravans_max = 65", "it must be at most 64"),
        ("[publisher]\ncaravans_max = true", "must be a whole number"),
        ("[publisher]\ndatamarker_period_s = nan", "must be a number"),
        ("[publisher]\ncaravan_rate_max_bytes_per_s = '5 apples'", "or text such as '64 MiB'"),
        ("[publisher]\nmemory_mib_max = 1", "at least 16"),
        ("[publisher]\npolicy = 'clutser'", "publisher.policy is 'clutser'; it must be one of cluster, fewest. Did you mean 'cluster'?"),
        ("[publisher]\nlisten = '127.0.0.1'", "publisher.listen is '127.0.0.1'; it must be HOST:PORT"),
        ("[publisher]\nlisten = '127.0.0.1:70000'", "it must be HOST:PORT"),
        ("[publisher]\npeers = ['a', 'b']", "does not name this publisher, 'publisher'"),
        ("[publisher]\npeers = ['publisher', 'B b']", "publisher.peers[1] is 'B b'; it must be NAME or NAME@REGION"),
        ("[publisher]\npeers = []", "publisher.peers must be text, or a list of texts"),
        ("[publisher]\ndatamarkers = 'mysql://db1/x'", "publisher.datamarkers: Datamarkers are kept in a file, or in a server"),
        ("[publisher]\ndatamarkers = 'host=db1 hst=db2'", "publisher.datamarkers: The connection string of Postgres cannot be read"),
        ("[publisher]\ndatamarkers = 'postgresql://db1/%zz'", "publisher.datamarkers: The connection string of Postgres cannot be read"),
        ("[publisher]\ndatamarkers = 5", "publisher.datamarkers must be text, not 5"),
        ("[publisher]\ntakeover_s = 0.5", "publisher.takeover_s is 0.5; it must be from 1 to 3,600"),
        ("[publisher]\ntls_certificate = 'x'", "publisher.tls_certificate is given without publisher.tls_key: TLS needs both"),
        ("[publisher]\ntls_key = 'x'", "publisher.tls_key is given without publisher.tls_certificate"),
        ("[publisher]\ntls_client_ca = 'x'", "publisher.tls_client_ca is given without publisher.tls_certificate"),
        (
            "[publisher]\ntls_certificate = 'x'\ntls_key = 'y'\nlisten = 'unix:/x'",
            "publisher.listen is a Unix socket, where there is no TLS",
        ),
        ("[applications.x]\ntls_certificate = 'x'", "applications.x.tls_certificate is given without applications.x.tls_key"),
        ("[publisher]\nkey = 'short'", "publisher.key has 5 bytes; it needs 16 at least"),
        ("[publisher]\nkey_file = '/nowhere/key'", "publisher.key_file, /nowhere/key, cannot be read: No such file"),
        ("[publisher]\nkey_file = '/dev/null'", "is empty"),
        ("[publisher]\nkey = '0123456789abcdef'\nkey_file = 'x'", "publisher.key and publisher.key_file are both given"),
        ("[applications.X]", "applications.X: 'X' is not an application's name"),
        ("[applications]\nx = 1", "one [applications.NAME] for each"),
        ("[applications.x]\nfilter = '[a = b]'", "applications.x.filter: The filter '[a = b]' cannot be read at character 6"),
        ("[applications.x]\nstart = 'yesterday'", "applications.x.start is 'yesterday'; it must be end, oldest, a time"),
        ("[applications.x]\nstart = 2026-01-31T12:00:00", "a time needs its zone"),
        ("[applications.x]\nstart = 5", "a time needs its zone"),
        ("[applications.x]\nstart = '1/2.3.4'", "applications.x.start: '1/2.3.4' is no position"),
        ("[applications.x]\nreal_time_only = 'yes'", "must be true or false"),
        ("[applications.x]\nbalance = 'random'", "applications.x.balance: There is no strategy 'random' to balance flows: weighted,"),
        ("[applications.x]\nbalance = 'wieghted'", "Did you mean 'weighted'?"),
        ("[applications.x]\nbalance = 'not.there:place'", "There is no module 'not', which 'not.there:place' needs"),
        ("[applications.x]\nbalance = 'math:place'", "the module 'math' has no function 'place'"),
        ("[applications.x]\nbalance = 'math:pi'", "the module 'math' has no function 'pi'"),
        ("[applications.x]\nbalance = 'math:sqrt'", "The strategy 'math:sqrt' raised TypeError"),
        ("[applications.x]\nbalance = 'builtins:print'", "The strategy 'builtins:print' answered None"),
        ("[applications.x]\nbalance = ':'", "The module of ':' cannot be imported: ValueError"),
        ("[applications.x]\nmax_age_s = -1", "greater than 0"),
        ("[roskva]\napplication = 'demo'", "one [[roskva.mapping]] for each table"),
        ("[roskva]\n[[roskva.mapping]]\ntable = 't'\nobject = 'x'", "roskva.application must be given: the application whose objects"),
        ("[roskva]\napplication = 'demo'\n[[roskva.mapping]]\ntable = 't'", "roskva.mapping[0].object must be given"),
        (
            "[roskva]\napplication = 'demo'\n[[roskva.mapping]]\ntable = 't'\nobject = 'x{'",
            "roskva.mapping[0]: The object 'x{' cannot be read",
        ),
        (
            "[roskva]\napplication = 'demo'\n[[roskva.mapping]]\ntable = 't'\nobject = ['x', 5]",
            "roskva.mapping[0].object[1] must be text, not 5",
        ),
        ("[roskva]\napplication = 'demo'\n[[roskva.mapping]]\ntabel = 't'", "roskva.mapping[0].tabel. Did you mean 'table'?"),
        ("[roskva]\napplication = 'demo'\nurl = 'demo'\n[[roskva.mapping]]\n", "roskva.url is 'demo'; it must be a URL"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_path(text: str, says: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        of(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({}, "The section [dataset] must be given"),
        ({"dataset": {"name": "x"}}, "The section [datastore] must be given"),
        ({"dataset": {}, "datastore": {"kind": "files", "path": "x"}}, "dataset.name must be given: what the data is called"),
        ({"dataset": {"name": "x"}, "datastore": {}}, "datastore.kind must be one of postgres, mariadb, mysql, rocksdb, files"),
        ({"dataset": {"name": "x"}, "datastore": {"kind": "mysql", "source": "db1"}}, "a UUID, as SELECT @@server_uuid says it"),
        ({"dataset": {"name": "x"}, "datastore": {"kind": "postgres"}}, "datastore.dsn must be given"),
        ({"dataset": {"name": "x"}, "datastore": {"kind": "files", "path": "x", "host": "y"}}, "There is no setting datastore.host"),
        (
            {"dataset": {"name": "x", "shard": "id % 4"}, "datastore": {"kind": "files", "path": "x"}},
            "dataset.shard: The shard's rule 'id % 4'",
        ),
        ({"dataset": {"name": "x", "tables": {"t": "id %"}}, "datastore": {"kind": "files", "path": "x"}}, "dataset.tables.t: The shard's"),
        (
            {"dataset": {"name": "x", "tables": {"t": 5}}, "datastore": {"kind": "files", "path": "x"}},
            "dataset.tables must be a table of rules",
        ),
        ({"dataset": 5, "datastore": {"kind": "files", "path": "x"}}, "dataset must be a table, not 5"),
        ({"dataset": {"name": "x"}, "datastore": 5}, "datastore must be a table"),
        ({"dataset": {"name": "x"}, "datastore": {"kind": "files", "path": "x"}, "roskva": 5}, "roskva must be a table"),
    ],
)
def test_what_is_missing_or_of_another_kind_is_said(tables: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        settings_of(tables)
    assert says in str(caught.value)


@pytest.mark.parametrize(("data", "says"), [(b"\xff", "is not TOML"), (b"a = ", "is not TOML"), (None, "cannot be read"), (b"x = 1", "x")])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, data: bytes | None, says: str) -> None:
    file = tmp_path / "capture.toml"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(InvalidSetting, match=says) as caught:
        load(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("kind", DATASTORES)
def test_the_example_can_be_loaded(tmp_path: Path, kind: str) -> None:
    (tmp_path / "capture.toml").write_text(example(kind))
    settings = load(tmp_path / "capture.toml")
    assert isinstance(settings.datastore, DATASTORES[kind])
    assert settings.publisher == Publisher()
    assert settings.roskva is not None
    assert settings.roskva.application == "demo"


@pytest.mark.parametrize("kind", DATASTORES)
def test_what_the_example_shows_as_defaults_are_the_defaults_and_all_of_it_is_accepted(tmp_path: Path, kind: str) -> None:
    text = example(kind)
    assert max(map(len, text.splitlines())) <= 160
    lines = [re.sub(r"^# (?=[a-z_]+ = )", "", line) for line in text.splitlines()]
    shown = tomllib.loads("\n".join(lines))
    for name, table, section in (
        ("publisher", Publisher, shown["publisher"]),
        ("application", Application, shown["applications"]["search"]),
    ):
        defaults = table()
        for setting_name, value in section.items():
            default = getattr(defaults, setting_name)
            if default not in ("", (), None) and setting_name != "filter":
                assert str(value).removesuffix(" MiB") in (
                    str(default),
                    f"{default:g}" if isinstance(default, float) else "",
                    _mib(default),
                ), name
    assert shown["publisher"]["takeover_s"] == 8
    assert kind != "postgres" or shown["datastore"]["replace_lost_slot"] is False
    for section in (shown["publisher"], shown["applications"]["search"], shown["roskva"], shown["datastore"]):
        for setting_name in [one for one in section if one.endswith("_file")]:
            del section[setting_name]
    shown["publisher"]["name"] = "db1"
    assert settings_of(shown).publisher.peers == ("db1@eu", "db2@us")


def _mib(default: Any) -> str:
    return str(int(default) >> 20) if isinstance(default, float) else ""


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.datetimes(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "kind", "x", "filter", "mapping", "table"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["dataset", "datastore", "publisher", "applications", "roskva", "y"]), VALUES))
def test_anything_else_is_refused_by_name(tables: dict[str, Any]) -> None:
    base = {"dataset": {"name": "shop"}, "datastore": {"kind": "files", "path": "x"}}
    try:
        settings_of(base | tables)
    except InvalidSetting as error:
        said = str(error)
    else:
        said = "accepted"
    assert said


@pytest.mark.parametrize(
    ("table", "meant"), [("public.documents", "documents"), ('"Docs"', "Docs"), ('sales."Old Docs"', "sales.Old Docs")]
)
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("[roskva]\napplication = 'demo'\n[[roskva.mapping]]\ntable = ['users', '{}']\nobject = 'doc:1'", "roskva.mapping[0].table"),
        ('[applications.search]\nfilter = \'[table = "x"] OR [not table in ("users", "{}")]\'', "applications.search.filter"),
        ("[dataset.tables]\n'{}' = '0'", "dataset.tables."),
    ],
)
def test_a_table_that_changes_call_otherwise_is_refused_since_none_would_ever_match(text: str, path: str, table: str, meant: str) -> None:
    def with_table(name: str) -> str:
        return text.format(name.replace('"', '\\"') if "filter" in text else name)

    with pytest.raises(InvalidSetting, match=re.escape(path) + ".*changes call this table '" + re.escape(meant)):
        of(with_table(table))
    of(with_table(meant))
    # Only Postgres leaves its default schema out.
    settings_of(tomllib.loads("[dataset]\nname = 's'\n[datastore]\nkind = 'files'\npath = '/var/log/s'\n" + with_table(table)))
