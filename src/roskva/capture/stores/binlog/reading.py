"""A reader: one connection, one decoder, and what is between them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from roskva.capture.interface import Batch
from roskva.capture.positions import Position
from roskva.capture.stores.binlog.decoding import ROTATE, Decoder, rotated_to
from roskva.capture.stores.binlog.protocol import Dump, LogRefused
from roskva.capture.updates import Change
from roskva.errors import DatastoreUnavailable, RoskvaError

SILENT_HEARTBEATS: Final = 3  # that may stay away before the connection counts as dead


class BinlogReader:
    """A `Reader`. What waits here between two calls is the rest of one piece of the log, and of the changes of one event."""

    def __init__(
        self,
        dump: Dump,
        decoder: Decoder,
        silence_s_max: float,
        whole_up_to: Callable[[str], int | None],
        meaning: Callable[[Position, LogRefused], Exception],
        closed: Callable[[BinlogReader], None],
    ) -> None:
        """`whole_up_to` is asked for each file of the log, `meaning` what a refusal of the server says of the position that was reached."""
        self._dump = dump
        self._decoder = decoder
        self._silence_s_max = silence_s_max
        self._whole_up_to = whole_up_to
        self._meaning = meaning
        self._on_closed = closed
        self._events: deque[bytes] = deque()
        self._left: list[Change] = []
        self._file = ""
        self._bytes_told = 0
        self._heard_s = time.monotonic()
        self._reading = threading.Lock()
        self._closed = False
        self._failed: Exception | None = None  # to be told when all that came before it was

    def read(self, changes_max: int, timeout_s: float) -> Batch:
        with self._reading:
            if self._closed:
                raise DatastoreUnavailable("The reader of the log was closed.")
            if self._failed is not None:
                raise self._failed
            if not self._left:
                self._decoder.look()
            try:
                changes = self._changes(changes_max, time.monotonic() + timeout_s)
            except LogRefused as error:
                raise self._meaning(self._decoder.reached, error) from error
            reached = changes[-1].position if self._left else self._decoder.reached
            told, self._bytes_told = self._bytes_told, self._dump.bytes_read
            return Batch(changes, reached, self._bytes_told - told)

    def close(self) -> None:
        """From any thread; a read under way ends with DatastoreUnavailable."""
        self._closed = True
        self._dump.interrupt()
        with self._reading:
            self._dump.release()
        self._on_closed(self)

    def _changes(self, changes_max: int, until_s: float) -> list[Change]:
        found, self._left = self._left, []
        began, waits = self._decoder.reached, 0
        while len(found) < changes_max:
            if not self._events:
                # Commits without any change are told as soon as they are read, too: somebody may wait for their positions.
                if found or self._decoder.reached != began or (waits and time.monotonic() >= until_s) or not self._wait(until_s):
                    break
                waits += 1
            if not self._take(self._events.popleft(), found):
                break
        if len(found) > changes_max:
            self._left = found[changes_max:]
            del found[changes_max:]
        return found

    def _take(self, event: bytes, found: list[Change]) -> bool:
        """False: it cannot be understood, and is told of with the next call, since changes came before it that can."""
        before = len(found)
        try:
            if event[4] == ROTATE:
                self._file_begins(rotated_to(event))
            else:
                self._decoder.decode(event, found)
        except RoskvaError as error:
            del found[before:]
            if not found:
                raise
            self._failed = error
            return False
        return True

    def _wait(self, until_s: float) -> bool:
        """For events; False when the time is over."""
        while True:
            now_s = time.monotonic()
            events = self._dump.events(min(until_s - now_s, self._silence_s_max))
            if events:
                self._events.extend(events)
                self._heard_s = now_s
                return True
            if events is None:
                raise DatastoreUnavailable("The server has ended the log that it was sending.")
            now_s = time.monotonic()
            if now_s - self._heard_s > self._silence_s_max:
                raise DatastoreUnavailable(f"The server has sent nothing, not even a heartbeat, for {self._silence_s_max:g} s.")
            if now_s >= until_s:
                return False

    def _file_begins(self, file: str) -> None:
        if file != self._file:
            self._file = file
            self._decoder.file_begins(self._whole_up_to(file), file)
