"""Readers of a log that was cut: what that needs is made again, a loss is told once, and what cannot be made is said."""

from __future__ import annotations

from typing import cast

from roskva.capture.interface import Datastore
from roskva.capture.positions import BEGINNING, Position
from roskva.capture.publisher.reading import CUTS_MAX, Opening
from roskva.errors import CaptureRefused, LogCut, RoskvaError


class Cut:
    """A datastore whose log is cut, until it is prepared; or cannot be."""

    def __init__(self, refuses: RoskvaError | None, helps: bool = True) -> None:
        self.prepared = 0
        self._refuses = refuses
        self._helps = helps

    def read_after(self, position: Position) -> str:
        if self._helps and self.prepared:
            return "a reader"
        raise LogCut(position, BEGINNING)

    def prepare(self) -> None:
        if self._refuses is not None:
            raise self._refuses
        self.prepared += 1


def outcomes(store: Cut, times: list[float]) -> list[str]:
    """What becomes of `read_after` at each of these times."""
    now = iter(times)
    opening = Opening(cast(Datastore, store), lambda: next(now))
    found = []
    for _ in times:
        try:
            found.append(str(opening.read_after(BEGINNING)))
        except RoskvaError as error:
            found.append(type(error).__name__)
    return found


def test_a_slot_that_is_gone_is_made_again() -> None:
    store = Cut(None)
    assert outcomes(store, [0.0, 0.1, 0.2]) == ["LogCut", "a reader", "a reader"]
    assert store.prepared == 1


def test_a_slot_that_cannot_be_made_is_told_as_a_loss_once_and_then_as_the_trouble_that_it_is() -> None:
    assert outcomes(Cut(CaptureRefused("The slot is lost.")), [0.0, 0.1, 9.9, 10.0, 10.1]) == [
        "LogCut", "CaptureRefused", "CaptureRefused", "LogCut", "CaptureRefused",
    ]  # fmt: skip


def test_a_log_that_is_cut_again_and_again_is_not_read_for_ever() -> None:
    found = outcomes(Cut(None, helps=False), [0.01 * number for number in range(CUTS_MAX + 3)])
    assert found == ["LogCut"] * CUTS_MAX + ["DatastoreUnavailable"] * 3
