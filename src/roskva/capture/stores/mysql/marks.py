"""Places in the middle of files, to which readers have come before: so that the next one need not read a file from its beginning.

MySQL's files have a gigabyte each, and no index by GTID. A mark is where a group begins in one server's file, and says nothing that is not
looked at again: the group that comes first from there must be the one that was marked. If it is not, since the log was begun anew under the
same names, all marks are forgotten, and the reader fails; the next one reads the file from its beginning. Kept in memory alone.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import Final, NamedTuple

STEP_BYTES: Final = 4 * 2**20  # from mark to mark, which is read again for a few hundredths of a second
MARKS_MAX: Final = 65_536  # of 256 GiB of log; at the limit all are forgotten


class Mark(NamedTuple):
    sequence: int  # of the group that begins here
    last: int  # of the one before it
    offset: int


class Marks:
    """Of one datastore, for all its readers. Safe from several threads."""

    def __init__(self, step_bytes: int = STEP_BYTES) -> None:
        self._step_bytes = step_bytes
        self._lock = threading.Lock()
        self._of: dict[str, list[Mark]] = {}  # by the file: both numbers and offsets grow
        self._count = 0

    def add(self, file: str, mark: Mark) -> None:
        """If it is far enough beyond those of this file."""
        with self._lock:
            known = self._of.get(file)
            before = known[-1] if known else Mark(0, 0, 0)
            if mark.sequence <= before.sequence or mark.offset < before.offset + self._step_bytes:
                return
            if self._count >= MARKS_MAX:
                self._forget()
            self._of.setdefault(file, []).append(mark)
            self._count += 1

    def before(self, file: str, sequence: int) -> Mark | None:
        """The last of this file whose group has this number or a lower one."""
        with self._lock:
            known = self._of.get(file, [])
            place = bisect_right(known, sequence, key=lambda mark: mark.sequence)
            return known[place - 1] if place else None

    def forget(self) -> None:
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._of.clear()
        self._count = 0
