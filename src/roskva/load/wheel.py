"""Timers for very many: one deadline each, 8 bytes of bookkeeping each, no object and no task per timer. Pure.

A wheel of ticks, each with the numbers that are looked at then. To put a deadline off costs nothing: when its old tick comes, the number
moves on to the new one. Each number has one entry that counts (`_placed`); entries that it left behind are skipped.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

TICK_S: Final = 0.05
_TICKS: Final = 4_096  # around the wheel; a deadline beyond that moves on when it is met
_NEVER: Final = 0xFFFF_FFFF


class Wheel:
    def __init__(self, count: int, now_s: float) -> None:
        self._began_s = now_s
        self._done = 0  # ticks that are over
        self._due = array("I", [_NEVER]) * count
        self._placed = array("I", [_NEVER]) * count
        self._slots: list[array[int]] = [array("I") for _ in range(_TICKS)]

    def set(self, number: int, at_s: float) -> None:
        """Look at this one then, and not before."""
        due = max(self._done + 1, int((at_s - self._began_s) / TICK_S) + 1)
        self._due[number] = due
        if due < self._placed[number]:
            self._place(number, due)

    def _place(self, number: int, due: int) -> None:
        tick = min(due, self._done + _TICKS - 1)
        self._placed[number] = tick
        self._slots[tick % _TICKS].append(number)

    def due(self, now_s: float) -> Iterator[int]:
        """Those whose time has come. Each must be set again, or is never looked at any more."""
        last = int((now_s - self._began_s) / TICK_S)
        while self._done < last:
            self._done += 1
            tick = self._done
            entries, self._slots[tick % _TICKS] = self._slots[tick % _TICKS], array("I")
            for number in entries:
                if self._placed[number] != tick:
                    continue
                self._placed[number] = _NEVER
                if self._due[number] > tick:
                    self._place(number, self._due[number])
                else:
                    self._due[number] = _NEVER
                    yield number
