"""Every client's connection at a gateway, by its number: the name by which other gateways know it.

Those of a trusted line, which may be a million, are only in the line's own dictionary: their number is that of the line, and behind it the
one that the line calls them by.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from roskva.gateway.routing import Connection

_BITS: Final = 50  # of a client's number on its line: 15 digits


class Connections:
    def __init__(self) -> None:
        self._alone: dict[int, Connection] = {}
        self._lines: dict[int, Mapping[int, Connection]] = {}
        self._of_lines = 0
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._alone) + self._of_lines

    def __contains__(self, number: int) -> bool:
        return self.get(number) is not None

    def get(self, number: int) -> Connection | None:
        line = number >> _BITS
        if not line:
            return self._alone.get(number)
        clients = self._lines.get(line)
        return None if clients is None else clients.get(number & (1 << _BITS) - 1)

    def values(self) -> Iterator[Connection]:
        yield from self._alone.values()
        for clients in self._lines.values():
            yield from clients.values()

    def opened(self, connection: Connection) -> None:
        """One that has a number is in its line's dictionary."""
        if connection.number:
            self._of_lines += 1
        else:
            number = next(self._numbers)
            connection.number = number  # type: ignore[misc]  # those of lines cannot be given one
            self._alone[number] = connection

    def closed(self, connection: Connection) -> bool:
        """Whether it was there. One of a line is not in its dictionary any more: its line calls this once."""
        if connection.number >> _BITS:
            self._of_lines -= 1
            return True
        return self._alone.pop(connection.number, None) is not None

    def line_began(self, clients: Mapping[int, Connection]) -> int:
        """A number for a line; those of its clients begin there."""
        line = next(self._numbers)
        self._lines[line] = clients
        return line << _BITS

    def line_ended(self, first: int) -> None:
        self._lines.pop(first >> _BITS, None)
