"""Datamarkers: what is stored stays, moves forward only, and is its owner's alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from roskva.capture.datamarkers import Claim, Mark, SqliteDatamarkers
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position
from roskva.errors import BadRequest, Unavailable

FLOW = FlowName("watch", 3)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteDatamarkers]:
    store = SqliteDatamarkers(tmp_path / "datamarkers", "data")
    yield store
    store.close()


def test_a_datamarker_moves_forward_and_never_back(store: SqliteDatamarkers) -> None:
    assert store.take([Claim(FLOW, 1)], "p1") == [FLOW]
    assert store.records()[FLOW].datamarker is None
    for position, now in ((Position(1, 5), Position(1, 5)), (Position(1, 4), Position(1, 5)), (Position(2, 0, 0), Position(2, 0, 0))):
        assert store.store([Mark(FLOW, position, 1)]) == []
        assert store.records()[FLOW].datamarker == now


def test_what_an_earlier_owner_stores_is_refused(store: SqliteDatamarkers) -> None:
    store.take([Claim(FLOW, 1)], "p1")
    store.store([Mark(FLOW, Position(1, 5), 1)])
    assert store.take([Claim(FLOW, 2)], "p2") == [FLOW]
    assert store.store([Mark(FLOW, Position(1, 9), 1)]) == [FLOW]
    assert store.records()[FLOW] == (Position(1, 5), 2, "p2", False)
    assert store.store([Mark(FLOW, Position(1, 6), 2)]) == []


def test_one_of_two_that_take_the_same_flow_wins(store: SqliteDatamarkers) -> None:
    assert store.take([Claim(FLOW, 1)], "p1") == [FLOW]
    assert store.take([Claim(FLOW, 1)], "p2") == []
    assert store.take([Claim(FLOW, 3)], "p2") == []
    assert store.records()[FLOW].owner == "p1"


def test_a_flow_that_nobody_took_has_no_datamarker(store: SqliteDatamarkers) -> None:
    assert store.store([Mark(FLOW, Position(1, 5), 1)]) == [FLOW]
    assert store.records() == {}


def test_only_the_owner_releases_and_rewinds(store: SqliteDatamarkers) -> None:
    store.take([Claim(FLOW, 1)], "p1")
    store.store([Mark(FLOW, Position(1, 5), 1)])
    store.release([FLOW], "p2")
    assert not store.records()[FLOW].released
    assert store.rewind(FLOW, "p2", Position(1, 1)) == 0
    assert store.rewind(FLOW, "p1", Position(1, 1)) == 2
    assert store.store([Mark(FLOW, Position(1, 9), 1)]) == [FLOW], "what was acknowledged before the rewind must not undo it"
    store.release([FLOW], "p1")
    assert store.records()[FLOW] == (Position(1, 1), 2, "p1", True)
    store.forget([FLOW])
    assert store.records() == {}


def test_members_beat_and_leave_and_notes_are_kept(store: SqliteDatamarkers) -> None:
    store.beat("p1", b"a")
    store.beat("p1", b"b")
    store.beat("p2", b"")
    assert {name: tuple(beat) for name, beat in store.members().items()} == {"p1": (2, b"b"), "p2": (1, b"")}
    store.leave("p1")
    assert store.members().keys() == {"p2"}
    store.note("order:watch", b"[]")
    store.note("gone", b"x")
    store.note("gone", b"")
    assert store.notes() == {"order:watch": b"[]"}
    with pytest.raises(BadRequest):
        store.note("#dataset", b"another")


def test_datamarkers_of_another_dataset_are_refused(store: SqliteDatamarkers, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="dataset 'data'"):
        SqliteDatamarkers(tmp_path / "datamarkers", "another")


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"no database" * 1000)
    with pytest.raises(Unavailable):
        SqliteDatamarkers(tmp_path / "broken", "data")


def test_threads_and_files_that_share_it_do_not_get_in_each_others_way(store: SqliteDatamarkers, tmp_path: Path) -> None:
    second = SqliteDatamarkers(tmp_path / "datamarkers", "data")
    flows = [FlowName("watch", shard) for shard in range(4)]
    store.take([Claim(flow, 1) for flow in flows], "p1")

    def move(to: SqliteDatamarkers, flow: FlowName) -> None:
        for sequence in range(1, 21):
            assert to.store([Mark(flow, Position(0, sequence), 1)]) == []

    threads = [threading.Thread(target=move, args=(to, flow)) for flow, to in zip(flows, (store, second, store, second), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {record.datamarker for record in second.records().values()} == {Position(0, 20)}
    second.close()


WRITER = """
import sys
from pathlib import Path
from roskva.capture.datamarkers import Claim, Mark, SqliteDatamarkers
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position
store = SqliteDatamarkers(Path(sys.argv[1]), "data")
flow = FlowName("watch", 3)
store.take([Claim(flow, 1)], "p1")
for sequence in range(1, 1_000_000):
    store.store([Mark(flow, Position(0, sequence), 1)])
    print(sequence, flush=True)
"""


def test_what_was_said_to_be_stored_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "datamarkers"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": "src"}
    ) as process:
        assert process.stdout is not None
        for _ in range(50):
            said = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        said = max([said, *(int(line) for line in process.stdout.read().split("\n")[:-1])])
    store = SqliteDatamarkers(path, "data")
    datamarker = store.records()[FLOW].datamarker
    store.close()
    assert datamarker is not None
    assert said <= datamarker.sequence <= said + 1
