"""Which server wrote which commit, as far as it was seen: in this process, and in all of the dataset's, which share a memory (forks.py).

What was read is kept in that memory before a datamarker that stands on it is stored, and every second besides: so whoever comes later,
and after a restart of everything, knows who wrote the number at which a datamarker stands. A fork is kept there before anything of its new
history is read. A publisher that owns no flow changes nothing in it.

One thing only this process knows: that a server which follows nobody had less in its log than was read. What that server itself writes then
has numbers that were given before, by whomever.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from roskva.capture.interface import Memory
from roskva.capture.positions import NUMBER_MAX
from roskva.capture.stores.mariadb.forks import (
    RANGES_MAX,
    Fork,
    Known,
    Lasts,
    Range,
    Written,
    cut,
    declared,
    forked,
    forks_of,
    has,
    kept_of,
    known_from,
    with_read,
    wrote,
)
from roskva.errors import Unavailable

log = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 8  # while others change the same memory


class OwnMemory:
    """Of a datastore that shares none."""

    def __init__(self) -> None:
        self._kept = b""
        self._lock = threading.Lock()

    def recall(self) -> bytes:
        return self._kept

    def swap(self, before: bytes, after: bytes) -> bool:
        with self._lock:
            if self._kept != before:
                return False
            self._kept = after
            return True


class Recalled(NamedTuple):
    kept: bytes
    known: Known


class Lacking(NamedTuple):
    """A server that follows nobody, and where its log ended before what was asked for."""

    server: int
    end: int


class Witness:
    """Of one datastore, for all its readers. Safe from several threads."""

    def __init__(self) -> None:
        self.memory: Memory = OwnMemory()
        self.forks: tuple[Fork, ...] = ()  # of the log, as it was last looked at
        self._lock = threading.Lock()
        self._ranges: list[Range] = []  # in the order of their numbers, which do not overlap
        self._beside: list[Range] = []  # what was read before the same numbers were another server's
        self._goes_on = True  # what was read last is of this log
        self._kept: tuple[list[Range], list[Range]] = ([], [])  # of these, what the memory has
        self._stale = False  # the log is one that a fork has left behind: what is read of it is undone, and does not count
        self._unsure = False  # perhaps it is, since others found a fork: the next look says it
        self._lacking: Lacking | None = None
        self._recalled: Recalled | None = None
        self._history = 0  # up to which forks were taken in here

    def saw(self, sequence: int, server: int) -> bool:
        """A commit was read. False: look at the log again first, since there is a fork of which others know, or another server had
        written this commit when it was read here before; from now on this one has."""
        with self._lock:
            if self._unsure or self._stale:
                return not self._unsure
            ranges = self._ranges
            if ranges and sequence <= ranges[-1].last:
                found = next((one for one in reversed(ranges) if one.first <= sequence <= one.last), None)
                if found is None or found.server == server:
                    return True
                after = sequence - 1
                self._beside = [one._replace(first=max(one.first, sequence)) for one in ranges if one.last > after][-RANGES_MAX:]
                self._ranges = list(cut(ranges, after))
                self._goes_on = False
                self._add(server, sequence)
                return False
            self._add(server, sequence)
            return True

    def _add(self, server: int, sequence: int) -> None:
        last = self._ranges[-1] if self._ranges else None
        if last is not None and (last.server, last.last + 1) == (server, sequence):
            self._ranges[-1] = last._replace(last=sequence)
        else:
            before = Written(last.server, last.last) if last is not None and self._goes_on and last.last + 1 == sequence else None
            self._ranges = [*self._ranges, Range(server, sequence, sequence, before)][-RANGES_MAX:]

    def lacks(self, server: int, end: int, asked: int) -> None:
        """Somebody asked for what comes after a commit which this server does not have, and it follows nobody. If nobody has read that
        commit, it was a mistake to ask."""
        with self._lock:
            known = Known() if self._recalled is None else self._recalled.known
            if not any(asked <= one.last for one in (*self._ranges, *self._beside, *known.read, *known.beside)):
                return
            if self._lacking is None or self._lacking.server != server:
                self._lacking = Lacking(server, end)

    def recall(self) -> Recalled:
        """What all publishers know. If they cannot be asked now, what they knew last. Raises Unavailable if they never could."""
        try:
            kept = self.memory.recall()
            self._recalled = Recalled(kept, known_from(kept))
        except Unavailable as error:
            if self._recalled is None:
                raise
            log.warning("What is remembered of the log cannot be read now: %s", error)
        return self._recalled

    def look(self, recalled: Recalled, lasts: Lasts, server: int, follows: Callable[[], bool]) -> tuple[Fork, ...]:
        """The forks of the log that this server has. `follows`: whether it is a replica. One with commits that its primary does not have
        begins no history, be they its own or the last of a primary that was lost: it is broken, and its primary goes on.

        Raises Unavailable if a fork cannot be kept in the memory now.
        """
        kept, known = recalled
        for _ in range(ATTEMPTS_MAX):
            self._take_in(known, lasts)
            fork = forked(known, lasts)
            lacking = self._lacking
            if fork is None and lacking is not None and lacking.server == server:
                if follows():
                    self._lacking = None
                elif lasts(NUMBER_MAX).get(server, 0) > lacking.end:
                    fork = Fork(known.history + 1, lacking.end, server, server)
            if fork is None or (follows() and self._is_broken(server, fork, known)):
                break
            after = declared(known, fork)
            if self.memory.swap(kept, kept_of(after)):
                log.error("The server %d gives the numbers after %d again: what was read beyond is undone.", fork.server, fork.after)
                known = after
                break
            found = self.memory.recall()
            if found == kept:
                break  # whoever owns flows will say it
            kept, known = found, known_from(found)
        self._take_in(known, lasts)
        with self._lock:
            self._goes_on = not self._ranges or has(lasts, self._ranges[-1])
        self._stale, self._unsure = forks_of(known, lasts) != known.forks, False
        self.forks = forks_of(known, lasts)
        return self.forks

    def _is_broken(self, server: int, fork: Fork, known: Known) -> bool:
        """A replica that has what its primary does not have, if it is one: of what itself wrote, or of a primary that was lost. One that
        lacks what itself wrote was built anew of its primary's log: it has all that there is."""
        return fork.undone != server and (fork.server == server or wrote(known.read, fork.after) == fork.server)

    def _take_in(self, known: Known, lasts: Lasts) -> None:
        """What was read here before a fork, and is undone by it, is not read any more; nor what this log does not have."""
        with self._lock:
            for fork in known.forks:
                if fork.history > self._history:
                    self._lacking = None
                    self._beside = []
                    beyond = (one for one in self._ranges if one.first > fork.after and one.server != fork.undone)
                    self._ranges = [*cut(self._ranges, fork.after), *(one for one in beyond if has(lasts, one))]
            self._history = max(self._history, known.history)

    def keep(self) -> None:
        """Into the memory, what was read here. Raises Unavailable."""
        if self._stale or self._unsure or (self._ranges, self._beside) == self._kept:
            return
        for _ in range(ATTEMPTS_MAX):
            kept = self.memory.recall()
            known = known_from(kept)
            if known.history > self._history:
                self._unsure = True
                return
            with self._lock:
                ranges, beside = list(self._ranges), list(self._beside)
            after = with_read(known, (*ranges, *beside))
            if after == known or self.memory.swap(kept, kept_of(after)):
                self._kept = (ranges, beside)
                return
            if self.memory.recall() == kept:
                return  # it is not ours to change
        raise Unavailable("What was read of the log cannot be kept: others keep changing it.")
