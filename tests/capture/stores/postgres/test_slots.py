"""What capture makes in a database, what it leaves alone, and what it says about both."""

from __future__ import annotations

import psycopg2
import pytest

from roskva.capture.interface import Finding
from roskva.capture.positions import WHOLE
from roskva.capture.stores.postgres import PostgresSettings, PostgresStore
from roskva.errors import CaptureRefused, DatastoreUnavailable, InvalidSetting, LogCut, WrongHistory
from tests.capture.stores.postgres.place import Place, take
from tests.capture.stores.servers_postgres import PostgresServer, running_postgres


def bad(findings: list[Finding]) -> dict[str, str]:
    """What is not as it should be, with its remedy; that the log of tests has no limit goes without saying."""
    return {finding.what: finding.do for finding in findings if not finding.ok and "max_slot_wal_keep_size" not in finding.what}


def slots_of(place: Place) -> list[tuple[str, bool]]:
    return place.execute(f"SELECT slot_name, temporary FROM pg_replication_slots WHERE database = '{place.name}' ORDER BY 1")


def test_prepare_makes_what_is_missing_and_nothing_twice(place: Place) -> None:
    before = place.store.retained().oldest
    place.store.prepare()
    place.open().prepare()
    assert slots_of(place) == [(place.settings.slot, False)]
    assert place.execute("SELECT pubname, puballtables, pubviaroot FROM pg_publication") == [("Roskva's", True, True)]
    assert place.store.retained().oldest == before
    assert bad(place.store.check()) == {}


def test_identity_is_of_the_data_and_not_of_the_connection(place: Place) -> None:
    ((system,),) = place.execute("SELECT system_identifier FROM pg_control_system()")
    assert place.store.identity == f"{system}/{place.name}" == place.open().identity


def test_confirmed_is_what_nobody_reads_again_and_the_rest_stays(place: Place) -> None:
    start = place.store.retained()
    place.execute("INSERT INTO documents SELECT n, 'a' FROM generate_series(1, 3) n", "INSERT INTO documents VALUES (4, 'b')")
    changes = place.changes(4)
    place.store.confirm(changes[1].position)  # in the middle of a commit: the server keeps all of it
    assert place.changes(2, changes[1].position) == changes[2:]
    place.store.confirm(changes[2].position._replace(index=WHOLE))
    assert place.changes(1) == changes[3:]
    oldest = place.store.retained().oldest
    assert start.oldest < oldest == changes[2].position._replace(index=WHOLE)
    place.store.confirm(changes[0].position)  # never called so, and harmless
    assert place.store.retained().oldest == oldest


def test_a_reader_that_is_ahead_survives_a_confirmation(place: Place) -> None:
    reader = place.store.read_after(place.store.retained().end)
    for number in range(3):
        place.execute(f"INSERT INTO documents VALUES ({number}, 'a')")
        (change,) = take(reader, 1)
        assert change.key == {"id": number}
        place.store.confirm(change.position._replace(index=WHOLE))
    reader.close()


def test_an_idle_slot_lets_the_log_go(place: Place) -> None:
    """What others write moves the datamarkers of a quiet database, and with them the anchor."""
    reader = place.store.read_after(place.store.retained().end)
    place.server.execute(
        "postgres", "CREATE TABLE IF NOT EXISTS noise (n int)", "INSERT INTO noise SELECT generate_series(1, 20000)", "CHECKPOINT"
    )
    held = place.store.retained().bytes_behind
    end = place.store.retained().end
    batch = reader.read(10, 0.2)
    for _ in range(50):
        if batch.reached >= end:
            break
        batch = reader.read(10, 0.2)
    place.store.confirm(batch.reached)
    reader.close()
    now = place.store.retained().bytes_behind
    assert held is not None
    assert now is not None
    assert now < held / 2


