"""A datastore whose slot may vanish while it is read: what reading needs is made again, and what cannot be made is said.

The log was cut: flows are told what they lost (`LogCut`), and reading goes on where the log begins now. That works if there is something
that keeps the log from there on. Somebody may have dropped the slot, and then there is not: `prepare` makes a new one, as the next start
would. The server may have given the slot up, and nothing is dropped unasked: then readers are told what `prepare` says, which names the
statement that mends it, and wait, instead of losing whatever is committed from one attempt to the next.

Blocking, as any datastore, and safe from several threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from roskva.capture.interface import Datastore, Finding, Reader, Retained
from roskva.capture.positions import Position
from roskva.errors import DatastoreUnavailable, LogCut, RoskvaError

CUTS_MAX: Final = 8  # one after the other, with no reader opened in between: then the log cannot be read where it says that it begins
TELL_S: Final = 10.0  # flows are told of a loss at most so often while nothing can be read


class Mended:
    """The same datastore, but for `read_after`."""

    def __init__(self, datastore: Datastore, clock: Callable[[], float] = time.monotonic) -> None:
        self._datastore = datastore
        self._clock = clock
        self._lock = threading.Lock()
        self._cuts = 0
        self._told_s = float("-inf")

    @property
    def identity(self) -> str:
        return self._datastore.identity

    def retained(self) -> Retained:
        return self._datastore.retained()

    def read_after(self, position: Position) -> Reader:
        try:
            reader = self._datastore.read_after(position)
        except LogCut as cut:
            raise self._meaning(cut) from None
        with self._lock:
            self._cuts = 0
        return reader

    def at_time(self, time_s: float) -> Position:
        return self._datastore.at_time(time_s)

    def confirm(self, position: Position) -> None:
        self._datastore.confirm(position)

    def prepare(self) -> None:
        self._datastore.prepare()

    def check(self) -> list[Finding]:
        return self._datastore.check()

    def close(self) -> None:
        self._datastore.close()

    def _meaning(self, cut: LogCut) -> RoskvaError:
        trouble: RoskvaError | None = None
        try:
            self._datastore.prepare()
        except RoskvaError as error:
            trouble = error
        with self._lock:
            self._cuts += 1
            if trouble is None and self._cuts > CUTS_MAX:
                trouble = DatastoreUnavailable(f"The log begins after {cut.oldest}, and cannot be read from there.")
            now_s = self._clock()
            if trouble is not None and now_s - self._told_s < TELL_S:
                return trouble
            self._told_s = now_s
        return cut
