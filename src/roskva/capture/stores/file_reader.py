"""Reads a log in files from one place on: the Reader of files.py, which says what is promised.

It keeps one segment open, and reads it in pieces. What is not committed yet is read anew each time that the file has changed: its producer
may be killed in the middle of a line, and the next one writes another in its place. An open segment that is removed can still be read to
its end; the next one is found by its name, since that is where this one ends.

Blocking. Must not import anything of the publisher.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from roskva.capture.interface import Batch
from roskva.capture.positions import Position
from roskva.capture.stores.file_lines import MALFORMED_BYTES_MAX, change_of, malformed
from roskva.capture.stores.file_log import oldest_of, segment_name, segments_of
from roskva.capture.stores.local_files import answering, commit_us
from roskva.capture.updates import MALFORMED, Change
from roskva.errors import DatastoreUnavailable, LogCut, WrongHistory

_CHUNK_BYTES: Final = 1 << 20
_REMEMBERED_BYTES: Final = 64  # of what was read last: compared with what stands there when more is read
_LOOK_AROUND_S: Final = 1.0  # how often an idle reader looks whether segments are missing


class Reading(NamedTuple):
    """The settings of a datastore that its readers need."""

    directory: Path
    database: str
    poll_interval_s: float
    line_bytes_max: int
    sync_first: bool


class FileReader:
    def __init__(
        self,
        reading: Reading,
        base: int,
        at: int,
        store_closed: threading.Event,
        on_malformed: Callable[[int, str], None],
        on_close: Callable[[FileReader], None],
    ) -> None:
        self._reading = reading
        self._directory = str(reading.directory)
        self._base = base  # of the segment that is open, or will be
        self._at = at  # where the next line begins, in the whole log
        self._reached = at  # what the last batch said
        self._store_closed = store_closed
        self._on_malformed = on_malformed
        self._on_close = on_close
        self._closed = False
        self._lock = threading.Lock()  # held while files are used, not while waiting
        self._descriptor = -1
        self._inode = 0
        self._last = b""  # the end of what was read of this segment
        self._lines = b""  # whole lines, not handed out yet
        self._cursor = 0  # of the next one in them
        self._read_us = 0  # the commit time of lines that say none
        self._seen: tuple[int, int] | None = None  # size and time of the segment when all of it was read
        self._scanned = 0  # offset up to which a line that is too long was searched for its end
        self._synced = 0  # offset
        self._looked_around_s = 0.0

    def read(self, changes_max: int, timeout_s: float) -> Batch:
        """As the interface has it. Raises WrongHistory if what was read is no longer there, or has changed."""
        deadline_s = time.monotonic() + timeout_s
        changes: list[Change] = []
        while True:
            with self._lock:
                if self._closed or self._store_closed.is_set():
                    raise DatastoreUnavailable(f"The reader of the log in {self._reading.directory} was closed.")
                with answering(self._reading.directory):
                    while not changes and (self._cursor < len(self._lines) or self._more(changes)):
                        self._take(changes, changes_max)
            remaining_s = deadline_s - time.monotonic()
            if changes or remaining_s <= 0:
                bytes_read, self._reached = self._at - self._reached, self._at
                return Batch(changes, Position(0, self._at), bytes_read)
            self._store_closed.wait(min(remaining_s, self._reading.poll_interval_s))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._leave_segment()
        self._on_close(self)

    def _take(self, changes: list[Change], changes_max: int) -> None:
        """Turn lines into changes. Blank lines are none."""
        lines, cursor, at, database, read_us = self._lines, self._cursor, self._at, self._reading.database, self._read_us
        room = changes_max - len(changes)
        while room > 0 and cursor < len(lines):
            end = lines.find(b"\n", cursor)
            following = end + 1
            if end < 0:  # the last line of a segment that has a successor may lack its newline
                end = following = len(lines)
            at += following - cursor
            if end > cursor:
                change = change_of(lines[cursor:end], Position(0, at, 1), database, read_us)
                if change.table == MALFORMED:
                    self._tell(at - (following - cursor) - self._base, change)
                changes.append(change)
                room -= 1
            cursor = following
        self._cursor, self._at = cursor, at

    def _more(self, changes: list[Change]) -> bool:
        """Read on, when all lines are taken: whether it is worth to look again at once. A line too long goes to `changes` at once."""
        if self._descriptor < 0 and not self._enter_segment():
            return False
        status = os.fstat(self._descriptor)
        if status.st_size < self._at - self._base:
            raise self._wrong("has been shortened")
        finished = status.st_size > 0 and os.path.exists(self._path(self._base + status.st_size))
        if (status.st_size, status.st_mtime_ns) != self._seen or (finished and self._at < self._base + status.st_size):
            if self._fill(status, finished, changes):
                return True
            self._seen = (status.st_size, status.st_mtime_ns)
        if finished:
            self._leave_segment()
            self._base += status.st_size
            return True
        return self._look_around()

    def _fill(self, status: os.stat_result, finished: bool, changes: list[Change]) -> bool:
        """Whole lines from the segment: whether there are any."""
        offset, size, remembered = self._at - self._base, status.st_size, len(self._last)
        window = min(_CHUNK_BYTES, self._reading.line_bytes_max)
        while True:
            length = min(window, size - offset)
            data = os.pread(self._descriptor, length + remembered, offset - remembered)
            if not data.startswith(self._last):
                raise self._wrong("has been rewritten")
            at_end = offset + length >= size
            end = len(data) if at_end and finished else data.rfind(b"\n", remembered) + 1
            if end > remembered:
                break
            if at_end:
                return False
            if window >= self._reading.line_bytes_max:
                return self._pass_over(data[remembered:], status, finished, changes)
            window = min(2 * window, self._reading.line_bytes_max)
        self._sync(offset + end - remembered, size)
        self._lines, self._cursor, self._last = data[remembered:end], 0, data[max(0, end - _REMEMBERED_BYTES) : end]
        self._read_us = commit_us(status)
        return True

    def _pass_over(self, beginning: bytes, status: os.stat_result, finished: bool, changes: list[Change]) -> bool:
        """The next line is too long to be held: find its end, and report it."""
        offset = self._at - self._base
        at, found = max(offset, self._scanned if self._scanned <= status.st_size else 0), -1
        while found < 0 and at < status.st_size:
            block = os.pread(self._descriptor, min(_CHUNK_BYTES, status.st_size - at), at)
            found = block.find(b"\n")
            at += found + 1 if found >= 0 else len(block)
        if found < 0 and not finished:
            self._scanned = at
            return False
        self._sync(at, status.st_size)
        self._at, self._scanned = self._base + at, 0
        remembered = min(_REMEMBERED_BYTES, at)
        self._lines, self._cursor, self._last = b"", 0, os.pread(self._descriptor, remembered, at - remembered)
        reason = f"longer than {self._reading.line_bytes_max} bytes"
        shown = beginning[:MALFORMED_BYTES_MAX]
        changes.append(malformed(shown, at - offset, reason, Position(0, self._at, 1), self._reading.database, commit_us(status)))
        self._tell(offset, changes[-1])
        return True

    def _tell(self, offset: int, change: Change) -> None:
        """Of a line of this segment that cannot be read."""
        self._on_malformed(self._base + offset, f"{self._path(self._base)}, byte {offset}: {change.columns.get('reason')!s}")

    def _sync(self, needed: int, size: int) -> None:
        """What has been read up to `needed` is durable; and, of the file when it had this size, all: one call does for a whole segment."""
        if self._reading.sync_first and self._synced < needed:
            os.fdatasync(self._descriptor)
            self._synced = size

    def _look_around(self) -> bool:
        """At the end: is this file still the log? Whether it must be looked at again."""
        try:
            replaced, gone = os.stat(self._path(self._base)).st_ino != self._inode, False
        except FileNotFoundError:
            replaced, gone = False, True
        if replaced:  # by a copy, perhaps, which is all right if the same stands in it
            last = self._last
            self._leave_segment()
            if self._enter_segment():
                self._last = last
            return True
        now_s = time.monotonic()
        if gone or now_s - self._looked_around_s > _LOOK_AROUND_S:
            self._looked_around_s = now_s
            segments = segments_of(self._reading.directory)
            later = [segment.base for segment in segments if segment.base > self._base]
            end = self._base + os.fstat(self._descriptor).st_size  # after the listing: it may have grown until then
            if later and later[0] < end:
                raise self._wrong(f"goes on past {later[0]}, where the next one begins")
            if later and later[0] > end:
                raise LogCut(Position(0, self._at), oldest_of(segments))
            if gone and not later:
                raise DatastoreUnavailable(f"{self._path(self._base)} was removed, and nothing follows it.")
        return False

    def _enter_segment(self) -> bool:
        try:
            self._descriptor = os.open(self._path(self._base), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            segments = segments_of(self._reading.directory)
            if segments and segments[-1].base > self._at:
                raise LogCut(Position(0, self._at), oldest_of(segments)) from None
            if self._at > 0:
                raise DatastoreUnavailable(f"{self._path(self._base)} was removed.") from None
            return False  # an empty log: it begins when its first segment is there
        self._inode = os.fstat(self._descriptor).st_ino
        return True

    def _leave_segment(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._last, self._seen, self._scanned, self._synced = -1, b"", None, 0, 0

    def _path(self, base: int) -> str:
        """As text: to build a Path takes longer than all else that an idle reader does."""
        return f"{self._directory}/{segment_name(base)}"

    def _wrong(self, what: str) -> WrongHistory:
        return WrongHistory(Position(0, self._at), f"{self._path(self._base)} {what}")
