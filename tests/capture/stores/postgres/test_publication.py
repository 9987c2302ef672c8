"""Tables that are dropped and created again, taken out of the publication, or added to it: what changed meanwhile is told as lost."""

from __future__ import annotations

import contextlib
import json
from typing import cast

import psycopg2
import pytest

from roskva.capture.interface import Reader
from roskva.capture.positions import Position
from roskva.capture.sections import Postgres
from roskva.capture.settings import settings_of
from roskva.capture.stores.postgres import PostgresStore
from roskva.capture.updates import Change
from roskva.cli.capture_check_roskva import published_finding
from roskva.cli.capture_check_shards import shards_findings
from roskva.errors import CaptureRefused, DatastoreUnavailable, LogCut, Unavailable
from tests.capture.stores.postgres.place import Place, take

SWAP = (
    "CREATE TABLE documents_new (id int PRIMARY KEY, title text)",
    "INSERT INTO documents_new VALUES (2, 'unseen')",
    "DROP TABLE documents",
    "ALTER TABLE documents_new RENAME TO documents",
)


@pytest.fixture
def named(place: Place) -> PostgresStore:
    """A store that publishes the table documents by its name."""
    store = place.open(publication="named", slot=f"named_{place.name}", tables=("documents",))
    store.prepare()
    return store


def cut(reader: Reader) -> tuple[list[Change], LogCut]:
    """What comes before the log has a gap, and the gap."""
    found: list[Change] = []
    for _ in range(100):
        try:
            found += reader.read(100, 0.2).changes
        except LogCut as error:
            return found, error
    raise AssertionError("there is no gap")


def gaps_of(store: PostgresStore, after: Position) -> int:
    """How many the log has from there to its end."""
    count, end = 0, store.retained().end
    while True:
        with contextlib.closing(store.read_after(after)) as reader:
            try:
                while after < end:
                    after = reader.read(100, 0.2).reached
                return count
            except LogCut as error:
                after, count = cast(Position, error.oldest), count + 1


def test_a_table_that_was_created_anew_is_published_again_and_the_gap_is_told_at_its_place(place: Place, named: PostgresStore) -> None:
    start = named.retained().end
    place.execute("INSERT INTO documents VALUES (1, 'seen')", *SWAP, "INSERT INTO documents VALUES (3, 'unseen')")
    named.prepare()
    named.prepare()  # nothing more to tell
    place.execute("INSERT INTO documents VALUES (4, 'seen')")
    for _ in range(2):  # the log remembers it: whoever reads later, or anew after a crash, comes to it, too
        with contextlib.closing(named.read_after(start)) as reader:
            before, gap = cut(reader)
        assert [change.key for change in before] == [{"id": 1}]
    after = cast(Position, gap.oldest)
    with contextlib.closing(named.read_after(after)) as reader:
        assert [change.key for change in take(reader, 1)] == [{"id": 4}]
    assert gaps_of(named, start) == 1


def test_at_a_start_a_table_that_must_be_added_is_told_unless_nobody_has_read_yet(place: Place, named: PostgresStore) -> None:
    start = named.retained().end
    place.execute(*SWAP)
    other = place.open(publication="named", slot=f"named_{place.name}", tables=("documents",))  # as after a restart
    other.prepare()
    assert gaps_of(other, start) == 1
    place.execute("CREATE TABLE users (id int PRIMARY KEY)")
    first = place.open(publication="named", slot=f"first_{place.name}", tables=("documents", "users"))
    begin = place.store.retained().end
    first.prepare()  # its slot is made now
    assert gaps_of(other, begin) == 0


def test_the_writers_of_a_table_that_is_being_added_are_waited_for_and_not_held_up(place: Place, named: PostgresStore) -> None:
    start = named.retained().end
    place.execute(*SWAP)
    with contextlib.closing(psycopg2.connect(place.server.dsn(place.name))) as writer, writer.cursor() as cursor:
        cursor.execute("INSERT INTO documents VALUES (3, 'unseen')")
        with pytest.raises(DatastoreUnavailable, match=r"waits for transactions that write.*pg_stat_activity"):
            named.prepare()
        place.execute("INSERT INTO documents VALUES (4, 'unseen')")
        writer.commit()
    named.prepare()
    assert gaps_of(named, start) == 1


