"""Images of rows: what a row was, or is, as an event of the log has it. Where a reader's time goes, so it is made ready once for a table.

Pure. An image is a bit for each NULL, and the values of the others. Neighbours of fixed size are read in one go; a row of which only the
key, or only the end, is wanted is passed over without making values of the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, TypeAlias

from roskva.capture.stores.binlog.tables import Table
from roskva.capture.stores.binlog.values import Form, Read
from roskva.capture.updates import Value

IMAGES_MAX: Final = 64  # of one table: sets of columns that its events have had. At the limit all are forgotten

# Either several values of a fixed size together, which take so many bytes, or one.
_Step: TypeAlias = tuple[Callable[[bytes, int], tuple[Value, ...]], int, None] | tuple[None, int, Read]


class Image:
    """Of one table, and of those of its columns that an event shows."""

    def __init__(self, table: Table, shown: Sequence[int]) -> None:
        self.names: Final = tuple(table.columns[place] for place in shown)
        self.keys: Final = tuple(table.columns[place] for place in table.key if place in shown)
        self.left_out: Final = tuple(name for name in table.columns if name not in self.names)
        self._forms: Final = tuple(table.forms[place] for place in shown)
        self._width: Final = (len(shown) + 7) // 8
        self._mask: Final = (1 << len(shown)) - 1
        self._steps: Final = _steps(self._forms)
        self._ends: Final = _merged([(None, form.size) for form in self._forms])
        # The key's columns in the order of the row, and how to bring them into that of the key.
        in_key = [place for place in shown if place in table.key]
        self._key_steps: Final = _merged(
            [(table.forms[place].read if place in in_key else None, table.forms[place].size) for place in shown]
        )
        self._key_order: Final = [in_key.index(place) for place in table.key if place in shown]

    def read(self, data: bytes, at: int) -> tuple[list[Value], int]:
        """All values, and where the next image begins."""
        width = self._width
        nulls = (data[at] if width == 1 else int.from_bytes(data[at : at + width], "little")) & self._mask
        at += width
        row: list[Value] = []
        if not nulls:
            for unpack, size, read in self._steps:
                if unpack is not None:
                    row += unpack(data, at)
                    at += size
                elif read is not None:
                    value, at = read(data, at)
                    row.append(value)
            return row, at
        for form in self._forms:
            if nulls & 1:
                row.append(None)
            else:
                value, at = form.read(data, at)
                row.append(value)
            nulls >>= 1
        return row, at

    def key(self, data: bytes, at: int) -> tuple[list[Value], int]:
        """The values of the key's columns, in the key's order, and where the next image begins."""
        nulls = int.from_bytes(data[at : at + self._width], "little") & self._mask
        if nulls:
            row, at = self.read(data, at)
            return [row[self.names.index(name)] for name in self.keys], at
        at += self._width
        found: list[Value] = []
        for read, size in self._key_steps:
            if read is not None:
                value, at = read(data, at)
                found.append(value)
            else:
                at = _after(data, at, size)
        return ([found[place] for place in self._key_order] if len(found) > 1 else found), at

    def end(self, data: bytes, at: int) -> int:
        """Where the next image begins."""
        nulls = int.from_bytes(data[at : at + self._width], "little") & self._mask
        at += self._width
        if not nulls:
            for _, size in self._ends:
                at = _after(data, at, size)
            return at
        for form in self._forms:
            if not nulls & 1:
                at = _after(data, at, form.size)
            nulls >>= 1
        return at


def _after(data: bytes, at: int, size: int) -> int:
    if size >= 0:
        return at + size
    if size == -1:
        return at + 1 + data[at]
    return at - size + int.from_bytes(data[at : at - size], "little")


def _steps(forms: Sequence[Form]) -> list[_Step]:
    steps: list[_Step] = []
    codes = ""
    for form in (*forms, None):
        if form is not None and form.code:
            codes += form.code
            continue
        if codes:
            packed = Struct(f"<{codes}")
            steps.append((packed.unpack_from, packed.size, None))
            codes = ""
        if form is not None:
            steps.append((None, 0, form.read))
    return steps


def _merged(steps: Sequence[tuple[Read | None, int]]) -> list[tuple[Read | None, int]]:
    """Neighbours of fixed size of which no value is wanted are one step."""
    merged: list[tuple[Read | None, int]] = []
    for read, size in steps:
        if read is None and size >= 0 and merged and merged[-1][0] is None and merged[-1][1] >= 0:
            merged[-1] = (None, merged[-1][1] + size)
        else:
            merged.append((read, size))
    return merged


class Known:
    """A table as its map says, with the images that its events have shown."""

    def __init__(self, body: bytes, table: Table) -> None:
        self.body: Final = body  # of the map: another one is another table
        self.table: Final = table
        self._images: dict[bytes, Image] = {}

    def image(self, bits: bytes) -> Image:
        """`bits`: which columns are shown."""
        found = self._images.get(bits)
        if found is None:
            if len(self._images) >= IMAGES_MAX:
                self._images.clear()
            flags = int.from_bytes(bits, "little")
            found = self._images[bits] = Image(self.table, [place for place in range(len(self.table.columns)) if flags >> place & 1])
        return found