def test_retained_says_how_much_there_is_and_how_much_there_may_be(place: Place) -> None:
    retained = place.store.retained()
    assert retained.oldest <= retained.end
    assert retained.bytes_max is None
    place.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '64MB'", "SELECT pg_reload_conf()")
    try:
        place.execute("INSERT INTO documents SELECT n, repeat('x', 100) FROM generate_series(1, 1000) n", "SELECT pg_sleep(0.1)")
        limited = place.store.retained()
        findings = place.store.check()
    finally:
        place.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    assert limited.bytes_max == 64 << 20
    assert limited.bytes_behind is not None
    assert limited.bytes_behind > 100_000
    assert any("of at most 64 MB" in finding.what and finding.ok for finding in findings)


def test_an_unlimited_slot_is_warned_of_since_it_may_fill_the_disk(place: Place) -> None:
    (warning,) = (finding for finding in place.store.check() if "max_slot_wal_keep_size" in finding.what)
    assert not warning.ok
    assert "fills the disk" in warning.means
    assert warning.do.startswith("ALTER SYSTEM SET max_slot_wal_keep_size")


def test_only_the_named_tables_are_published(place: Place) -> None:
    place.execute('CREATE TABLE "Other Things" (id int PRIMARY KEY)', "CREATE TABLE third (id int PRIMARY KEY)")
    chosen = place.open(publication="some", slot=f"some_{place.name}", tables=("documents",))
    chosen.prepare()
    wider = place.open(publication="some", slot=f"some_{place.name}", tables=("public.documents", '"Other Things"'))
    ((what, do),) = bad(wider.check()).items()
    assert what == 'The table "Other Things" is not published'
    assert do.startswith("roskva capture makes it so")
    assert do.endswith('ALTER PUBLICATION "some" ADD TABLE "Other Things"')
    wider.prepare()
    assert bad(wider.check()) == {}
    reader = wider.read_after(wider.retained().end)
    place.execute("INSERT INTO third VALUES (1)", 'INSERT INTO "Other Things" VALUES (2)', "INSERT INTO documents VALUES (3, 'a')")
    assert [change.table for change in take(reader, 2)] == ["Other Things", "documents"]
    reader.close()


def test_a_table_that_is_not_there_cannot_be_published(place: Place) -> None:
    with pytest.raises(CaptureRefused, match="no table 'nowhere'"):
        place.open(publication="some", tables=("nowhere",)).prepare()


def test_a_table_without_key_is_not_published_since_its_updates_would_fail(place: Place) -> None:
    place.execute("CREATE TABLE loose (n int)", "INSERT INTO loose VALUES (1)", """DROP PUBLICATION "Roskva's" """)
    with pytest.raises(CaptureRefused, match=r"ALTER TABLE public\.loose REPLICA IDENTITY FULL"):
        place.store.prepare()
    place.execute("UPDATE loose SET n = 2")  # nothing was made
    place.execute("ALTER TABLE loose REPLICA IDENTITY FULL")
    place.store.prepare()
    place.execute("UPDATE loose SET n = 3")
    # One that is made later is found by `check`, before its first update fails.
    place.execute("CREATE TABLE looser (n int)", "INSERT INTO looser VALUES (1)")
    assert bad(place.store.check()) == {
        "Published without replica identity: public.looser": "ALTER TABLE public.looser REPLICA IDENTITY FULL"
    }
    with pytest.raises(psycopg2.Error, match="does not have a replica identity"):
        place.execute("UPDATE looser SET n = 2")


def test_check_names_what_is_not_there(server: PostgresServer) -> None:
    place = Place(server, "bare")
    try:
        found = bad(place.store.check())
        assert list(found) == ["""There is no publication "Roskva's\"""", "There is no slot 'slot_bare'"]
        commands = [do.partition("or: ")[2] for do in found.values()]
        place.execute(*commands)
        assert bad(place.store.check()) == {"""The publication "Roskva's" has 0 tables""": """ALTER PUBLICATION "Roskva's" ADD TABLE ..."""}
        place.execute("CREATE TABLE t (id int PRIMARY KEY)")
        assert bad(place.store.check()) == {}
    finally:
        place.close()


def test_check_finds_a_publication_that_leaves_something_out(place: Place) -> None:
    place.execute("CREATE PUBLICATION partial FOR TABLE documents WHERE (id > 5) WITH (publish = 'insert')")
    found = bad(place.open(publication="partial").check())
    assert list(found) == [
        'The publication "partial" leaves out operations',
        'The publication "partial" filters rows or columns of documents',
    ]
    place.execute(*found.values())
    assert bad(place.open(publication="partial").check()) == {}