def test_a_table_that_somebody_else_takes_out_and_adds_is_told_when_its_writers_have_ended(place: Place, named: PostgresStore) -> None:
    start = named.retained().end
    with contextlib.closing(psycopg2.connect(place.server.dsn(place.name))) as writer, writer.cursor() as cursor:
        place.execute("ALTER PUBLICATION named DROP TABLE documents")
        cursor.execute("INSERT INTO documents VALUES (3, 'unseen')")
        place.execute("ALTER PUBLICATION named ADD TABLE documents")
        named.prepare()
        assert gaps_of(named, start) == 0  # too early: what is written would come after it
        writer.commit()
    named.prepare()
    named.prepare()
    assert gaps_of(named, start) == 1


def test_a_table_that_is_dropped_is_told_once_and_refused_and_keeps_no_other_from_being_published(place: Place) -> None:
    place.execute("CREATE TABLE users (id int PRIMARY KEY)")
    store = place.open(publication="both", slot=f"both_{place.name}", tables=("documents", "users"))
    store.prepare()
    start = store.retained().end
    place.execute("DROP TABLE documents", "DROP TABLE users", "CREATE TABLE users (id int PRIMARY KEY)")
    for _ in range(2):
        with pytest.raises(CaptureRefused, match="no table 'documents'"):
            store.prepare()
    assert gaps_of(store, start) == 2  # of the one that was published again, and of the one that is gone
    place.execute("INSERT INTO users VALUES (1)")
    end = store.retained().end
    assert place.execute("SELECT tablename FROM pg_publication_tables WHERE pubname = 'both'") == [("users",)]
    assert end > start


def test_a_slot_that_is_dropped_is_made_again_though_a_table_is_absent_if_somebody_reads(place: Place) -> None:
    """What keeps the log for other tables must not wait for it; before anybody has read, it would keep the log for nobody."""
    place.execute("CREATE TABLE users (id int PRIMARY KEY)", "CREATE PUBLICATION certain FOR TABLE users")
    slot = f"some_{place.name}"
    store = place.open(publication="certain", slot=slot, tables=("absent", "users"))
    for reads in (False, True):
        if reads:
            with pytest.raises(LogCut):
                store.read_after(store.retained().end)
        with pytest.raises(CaptureRefused, match="no table 'absent'"):
            store.prepare()
        assert place.execute(f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}'") == [(int(reads),)]
    with contextlib.closing(store.read_after(store.retained().oldest)) as reader:
        place.execute("INSERT INTO users VALUES (1)")
        assert [change.key for change in take(reader, 1)] == [{"id": 1}]
    place.execute(f"SELECT pg_drop_replication_slot('{slot}')", "DROP PUBLICATION certain")
    with pytest.raises(CaptureRefused, match="no table 'absent'"):
        store.prepare()
    assert place.execute(f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}'") == [(0,)], "it could never be read"


def test_nobody_else_can_say_that_changes_are_missing(place: Place, named: PostgresStore) -> None:
    """Any user of the database may write such a message; it would have all subscribers fetch everything."""
    start = named.retained().end
    place.execute("CREATE ROLE anybody LOGIN")
    for content in (
        '{"publication": "named", "tables": "documents"}',
        '{"publication": "named", "tables": "documents", "secret": null}',
        '{"publication": "named", "tables": "documents", "secret": ""}',
        '{"publication": "named", "tables": "documents", "secret": "guessed \\ud800"}',
        json.dumps({"publication": "other", "tables": "documents", "secret": place.secret}),
    ):
        place.execute(f"SELECT pg_logical_emit_message(true, 'roskva.unpublished', '{content}')", user="anybody")
    place.execute("INSERT INTO documents VALUES (1, 'a')")
    with contextlib.closing(named.read_after(start)) as reader:
        assert [change.key for change in take(reader, 1)] == [{"id": 1}]
    assert gaps_of(named, start) == 0
    place.execute(*SWAP)
    named.prepare()
    assert gaps_of(named, start) == 1
    other = place.open(publication="named", slot=f"named_{place.name}", tables=("documents",))
    assert gaps_of(other, start) == 1, "whoever has the secret knows it"
    place.secret = "of other data"
    stranger = place.open(publication="named", slot=f"named_{place.name}", tables=("documents",))
    assert gaps_of(stranger, start) == 0


