"""What every engine of datamarkers promises (capture/datamarkers/interface.py), as tests: a test file of an engine subclasses it.

What is stored stays, moves forward only, and is its owner's alone, whoever dies and however many write.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from roskva.capture.datamarkers import Claim, Datamarkers, Mark, open_datamarkers
from roskva.capture.datamarkers.interface import NOTE_BYTES_MAX
from roskva.capture.ownership import FlowName
from roskva.capture.positions import WHOLE, Position
from roskva.errors import BadRequest, Unavailable

FLOW = FlowName("watch", 3)
ROOT = Path(__file__).parents[3]


class Engine(ABC):
    """One place for datamarkers, empty at first."""

    place: str  # as the settings name it

    def open(self, dataset: str = "data") -> Datamarkers:
        return open_datamarkers(self.place, dataset)

    @abstractmethod
    def away(self) -> AbstractContextManager[None]:
        """Nobody can write there, and soon calls say so."""


@contextmanager
def opened(engine: Engine) -> Iterator[Datamarkers]:
    with closing(engine.open()) as store:
        yield store


def taken(store: Datamarkers, *flows: FlowName, by: str = "p1") -> int:
    """Its epoch, the same for all."""
    records = store.records()
    won = store.take([Claim(flow, records[flow].epoch if flow in records else 0) for flow in flows or (FLOW,)], by)
    assert won.keys() == {*(flows or (FLOW,))}
    (epoch,) = set(won.values())
    return epoch


class DatamarkersContract:
    """Fixture `engine`: an Engine."""

    @pytest.fixture
    def store(self, engine: Engine) -> Iterator[Datamarkers]:
        with opened(engine) as store:
            yield store

    def test_a_datamarker_moves_forward_and_never_back(self, store: Datamarkers) -> None:
        epoch = taken(store)
        assert epoch > 0
        assert store.records() == {FLOW: (None, epoch, "p1", False)}
        steps = (
            (Position(1, 5), Position(1, 5)),
            (Position(1, 4), Position(1, 5)),
            (Position(1, 5, 7), Position(1, 5)),
            (Position(1, 6, 7), Position(1, 6, 7)),
            (Position(1, 6, 6), Position(1, 6, 7)),
            (Position(2, 0, 0), Position(2, 0, 0)),
            (Position(2**31, 2**63 - 1, WHOLE), Position(2**31, 2**63 - 1, WHOLE)),
        )
        for position, now in steps:
            assert store.store([Mark(FLOW, position, epoch)]) == []
            assert store.records()[FLOW].datamarker == now

    def test_of_several_marks_of_one_flow_the_largest_counts(self, store: Datamarkers) -> None:
        epoch = taken(store)
        assert store.store([Mark(FLOW, Position(1, sequence), epoch) for sequence in (3, 9, 5)]) == []
        assert store.records()[FLOW].datamarker == Position(1, 9)

    def test_nothing_is_something_to_do(self, store: Datamarkers) -> None:
        assert store.store([]) == []
        assert store.take([], "p1") == {}
        store.release([], "p1")
        assert store.forget([]) == []
        assert (store.records(), store.members(), store.notes()) == ({}, {}, {})

    def test_flows_are_told_apart_by_application_and_shard(self, store: Datamarkers) -> None:
        flows = [FlowName(application, shard) for application in ("a", "b", "ö'; --") for shard in (0, 1, 65_535)]
        epoch = taken(store, *flows)
        assert store.store([Mark(flow, Position(0, number), epoch) for number, flow in enumerate(flows)]) == []
        assert {flow: record.datamarker for flow, record in store.records().items()} == {
            flow: Position(0, number) for number, flow in enumerate(flows)
        }
        assert store.forget([Claim(flow, epoch) for flow in flows[1:]]) == []
        assert store.records().keys() == {flows[0]}

    def test_what_an_earlier_owner_stores_is_refused(self, store: Datamarkers) -> None:
        first = taken(store)
        store.store([Mark(FLOW, Position(1, 5), first)])
        second = taken(store, by="p2")
        assert second > first
        assert store.store([Mark(FLOW, Position(1, 9), first)]) == [FLOW]
        assert store.records()[FLOW] == (Position(1, 5), second, "p2", False)
        assert store.store([Mark(FLOW, Position(1, 6), second)]) == []

    def test_so_is_what_comes_under_an_epoch_that_was_never_given(self, store: Datamarkers) -> None:
        epoch = taken(store)
        assert store.store([Mark(FLOW, Position(1, 9), epoch + 1)]) == [FLOW]
        assert store.records()[FLOW].datamarker is None

    def test_the_marks_of_others_are_stored_though_some_are_refused(self, store: Datamarkers) -> None:
        other = FlowName("watch", 4)
        first = taken(store, FLOW, other)
        taken(store, by="p2")
        assert store.store([Mark(FLOW, Position(1, 9), first), Mark(other, Position(1, 9), first)]) == [FLOW]
        assert store.records()[other].datamarker == Position(1, 9)

    def test_who_saw_another_epoch_than_there_is_takes_nothing(self, store: Datamarkers) -> None:
        epoch = taken(store)
        for seen in (0, epoch - 1, epoch + 1):
            assert store.take([Claim(FLOW, seen)], "p2") == {}
        assert store.take([Claim(FlowName("watch", 4), 1)], "p2") == {}, "it is not there, and never was"
        assert store.records() == {FLOW: (None, epoch, "p1", False)}

    def test_of_many_that_take_the_same_flows_at_once_one_wins_each(self, engine: Engine) -> None:
        flows = [FlowName("watch", shard) for shard in range(6)]
        won: list[tuple[str, dict[FlowName, int]]] = []
        rounds, racers = 5, 4
        start = threading.Barrier(racers)

        def race(name: str) -> None:
            dice = random.Random(name)
            with opened(engine) as store:
                for number in range(rounds):
                    records = store.records()
                    claims = [Claim(flow, records[flow].epoch if flow in records else 0) for flow in flows]
                    start.wait(20)
                    won.append((f"{name} in round {number}", store.take(dice.sample(claims, len(claims)), name)))
                    start.wait(20)

        run_together([lambda name=name: race(name) for name in ("p1", "p2", "p3", "p4")])  # type: ignore[misc]
        given = [(flow, epoch) for _, found in won for flow, epoch in found.items()]
        assert len(given) == len(set(given)) == rounds * len(flows), "each epoch of a flow has one owner"

    def test_writers_that_meet_lose_nothing(self, engine: Engine) -> None:
        flows = [FlowName("watch", shard) for shard in range(6)]
        with opened(engine) as store:
            epoch = taken(store, *flows)

            def move(seed: int) -> None:
                dice = random.Random(seed)
                with opened(engine) as own:
                    for sequence in range(1, 16):
                        marks = [Mark(flow, Position(0, sequence), epoch) for flow in dice.sample(flows, len(flows))]
                        assert own.store(marks) == []
                        own.beat(f"m{seed}", b"")

            run_together([lambda seed=seed: move(seed) for seed in range(4)])  # type: ignore[misc]
            assert {record.datamarker for record in store.records().values()} == {Position(0, 15)}
            assert {beat.counter for beat in store.members().values()} == {15}

    def test_whoever_takes_a_flow_while_its_owner_stores_gets_all_that_was_stored(self, engine: Engine) -> None:
        with opened(engine) as first, opened(engine) as second:
            epoch = taken(first)
            stored: list[int] = []

            def move() -> None:
                for sequence in range(1, 200):
                    if first.store([Mark(FLOW, Position(0, sequence), epoch)]):
                        return
                    stored.append(sequence)

            moving = threading.Thread(target=move)
            moving.start()
            while not stored:
                assert moving.is_alive()
            taken(second, by="p2")
            datamarker = second.records()[FLOW].datamarker
            moving.join(20)
            assert datamarker == Position(0, stored[-1]) == second.records()[FLOW].datamarker

    def test_threads_share_one(self, store: Datamarkers) -> None:
        flows = [FlowName("watch", shard) for shard in range(4)]
        epoch = taken(store, *flows)

        def move(flow: FlowName) -> None:
            for sequence in range(1, 11):
                assert store.store([Mark(flow, Position(0, sequence), epoch)]) == []

        run_together([lambda flow=flow: move(flow) for flow in flows])  # type: ignore[misc]
        assert {record.datamarker for record in store.records().values()} == {Position(0, 10)}

    def test_a_flow_that_nobody_took_has_no_datamarker(self, store: Datamarkers) -> None:
        assert store.store([Mark(FLOW, Position(1, 5), 1)]) == [FLOW]
        assert store.records() == {}

    def test_only_the_owner_releases_and_rewinds(self, store: Datamarkers) -> None:
        epoch = taken(store)
        store.store([Mark(FLOW, Position(1, 5), epoch)])
        store.release([FLOW], "p2")
        assert not store.records()[FLOW].released
        assert store.rewind(FLOW, "p2", Position(1, 1)) == 0
        assert store.rewind(FlowName("watch", 4), "p1", Position(1, 1)) == 0
        assert store.rewind(FLOW, "p1", Position(1, 1)) == epoch + 1
        assert store.store([Mark(FLOW, Position(1, 9), epoch)]) == [FLOW], "what was acknowledged before the rewind must not undo it"
        store.release([FLOW], "p1")
        assert store.records()[FLOW] == (Position(1, 1), epoch + 1, "p1", True)
        assert store.rewind(FLOW, "p1", Position(1, 2)) == 0, "it was released"
        assert taken(store, by="p2") == epoch + 2
        assert store.records()[FLOW] == (Position(1, 1), epoch + 2, "p2", False)

    def test_a_flow_that_was_forgotten_and_comes_back_has_none_of_its_epochs_of_before(self, store: Datamarkers) -> None:
        """Else an owner that slept, or a subscriber that remembers the epoch, would take the new flow for the old one."""
        first = taken(store)
        second = taken(store, by="p2")
        assert store.forget([Claim(FLOW, second), Claim(FlowName("watch", 4), 1)]) == [], "one that is not there is forgotten already"
        assert store.records() == {}
        third = taken(store)
        assert first < second < third
        assert store.store([Mark(FLOW, Position(1, 9), second)]) == [FLOW]

    def test_a_flow_that_somebody_has_taken_meanwhile_is_not_forgotten(self, store: Datamarkers) -> None:
        other = FlowName("watch", 4)
        seen = taken(store, FLOW, other)
        store.store([Mark(FLOW, Position(1, 9), seen), Mark(other, Position(1, 9), seen)])
        now = taken(store, by="p2")
        assert store.forget([Claim(FLOW, seen), Claim(other, seen)]) == [FLOW]
        assert store.records() == {FLOW: (Position(1, 9), now, "p2", False)}
        assert store.store([Mark(FLOW, Position(1, 10), now)]) == []
        assert store.rewind(FLOW, "p2", Position(1, 1)) == now + 1
        assert store.forget([Claim(FLOW, now)]) == [FLOW], "it was rewound meanwhile"
        assert store.forget([Claim(FLOW, now + 1)]) == []
        assert taken(store) > now + 1

    def test_members_beat_and_leave(self, store: Datamarkers) -> None:
        store.beat("p1", b"a")
        store.beat("p1", b"\x00\xff")
        store.beat("p2", b"")
        assert store.members() == {"p1": (2, b"\x00\xff"), "p2": (1, b"")}
        store.leave("p1")
        store.leave("nobody")
        assert store.members().keys() == {"p2"}

    def test_notes_are_kept(self, store: Datamarkers) -> None:
        store.note("order:watch", b"[]")
        store.note("order:watch", b"\x00\xff[]")
        store.note("gone", b"x")
        store.note("gone", b"")
        store.note("large", bytes(NOTE_BYTES_MAX))
        assert store.notes() == {"order:watch": b"\x00\xff[]", "large": bytes(NOTE_BYTES_MAX)}
        for name, value in (("#dataset", b"another"), ("too-large", bytes(NOTE_BYTES_MAX + 1))):
            with pytest.raises(BadRequest):
                store.note(name, value)

    def test_a_note_is_changed_if_nobody_else_has(self, store: Datamarkers) -> None:
        assert store.swap("log", b"", b"1")
        assert not store.swap("log", b"", b"2")
        assert not store.swap("log", b"0", b"2")
        assert store.swap("log", b"1", b"2\x00")
        assert store.notes() == {"log": b"2\x00"}
        assert store.swap("log", b"2\x00", b"")
        assert not store.swap("log", b"2\x00", b"3")
        assert store.notes() == {}
        with pytest.raises(BadRequest):
            store.swap("#dataset", b"", b"another")

    def test_what_is_written_is_there_for_whoever_comes_later(self, engine: Engine) -> None:
        with opened(engine) as store:
            epoch = taken(store)
            store.store([Mark(FLOW, Position(1, 5), epoch)])
            store.beat("p1", b"")
            store.note("order:watch", b"[]")
        with opened(engine) as store:
            assert store.records() == {FLOW: (Position(1, 5), epoch, "p1", False)}
            assert store.members() == {"p1": (1, b"")}
            assert store.notes() == {"order:watch": b"[]"}

    def test_datamarkers_of_another_dataset_are_refused(self, engine: Engine) -> None:
        engine.open().close()
        with pytest.raises(BadRequest, match="of the dataset 'data'"):
            engine.open("another")

    def test_a_place_that_is_away_is_unavailable_and_is_used_again_when_it_is_back(self, engine: Engine, store: Datamarkers) -> None:
        epoch = taken(store)
        with engine.away():
            calls: list[Callable[[], object]] = [
                lambda: store.store([Mark(FLOW, Position(1, 5), epoch)]),
                lambda: store.take([Claim(FLOW, epoch)], "p2"),
                lambda: store.beat("p1", b""),
                lambda: store.note("n", b"v"),
            ]
            for call in calls:
                with pytest.raises(Unavailable):
                    call()
        assert store.store([Mark(FLOW, Position(1, 6), epoch)]) == []
        store.beat("p1", b"")
        assert store.records() == {FLOW: (Position(1, 6), epoch, "p1", False)}
        assert store.members()["p1"].counter >= 1

    def test_after_the_end_nothing_is_done(self, engine: Engine) -> None:
        store = engine.open()
        store.close()
        with pytest.raises(Unavailable):
            store.records()

    def test_what_was_said_to_be_stored_survives_kill_9_of_who_wrote_it(self, engine: Engine) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, json.dumps(engine.place)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        ) as process:
            assert process.stdout is not None
            for _ in range(50):
                said = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            said = max([said, *(int(line) for line in process.stdout.read().split("\n")[:-1])])
        with opened(engine) as store:
            taken(store, by="p2")  # nobody who is gone holds a lock
            datamarker = store.records()[FLOW].datamarker
        assert datamarker is not None
        assert said <= datamarker.sequence <= said + 1


WRITER = """
import json, sys
from roskva.capture.datamarkers import Claim, Mark, open_datamarkers
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position
store = open_datamarkers(json.loads(sys.argv[1]), "data")
flow = FlowName("watch", 3)
epoch = store.take([Claim(flow, 0)], "p1")[flow]
for sequence in range(1, 1_000_000):
    store.store([Mark(flow, Position(0, sequence), epoch)])
    print(sequence, flush=True)
"""


def run_together(parts: list[Callable[[], None]]) -> None:
    """Each in a thread; what one raises is raised here."""
    errors: list[BaseException] = []

    def guarded(part: Callable[[], None]) -> None:
        try:
            part()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]
