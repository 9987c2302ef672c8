"""All interleavings of small worlds: none breaks the promise; and each of some seeded mistakes does, with its shortest trace.

What makes larger worlds small enough is tested as well: the reduction finds every state at rest and every mistake that the whole search
finds, and what happens to one of several clients would happen to it alone.

The figures are printed: `pytest -s`. Larger worlds: python -m roskva.simulation.exhaustive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from roskva.client.actions import Notification
from roskva.client.core import ClientCore
from roskva.client.handover import Handover, Marks, Verdict, ack_of
from roskva.registrar import core as registrar_core
from roskva.registrar.cells import PENDING, registration_cells
from roskva.simulation import exhaustive_world
from roskva.simulation.exhaustive import explore, main
from roskva.simulation.exhaustive_client import OBJECT
from roskva.simulation.exhaustive_desk import Desk
from roskva.simulation.exhaustive_part import Parts
from roskva.simulation.exhaustive_state import Shared, Size, matched
from roskva.simulation.exhaustive_world import Model

pytestmark = pytest.mark.timeout(300)  # under 60 s of one core in all; the machine may have other work

ANY = Size().kinds
CLIENT, REGISTRAR, BLIND = frozenset(["client"]), frozenset(["registrar"]), frozenset(["blind"])
HALF_OPEN, ANNOUNCED, ORPHANS = frozenset(["half-open"]), frozenset(["announced"]), frozenset(["orphans"])
NOBODY = frozenset[str]()

WORLDS = {
    "two versions, a message is lost, messages in any order": Size(1, 2, 0, 1, kinds=NOBODY),
    "three versions, a message is lost": Size(1, 3, 0, 1, kinds=NOBODY, ordered=True),
    "whoever dies": Size(1, 1, 1, 0, kinds=ANY, ordered=True),
    "a client dies, a message is lost": Size(1, 1, 1, 1, kinds=CLIENT, ordered=True),
    "a client dies, and nobody notices": Size(1, 1, 1, 0, kinds=HALF_OPEN, ordered=True),
    "a Registrar dies, and connections live on": Size(1, 1, 1, 0, kinds=ANNOUNCED, ordered=True),
    "a message comes twice, messages in any order": Size(1, 1, 0, 0, repeats=1, kinds=NOBODY),
    "an application unregisters, and registers again": Size(1, 1, 0, 0, unregistrations=1, kinds=NOBODY, ordered=True),
    "applications say what they hold": Size(1, 1, 1, 0, kinds=CLIENT, ordered=True, states_versions=True),
}


@pytest.mark.parametrize("name", WORLDS)
def test_no_interleaving_breaks_the_promise(name: str) -> None:
    report = explore(WORLDS[name])
    print(f"\n{name}: {report.text()}")
    assert not report.broken, "\n".join([report.broken, *report.trace])
    assert report.complete
    assert report.terminals > 0
    assert report.states > 1_000


def test_the_full_size_as_far_as_it_goes() -> None:
    report = explore(Size(), states_max=10_000, deep=True)
    print(f"\n{report.text()}")
    assert not report.broken, "\n".join([report.broken, *report.trace])
    assert report.states > 10_000
    assert report.terminals > 0


def test_the_same_world_has_the_same_states() -> None:
    first, second = (explore(Size(1, 1, 0, 1, kinds=NOBODY)) for _ in range(2))
    assert (first.states, first.transitions, first.terminals) == (second.states, second.transitions, second.terminals)


def test_the_command_says_what_it_visited(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--clients", "1", "--versions", "1", "--crashes", "0", "--losses", "0"]) == 0
    assert "terminal states" in (printed := capsys.readouterr().out)
    assert "complete" in printed


def test_faults_are_dealt_out_in_every_way() -> None:
    model = Model(Size(2, 1, 1, 1, kinds=frozenset(["client", "driver"])))
    hands = [(shared.faults, *sorted(model.parts[part].faults for part in parts)) for shared, parts in map(model.unpack, model.firsts())]
    assert sorted(hands) == sorted(
        [
            ((), (), ("client", "lose to client")),
            ((), (), ("client", "lose to server")),
            ((), ("client",), ("lose to client",)),
            ((), ("client",), ("lose to server",)),
            (("driver",), (), ("lose to client",)),
            (("driver",), (), ("lose to server",)),
        ]
    )


Rest = tuple[Shared, tuple[int, ...]]


def visited(size: Size, parts: Parts | None = None) -> tuple[set[Rest], dict[int, list[int]]]:
    """The states at rest, and every state with those after it. Parts are numbered as in other worlds that are given the same."""
    model = Model(size, parts)
    rests: set[Rest] = set()
    graph: dict[int, list[int]] = {}
    waiting = model.firsts()
    while waiting:
        state = waiting.pop()
        if state in graph:
            continue
        following = model.following(state)
        assert not following.broken
        assert not model.fault(state)
        graph[state] = [model.pack(step.shared, step.parts) for step in following.steps]
        waiting += graph[state]
        if following.at_rest:
            rests.add(model.unpack(state))
    return rests, graph


SMALL_WORLDS = {
    "a message is lost": Size(1, 2, 0, 1, kinds=NOBODY, ordered=True),
    "a message is lost, messages in any order": Size(1, 1, 0, 1, kinds=NOBODY),
    "a message comes twice": Size(1, 1, 0, 0, repeats=1, kinds=NOBODY, ordered=True),
    "a client dies": Size(1, 1, 1, 0, kinds=CLIENT, ordered=True),
    "the driver dies": Size(1, 1, 1, 0, kinds=frozenset(["driver"]), ordered=True),
    "a driver dies, and its tasks live on": Size(1, 0, 1, 0, kinds=ORPHANS, ordered=True),
    "a task writes in the Registrar's stead": Size(1, 1, 1, 0, kinds=BLIND, ordered=True),
    "a deadline comes early": Size(1, 1, 0, 0, delays=1, kinds=NOBODY, ordered=True),
    "an application unregisters, and registers again": Size(1, 0, 0, 0, unregistrations=1, kinds=NOBODY, ordered=True),
    "two clients": Size(2, 1, 0, 0, kinds=NOBODY, ordered=True),
}


@pytest.mark.parametrize("name", SMALL_WORLDS)
def test_the_reduction_finds_every_state_at_rest(name: str) -> None:
    """And in none of them, reduced or not, is anything broken."""
    size = SMALL_WORLDS[name]
    parts = Parts(size)
    few, reduced = visited(size, parts)
    all_of_them, whole = visited(replace(size, reduced=False), parts)
    print(f"\n{name}: {len(reduced):,} states instead of {len(whole):,}, {len(few):,} at rest")
    assert few == all_of_them
    assert len(reduced) < len(whole)


def test_no_way_leads_back() -> None:
    """As the reduction supposes: messages and deadlines run out."""
    _, graph = visited(Size(1, 1, 1, 0, kinds=CLIENT, ordered=True, reduced=False))
    arrows = dict.fromkeys(graph, 0)
    for after in graph.values():
        for state in after:
            arrows[state] += 1
    free = [state for state, count in arrows.items() if not count]
    passed = 0
    while free:
        passed += 1
        for state in graph[free.pop()]:
            arrows[state] -= 1
            if not arrows[state]:
                free.append(state)
    assert passed == len(graph)


def test_what_happens_to_one_of_several_clients_would_happen_to_it_alone() -> None:
    report = explore(Size(2, 1, 0, 0, kinds=NOBODY, ordered=True, reduced=False), views=True, states_max=20_000)
    print(f"\n{report.text()}")
    assert not report.broken
    assert report.views > 100
    report = explore(Size(2, 1, 1, 1, kinds=ANY, ordered=True), views=True, states_max=20_000)
    print(f"\n{report.text()}")
    assert not report.broken
    assert report.views > 100


def test_a_task_that_mixes_clients_up_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed_up(*arguments: Any) -> Any:
        tells = matched(*arguments)
        return tells if all(tells) else tells[::-1]

    monkeypatch.setattr(exhaustive_world, "matched", mixed_up)
    report = explore(Size(2, 1, 0, 0, kinds=NOBODY, ordered=True), views=True)
    assert "what it would not become alone" in report.broken


Patch = Callable[[pytest.MonkeyPatch], None]


def reads_before_it_writes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(exhaustive_world, "TASK_STEPS", ("read", "write"))


def forgets_the_notification_when_it_marks_done(patch: pytest.MonkeyPatch) -> None:
    settle = registrar_core.settle

    def forgetful(row: Any, told: Any, unacknowledged: bool, version: int | None) -> Any:
        return settle(row, told, False, version)

    patch.setattr(registrar_core, "settle", forgetful)


def forgets_the_pending_marker(patch: pytest.MonkeyPatch) -> None:
    def forgetful(*arguments: Any, **named: Any) -> Any:
        return [cell for cell in registration_cells(*arguments, **named) if PENDING not in cell.name]

    patch.setattr(registrar_core, "registration_cells", forgetful)


def hands_nothing_over_to_a_session_that_began_meanwhile(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Desk, "_hand_over", lambda desk, told, entry, version: None)


def acknowledges_before_the_application_does(patch: pytest.MonkeyPatch) -> None:
    notified = ClientCore._notified

    def hasty(client: ClientCore, told: Any) -> Any:
        actions = notified(client, told)
        client._outbox.acks += [ack_of(action.notification) for action in actions]  # type: ignore[union-attr]
        return actions

    patch.setattr(ClientCore, "_notified", hasty)


def shows_an_older_version(patch: pytest.MonkeyPatch) -> None:
    def careless(handover: Handover, notification: Notification) -> Verdict:
        """Compares with the last one for equality."""
        marks = handover._marks.setdefault(notification.name, Marks())
        key = (notification.epoch, -1 if notification.version is None else notification.version)
        if key == marks.handed:
            return Verdict.ACKNOWLEDGE
        marks.handed, marks.highest = key, max(marks.highest, key)
        return Verdict.HAND_OVER

    patch.setattr(Handover, "delivered", careless)


def takes_any_acknowledgement_for_the_latest(patch: pytest.MonkeyPatch) -> None:
    def generous(desk: Desk, visit: Any, ack: Any) -> None:
        entry = visit.outstanding.pop(ack.version is None, None)
        if entry is not None:
            entry.acknowledged = True
            desk.ack_cells.append((visit.client, registrar_core.acknowledge(OBJECT, entry.seqno, entry.version)))

    patch.setattr(Desk, "_acknowledge", generous)


MUTANTS: list[tuple[Patch, Size, str]] = [
    (reads_before_it_writes, Size(1, 2, 0, 0, kinds=NOBODY), "never learned"),
    (forgets_the_notification_when_it_marks_done, Size(1, 1, 1, 0, kinds=CLIENT), "never learned"),
    (forgets_the_pending_marker, Size(1, 1, 1, 0, kinds=REGISTRAR), "never learned|copy"),
    (hands_nothing_over_to_a_session_that_began_meanwhile, Size(1, 1, 1, 0, kinds=CLIENT), "never learned"),
    (acknowledges_before_the_application_does, Size(1, 1, 1, 0, kinds=CLIENT), "never learned"),
    (shows_an_older_version, Size(1, 2, 0, 0, kinds=NOBODY), "version 1 after version 2"),
    (takes_any_acknowledgement_for_the_latest, Size(1, 2, 0, 1, kinds=NOBODY), "never learned"),
]


@pytest.mark.parametrize(("mutant", "size", "why"), MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_mistake_is_found(monkeypatch: pytest.MonkeyPatch, mutant: Patch, size: Size, why: str) -> None:
    mutant(monkeypatch)
    for world in (size, replace(size, ordered=True), replace(size, reduced=False)):
        report = explore(world, states_max=60_000)
        print(f"\n{mutant.__name__.replace('_', ' ')}: {report.text()}")
        print("\n".join(report.trace))
        assert report.broken, "no interleaving of this world shows the mistake"
        assert any(word in report.broken for word in why.split("|")), report.broken
        assert report.trace
