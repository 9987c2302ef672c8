"""Registrations and unregistrations that the server has not answered yet, and when to send each (Thialfi 4.1.3, 4.1.6). Pure.

At most one per object: a later wish replaces an earlier one. Each is repeated, with a pause that doubles, until its status
arrives. Only so many are unanswered at a time; the others wait their turn, so that a client with 100,000 registrations
does not repeat all of them because the first thousand took long.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from roskva.protocol.messages import Config

MESSAGES_UNANSWERED_MAX: Final = 4
_DOUBLINGS_MAX: Final = 32  # keeps the power of two within a float's range; retry_max_s caps the pause long before


def pause_s(config: Config, attempt: int, dice: float) -> float:
    """From retry_min_s up to a bound that doubles with each attempt and ends at retry_max_s; `dice` is from 0 to 1."""
    bound_s = min(config.retry_max_s, config.retry_min_s * 2.0 ** min(attempt + 1, _DOUBLINGS_MAX))
    return config.retry_min_s + dice * max(0.0, bound_s - config.retry_min_s)


@dataclass(slots=True)
class Operation:
    name: bytes
    register: bool
    attempts: int = 0
    due: float = 0.0
    sent: bool = False


@dataclass(slots=True)
class Operations:
    _by_name: dict[bytes, Operation] = field(default_factory=dict)
    _waiting: deque[Operation] = field(default_factory=deque)  # never sent in this session; replaced ones are skipped
    _repeats: list[tuple[float, int, Operation]] = field(default_factory=list)  # a heap; entries of the past are skipped
    _unanswered: int = 0
    _ticket: int = 0  # breaks ties in the heap

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @property
    def unanswered(self) -> int:
        """How many were sent, and wait for their status."""
        return self._unanswered

    def wants(self, name: bytes) -> bool | None:
        """Is the open operation on this object a registration? None: there is no open one."""
        operation = self._by_name.get(name)
        return None if operation is None else operation.register

    def add(self, name: bytes, register: bool) -> None:
        self.settle(name)
        operation = self._by_name[name] = Operation(name, register)
        self._waiting.append(operation)

    def settle(self, name: bytes) -> None:
        operation = self._by_name.pop(name, None)
        if operation is not None and operation.sent:
            self._unanswered -= 1

    def postpone(self, name: bytes, register: bool, now: float, config: Config, dice: float) -> None:
        """The server answered "later": the operation leaves the unanswered ones and is sent again after its pause."""
        operation = self._by_name.get(name) or Operation(name, register)
        if operation.sent:
            self._unanswered -= 1
        self._by_name[name] = operation
        operation.sent = False
        self._schedule(operation, now, config, dice)

    def again_at(self, until: float) -> None:
        """The server had no room and said until when: what it has not answered is sent again then, not after its own longer pause."""
        for operation in self._by_name.values():
            if operation.sent and operation.due > until:
                self._schedule_at(operation, until)

    def clear(self) -> None:
        self._by_name.clear()
        self._waiting.clear()
        self._repeats.clear()
        self._unanswered = 0

    def restart(self) -> None:
        """A new session or connection: whatever is open is sent again at once."""
        operations = list(self._by_name.values())
        self._waiting.clear()
        self._repeats.clear()
        self._unanswered = 0
        for operation in operations:
            operation.sent = False
            self._waiting.append(operation)

    def take(self, now: float, config: Config, limit: int, dice: float) -> list[Operation]:
        """Up to `limit` operations to send now. They share one throw of the dice, so that their repeats travel together too."""
        taken: list[Operation] = []
        while len(taken) < limit and (operation := self._next_repeat(now)) is not None:
            taken.append(operation)
        unanswered_max = MESSAGES_UNANSWERED_MAX * config.operations_per_message_max
        fresh = unanswered_max - self._unanswered - sum(not operation.sent for operation in taken)
        while len(taken) < limit and fresh > 0 and (waiting := self._next_waiting()) is not None:
            taken.append(waiting)
            fresh -= 1
        for operation in taken:
            if not operation.sent:
                operation.sent = True
                self._unanswered += 1
            self._schedule(operation, now, config, dice)
        return taken

    def next_due(self, config: Config) -> float | None:
        """When `take` would yield something; minus infinity: it would already."""
        while self._waiting and self._by_name.get(self._waiting[0].name) is not self._waiting[0]:
            self._waiting.popleft()
        if self._waiting and self._unanswered < MESSAGES_UNANSWERED_MAX * config.operations_per_message_max:
            return float("-inf")
        self._skip_stale()
        return self._repeats[0][0] if self._repeats else None

    def _schedule(self, operation: Operation, now: float, config: Config, dice: float) -> None:
        self._schedule_at(operation, now + pause_s(config, operation.attempts, dice))
        operation.attempts += 1

    def _schedule_at(self, operation: Operation, due: float) -> None:
        operation.due = due
        self._ticket += 1
        heapq.heappush(self._repeats, (operation.due, self._ticket, operation))

    def _skip_stale(self) -> None:
        while self._repeats:
            due, _, operation = self._repeats[0]
            if self._by_name.get(operation.name) is operation and operation.due == due:
                return
            heapq.heappop(self._repeats)

    def _next_repeat(self, now: float) -> Operation | None:
        self._skip_stale()
        if not self._repeats or self._repeats[0][0] > now:
            return None
        return heapq.heappop(self._repeats)[2]

    def _next_waiting(self) -> Operation | None:
        while self._waiting:
            operation = self._waiting.popleft()
            if self._by_name.get(operation.name) is operation:
                return operation
        return None
