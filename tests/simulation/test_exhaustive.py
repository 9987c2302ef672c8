"""All interleavings of small worlds: none breaks the promise; and each of some seeded mistakes does, with its shortest trace.

The figures are printed: `pytest -s`. Larger worlds: python -m roskva.simulation.exhaustive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from roskva.client.actions import Notification
from roskva.client.core import ClientCore
from roskva.client.handover import Handover, Marks, Verdict, ack_of
from roskva.registrar import core as registrar_core
from roskva.registrar.cells import PENDING
from roskva.simulation import exhaustive_world
from roskva.simulation.exhaustive import explore, main
from roskva.simulation.exhaustive_desk import Desk
from roskva.simulation.exhaustive_state import Size

pytestmark = pytest.mark.timeout(300)  # 35 s of one core in all; the machine may have other work

ANY = Size().kinds
CLIENT, REGISTRAR = frozenset(["client"]), frozenset(["registrar"])
NOBODY = frozenset[str]()

WORLDS = {
    "three versions, messages lost and in any order": Size(1, 3, 0, 1, kinds=NOBODY),
    "whoever dies, a message is lost": Size(1, 1, 1, 1, kinds=ANY, ordered=True),
    "a client dies, two versions": Size(1, 2, 1, 0, kinds=CLIENT, ordered=True),
    "a client dies, and nobody notices": Size(1, 1, 1, 1, kinds=frozenset(["half-open"]), ordered=True),
    "a task writes in the Registrar's stead": Size(1, 1, 1, 1, kinds=frozenset(["blind"]), ordered=True),
    "two clients": Size(2, 1, 0, 0, kinds=NOBODY, ordered=True),
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
    report = explore(Size(), states_max=30_000, deep=True)
    print(f"\n{report.text()}")
    assert not report.broken, "\n".join([report.broken, *report.trace])
    assert report.states > 30_000
    assert report.terminals > 0


def test_the_same_world_has_the_same_states() -> None:
    first, second = (explore(Size(1, 1, 0, 1, kinds=NOBODY)) for _ in range(2))
    assert (first.states, first.transitions, first.terminals) == (second.states, second.transitions, second.terminals)


def test_the_command_says_what_it_visited(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--clients", "1", "--versions", "1", "--crashes", "0", "--losses", "0"]) == 0
    assert "terminal states" in (printed := capsys.readouterr().out)
    assert "complete" in printed


Patch = Callable[[pytest.MonkeyPatch], None]


def reads_before_it_writes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(exhaustive_world, "TASK_STEPS", ("read", "write"))


def forgets_the_notification_when_it_marks_done(patch: pytest.MonkeyPatch) -> None:
    settle = registrar_core.settle

    def forgetful(row: Any, told: Any, unacknowledged: bool, version: int | None) -> Any:
        return settle(row, told, False, version)

    patch.setattr(registrar_core, "settle", forgetful)


def forgets_the_pending_marker(patch: pytest.MonkeyPatch) -> None:
    cells_of = registrar_core.registration_cells
    patch.setattr(registrar_core, "registration_cells", lambda *a, **k: [cell for cell in cells_of(*a, **k) if PENDING not in cell.name])


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
            desk.ack_cells.append((visit.client, registrar_core.acknowledge(exhaustive_world.OBJECT, entry.seqno, entry.version)))

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
    report = explore(size, states_max=60_000)
    print(f"\n{mutant.__name__.replace('_', ' ')}: {report.text()}")
    print("\n".join(report.trace))
    assert report.broken, "no interleaving of this world shows the mistake"
    assert any(word in report.broken for word in why.split("|")), report.broken
    assert report.trace
