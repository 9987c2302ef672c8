"""A log in files, as producers write it: segments of JSON lines in one directory, appended to and never changed.

A segment's name is the byte position of its beginning in the whole log, twenty digits and `.jsonl`; the next one begins where it ends. So a
byte position is the same in every copy of the directory, whatever was cut from its front, and leads to its segment without a look into any.
A file `identity` names the log: it is made once, and copied with the rest. Whoever copies a log copies its segments in the order of their
names.

A line without its newline is not committed yet: a producer that was killed in the middle of it left nothing, and the next one takes it off.

Blocking. Must not import anything of the publisher.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from roskva.capture.positions import Position
from roskva.capture.stores.file_lines import Entry, line_of
from roskva.capture.stores.local_files import opened
from roskva.durable import sync_directory
from roskva.errors import BadRequest, DatastoreUnavailable

IDENTITY: Final = "identity"
_LOCK: Final = "writer.lock"
_NAME: Final = re.compile(r"(\d{20})\.jsonl")
_BLOCK_BYTES: Final = 1 << 16


class Segment(NamedTuple):
    base: int  # of its first byte in the whole log
    path: Path


def segment_name(base: int) -> str:
    return f"{base:020d}.jsonl"


def segment_path(directory: Path, base: int) -> Path:
    return directory / segment_name(base)


def segments_of(directory: Path) -> list[Segment]:
    """In their order. Files of other names are none of ours."""
    found = (match for name in os.listdir(directory) if (match := _NAME.fullmatch(name)))
    return sorted(Segment(int(match[1]), directory / match[0]) for match in found)


def read_identity(directory: Path) -> str | None:
    try:
        return (directory / IDENTITY).read_text().strip() or None
    except FileNotFoundError:
        return None


def make_identity(directory: Path) -> str:
    """The log's identity; a new one, if it has none."""
    found = read_identity(directory)
    if found is not None:
        return found
    draft = directory / f"{IDENTITY}.{uuid.uuid4().hex}"
    with draft.open("x") as file:
        file.write(f"files-{uuid.uuid4().hex}\n")
        file.flush()
        os.fsync(file.fileno())
    # Whoever is first has made it: a link, unlike a rename, replaces nothing.
    with contextlib.suppress(FileExistsError):
        os.link(draft, directory / IDENTITY)
    draft.unlink()
    sync_directory(directory)
    return (directory / IDENTITY).read_text().strip()


