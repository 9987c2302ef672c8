"""Patience with what may work later: a feed or table that does not answer keeps a batch open; it never ends the query.

Imports no Spark: source, tasks and tests share it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from roskva.errors import Unavailable
from roskva.propagation.surroundings import REAL, Surroundings

log = logging.getLogger(__name__)
T = TypeVar("T")

_FIRST_S: Final = 0.02
_LONGEST_S: Final = 2.0
_LOG_EVERY_S: Final = 5.0


class Backoff:
    """Pauses that double from 20 ms to 2 s, and a line in the log every few seconds while they last."""

    def __init__(self, doing: str, around: Surroundings = REAL) -> None:
        self._doing = doing
        self._around = around
        self._pause_s = _FIRST_S
        self._logged_s = float("-inf")
        self.rounds = 0

    def pause(self, reason: object) -> None:
        now_s = self._around.clock()
        if now_s - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now_s
            log.warning("%s: not possible now, trying again: %s", self._doing, reason)
        self._around.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_S)
        self.rounds += 1


def persist(doing: str, action: Callable[[], T], around: Surroundings = REAL) -> T:
    """Do it until it is done. Only for I/O that may be repeated: what fails for good is the supervisor's to see, by the lag."""
    backoff = Backoff(doing, around)
    while True:
        try:
            return action()
        except (Unavailable, OSError) as error:
            backoff.pause(error)
        except Exception as error:
            # Not an error that an engine promises; but ending the query would help nobody, and the batch is not lost while it is open.
            log.exception("%s: unexpected error", doing)
            backoff.pause(error)