def test_a_slot_of_somebody_else_is_left_alone(place: Place) -> None:
    place.execute("SELECT pg_create_logical_replication_slot('theirs', 'test_decoding')")
    store = place.open(slot="theirs")
    assert list(bad(store.check())) == ["The slot 'theirs' is not ours"]
    for refused in (store.prepare, lambda: store.read_after(place.store.retained().end)):
        with pytest.raises(CaptureRefused, match="another name for the slot"):
            refused()
    ((still,),) = place.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'theirs'")
    assert still == 1


def test_check_finds_somebody_who_reads_from_the_anchor(place: Place) -> None:
    from psycopg2.extras import LogicalReplicationConnection

    thief = psycopg2.connect(place.server.dsn(place.name), connection_factory=LogicalReplicationConnection)
    try:
        options = {"proto_version": "1", "publication_names": '"x"'}
        thief.cursor().start_replication(slot_name=place.settings.slot, decode=False, options=options)
        (what,) = bad(place.store.check())
        assert what.startswith(f"The slot {place.settings.slot!r} is read by process ")
        place.server.execute("postgres", "CREATE TABLE IF NOT EXISTS more (n int)")
        end = place.store.retained().end
        place.store.read_after(end).close()  # a copy of it can be read all the same
        with pytest.raises(DatastoreUnavailable, match="is active for PID"):
            place.store.confirm(end)
    finally:
        thief.close()


def test_a_role_needs_replication_and_nothing_else(place: Place) -> None:
    place.execute("CREATE ROLE plain LOGIN", "CREATE ROLE reading LOGIN REPLICATION")
    try:
        plain = place.open(dsn=place.server.dsn(place.name, "plain"))
        assert bad(plain.check()) == {"The role plain may not read the log": 'ALTER ROLE "plain" REPLICATION'}
        with pytest.raises(CaptureRefused, match='ALTER ROLE "plain" REPLICATION'):
            plain.read_after(plain.retained().end)
        with pytest.raises(CaptureRefused, match=r"permission denied|must be superuser"):
            plain.confirm(plain.retained().end)
        with pytest.raises(CaptureRefused, match="Do this as a superuser: CREATE PUBLICATION"):
            place.open(dsn=place.server.dsn(place.name, "plain"), publication="new").prepare()

        reading = place.open(dsn=place.server.dsn(place.name, "reading"))
        assert bad(reading.check()) == {}
        reader = reading.read_after(reading.retained().end)
        place.execute("INSERT INTO documents VALUES (1, 'a')")
        (change,) = take(reader, 1)
        reading.confirm(change.position)
        # The right is taken away: who reads goes on, who begins is told what to do.
        place.execute("ALTER ROLE reading NOREPLICATION")
        with pytest.raises(CaptureRefused, match='ALTER ROLE "reading" REPLICATION'):
            reading.read_after(change.position)
        reader.close()
    finally:
        place.execute("DROP ROLE plain", "DROP ROLE reading")


def test_who_cannot_connect_is_told_why(place: Place) -> None:
    for changes, words in (
        ({"dbname": "nowhere"}, 'CREATE DATABASE "nowhere"'),
        ({"user": "nobody"}, 'CREATE ROLE "nobody" LOGIN REPLICATION'),
    ):
        parts = {"host": "127.0.0.1", "port": place.server.port, "user": "postgres", "dbname": place.name, **changes}
        store = PostgresStore(PostgresSettings(" ".join(f"{name}={value}" for name, value in parts.items())))
        with pytest.raises(CaptureRefused, match=words):
            store.retained()
        (finding,) = store.check()
        assert not finding.ok
        store.close()


def test_nothing_listens_there() -> None:
    store = PostgresStore(PostgresSettings("host=127.0.0.1 port=1 dbname=shop user=u password=secret"))
    with pytest.raises(DatastoreUnavailable, match=r"shop at 127\.0\.0\.1:1 cannot be reached") as refused:
        store.prepare()
    assert "secret" not in str(refused.value) + repr(store._settings)
    store.close()
    with pytest.raises(DatastoreUnavailable, match="is closed"):
        store.retained()


