"""Which of the things that may happen next are enough to look at: persistent sets (Godefroid, 1996), for the exhaustive search.

A set of steps is persistent in a state when nothing that may happen without it, now or later, makes a difference to any of them: neither
allows, forbids nor changes it, nor is forbidden or changed by it. If such a set has a step that is no fault, it is enough to go on
from there with the set alone: on every way to a state at rest one of the set is taken at some time, since the one that is no fault would
be possible for ever; and the first that is taken might as well have come at once. So every state at rest is still found. A fault
that a client once saw stays noted in its part, and every way ends at rest: so these are still found too.

Who touches what, of one client and of what is shared:

    client     its core and application, the first message to it, the end of the queue from it; if it fetches, the latest version
    desk       its rows and memory, the first message from the client, the end of the queue to it, tells, the end of the feed;
               it drops a copy only when it was told something
    tasks      the version in the Matcher's row, copies, adding tells; no desk and no client
    begin      the feed, the latest version, tasks
    publish    the latest version, at which only the next batch and a fetch look
    a death    of the client: client and desk. Of the Registrar: every client and desk. Of the driver: tasks, tells and desks

A message is lost, or repeated, when it is the first of its queue: so these are steps of whoever would take it. Messages in any order: a
later one may overtake, so client and desk are not told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from roskva.simulation.exhaustive_part import Parts
from roskva.simulation.exhaustive_state import DELAY, UNREGISTER, Actor, Move, Part, Shared, Step

_OF_CLIENT_AND_DESK: Final = frozenset(("client", "half-open", DELAY, UNREGISTER))
_OF_REGISTRAR: Final = frozenset(("registrar", "announced"))
_OF_DRIVER: Final = frozenset(("driver", "orphans"))
_READY: Final = 2  # steps of a task that has read


class Chosen(NamedTuple):
    """Moves of the part at a place."""

    place: int
    moves: Sequence[Move]


class _Choices(NamedTuple):
    """Sets of moves of one part which may be persistent, each with one that is no fault; empty: there is none. What is shared decides."""

    of_client: Sequence[Move]  # its next message is there, so whatever comes later comes after it; and it cannot die
    of_desk: Sequence[Move]  # no message of the client can come first that is not there yet, and the client cannot die
    of_both: Sequence[Move]
    client_fetches: bool
    fetches: bool
    is_told: bool  # tasks wait for it
    is_out_of_reach: bool  # the Matcher knows nothing of this client, and the feed neither, nor will it by any of these moves


class Reduction:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._choices: dict[tuple[int, int], _Choices] = {}

    def of_one(self, shared: Shared, numbers: Sequence[int]) -> Chosen | None:
        """A persistent set with a step that is no fault: all that one client may do, or one desk, or both."""
        if not _OF_REGISTRAR.isdisjoint(shared.faults):
            return None
        choices = [self._choices_of(number, shared.published) for number in numbers]
        publishes = shared.published < self._parts.size.versions
        for place, one in enumerate(choices):
            if one.of_client and not (publishes and one.client_fetches):
                return Chosen(place, one.of_client)
        batch_waits = bool(shared.tasks) and all(task.step == _READY and not task.orphan for task in shared.tasks)
        driver_lives = _OF_DRIVER.isdisjoint(shared.faults)
        for place, one in enumerate(choices):
            if one.of_desk and not shared.faults and ((batch_waits and one.is_told) or self._feed_ended(shared, numbers, place)):
                return Chosen(place, one.of_desk)
        for place, one in enumerate(choices):
            if not one.of_both or (publishes and one.fetches):
                continue
            unreached = (batch_waits and one.is_told) or self._feed_ended(shared, numbers, place)
            if (driver_lives and unreached) or one.is_out_of_reach:
                return Chosen(place, one.of_both)
        return None

    def of_pipeline(self, shared: Shared, numbers: Sequence[int], of_all: Sequence[Step], crashes: Sequence[Step]) -> Sequence[Step]:
        """A persistent set with a step that is no fault: of tasks, or of publishes and batches. Empty: there is none."""
        if steps := _of_tasks(shared, [self._parts[number] for number in numbers], of_all, crashes):
            return steps
        return of_all if self._batch_is_alone(shared, numbers, of_all) else ()

    def _choices_of(self, number: int, published: int) -> _Choices:
        key = (number, published)
        found = self._choices.get(key)
        if found is None:
            found = self._choices[key] = _choices(self._parts[number], self._parts.moves(number, published), self._parts.size.ordered)
        return found

    def _feed_ended(self, shared: Shared, numbers: Sequence[int], place: int) -> bool:
        """Nothing is left to be published or taken, and none of the others will append."""
        if not (shared.published == shared.committed == self._parts.size.versions) or shared.tasks or shared.begun >= 0:
            return False
        if any(self._parts[number].queued for number in numbers):
            return False
        others = [number for other, number in enumerate(numbers) if other != place]
        return not any(self._parts.prospects(number, shared.published, ()).appends for number in others)

    def _batch_is_alone(self, shared: Shared, numbers: Sequence[int], of_all: Sequence[Step]) -> bool:
        """The next batch may begin, or something be published, and neither will anybody append to the feed meanwhile, nor fetch."""
        if shared.tasks or shared.begun >= 0 or not of_all:
            return False
        deaths = tuple(fault for fault in shared.faults if fault in _OF_REGISTRAR)
        prospects = [self._parts.prospects(number, shared.published, deaths) for number in numbers]
        publishes = shared.published < self._parts.size.versions
        return not any(one.appends or (publishes and one.fetches) for one in prospects)


def publish_may_wait(shared: Shared, moves: Sequence[Sequence[Move]], of_all: Sequence[Step]) -> bool:
    """Whether all but the publish are a persistent set: a batch is in progress, nobody fetches, and something else may happen."""
    if shared.begun < 0 or any(move.fetches for some in moves for move in some):
        return False
    return any(step.what[0] != "publish" for step in of_all) or any(move.free for some in moves for move in some)


def _choices(part: Part, moves: Sequence[Move], ordered: bool) -> _Choices:
    by_client = [move for move in moves if move.actor is Actor.CLIENT]
    by_desk = [move for move in moves if move.actor is Actor.DESK]
    told_apart = ordered and _OF_CLIENT_AND_DESK.isdisjoint(part.faults) and not any(move.actor is Actor.BOTH for move in moves)
    unknown = not (part.copies or part.queued or part.taken or part.orphaned or part.tells)
    return _Choices(
        of_client=_if_any_is_free(by_client) if told_apart and part.to_client else (),
        of_desk=_if_any_is_free(by_desk) if told_apart and "blind" not in part.faults and (part.to_server or not by_client) else (),
        of_both=_if_any_is_free(moves),
        client_fetches=any(move.fetches for move in by_client),
        fetches=any(move.fetches for move in moves),
        is_told=bool(part.tells),
        is_out_of_reach=unknown and not any(move.appends for move in moves),
    )


def _if_any_is_free(moves: Sequence[Move]) -> Sequence[Move]:
    return moves if any(move.free for move in moves) else ()


def _of_tasks(shared: Shared, parts: Sequence[Part], of_all: Sequence[Step], crashes: Sequence[Step]) -> list[Step]:
    """Tasks that have nobody to tell yet, or no more, concern nobody else: nor does the death of their driver.

    They write and read what no one else writes meanwhile: a copy is dropped only by a desk that was told something.
    """
    if not shared.tasks:
        # The driver died: the same batch begins again, whatever was published or appended since.
        return [step for step in of_all if step.what[0] == "begin"] if shared.begun >= 0 else []
    if any(task.orphan for task in shared.tasks):
        commit = [step for step in of_all if step.what[0] == "commit"]
        return commit if _OF_DRIVER.isdisjoint(shared.faults) else []
    if any(part.tells for part in parts):
        return []
    return [step for step in (*of_all, *crashes) if step.what[0] not in ("publish", "registrar dies") and step.part < 0]
