"""Every client's connection at a gateway, by its number: the name by which other gateways know it.

Those of a trusted line, which may be a million, are only in the line's own `Numbered`: their number is that of the line, and behind it the
one that the line calls them by.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from roskva.gateway.routing import Connection

_BITS: Final = 50  # of a client's number on its line: 15 digits
_PAGE_BITS: Final = 6
_PAGE: Final = 1 << _PAGE_BITS

T = TypeVar("T")
Found_co = TypeVar("Found_co", covariant=True)


class ByNumber(Protocol[Found_co]):
    def get(self, number: int, /) -> Found_co | None: ...
    def values(self) -> Iterable[Found_co]: ...


class Numbered(Generic[T]):
    """What is known by numbers that mostly follow each other: ten bytes for each, where a dictionary takes forty and more."""

    __slots__ = ("_count", "_pages")

    def __init__(self) -> None:
        self._pages: dict[int, list[T | None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, number: int) -> T | None:
        page = self._pages.get(number >> _PAGE_BITS)
        return None if page is None else page[number & _PAGE - 1]

    def __setitem__(self, number: int, one: T) -> None:
        page = self._pages.get(number >> _PAGE_BITS)
        if page is None:
            page = self._pages[number >> _PAGE_BITS] = [None] * _PAGE
        self._count += page[number & _PAGE - 1] is None
        page[number & _PAGE - 1] = one

    def __delitem__(self, number: int) -> None:
        page = self._pages[number >> _PAGE_BITS]
        if page[number & _PAGE - 1] is None:
            raise KeyError(number)
        page[number & _PAGE - 1] = None
        self._count -= 1
        if not any(one is not None for one in page):
            del self._pages[number >> _PAGE_BITS]

    def values(self) -> Iterator[T]:
        return (one for page in self._pages.values() for one in page if one is not None)


class Connections:
    def __init__(self) -> None:
        self._alone: dict[int, Connection] = {}
        self._lines: dict[int, ByNumber[Connection]] = {}
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
        """One that has a number is in its line."""
        if connection.number:
            self._of_lines += 1
        else:
            number = next(self._numbers)
            connection.number = number  # type: ignore[misc]  # those of lines cannot be given one
            self._alone[number] = connection

    def closed(self, connection: Connection) -> bool:
        """Whether it was there. One of a line is not in it any more: its line calls this once."""
        if connection.number >> _BITS:
            self._of_lines -= 1
            return True
        return self._alone.pop(connection.number, None) is not None

    def line_began(self, clients: ByNumber[Connection]) -> int:
        """A number for a line; those of its clients begin there."""
        line = next(self._numbers)
        self._lines[line] = clients
        return line << _BITS

    def line_ended(self, first: int) -> None:
        self._lines.pop(first >> _BITS, None)