@pytest.mark.parametrize("slot", ["", "Roskva", "a-b", "x" * 41, "a'b"])
def test_names_that_cannot_be_a_slot_are_refused(slot: str) -> None:
    with pytest.raises(InvalidSetting, match="not a name for a slot"):
        PostgresSettings("dbname=x", slot=slot)


def test_a_connection_string_that_cannot_be_read_is_refused_without_showing_it() -> None:
    with pytest.raises(InvalidSetting) as refused:
        PostgresSettings("dbname=x password=secret nonsense")
    assert "secret" not in str(refused.value)


def test_a_slot_that_was_dropped_is_data_loss_and_prepare_begins_anew(place: Place) -> None:
    place.execute("INSERT INTO documents VALUES (1, 'a')")
    (change,) = place.changes(1)
    place.execute(f"SELECT pg_drop_replication_slot('{place.settings.slot}')", "INSERT INTO documents VALUES (2, 'lost')")
    with pytest.raises(LogCut):
        place.store.read_after(change.position)
    with pytest.raises(LogCut):
        place.store.confirm(change.position)
    assert place.store.retained().oldest == place.store.retained().end
    place.store.prepare()
    with pytest.raises(LogCut) as cut:
        place.store.read_after(change.position)
    oldest = place.store.retained().oldest
    assert cut.value.oldest == oldest > change.position
    place.execute("INSERT INTO documents VALUES (3, 'c')")
    assert [found.key for found in place.changes(1, oldest)] == [{"id": 3}]


def test_a_publication_that_was_not_there_then_is_refused(place: Place) -> None:
    """The log is decoded with the catalogs of its time: the server itself says so, and for ever."""
    end = place.store.retained().end
    place.execute("""DROP PUBLICATION "Roskva's" """, "INSERT INTO documents VALUES (1, 'a')")
    place.store.prepare()
    reader = place.store.read_after(end)
    with pytest.raises(CaptureRefused, match="there was no publication"):
        take(reader, 1)
    with pytest.raises(DatastoreUnavailable, match="is closed"):
        reader.read(1, 0.1)


def test_another_server_at_the_same_address_is_noticed(place: Place) -> None:
    place.store._identity = "4711/shop"
    place.store._drop_connection()
    end = place.open().retained().end
    with pytest.raises(WrongHistory, match="was 4711/shop"):
        place.store.retained()
    with pytest.raises(WrongHistory, match="was 4711/shop"):
        place.store.read_after(end)


def test_a_server_that_is_too_small_says_what_to_enlarge() -> None:
    with running_postgres(max_replication_slots="2", max_wal_senders="1") as server:
        place = Place(server, "small")
        place.execute("CREATE TABLE documents (id int PRIMARY KEY)")
        place.store.prepare()
        found = bad(place.store.check())
        assert list(found) == ["1 of 2 replication slots are in use", "0 of 1 connections for replication are in use"]
        end = place.store.retained().end
        reader = place.store.read_after(end)
        with pytest.raises(CaptureRefused, match="ALTER SYSTEM SET max_wal_senders"):
            place.store.read_after(end)
        reader.close()
        other = place.open(slot="second")
        place.execute("SELECT pg_create_logical_replication_slot('third', 'pgoutput')")
        with pytest.raises(CaptureRefused, match="ALTER SYSTEM SET max_replication_slots"):
            other.prepare()
        place.close()


def test_a_log_that_does_not_say_what_changed_is_refused() -> None:
    with running_postgres(wal_level="replica") as server:
        place = Place(server, "replica")
        found = bad(place.store.check())
        assert found["wal_level is replica"] == "ALTER SYSTEM SET wal_level = 'logical'; and restart the server"
        for refused in (place.store.prepare, lambda: place.store.read_after(place.store.retained().end)):
            with pytest.raises(CaptureRefused, match="ALTER SYSTEM SET wal_level = 'logical'"):
                refused()
        place.close()
