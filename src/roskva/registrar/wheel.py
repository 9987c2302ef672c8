"""What is due when, for very many: put into slots of time, and taken out when a slot is over. What is not due costs nothing.

Pure: callers bring the time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, TypeVar

SLOT_S: Final = 0.25

T = TypeVar("T")


class _Slot(NamedTuple, Generic[T]):
    number: int
    items: list[T]


class Wheel(Generic[T]):
    def __init__(self, slot_s: float = SLOT_S) -> None:
        self._slot_s = slot_s
        self._slots: dict[int, _Slot[T]] = {}
        self._order: list[int] = []  # the numbers of the slots that there are, a heap
        self._first = 0  # that is not over: what comes too late for its slot is put into this one

    def __len__(self) -> int:
        return sum(len(slot.items) for slot in self._slots.values())

    def put(self, item: T, due_s: float) -> int:
        """Answers the number of its slot, one object for all that are in it. Due is the slot when it is over."""
        number = max(self._first, int(due_s // self._slot_s))
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = _Slot(number, [])
            heapq.heappush(self._order, number)
        slot.items.append(item)
        return slot.number

    def take(self, now_s: float) -> Iterator[tuple[int, T]]:
        """What is due, with the number of its slot. Whoever stops in between finds the others the next time."""
        self._first = first = int(now_s // self._slot_s)
        while self._order and self._order[0] < first:
            slot = self._slots[self._order[0]]
            while slot.items:
                yield slot.number, slot.items.pop()
            if self._slots.pop(slot.number, None) is not None:
                heapq.heappop(self._order)
