"""The world of the exhaustive search: every state is one integer, and every state's successors can be listed.

Theory of operation. Clients share nothing but the Matcher's tasks, the feed, the published versions and whoever may die for all of them.
So a state is a `Shared` and the number of one part for each client (`exhaustive_part`), packed into one integer: two states are equal if
and only if their integers are. Clients are alike, so the parts are kept in order of their numbers (symmetry).

Faults are dealt out at the beginning, in every possible way: a state says of each one that may still happen whom it would hit. A fault
that never happens makes the run one of a smaller world.

Each client has a clock, which its desk shares. It moves when nothing else can happen in the whole world and this client's promise does not
hold yet, to its next deadline; or by a `delay`. Where several clients wait, any of them do so together. The short wait for an
acknowledgement may be over at any moment.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from roskva.matcher.core import accept
from roskva.simulation.exhaustive_part import TIMEOUTS_MAX, Parts
from roskva.simulation.exhaustive_reduction import Reduction, publish_may_wait
from roskva.simulation.exhaustive_state import (
    CRASHES_OF_ALL,
    CRASHES_OF_ONE,
    DELAY,
    FEED_INCARNATION,
    LOSE_TO_CLIENT,
    LOSE_TO_SERVER,
    PARTITIONS,
    REPEAT_TO_CLIENT,
    REPEAT_TO_SERVER,
    UNREGISTER,
    Following,
    Move,
    Numbered,
    Records,
    Shared,
    Size,
    Step,
    Task,
    Tell,
    batch_of,
    local_cell,
    matched,
    spent,
)
from roskva.table.interface import Cell, wins

TASK_STEPS: Final = ("write", "read")  # the order is the whole proof of the Matcher
_BITS: Final = 28  # of a part's number
_MASK: Final = (1 << _BITS) - 1


class Model:
    """`parts`: those of another world of the same kind, so that the parts of both have the same numbers."""

    def __init__(self, size: Size, parts: Parts | None = None) -> None:
        self.size = size
        self.parts = parts or Parts(size)
        self._reduction = Reduction(self.parts)
        self.shareds: Numbered[Shared] = Numbered()
        self._written: dict[tuple[object, ...], list[Cell]] = {}
        self._matched: dict[tuple[Task, Records, Cell | None, tuple[tuple[Cell, ...], ...]], list[list[Tell]]] = {}

    # States.

    def firsts(self) -> list[int]:
        """The beginning, once for each way to deal the faults out."""
        everybody, nobody = range(self.size.clients), -1
        of_one = [(fault, client) for fault in sorted(self.size.kinds & CRASHES_OF_ONE.keys()) for client in everybody]
        of_all = [(fault, nobody) for fault in sorted(self.size.kinds & CRASHES_OF_ALL.keys())]
        dealt = itertools.product(
            _dealt([*of_one, *of_all], self.size.crashes),
            _dealt([(fault, client) for fault in (LOSE_TO_CLIENT, LOSE_TO_SERVER) for client in everybody], self.size.losses),
            _dealt([(fault, client) for fault in (REPEAT_TO_CLIENT, REPEAT_TO_SERVER) for client in everybody], self.size.repeats),
            _dealt([(DELAY, client) for client in everybody], self.size.delays),
            _dealt([(UNREGISTER, client) for client in everybody], self.size.unregistrations),
        )
        states = []
        for hands in dealt:
            faults = sorted(itertools.chain(*hands))
            shared = Shared(faults=tuple(fault for fault, whom in faults if whom == nobody))
            parts = [self.parts.first(tuple(fault for fault, whom in faults if whom == client)) for client in everybody]
            states.append(self.pack(shared, parts))
        return list(dict.fromkeys(states))

    def pack(self, shared: Shared, parts: Sequence[int]) -> int:
        state = self.shareds.number(shared, shared)
        for part in sorted(parts):
            state = state << _BITS | part
        return state

    def after_moves(self, state: int) -> list[int] | None:
        """The states after this one, where it is enough to look at moves of one part. None: `following` has them."""
        shared, parts = self.unpack(state)
        chosen = self._reduction.of_one(shared, parts) if self.size.reduced else None
        if chosen is None:
            return None
        others = [part for place, part in enumerate(parts) if place != chosen.place]
        first = state >> _BITS * len(parts)
        states = []
        for move in chosen.moves:
            after = first
            for part in sorted((*others, move.part)):
                after = after << _BITS | part
            states.append(after)
        return states

    def unpack(self, state: int) -> tuple[Shared, tuple[int, ...]]:
        parts = []
        for _ in range(self.size.clients):
            parts.append(state & _MASK)
            state >>= _BITS
        return self.shareds.things[state], tuple(reversed(parts))

    def fault(self, state: int) -> str:
        """What a client saw that none may ever see."""
        if not self.parts.faults_were_seen:
            return ""
        return next((fault for part in self.unpack(state)[1] if (fault := self.parts.fault(part))), "")

    # What may happen.

    def steps(self, state: int) -> tuple[list[Step], bool]:
        """What may happen next, as far as it matters in which order; and whether any of it happens without a fault or a timeout."""
        shared, parts = self.unpack(state)
        assert parts[-1] < _MASK, "more parts than a state has room for"
        reduced = self.size.reduced
        if reduced and (chosen := self._reduction.of_one(shared, parts)) is not None:
            return [_step(shared, parts, chosen.place, move) for move in chosen.moves], True
        of_all = list(self._shared_steps(shared, parts))
        crashes = list(self._crashes(shared, parts))
        if reduced and (some := self._reduction.of_pipeline(shared, parts, of_all, crashes)):
            return list(some), True
        moves = [self.parts.moves(part, shared.published) for part in parts]
        free = bool(of_all) or any(move.free for some in moves for move in some)
        if reduced and publish_may_wait(shared, moves, of_all):
            of_all = [step for step in of_all if step.what[0] != "publish"]
        steps = [_step(shared, parts, place, move) for place, some in enumerate(moves) if _is_first(parts, place) for move in some]
        return [*steps, *of_all, *crashes], free

    def following(self, state: int) -> Following:
        """At rest, clocks move for those whose promise does not hold yet. If all is well, it is terminal, but for faults."""
        steps, moving = self.steps(state)
        if moving:
            return Following(steps, at_rest=False, waits=False, broken="")
        shared, parts = self.unpack(state)
        broken = {place: why for place, part in enumerate(parts) if (why := self.parts.broken_promise(part, shared.published))}
        for place, why in broken.items():
            if self.parts[parts[place]].timeouts >= TIMEOUTS_MAX:
                return Following([], at_rest=True, waits=True, broken=f"{why} (after {TIMEOUTS_MAX} deadlines)")
        return Following([*steps, *self.time_passes(shared, parts, list(broken))], at_rest=True, waits=bool(broken), broken="")

    def time_passes(self, shared: Shared, parts: tuple[int, ...], waiting: Sequence[int]) -> Iterator[Step]:
        """For any of those who wait."""
        for count in range(1, len(waiting) + 1):
            for some in itertools.combinations(waiting, count):
                after = tuple(self.parts.time_passes(part) if place in some else part for place, part in enumerate(parts))
                clocks = [(place, self.parts[parts[place]].now, self.parts[after[place]].now) for place in some]
                yield Step(("time", *clocks), -1, shared, after)

    def _shared_steps(self, shared: Shared, parts: tuple[int, ...]) -> Iterator[Step]:
        if shared.published < self.size.versions:
            yield Step(("publish", shared.published + 1), -1, shared._replace(published=shared.published + 1), parts)
        mine = [task for task in shared.tasks if not task.orphan]
        if not mine:
            yield from self._begin(shared, parts)
        elif all(self._told(task, parts) for task in mine):
            others = tuple(task for task in shared.tasks if task.orphan)
            done = shared._replace(committed=shared.begun, begun=-1, tasks=others)
            yield Step(("commit",), -1, done, tuple(self.parts.changed(part, taken=()) for part in parts))
        for task in shared.tasks:
            if task.step < len(TASK_STEPS):
                yield self._task_step(shared, task, parts)
            elif task.orphan and self._told(task, parts):
                left = shared._replace(tasks=tuple(one for one in shared.tasks if one is not task))
                ended = tuple(self.parts.changed(part, orphaned=()) if task.of_registrations else part for part in parts)
                yield Step(("orphan ends", task.name), -1, left, ended)

    def _begin(self, shared: Shared, parts: tuple[int, ...]) -> Iterator[Step]:
        """A batch takes all that is there; one whose driver died is taken again, the same range."""
        after = parts
        if shared.begun < 0:
            if shared.published == shared.committed and not any(self.parts[part].queued for part in parts):
                return
            shared = shared._replace(begun=shared.published)
            after = tuple(self.parts.with_records_taken(part) for part in parts)
        tasks = [Task("updates", 0, shared.committed, shared.begun)] if shared.begun > shared.committed else []
        if any(self.parts[part].taken for part in after):
            tasks.append(Task("registrations", 0, 0, 0))
        yield Step(("begin", *(task.name for task in tasks)), -1, shared._replace(tasks=(*shared.tasks, *tasks)), after)

    def _told(self, task: Task, parts: tuple[int, ...]) -> bool:
        return task.step == len(TASK_STEPS) and not any(tell.task == task.name for part in parts for tell in self.parts[part].tells)

    def _task_step(self, shared: Shared, task: Task, parts: tuple[int, ...]) -> Step:
        what = TASK_STEPS[task.step]
        later = tuple(sorted(one._replace(step=one.step + 1) if one is task else one for one in shared.tasks))
        if what == "read":
            return Step(("read", task.name), -1, shared._replace(tasks=later), self._read(shared, task, parts))
        version, after = shared.version, list(parts)
        for cell in self._writes(task, self._records(task, parts)):
            place, local = local_cell(cell)
            if place is not None:
                after[place] = self.parts.with_written(after[place], local)
            elif version is None or wins(cell, version):
                version = cell
        return Step(("write", task.name), -1, shared._replace(version=version, tasks=later), tuple(after))

    def _records(self, task: Task, parts: tuple[int, ...]) -> Records:
        """The registrations of a task, client by client."""
        if not task.of_registrations:
            return ()
        return tuple([part.orphaned if task.orphan else part.taken for part in map(self.parts.__getitem__, parts)])

    def _writes(self, task: Task, records: Records) -> list[Cell]:
        key = (task.first, task.last, records)
        if key not in self._written:
            accepted = accept(batch_of(task, records), PARTITIONS, lambda key: FEED_INCARNATION)
            self._written[key] = [cell for mutation in accepted.writes for cell in mutation.cells]
        return self._written[key]

    def _read(self, shared: Shared, task: Task, parts: tuple[int, ...]) -> tuple[int, ...]:
        """Read and match; each part is given what the task has yet to tell its client."""
        copies = tuple([self.parts[part].copies for part in parts])
        key = (task._replace(step=0), self._records(task, parts), shared.version, copies)
        if key not in self._matched:
            self._matched[key] = matched(*key)
        return tuple([self.parts.with_tells(part, tells) for part, tells in zip(parts, self._matched[key], strict=True)])

    def _crashes(self, shared: Shared, parts: tuple[int, ...]) -> Iterator[Step]:
        for fault in dict.fromkeys(shared.faults):
            fewer = shared._replace(faults=spent(shared.faults, fault))
            if fault in ("registrar", "announced"):
                links_break = fault == "registrar"
                after = tuple(self.parts.registrar_dies(part, links_break) for part in parts)
                yield Step(("registrar dies", links_break), -1, fewer, after)
            elif fault == "driver" and shared.tasks:
                yield Step(("driver dies",), -1, fewer._replace(tasks=()), tuple(map(self.parts.without_tells, parts)))
            elif fault == "orphans" and shared.tasks:
                orphans = tuple(task._replace(name=task.name + "'") for task in shared.tasks)
                dead = fewer._replace(tasks=orphans)
                yield Step(("driver dies, workers live on",), -1, dead, tuple(map(self.parts.orphaned, parts)))
            if fault == "registrar":
                yield from self._deaths_in_the_midst(fewer, parts)

    def _deaths_in_the_midst(self, shared: Shared, parts: tuple[int, ...]) -> Iterator[Step]:
        for place, part in enumerate(parts):
            for move in self.parts.dying_in_the_midst(part) if _is_first(parts, place) else ():
                others = tuple(move.part if one == place else self.parts.registrar_dies(parts[one], True) for one in range(len(parts)))
                yield Step(move.what, place, shared, others)


def _dealt(cards: list[tuple[str, int]], count: int) -> list[tuple[tuple[str, int], ...]]:
    """Every way to take so many of them."""
    return list(itertools.combinations_with_replacement(cards, count)) if cards else [()]


def _step(shared: Shared, parts: tuple[int, ...], place: int, move: Move) -> Step:
    return Step(move.what, place, shared, (*parts[:place], move.part, *parts[place + 1 :]))


def _is_first(parts: tuple[int, ...], place: int) -> bool:
    """Of equal parts: what happens to one of them happens to the other."""
    return not place or parts[place] != parts[place - 1]
