"""Forks of a dataset's log: numbers that were given twice, and how positions tell the two apart. Pure.

If a primary is lost with commits that no replica had, the promoted one gives their sequence numbers again: a datamarker at 105, of the lost
server's 105, would skip the new server's 104 and 105 without a word. So all publishers together remember, beside the datamarkers
(`Known`), which server wrote what was read. A log that lacks some of that, and has gone on without it, is a fork. Each fork begins another
history (positions.py): commits after the last that both have are of the new one, which is above the old one whatever their numbers are, as
a timeline of Postgres is. Whoever stands in the old one comes to the fork and is told of a loss there: what it was sent last may have been
undone, and all that the new primary wrote follows. A change of the primary in good order begins no history.

What a log is asked for is the last sequence number of each server id in it (`gtid_binlog_state`, or the list at the beginning of a file).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

from roskva.capture.positions import NUMBER_MAX, WHOLE, Position
from roskva.errors import CaptureRefused

RANGES_MAX: Final = 64  # that are remembered of what was read; the oldest are forgotten
FORKS_MAX: Final = 256

# Of a log: soon after this number, or at its end, the last sequence number of each server. Not only at its end, since a server that was
# lost may have become the primary again since then.
Lasts: TypeAlias = Callable[[int], Mapping[int, int]]


class Written(NamedTuple):
    """A commit, by who wrote it."""

    server: int
    number: int


class Range(NamedTuple):
    """Commits of one server, without a gap: in a gap others may have written."""

    server: int
    first: int
    last: int
    before: Written | None = None  # the commit before the first, if it was read from the same log: others may have read it elsewhere


class Fork(NamedTuple):
    """The history that begins after this number: what was read of one server beyond it is undone, and another server went on."""

    history: int
    after: int
    undone: int
    server: int


class Known(NamedTuple):
    """What is remembered of a dataset, for all its publishers."""

    forks: tuple[Fork, ...] = ()  # in the order of their histories
    read: tuple[Range, ...] = ()  # of the newest history and its past, in the order of their numbers
    beside: tuple[Range, ...] = ()  # read, too, and cannot be of the same log: which of them was undone, the next look at a log says

    @property
    def history(self) -> int:
        return self.forks[-1].history if self.forks else 0


def known_from(kept: bytes) -> Known:
    """Of what `kept_of` made; nothing: nothing is known."""
    try:
        return msgspec.json.decode(kept, type=Known) if kept else Known()
    except msgspec.MsgspecError as error:
        raise CaptureRefused(f"What publishers of another version remember of the log is not understood here: {error}.") from error


def kept_of(known: Known) -> bytes:
    return msgspec.json.encode(known)


def history_of(forks: Iterable[Fork], sequence: int) -> int:
    """Of the commit that has this number in a log with these forks. A later fork may lie before an earlier one, which it undoes."""
    return max((fork.history for fork in forks if fork.after < sequence), default=0)


def undone(forks: Iterable[Fork], position: Position) -> Position | None:
    """If what comes next after this position is of another history: where that begins. Also at the last commit that both have, since a flow
    may have been sent more than it has acknowledged."""
    later = [fork for fork in forks if fork.history > position.history]
    after = min((fork.after for fork in later), default=None)
    if after is None or (position.sequence if position.index != WHOLE else position.sequence + 1) <= after:
        return None
    return Position(history_of(later, after + 1), after + 1, 0)


def forks_of(known: Known, lasts: Lasts) -> tuple[Fork, ...]:
    """Those that are in the past of a log, or will be when it has caught up: not those by which a part of it was undone."""
    beyond = [fork.after + 1 for fork in known.forks]  # where one that nobody has read beyond shows on which side it is
    last = lasts(max([known.read[-1].last, *beyond]) if known.read else NUMBER_MAX)
    for place, fork in enumerate(known.forks):
        if _is_of_the_undone_side(fork, known, last):
            return known.forks[:place]
    return known.forks


def _is_of_the_undone_side(fork: Fork, known: Known, last: Mapping[int, int]) -> bool:
    if any(one.last > fork.after and last.get(one.server, 0) >= one.last for one in known.read):
        return False  # it has what was read after the fork: the server whose commits were undone was built anew, and is the primary again
    return fork.undone != fork.server and last.get(fork.undone, 0) > fork.after >= last.get(fork.server, 0)


def forked(known: Known, lasts: Lasts) -> Fork | None:
    """The history that this log begins, if it lacks what was read, and has gone on without it. One that has not gone on may be a replica
    that is behind: that is none."""
    if forks_of(known, lasts) != known.forks:
        return None
    found = [_from(known, read, lasts) for read in (known.read, *((one,) for one in known.beside))]
    return min((fork for fork in found if fork is not None), key=lambda fork: fork.after, default=None)


def _from(known: Known, read: tuple[Range, ...], lasts: Lasts) -> Fork | None:
    """By the first of these that the log does not have: what comes after it may have been read from that log itself."""
    for one in read:
        if has(lasts, one):
            continue
        last = lasts(one.last)
        reached = last.get(one.server, 0)
        if reached >= one.last:  # another wrote some of these: this server was lost, and is the primary again
            reached = min(one.first, lasts(one.first).get(one.server, 0))
        ours = [other for other in (*known.read, *known.beside) if conflict([other], one) and has(lasts, other)]
        earlier = any(number < one.first for number in (*last.values(), *lasts(one.first - 1).values()))
        if not reached and not ours and not earlier:
            continue  # the log began later
        if reached < one.first and max(last.values()) < one.first:
            return None  # it ends before all that was read of this server: a replica that is behind, whoever wrote what it has
        after = max(reached, _common(known, one, lasts))
        on = [(number, server) for server, number in last.items() if number > after and number >= one.first]
        return Fork(known.history + 1, after, one.server, min(on)[1]) if on else None
    return None


def _common(known: Known, one: Range, lasts: Lasts) -> int:
    """A commit of before these that the log from which they were read shares with this log, the last that is known to be one. Not by any
    others that were read before these: they may be of this log alone."""
    common = 0
    link = one.before
    while link is not None:
        server, number = link
        if has(lasts, Range(server, number, number)):
            return max(common, number)
        common = max(common, lasts(number).get(server, 0))
        ranges = (other for other in (*known.read, *known.beside) if other.server == server and other.first <= number <= other.last)
        link = next((other.before for other in ranges), None)
    return common


def has(lasts: Lasts, one: Range) -> bool:
    """Whether a log has these commits, as far as can be told."""
    last = lasts(one.last)
    return last.get(one.server, 0) >= one.last and not _is_mixed(last, one)


def _is_mixed(last: Mapping[int, int], one: Range) -> bool:
    """Whether another server wrote some of these numbers."""
    return any(server != one.server and one.first <= number <= one.last for server, number in last.items())


def declared(known: Known, fork: Fork) -> Known:
    """From now on. What was read of the undone part does not count any more."""
    return Known((*known.forks, fork)[-FORKS_MAX:], cut(known.read, fork.after))


def cut(read: Iterable[Range], after: int) -> tuple[Range, ...]:
    return tuple(one._replace(last=min(one.last, after)) for one in read if one.first <= after)


def wrote(read: Iterable[Range], sequence: int) -> int | None:
    """Who did, if it was read."""
    return next((one.server for one in read if one.first <= sequence <= one.last), None)


def conflict(read: Iterable[Range], one: Range) -> bool:
    """Whether some of these numbers were another server's."""
    return any(other.server != one.server and other.first <= one.last and one.first <= other.last for other in read)


