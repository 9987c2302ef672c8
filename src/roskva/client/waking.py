"""Whether this program, or its machine, slept: then the client checks at once, instead of when a timer says so. Pure.

While a laptop sleeps its monotonic clock may stand still, so that a connection which has been dead for an hour looks as young as
before; the clock on the wall goes on. While a process alone is stopped both go on, but whoever wanted to look at them comes late.
A clock that was set forward looks like sleep, and costs one message.
"""

from __future__ import annotations

from typing import Final

LOOK_EVERY_S: Final = 5.0
SLEPT_S: Final = 10.0  # longer than a program that is only busy is late
READS_S: Final = 0.1  # what came before the sleep and was not read yet is no answer: it is read first
ANSWER_S: Final = 10.0  # a connection over which nothing is answered for so long after a sleep is dead
SMEAR_S: Final = 2.0  # all clients of a machine wake at one moment, and do not connect at one


def slept_s(monotonic_s: float, wall_s: float) -> float:
    """How long it slept, between two looks that should have been LOOK_EVERY_S apart, by the clock that counted more. Never negative."""
    return max(0.0, max(monotonic_s, wall_s) - LOOK_EVERY_S)


def smear_s(dice: float) -> float:
    """How long a client that waited to connect when it woke waits still. `dice` is from 0 up to 1."""
    return SMEAR_S * dice


class Waking:
    """The two clocks at the last look."""

    def __init__(self, monotonic_s: float, wall_s: float) -> None:
        self._monotonic_s = monotonic_s
        self._wall_s = wall_s

    def slept(self, monotonic_s: float, wall_s: float) -> bool:
        """Called every LOOK_EVERY_S: whether there was a sleep since the last time."""
        gone_s = slept_s(monotonic_s - self._monotonic_s, wall_s - self._wall_s)
        self._monotonic_s, self._wall_s = monotonic_s, wall_s
        return gone_s > SLEPT_S