def line_end_before(descriptor: int, end: int, bytes_max: int) -> int | None:
    """The offset after the last newline before `end`; 0 if there is none; None if there is none in the last `bytes_max`."""
    at = end
    while at > 0 and end - at < bytes_max:
        start = max(0, at - _BLOCK_BYTES)
        found = os.pread(descriptor, at - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        at = start
    return 0 if at <= 0 else None


def oldest_of(segments: Sequence[Segment]) -> Position:
    """The beginning of the log, or what follows the last hole in it: something before that is missing."""
    oldest = segments[-1].base if segments else 0
    for segment in reversed(segments[:-1]):
        if segment.base + segment.path.stat().st_size != oldest:
            break
        oldest = segment.base
    return Position(0, oldest)


def end_of(segments: Sequence[Segment]) -> Position:
    """Of the last whole line."""
    if not segments:
        return Position(0, 0)
    with opened(segments[-1].path) as descriptor:
        size = os.fstat(descriptor).st_size
        return Position(0, segments[-1].base + (line_end_before(descriptor, size, size) or 0))


class FileLog:
    """The writer of a log; there is one at a time. Safe from several threads, whose appends share their fsyncs."""

    def __init__(self, directory: Path, *, segment_bytes: int = 64 << 20, line_bytes_max: int = 16 << 20) -> None:
        self.directory = directory
        self._segment_bytes = segment_bytes
        self._line_bytes_max = line_bytes_max
        self._writing = threading.Lock()
        self._syncing = threading.Lock()
        self._failed = False
        directory.mkdir(parents=True, exist_ok=True)
        self._lock_file = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock_file)
            raise DatastoreUnavailable(f"The log in {directory} is being written by another process.") from None
        self.identity = make_identity(directory)
        segments = segments_of(directory)
        self._base = segments[-1].base if segments else 0
        self._open_segment()
        size = os.fstat(self._descriptor).st_size
        # What is longer than any line may be was not written by us: it may be someone's only copy, and is left for a person to look at.
        end = line_end_before(self._descriptor, size, line_bytes_max + 1)
        if end is None:
            self.close()
            raise BadRequest(
                f"The end of {segment_path(directory, self._base)} is no line: more than {line_bytes_max:,} bytes have no newline."
            )
        if end < size:
            os.ftruncate(self._descriptor, end)
            os.fsync(self._descriptor)
        self._end = self._synced = self._base + end

    def append(self, entries: Sequence[Entry]) -> Position:
        """Make the entries durable, in their order; answers the position of the last. Each is a commit of its own.

        Raises BadRequest if a line is too long: nothing is appended. DatastoreUnavailable: they may or may not be there, and so may the
        appends of others that were under way; this writer is of no use any more, and another one finds out what is there.
        """
        now_us = time.time_ns() // 1000
        lines = [line_of(entry, now_us) for entry in entries]
        for line, entry in zip(lines, entries, strict=True):
            if len(line) > self._line_bytes_max:
                raise BadRequest(
                    f"A change of {entry.table!r} takes {len(line):,} bytes as a line: the limit is {self._line_bytes_max:,}. "
                    "Write large values elsewhere, and their names here."
                )
        return self.append_lines(b"".join(lines))

    def append_lines(self, lines: bytes) -> Position:
        """The same for lines that are there already, each with its newline."""
        if lines and not lines.endswith(b"\n"):
            raise BadRequest("The last line has no newline: it would not be committed.")
        try:
            with self._writing:
                self._still_good()
                self._write(lines)
                end = self._end
            self._sync(end)
        except OSError as error:
            self._failed = True
            raise DatastoreUnavailable(f"The log in {self.directory} cannot be written: {error}.") from error
        return Position(0, end)

    def rotate(self) -> None:
        """Begin a new segment, unless this one is empty. `append` does it by itself when a segment has its size."""
        with self._syncing, self._writing:
            self._still_good()
            if self._end > self._base:
                self._next_segment()

    def drop_before(self, position: Position) -> None:
        """Remove the segments of which nothing comes after this position; never the one that is written to."""
        with self._writing:
            segments = segments_of(self.directory)
            for segment, following in itertools.pairwise(segments):
                if following.base > position.sequence:
                    break
                segment.path.unlink()
            sync_directory(self.directory)

    def close(self) -> None:
        """What was appended is durable already. Idempotent."""
        with self._syncing, self._writing:
            self._failed = True
            for name in ("_descriptor", "_lock_file"):
                descriptor = getattr(self, name)
                if descriptor >= 0:
                    setattr(self, name, -1)
                    os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _write(self, lines: bytes) -> None:
        rest = memoryview(lines)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        self._end += len(lines)

    def _sync(self, end: int) -> None:
        """Group commit: whoever comes first syncs for all that were written meanwhile."""
        with self._syncing:
            if self._synced < end:
                with self._writing:
                    self._still_good()
                    written = self._end
                os.fsync(self._descriptor)
                self._synced = written
            with self._writing:
                if not self._failed and self._end - self._base >= self._segment_bytes:
                    self._next_segment()

    def _next_segment(self) -> None:
        """With both locks held. All of the old segment is durable before there is a new one."""
        os.fsync(self._descriptor)
        self._synced = self._end
        os.close(self._descriptor)
        self._base = self._end
        self._open_segment()

    def _open_segment(self) -> None:
        path = segment_path(self.directory, self._base)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        sync_directory(self.directory)

    def _still_good(self) -> None:
        if self._failed:
            raise DatastoreUnavailable(f"The writer of the log in {self.directory} was closed, or a write failed: open another one.")