def with_read(known: Known, ranges: Iterable[Range]) -> Known:
    """These commits were read, too."""
    read, beside = known.read, known.beside
    for one in ranges:
        if not conflict(read, one):
            read = _joined(read, one)
        elif one not in beside and not _is_undone(known.forks, read, one):
            beside = (*(other for other in beside if (other.server, other.first) != (one.server, one.first)), one)
    return Known(known.forks, read[-RANGES_MAX:], beside[-RANGES_MAX:])


def _is_undone(forks: Iterable[Fork], read: Iterable[Range], one: Range) -> bool:
    """By a fork that is known, unless its server was the primary again after that: then it may have been lost once more."""
    again = [other.first for other in read if other.server == one.server and other.first <= one.last]
    return any(fork.undone == one.server and max(again, default=0) <= fork.after < one.last for fork in forks)


def _joined(read: tuple[Range, ...], one: Range) -> tuple[Range, ...]:
    near = [other for other in read if other.server == one.server and other.first <= one.last + 1 and one.first <= other.last + 1]
    begins = min([one, *near], key=lambda each: (each.first, each.before is None))
    whole = begins._replace(last=max([one.last, *(other.last for other in near)]))
    return tuple(sorted((*(other for other in read if other not in near), whole), key=lambda each: each.first))
