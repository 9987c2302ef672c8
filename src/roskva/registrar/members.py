"""Who runs Registrars, and which of them owns a client: members in the table, rendezvous hashing over those that live.

A member is one boot of a gateway. It writes its cell `member:{id}` with a growing counter as the timestamp; an observer calls it alive
while that counter moves, on the observer's own clock, so that no clock is compared with another. Pure: the caller reads, writes, waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from roskva.model import rendezvous
from roskva.table.interface import Cell, RowKey

MEMBERS_ROW: Final = RowKey("members", 0, b"gateways")
_PREFIX: Final = b"member:"


class Member(msgspec.Struct, frozen=True):
    """One boot of a gateway: where it is reached by its peers, and where by clients."""

    id: str
    internal: str  # host:port
    public: str  # host:port
    left: bool = False  # stopped cleanly
    name: str = ""  # how people call it; empty: by its id


def member_cell(member: Member, counter: int) -> Cell:
    return Cell(_PREFIX + member.id.encode(), counter, msgspec.json.encode(member))


@dataclass(slots=True)
class _Observed:
    member: Member
    counter: int
    moved_s: float


class MemberView:
    """What one observer knows of the members. Feed it the cells of MEMBERS_ROW, now and then, with its own clock."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._observed: dict[str, _Observed] = {}
        self._suspected: dict[str, int] = {}  # member -> counter at which it did not answer
        self._live: dict[str, Member] = {}

    def observe(self, cells: Iterable[Cell], now_s: float) -> bool:
        """Take in what was read; answers whether the set of living members changed."""
        for cell in cells:
            if cell.value is None or not cell.name.startswith(_PREFIX):
                continue
            member = msgspec.json.decode(cell.value, type=Member)
            known = self._observed.get(member.id)
            if known is None or cell.timestamp > known.counter:
                self._observed[member.id] = _Observed(member, cell.timestamp, now_s)
        live = {
            identity: seen.member
            for identity, seen in self._observed.items()
            if not seen.member.left and now_s - seen.moved_s < self.timeout_s and self._suspected.get(identity, -1) < seen.counter
        }
        changed = live.keys() != self._live.keys()
        self._live = live
        return changed

    def suspect(self, identity: str) -> None:
        """It did not answer: leave it out until its counter moves again."""
        if identity in self._observed:
            self._suspected[identity] = self._observed[identity].counter
            self._live = {other: member for other, member in self._live.items() if other != identity}

    @property
    def live(self) -> dict[str, Member]:
        return self._live

    def owner(self, partition: int) -> Member | None:
        """The member that owns a partition of clients, by this observer's view; None while nobody lives."""
        identity = rendezvous(partition, self._live)
        return None if identity is None else self._live[identity]