def test_whether_changes_are_missing_is_not_guessed_while_the_secret_cannot_be_read(place: Place, named: PostgresStore) -> None:
    start = named.retained().end
    place.execute(*SWAP)
    named.prepare()
    other = place.open(publication="named", slot=f"named_{place.name}", tables=("documents",))

    def away() -> str:
        raise Unavailable("It is away.")

    other.sign_with(away)
    with contextlib.closing(other.read_after(start)) as reader, pytest.raises(DatastoreUnavailable, match="It is away"):
        cut(reader)
    place.execute("DROP TABLE documents", "CREATE TABLE documents (id int PRIMARY KEY)")
    with pytest.raises(DatastoreUnavailable, match="It is away"):
        other.prepare()
    published = place.execute("SELECT tablename FROM pg_publication_tables WHERE pubname = 'named'")
    assert published == [], "it is published when that can be told"
    other.sign_with(lambda: place.secret)
    other.prepare()
    assert gaps_of(other, start) == 2


def test_messages_of_other_publications_are_none_of_ours(place: Place, named: PostgresStore) -> None:
    start = named.retained().end
    for content in ('{"publication": "other"}', "[]", "{", ""):
        place.execute(f"SELECT pg_logical_emit_message(true, 'roskva.unpublished', '{content}')")
    place.execute("INSERT INTO documents VALUES (1, 'a')")
    with contextlib.closing(named.read_after(start)) as reader:
        assert [change.key for change in take(reader, 1)] == [{"id": 1}]


def test_check_sees_tables_whose_deleted_rows_do_not_say_in_which_shard_they_were(place: Place) -> None:
    columns = "(id int, user_id int NOT NULL, PRIMARY KEY (id))"
    place.execute(
        *(f"CREATE TABLE {table} {columns}" for table in ("plain", "whole", "by_index", "by_id", "unpublished")),
        "CREATE SCHEMA sales",
        f'CREATE TABLE sales."Orders" {columns}',
        "CREATE TABLE including (id int, user_id int, PRIMARY KEY (id) INCLUDE (user_id))",
        "CREATE TABLE without (id int PRIMARY KEY)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "CREATE UNIQUE INDEX by_both ON by_index (id, user_id)",
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_both",
        'CREATE PUBLICATION "some" FOR TABLE plain, whole, by_index, by_id, including, without',
    )

    def named(publication: str, tables: tuple[str, ...] = (), shards: int = 4) -> dict[str, str]:
        rules = {"by_id": "id % 4"} if shards == 4 else {}
        dataset = {"name": "shop", "shards": shards, "shard": f"hash(user_id) % {shards}", "tables": rules}
        store: dict[str, object] = {"kind": "postgres", "dsn": place.settings.dsn, "publication": publication}
        store |= {"tables": list(tables)} if tables else {}
        found = shards_findings(settings_of({"dataset": dataset, "datastore": store}))
        return {finding.what.split()[5]: finding.do for finding in found if not finding.ok}

    assert named("some", shards=1) == {}
    mends = named("some", ('sales."Orders"',))
    assert mends.keys() == {"plain", "including", "sales.Orders"}
    assert mends["sales.Orders"].startswith('ALTER TABLE "sales"."Orders" REPLICA IDENTITY FULL; or have a unique index')
    assert named("none yet").keys() == {"plain", "including", "sales.Orders", "unpublished"}
    place.execute(*(mend.partition(";")[0] for mend in mends.values()))
    assert named("some", ('sales."Orders"',)) == {}


@pytest.mark.parametrize(
    ("tables", "publication", "mends"),
    [
        (("documents",), "some", ""),  # it is added at the start
        (("public.documents", "users"), "none yet", ""),
        ((), "none yet", ""),
        ((), "all", ""),
        ((), "some", """ALTER PUBLICATION "some" ADD TABLE "public"."documents\""""),
        (("users",), "some", 'add "documents" to datastore.tables'),
    ],
)
def test_check_sees_a_mapped_table_that_is_not_published(place: Place, tables: tuple[str, ...], publication: str, mends: str) -> None:
    place.execute(
        "CREATE TABLE users (id int PRIMARY KEY)", 'CREATE PUBLICATION "some" FOR TABLE users', 'CREATE PUBLICATION "all" FOR ALL TABLES'
    )
    store = Postgres(place.settings.dsn, publication=publication, tables=tables)
    finding = published_finding(store, "documents", '"public"."documents"')
    assert (finding.ok, finding.do) == (not mends, mends)
