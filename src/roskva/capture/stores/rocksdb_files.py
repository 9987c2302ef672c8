"""The files of a RocksDB that capture looks at: its logs, MANIFEST and OPTIONS. The database may be open, or closed, while they are read.

Logs are NUMBER.log, in the directory of the database (or its wal_dir), and below that in `archive`, when they are no longer needed for
recovery. The MANIFEST is a log of its own, of edits (db/version_edit.h), of which we want the names of column families and the last
sequence number.

Blocking. Must not import anything of the publisher.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from roskva.capture.stores.local_files import opened
from roskva.capture.stores.rocksdb_wal import BATCH_HEADER, BLOCK_BYTES, Record, records, varint
from roskva.errors import CaptureRefused

RECORD_BYTES_MAX: Final = 1 << 30  # of a write batch, which must be held while it is read
_NAME: Final = re.compile(r"(\d+)\.log")
_WINDOW_BYTES: Final = 1 << 20

# Of an edit of the MANIFEST: what each tag is followed by. v: a number; s: text with its length; of others the rest is not looked at.
_EDIT: Final = {
    1: "s", 2: "v", 3: "v", 4: "v", 5: "vs", 6: "vv", 7: "vvvss", 9: "v", 10: "v", 100: "vvvssvv", 102: "vvvvssvv",
    200: "v", 201: "s", 202: "", 203: "v", 300: "v", 8193: "s",
}  # fmt: skip
_LAST_SEQUENCE, _FAMILY, _FAMILY_ADDED = 4, 200, 201


class Manifest(NamedTuple):
    families: dict[int, str]  # those that were dropped, too, as long as it has them
    last_sequence: int  # at its last edit: there may be more in the logs


def some_records(descriptor: int, offset: int, log_number: int, window: int = _WINDOW_BYTES, *, resume: bool = False) -> Iterator[Record]:
    """At least the next record, if there is one, and those that were read with it."""
    while True:
        data = os.pread(descriptor, window, offset)
        found = records(data, offset, log_number, resume=resume)
        try:
            first = next(found)
        except StopIteration as stop:
            if not stop.value or len(data) < window:
                return
            if window >= RECORD_BYTES_MAX:
                raise CaptureRefused(
                    f"A record of the log {log_number} of RocksDB is larger than {RECORD_BYTES_MAX:,} bytes: write smaller batches."
                ) from None
            window *= 2
            continue
        yield first
        yield from found
        return


def all_records(descriptor: int, offset: int, log_number: int) -> Iterator[Record]:
    while True:
        before = offset
        for record in some_records(descriptor, offset, log_number):
            offset = record.end
            yield record
        if offset == before:
            return


class Logs:
    """The logs of one database, and where in them an operation stands: the mapper of Wormhole 3.3.2. Safe from several threads."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._first: dict[int, int] = {}  # sequence of the first record, by number: once it is there, it stays

    def numbers(self) -> list[int]:
        """Of the logs that have a record, in their order."""
        return [number for number in self.listed() if self.first(number) is not None]

    def first(self, number: int) -> int | None:
        """The sequence of its first operation; None if there is none yet, or the log is gone."""
        with self._lock:
            if number in self._first:
                return self._first[number]
        try:
            with self.opened(number) as descriptor:
                record = next(some_records(descriptor, 0, number, BLOCK_BYTES), None)
        except FileNotFoundError:
            return None
        if record is None:
            return None
        sequence = int(BATCH_HEADER.unpack_from(record.content)[0])
        with self._lock:
            self._first[number] = sequence
        return sequence

    def open(self, number: int) -> int:
        name = f"{number:06d}.log"
        with contextlib.suppress(FileNotFoundError):
            return os.open(self.directory / name, os.O_RDONLY | os.O_CLOEXEC)
        return os.open(self.directory / "archive" / name, os.O_RDONLY | os.O_CLOEXEC)  # it may have moved there meanwhile

    @contextlib.contextmanager
    def opened(self, number: int) -> Iterator[int]:
        descriptor = self.open(number)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def offset_of(self, descriptor: int, number: int, sequence: int) -> int:
        """Where in this log the record begins that has the operation; the end of the log, if that is yet to come."""
        offset = self._offset_near(descriptor, number, sequence)
        for record in all_records(descriptor, offset, number):
            first, count = BATCH_HEADER.unpack_from(record.content)
            if first + count > sequence:
                return record.begin
            offset = record.end
        return offset

    def _offset_near(self, descriptor: int, number: int, sequence: int) -> int:
        """The beginning of a record that is not after the operation, and at most some blocks before it."""
        offset, low, high = 0, 0, os.fstat(descriptor).st_size // BLOCK_BYTES + 1
        while high - low > 1:
            middle = (low + high) // 2
            found = self._first_from(descriptor, number, middle, high)
            if found is None or BATCH_HEADER.unpack_from(found.content)[0] > sequence:
                high = middle
            else:
                offset, low = found.begin, max(middle, found.begin // BLOCK_BYTES)
        return offset

    def end(self, number: int) -> tuple[int, int]:
        """The sequence of the last operation in this log, and the offset behind its record."""
        with self.opened(number) as descriptor:
            offset, last = self._offset_near(descriptor, number, 2**63), (self.first(number) or 1) - 1
            for record in all_records(descriptor, offset, number):
                sequence, count = BATCH_HEADER.unpack_from(record.content)
                last, offset = sequence + count - 1, record.end
        return last, offset

    @property
    def bytes(self) -> int:
        """Of all logs, about: of files, which may be a little longer than what is written in them."""
        total = 0
        for number in self.numbers():
            with contextlib.suppress(FileNotFoundError), self.opened(number) as descriptor:
                total += os.fstat(descriptor).st_size
        return total

    def _first_from(self, descriptor: int, number: int, block: int, before: int) -> Record | None:
        """The first record that begins in one of these blocks."""
        while block < before:
            for record in some_records(descriptor, block * BLOCK_BYTES, number, 2 * BLOCK_BYTES, resume=True):
                return record if record.begin < before * BLOCK_BYTES else None
            block += 1
        return None

    def listed(self) -> list[int]:
        """The numbers of all that are there, in their order."""
        names = set(os.listdir(self.directory))
        with contextlib.suppress(FileNotFoundError):
            names.update(os.listdir(self.directory / "archive"))
        numbers = sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
        with self._lock:
            self._first = {number: first for number, first in self._first.items() if number >= (numbers[0] if numbers else 0)}
        return numbers


def read_manifest(directory: Path) -> Manifest:
    families, last = {0: "default"}, 0
    name = (directory / "CURRENT").read_text().strip()
    with opened(directory / name) as descriptor:
        for record in all_records(descriptor, 0, 0):
            edit = _edit(record.content)
            if _FAMILY_ADDED in edit and _FAMILY in edit:
                families[int(edit[_FAMILY])] = edit[_FAMILY_ADDED].decode(errors="replace")  # type: ignore[union-attr]
            last = max(last, int(edit.get(_LAST_SEQUENCE, 0)))
    return Manifest(families, last)


def _edit(content: bytes) -> dict[int, int | bytes]:
    """The first field of each tag, up to one that is not known: what we want comes before those that vary."""
    found, at = dict[int, int | bytes](), 0
    while at < len(content):
        tag, at = varint(content, at)
        if tag not in _EDIT:
            break
        for number, form in enumerate(_EDIT[tag]):
            value, at = varint(content, at)
            if number == 0:
                found[tag] = content[at : at + value] if form == "s" else value
            if form == "s":
                at += value
    return found


def read_options(directory: Path) -> dict[str, str]:
    """Of the whole database, as it was last opened."""
    names = sorted(name for name in os.listdir(directory) if re.fullmatch(r"OPTIONS-\d+", name))
    options: dict[str, str] = {}
    section = ""
    for line in (directory / names[-1]).read_text(errors="replace").splitlines() if names else []:
        text = line.strip()
        if text.startswith("["):
            section = text
        elif section == "[DBOptions]" and "=" in text:
            name, _, value = text.partition("=")
            options[name.strip()] = value.strip()
    return options
