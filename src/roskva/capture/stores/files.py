"""Append-only files of JSON lines: what HDFS is to the Wormhole paper (2 and 3). The log's form: file_log.py; a line's: file_lines.py.

A position's sequence is the byte position of the line's end in the whole log, its index 1. The byte position rather than the number of the
line, since it leads to its place without reading anything before: the names of the segments say where each begins, and so it is the same in
every copy of the directory. It is checked at every start that a line ends there. What was cut from the front is a LogCut; a log that is
shorter than the position, in which no line ends there, or which is suddenly another one, is a WrongHistory. A rewritten log in which by
chance a line ends there is noticed by a reader that stands there, which remembers the end of what it has read, and by the file `identity`,
if that was rewritten, too; otherwise it is not.

Lines are synced before they are handed out (`sync_first`): without that, a line that was delivered could be taken back by a power loss, and
the one written in its place would be skipped. A line that says no commit time gets the time of its segment's last write, which is about
that of the commit at the log's end, and later before it. A line longer than `line_bytes_max` is a malformed one, as file_lines.py has it.

Readers look for growth every `poll_interval_s`, which costs 2 to 3 % of a core at 5 ms, most of it for waking up. `confirm` removes
nothing: the files are the producer's, who has FileLog.drop_before for that.

Blocking. Must not import anything of the publisher.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from roskva.capture.interface import Finding, Malformed, Retained
from roskva.capture.positions import BEGINNING, Position
from roskva.capture.stores.file_lines import change_of
from roskva.capture.stores.file_log import (
    IDENTITY,
    Segment,
    end_of,
    line_end_before,
    make_identity,
    oldest_of,
    read_identity,
    segments_of,
)
from roskva.capture.stores.file_reader import FileReader, Reading
from roskva.capture.stores.local_files import CLOCK_SLACK_S, answering, opened
from roskva.capture.updates import MALFORMED
from roskva.errors import DatastoreUnavailable, LogCut, RoskvaError, WrongHistory

_COUNTED_MAX: Final = 10_000  # places of malformed lines that are remembered; of more, some may be counted twice


class FileDatastore:
    """The log in one directory. `database` is the name that its changes carry."""

    def __init__(
        self,
        directory: Path,
        database: str = "files",
        *,
        poll_interval_s: float = 0.005,
        line_bytes_max: int = 16 << 20,
        sync_first: bool = True,
    ) -> None:
        self.directory = directory
        self._reading = Reading(directory, database, poll_interval_s, line_bytes_max, sync_first)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._identity: str | None = None
        self._confirmed: Position | None = None
        self._malformed = Malformed(0, "")
        self._counted: set[int] = set()  # where they begin, in the whole log
        self._readers: set[FileReader] = set()

    @property
    def identity(self) -> str:
        """What the file `identity` said when it was first looked at."""
        with self._lock, answering(self.directory):
            if self._identity is None:
                self._identity = read_identity(self.directory)
        if self._identity is None:
            raise DatastoreUnavailable(
                f"The log in {self.directory} has no file {IDENTITY!r}: `prepare`, or whoever writes the log, makes one."
            )
        return self._identity

    def retained(self) -> Retained:
        with answering(self.directory):
            segments = segments_of(self.directory)
            oldest, end = oldest_of(segments), end_of(segments)
            there = read_identity(self.directory) is not None  # otherwise it may be where the disk is mounted that has it
        confirmed = None if self._confirmed is None else min(max(self._confirmed, oldest), end)
        behind = None if confirmed is None else end.sequence - confirmed.sequence
        return Retained(oldest, end, behind, confirmed=confirmed, bytes_kept=end.sequence - oldest.sequence, same_log=there)

    def read_after(self, position: Position) -> FileReader:
        if self._closed.is_set():
            raise DatastoreUnavailable(f"The datastore of {self.directory} was closed.")
        known = self.identity
        with answering(self.directory):
            if read_identity(self.directory) != known:
                raise WrongHistory(position, f"the log in {self.directory} is no longer {known!r}")
            base, offset = self._place_after(position)
        reader = FileReader(self._reading, base, base + offset, self._closed, self._count_malformed, self._forget)
        with self._lock:
            self._readers.add(reader)
        return reader

    def at_time(self, time_s: float) -> Position:
        """The beginning of the first segment that was written to since then: no line of those before it was committed later."""
        with answering(self.directory):
            segments = segments_of(self.directory)
            for segment in segments:
                if segment.path.stat().st_mtime >= time_s - CLOCK_SLACK_S:
                    if 0 < segment.base == segments[0].base and not self._began_before(segment, time_s):
                        raise LogCut(f"the time {time_s:.3f}", oldest_of(segments))
                    return Position(0, segment.base)
            return end_of(segments)

    def malformed(self) -> Malformed:
        with self._lock:
            return self._malformed

    def confirm(self, position: Position) -> None:
        self._confirmed = position

    def prepare(self) -> None:
        """A file `identity`, if there is none."""
        with answering(self.directory):
            make_identity(self.directory)

    def check(self) -> list[Finding]:
        try:
            with answering(self.directory):
                segments, identity = segments_of(self.directory), read_identity(self.directory)
                whole = not segments or oldest_of(segments).sequence == segments[0].base
                ours = {segment.path for segment in segments}
                strange = sorted(path.name for path in self.directory.glob("*.jsonl") if path not in ours)
        except RoskvaError as error:
            return [
                Finding(
                    f"the directory {self.directory} can be read",
                    False,
                    str(error),
                    f"mkdir -p {self.directory}; chmod a+rx {self.directory}",
                )
            ]
        return [
            Finding(f"the directory {self.directory} can be read", True),
            Finding(
                "the log has an identity",
                identity is not None,
                "" if identity else "copies of it cannot be told from other logs",
                "" if identity else f"echo NAME > {self.directory / IDENTITY}",
            ),
            Finding(
                "every file of lines has the name of a segment",
                not strange,
                f"never read: {', '.join(strange[:5])}" if strange else "",
                "name each by the byte position of its beginning in the whole log: twenty digits, .jsonl" if strange else "",
            ),
            Finding(
                "no segment is missing between others",
                whole,
                "" if whole else "whoever reads what is before the hole is told of a loss there",
                "" if whole else "copy the missing segments here, or remove those before them",
            ),
        ]

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            readers = list(self._readers)
        for reader in readers:
            reader.close()

    def _forget(self, reader: FileReader) -> None:
        with self._lock:
            self._readers.discard(reader)

    def _count_malformed(self, place: int, where: str) -> None:
        """Once, though several readers come to it."""
        with self._lock:
            if place in self._counted:
                return
            if len(self._counted) >= _COUNTED_MAX:
                self._counted.clear()
            self._counted.add(place)
            self._malformed = Malformed(self._malformed.lines + 1, where)

    def _place_after(self, position: Position) -> tuple[int, int]:
        """The segment's base, and the offset in it."""
        if position.history != 0:
            raise WrongHistory(position, "a log in files has no history but 0")
        segments, wanted = segments_of(self.directory), position.sequence
        if not segments and wanted > 0:
            raise WrongHistory(position, f"the log in {self.directory} is empty")
        if wanted == 0 and (not segments or segments[0].base == 0):
            return 0, 0
        # Index 0: the line that ends here is wanted, too, and may be the last one of the segment before.
        before = [segment for segment in segments if segment.base + (position.index == 0) <= wanted]
        if not before:
            raise LogCut(position, oldest_of(segments))
        base, path = before[-1]
        offset = wanted - base
        with opened(path) as descriptor:
            size = os.fstat(descriptor).st_size
            if offset > size and before[-1] != segments[-1]:
                raise LogCut(position, oldest_of(segments))
            if offset > size:
                raise WrongHistory(position, f"the log in {self.directory} ends at {base + size} already")
            ends = offset == 0 or os.pread(descriptor, 1, offset - 1) == b"\n" or any(segment.base == wanted for segment in segments)
            if not ends:
                raise WrongHistory(position, f"no line of {path} ends there")
            start = line_end_before(descriptor, offset - 1, size) if position.index == 0 else offset
            return base, start or 0

    def _began_before(self, segment: Segment, time_s: float) -> bool:
        """Whether its first line says that it was committed before, so that nothing cut off is wanted."""
        with segment.path.open("rb") as file:
            line = file.readline(self._reading.line_bytes_max)
        change = change_of(line.removesuffix(b"\n"), BEGINNING, self._reading.database, -1)
        return change.table != MALFORMED and 0 <= change.committed_us <= time_s * 1e6
